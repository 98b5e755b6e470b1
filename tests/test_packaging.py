"""What a wheel holds, what an editable install makes importable, and that no folder shadows a package."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tomllib
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
ENVIRONMENT = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}


def python(code: str, folder: Path) -> str:
    """What `code` prints when Python starts in `folder`."""
    done = subprocess.run([sys.executable, "-c", code], cwd=folder, env=ENVIRONMENT, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


def sources(folder: str) -> set[str]:
    """Files of a package folder that must reach a user, relative to it."""
    return {
        path.relative_to(ROOT / folder).as_posix()
        for path in (ROOT / folder).rglob("*")
        if path.is_file() and "__pycache__" not in path.parts
    }


@pytest.fixture(scope="module")
def wheel(tmp_path_factory) -> set[str]:
    """The names in a wheel built from a copy of the sources, offline."""
    copy = tmp_path_factory.mktemp("sources")
    for name in ("pyproject.toml", "README.md"):
        shutil.copy(ROOT / name, copy)
    for name in ("course_lib", "kernels"):
        shutil.copytree(ROOT / name, copy / name, ignore=shutil.ignore_patterns("__pycache__"))
    code = "from setuptools.build_meta import build_wheel; print(build_wheel('dist'))"
    built = python(code, copy).splitlines()[-1]
    return set(zipfile.ZipFile(copy / "dist" / built).namelist())


def test_wheel_holds_the_engine_with_its_assets(wheel):
    assert {f"course_lib/{name}" for name in sources("course_lib")} <= wheel
    assert "course_lib/assets/tiny/model.safetensors" in wheel


def test_wheel_holds_the_kernels_under_their_import_name_only(wheel):
    assert {f"course_kernels/{name}" for name in sources("kernels")} <= wheel
    assert {name.split("/")[0] for name in wheel if ".dist-info/" not in name} == {"course_lib", "course_kernels"}


@pytest.mark.parametrize("folder", [ROOT, Path("/")], ids=["repository root", "elsewhere"])
def test_both_packages_are_importable(folder):
    code = "import course_kernels, course_lib; print(*course_kernels.__path__, *course_lib.__path__, sep='\\n')"
    assert {str(ROOT / "kernels"), str(ROOT / "course_lib")} <= set(python(code, folder).splitlines())


def test_kernels_folder_is_no_package():
    """A regular package would win over PyPI's `kernels`; a folder without __init__.py loses to it."""
    code = "import importlib.util; spec = importlib.util.find_spec('kernels'); print(spec and spec.origin)"
    assert not python(code, ROOT).startswith(str(ROOT))


def test_transformers_is_importable_from_the_root():
    code = (
        "from transformers import LlamaForCausalLM; from transformers.utils import is_kernels_available as there;"
        "import importlib.util; spec = importlib.util.find_spec('kernels'); print(there(), bool(spec and spec.origin))"
    )
    there, installed = python(code, ROOT).split()
    assert there == installed


def test_console_command_is_the_app():
    scripts = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["scripts"]
    code = (
        "import importlib.metadata as m; [e] = m.entry_points(name='course'); print(e.value, type(e.load()).__name__)"
    )
    assert python(code, Path("/")).split() == [scripts["course"], "Typer"]
