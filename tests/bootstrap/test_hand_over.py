"""What course.py runs after the set-up, and the exit status it returns."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys

import pytest

from tests.bootstrap.conftest import ROOT, executable


@pytest.mark.parametrize("arguments", [[], ["--help"]])
def test_help_installs_nothing(room, arguments):
    done = room.run(*arguments)
    assert done.returncode == 0 and "python3 course.py lab" in done.stdout
    assert room.log.read_text() == ""


@pytest.mark.parametrize("status", [0, 1, 2, 5])
def test_exit_status_of_the_tests_is_passed_on(room, status):
    done = room.run("test", "-k", "cache", PYTEST_STATUS=str(status))
    assert done.returncode == status
    assert room.log.read_text().splitlines()[-1] == "-m pytest -n 2 --dist loadfile -k cache"


def test_exit_status_on_windows_survives_ctrl_c(bootstrap, monkeypatch):
    class Child:
        answers = iter([KeyboardInterrupt, 2])

        def __init__(self, command):
            pass

        def wait(self):
            answer = next(self.answers)
            if answer is KeyboardInterrupt:
                raise answer
            return answer

    monkeypatch.setattr(bootstrap, "WINDOWS", True)
    monkeypatch.setattr(bootstrap.subprocess, "Popen", Child)
    with pytest.raises(SystemExit) as stopped:
        bootstrap.become(["python"])
    assert stopped.value.code == 2


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        (["--no-browser", "--port", "9000"], ["--ip=127.0.0.1", "--no-browser", "--port", "9000"]),
        (["--host", "0.0.0.0"], ["--ip", "0.0.0.0"]),
        (["--host=0.0.0.0", "--port=9000"], ["--ip=0.0.0.0", "--port=9000"]),
        (["--ServerApp.ip=::1"], ["--ServerApp.ip=::1"]),
    ],
)
def test_lab_options(bootstrap, monkeypatch, options, expected):
    monkeypatch.setattr(bootstrap.os, "geteuid", lambda: 1000)
    command = bootstrap.lab_command(options)
    assert command[-len(expected) :] == expected
    assert sum("ip" in str(word).split("=")[0].lower().split(".")[-1].split("-") for word in command) == 1
    assert "--allow-root" not in command
    monkeypatch.setattr(bootstrap.os, "geteuid", lambda: 0)
    assert "--allow-root" in bootstrap.lab_command(options)


@pytest.mark.parametrize(("command", "runs"), [("lab", "-m jupyterlab "), ("test", "-m pytest ")])
def test_a_chat_model_out_of_reach_stops_nothing(room, command, runs):
    executable(room.folder / ".venv/bin/course", '#!/bin/sh\necho "course $*" >> "$LOG"\nexit 1\n')
    assert room.run(command).returncode == 0
    fetch, handed_over = room.log.read_text().splitlines()[-2:]
    assert fetch == "course fetch"
    assert handed_over.startswith(runs)


def test_doctor_needs_no_set_up(tmp_path):
    """On a Python without any package: it reports what is missing and makes nothing."""
    shutil.copy(ROOT / "course.py", tmp_path)
    shutil.copytree(ROOT / "course_lib", tmp_path / "course_lib", ignore=shutil.ignore_patterns("assets"))
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", tmp_path / "bare"], check=True)
    environment = {name: value for name, value in os.environ.items() if not name.startswith(("PYTHON", "COURSE_"))}
    done = subprocess.run(
        [tmp_path / "bare/bin/python", "course.py", "doctor"],
        cwd=tmp_path,
        env=environment,
        capture_output=True,
        text=True,
    )
    assert (done.returncode, done.stderr) == (0, "")
    assert "missing  torch" in done.stdout
    assert "python3 course.py lab" in done.stdout
    assert not (tmp_path / ".venv").exists()
