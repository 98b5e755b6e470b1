"""Every kernel against a float64 reference, in Triton's interpreter."""

from __future__ import annotations

from tests.kernels.harness import run_folder


def test_interpreted():
    run_folder("interpreted", interpret="1")
