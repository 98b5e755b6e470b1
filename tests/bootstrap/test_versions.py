"""course.py refuses a machine that torch has no build for, in one sentence."""

from __future__ import annotations

import ast
import subprocess
import sys
import tomllib

import pytest

from tests.bootstrap.conftest import ROOT


@pytest.mark.parametrize("version", [(3, 8), (3, 10), (3, 15)])
def test_unfit_python_gets_one_sentence(room, version):
    pretend = (
        f"import runpy, sys; sys.version_info = {(*version, 1, 'final', 0)}; sys.argv = ['course.py', 'lab'];"
        "runpy.run_path('course.py', run_name='__main__')"
    )
    done = subprocess.run([sys.executable, "-c", pretend], cwd=room.folder, capture_output=True, text=True)
    assert done.returncode == 1
    assert len(done.stderr.splitlines()) == 1
    assert f"runs on Python 3.11 to 3.14 and this is Python {version[0]}.{version[1]}:" in done.stderr


def test_accepted_versions_are_those_of_the_package():
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    assert project["requires-python"] == ">=3.11,<3.15"


@pytest.mark.parametrize(
    ("machine", "version", "fits"), [("arm64", "14.1", 1), ("arm64", "13.6", 0), ("x86_64", "15.0", 0)]
)
def test_macs_without_a_torch_build_get_one_sentence(bootstrap, monkeypatch, machine, version, fits):
    monkeypatch.setattr(bootstrap.platform, "system", lambda: "Darwin")
    monkeypatch.setattr(bootstrap.platform, "machine", lambda: machine)
    monkeypatch.setattr(bootstrap.platform, "mac_ver", lambda: (version, ("", "", ""), machine))
    if fits:
        bootstrap.refuse_macs_without_torch()
    else:
        with pytest.raises(SystemExit, match="macOS 14 and newer on Apple processors"):
            bootstrap.refuse_macs_without_torch()


def test_the_file_parses_on_old_python():
    ast.parse((ROOT / "course.py").read_text(), feature_version=(3, 7))
