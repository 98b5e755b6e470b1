"""A folder with course.py and stand-ins for installers: scripts that log their arguments and exit as a test asks."""

from __future__ import annotations

import importlib.util
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]

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
    if os.name == "nt":
        pytest.skip("the stand-ins for installers are shell scripts")
    return Room(tmp_path)


@pytest.fixture
def bootstrap(room):
    return load(room.folder)
