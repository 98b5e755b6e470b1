"""course.py's set-up: once, again when something changed, after an interruption, without a network."""

from __future__ import annotations

import json
import subprocess

import pytest

from tests.bootstrap.conftest import executable


def test_second_run_installs_nothing(room):
    assert room.run("chat").returncode == 0
    assert room.installed() == ["lab"]
    assert room.run("chat", "--model", "tiny").returncode == 0
    assert room.log.read_text() == "course chat --model tiny\n"


@pytest.mark.parametrize("name", ["constraints.txt", "pyproject.toml"])
def test_changed_requirements_are_installed(room, name):
    room.run("chat")
    (room.folder / name).write_text("# another version\n")
    room.run("chat")
    assert room.installed() == ["lab"]


def test_test_includes_lab(room):
    room.run("chat")
    room.run("test")
    assert room.installed() == ["test"]
    room.run("chat")
    assert room.installed() == []
    (room.folder / "constraints.txt").write_text("# another version\n")
    room.run("chat")
    assert room.installed() == ["test"], "an update for `lab` must not drop what `test` needs"


def test_a_moved_folder_is_installed_again(room, tmp_path_factory):
    room.run("chat")
    moved = tmp_path_factory.mktemp("elsewhere") / "course"
    room.folder.rename(moved)
    room.folder, room.log = moved, moved / "log"
    room.run("chat")
    assert room.installed() == ["lab"]


def test_jupyterlab_news_are_off(room):
    room.run("chat")
    settings = json.loads((room.folder / ".venv/share/jupyter/lab/settings/overrides.json").read_text())
    assert settings["@jupyterlab/apputils-extension:notification"] == {"fetchNews": "false", "checkForUpdates": False}


def test_interrupted_set_up_resumes(room):
    room.package("whole")
    room.package("unfinished", finished=False)
    room.package("truncated").write_text("x")
    room.package("lost").unlink()
    assert room.run("chat", KILL_INSTALLER="1").returncode == -9
    assert not (room.folder / ".venv/course-stamp.json").exists()
    assert room.run("chat").returncode == 0
    assert room.installed() == ["lab"]
    assert room.packages() == ["whole"], "an installer would take a damaged package for complete"


def test_interrupted_update_is_repaired(room):
    room.run("chat")
    damaged = room.package("damaged")
    (room.folder / "constraints.txt").write_text("# another version\n")
    assert room.run("chat", KILL_INSTALLER="1").returncode == -9
    damaged.unlink()
    offline = room.run("chat", PIP_STATUS="1")
    assert offline.returncode == 1, "an environment with damaged packages is not usable"
    assert room.run("chat").returncode == 0
    assert room.installed() == ["lab"]


def test_interrupted_tests_set_up_is_noticed_by_lab(room):
    room.run("chat")
    assert room.run("test", KILL_INSTALLER="1").returncode == -9
    room.package("unfinished", finished=False)
    assert room.run("chat").returncode == 0
    assert room.installed() == ["lab"] and room.packages() == []


def test_no_network_at_first_gives_the_way_out(room):
    done = room.run("chat", PIP_STATUS="1")
    assert done.returncode == 1
    assert done.stderr.splitlines()[-1].startswith("Set-up is not complete")
    assert "course chat" not in room.log.read_text()


def test_no_network_at_an_update_leaves_the_course_usable(room):
    room.run("chat")
    (room.folder / "constraints.txt").write_text("# another version\n")
    done = room.run("chat", PIP_STATUS="1")
    assert done.returncode == 0
    assert "starts with those installed earlier" in done.stdout
    assert "course chat" in room.log.read_text()
    room.run("chat")
    assert room.installed() == ["lab"], "the next run must try the update again"


def test_without_network_the_tests_do_not_run_on_a_lab_environment(room):
    room.run("chat")
    assert room.run("test", PIP_STATUS="1").returncode == 1
    assert "-m pytest" not in room.log.read_text()


def test_half_made_environment_is_made_again(room, bootstrap):
    executable(bootstrap.PYTHON, "#!/bin/sh\nexit 1\n")
    bootstrap.make_venv()
    version = subprocess.run([bootstrap.PYTHON, "-m", "pip", "--version"], capture_output=True, text=True)
    assert version.stdout.startswith("pip ")
