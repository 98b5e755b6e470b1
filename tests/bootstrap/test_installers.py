"""Which installer course.py takes, and which build of torch a machine gets."""

from __future__ import annotations

import pytest

from tests.bootstrap.conftest import executable


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
