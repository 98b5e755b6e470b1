"""Run a folder of kernel tests in a process of its own and report what it reports."""

from __future__ import annotations

import os
import subprocess
import sys
import warnings
from pathlib import Path

import pytest

HERE = Path(__file__).parent
SECONDS = 900  # a hang ends; a busy machine's honest work does not


def run_folder(folder: str, interpret: str) -> None:
    """Fail with the inner pytest's report unless every test of tests/kernels/`folder` passes; show its skips."""
    pytest.importorskip("triton", reason="Triton has no build for this machine, so its kernels are not tested")
    environment = {name: value for name, value in os.environ.items() if not name.startswith(("PYTEST", "TRITON"))}
    command = [sys.executable, "-m", "pytest", "-o", "addopts=-ra --strict-markers", "-q", "-p", "no:cacheprovider"]
    done = subprocess.run(
        [*command, HERE / folder],
        env=environment | {"TRITON_INTERPRET": interpret},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=SECONDS,
    )
    print(done.stdout)
    for line in done.stdout.splitlines():
        if line.startswith("SKIPPED"):
            warnings.warn(line, stacklevel=2)  # a passing test's output is not shown, its warnings are
    assert done.returncode == 0, f"tests/kernels/{folder} exits with {done.returncode}; its report is printed below"
