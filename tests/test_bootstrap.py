"""course.py: the choice of installer, the stamp, interrupted and offline set-ups, exit statuses.

Installers are stand-ins: shell scripts that log their arguments and exit with the status a test asks for.
"""

from __future__ import annotations

import ast
import importlib.util
import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
pytestmark = pytest.mark.skipif(os.name == "nt", reason="the stand-ins for installers are shell scripts")

FAKE_PYTHON = """#!/bin/sh
echo "$*" >> "$LOG"
case "$*" in
  *--no-index*) exit 1 ;;
  "-m pip install"*" uv") exit 1 ;;
  "-m pip install"*) [ -n "$KILL_INSTALLER" ] && kill -9 $PPID; exit "${PIP_STATUS:-0}" ;;
  "-m pytest"*) exit "${PYTEST_STATUS:-0}" ;;
esac
"""
FAKE_COURSE = """#!/bin/sh
echo "course $*" >> "$LOG"
"""


def load(folder: Path):
    """A fresh copy of the module whose ROOT is `folder`."""
    spec = importlib.util.spec_from_file_location("bootstrap_under_test", folder / "course.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def executable(path: Path, text: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
    path.chmod(0o755)


class Room:
    """A folder with course.py and a .venv of stand-ins."""

    def __init__(self, folder: Path):
        self.folder, self.log = folder, folder / "log"
        shutil.copy(ROOT / "course.py", folder)
        for name in ("pyproject.toml", "constraints.txt"):
            (folder / name).write_text(f"# {name}\n")
        executable(folder / ".venv/bin/python", FAKE_PYTHON)
        executable(folder / ".venv/bin/course", FAKE_COURSE)
        self.site = folder / ".venv/lib/python3.11/site-packages"
        self.site.mkdir(parents=True)

    def run(self, *arguments: str, **environment: str) -> subprocess.CompletedProcess:
        self.log.write_text("")
        return subprocess.run(
            [sys.executable, "course.py", *arguments],
            cwd=self.folder,
            env={"PATH": "/usr/bin:/bin", "LOG": str(self.log), **environment},
            capture_output=True,
            text=True,
        )

    def installed(self) -> list[str]:
        """What the last run asked pip to install, without trial runs."""
        lines = [line for line in self.log.read_text().splitlines() if line.startswith("-m pip install")]
        return [line.split()[-1].rpartition("[")[2].rstrip("]") for line in lines if "-e" in line.split()]

    def package(self, name: str, *, finished: bool = True) -> Path:
        """An installed package of one file, as pip records it. Returns that file."""
        info, file = self.site / f"{name}-1.dist-info", self.site / f"{name}.py"
        info.mkdir()
        file.write_text("x = 1\n")
        (info / "INSTALLER").write_text("pip\n")
        rows = [f"{name}.py,sha256=x,6", f"{info.name}/RECORD,,"]
        (info / "RECORD").write_text("\n".join(rows + [f"{info.name}/INSTALLER,sha256=x,4"] * finished))
        return file

    def packages(self) -> list[str]:
        return sorted(path.name.split("-")[0] for path in self.site.glob("*.dist-info"))


@pytest.fixture
def room(tmp_path) -> Room:
    return Room(tmp_path)


@pytest.fixture
def bootstrap(room):
    return load(room.folder)


# --- Python version ---------------------------------------------------------------------------------------------


def test_old_python_gets_one_sentence(room):
    pretend = (
        "import runpy, sys; sys.version_info = (3, 8, 10, 'final', 0); sys.argv = ['course.py', 'lab'];"
        "runpy.run_path('course.py', run_name='__main__')"
    )
    done = subprocess.run([sys.executable, "-c", pretend], cwd=room.folder, capture_output=True, text=True)
    assert done.returncode == 1
    assert len(done.stderr.splitlines()) == 1
    assert "needs Python 3.11 or newer and this is Python 3.8" in done.stderr


def test_the_file_parses_on_old_python():
    ast.parse((ROOT / "course.py").read_text(), feature_version=(3, 7))


# --- which installer --------------------------------------------------------------------------------------------


def kind(command: list) -> str:
    words = [str(word) for word in command]
    if "--torch-backend=auto" in words:
        return "torch by uv"
    if "--no-index" in words:
        return "torch at hand"
    return "uv" if words[0] == "uv" else "pip"


@pytest.mark.parametrize(
    ("system", "gpu", "uv", "works", "expected", "warns"),
    [
        # works: which trial runs succeed
        ("Linux", False, True, {"torch by uv", "uv"}, ["torch by uv", "uv"], False),
        ("Linux", True, True, {"torch by uv", "uv"}, ["torch by uv", "uv"], False),
        ("Windows", True, True, {"torch by uv", "uv"}, ["torch by uv", "uv"], False),
        # PyTorch's index is out of reach
        ("Linux", False, True, {"torch at hand", "uv"}, ["torch at hand", "uv"], False),
        ("Linux", False, True, {"uv"}, ["uv"], True),
        ("Linux", True, True, {"uv"}, ["uv"], False),
        ("Windows", True, True, {"uv"}, ["uv"], True),
        # uv is there but lacks an index that pip's configuration names
        ("Linux", False, True, {"torch at hand"}, ["torch at hand", "pip"], False),
        # no uv
        ("Linux", False, False, set(), ["pip"], True),
        ("Linux", False, False, {"torch at hand"}, ["torch at hand", "pip"], False),
        ("Linux", True, False, set(), ["pip"], False),
        ("Windows", False, False, set(), ["pip"], False),
        ("Windows", True, False, set(), ["pip"], True),
        ("Darwin", False, False, set(), ["pip"], False),
    ],
)
def test_installer_choice(bootstrap, monkeypatch, capsys, system, gpu, uv, works, expected, warns):
    monkeypatch.setattr(bootstrap.platform, "system", lambda: system)
    monkeypatch.setattr(bootstrap, "has_nvidia_gpu", lambda: gpu)
    monkeypatch.setattr(bootstrap, "find_uv", lambda needed: "uv" if uv else None)
    monkeypatch.setattr(bootstrap, "succeeds", lambda command, **_: kind(command) in works)
    assert [kind(command) for command in bootstrap.install_commands("lab")] == expected
    assert ("Start Locally" in capsys.readouterr().out) == warns


def test_trial_runs_change_nothing_and_give_up_soon(bootstrap, monkeypatch):
    trials = []
    monkeypatch.setattr(bootstrap, "has_nvidia_gpu", lambda: False)
    monkeypatch.setattr(bootstrap, "find_uv", lambda needed: "uv")
    monkeypatch.setattr(bootstrap, "succeeds", lambda command, **environment: trials.append((command, environment)))
    bootstrap.install_commands("lab")
    assert trials
    for command, environment in trials:
        assert "--dry-run" in command
        assert command[0] != "uv" or environment == {"UV_HTTP_TIMEOUT": "10", "UV_HTTP_RETRIES": "0"}


def test_uv_is_installed_only_where_it_is_needed(bootstrap, monkeypatch):
    monkeypatch.setenv("PATH", "")
    monkeypatch.setattr(bootstrap, "succeeds", lambda command: executable(bootstrap.BIN / "uv", "#!/bin/sh\n"))
    assert bootstrap.find_uv(needed=False) is None
    assert bootstrap.find_uv(needed=True) == str(bootstrap.BIN / "uv")


@pytest.mark.parametrize(("status", "expected"), [(0, True), (9, False)])
def test_a_driver_without_a_gpu_is_no_gpu(bootstrap, monkeypatch, tmp_path, status, expected):
    executable(tmp_path / "tools/nvidia-smi", f"#!/bin/sh\nexit {status}\n")
    monkeypatch.setenv("PATH", str(tmp_path / "tools"))
    monkeypatch.setattr(bootstrap, "NVIDIA_GPUS", tmp_path / "absent")
    assert bootstrap.has_nvidia_gpu() is expected


# --- stamp ------------------------------------------------------------------------------------------------------


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


# --- interrupted and offline ------------------------------------------------------------------------------------


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


@pytest.mark.parametrize("arguments", [[], ["--help"]])
def test_help_installs_nothing(room, arguments):
    done = room.run(*arguments)
    assert done.returncode == 0 and "python3 course.py lab" in done.stdout
    assert room.log.read_text() == ""


# --- hand-over --------------------------------------------------------------------------------------------------


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


def test_lab_opens_without_the_chat_model(room):
    executable(room.folder / ".venv/bin/course", '#!/bin/sh\necho "course $*" >> "$LOG"\nexit 1\n')
    assert room.run("lab", "--no-browser").returncode == 0
    fetch, lab = room.log.read_text().splitlines()[-2:]
    assert fetch == "course fetch"
    assert lab.startswith("-m jupyterlab ")


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
