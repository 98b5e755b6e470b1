"""What the launchers launch, compiled for four GPUs: registers, shared memory and instructions."""

from __future__ import annotations

from tests.kernels.harness import run_folder


def test_compiled():
    run_folder("compiled", interpret="0")
