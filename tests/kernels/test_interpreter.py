"""When Triton interprets and when it compiles: settled once per process, so each case is a process."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

pytest.importorskip("triton", reason="Triton has no build for this machine")


def run(code: str, **variables: str) -> str:
    environment = {k: v for k, v in os.environ.items() if not k.startswith("TRITON")} | variables
    done = subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, text=True)
    return done.stdout.strip() or done.stderr.strip().splitlines()[-1]


NO_GPU = "import torch; torch.cuda.is_available = lambda: False\n"
ONE_GPU = "import torch; torch.cuda.is_available = lambda: True\n"
ASK = "from course_kernels.interpreter import interpret; print(interpret({}))"


def test_without_a_gpu_kernels_are_interpreted():
    assert run(NO_GPU + ASK.format("")) == "True"


def test_with_a_gpu_they_are_compiled_unless_the_interpreter_is_asked_for():
    assert run(ONE_GPU + ASK.format("")) == "False"
    assert run(ONE_GPU + ASK.format("always=True")) == "True"


def test_the_environment_decides_where_it_is_set():
    assert run(ONE_GPU + ASK.format(""), TRITON_INTERPRET="1") == "True"


@pytest.mark.parametrize("before, variables", [("", {"TRITON_INTERPRET": "0"}), ("import triton\n", {})])
def test_too_late_is_one_sentence(before, variables):
    assert run(NO_GPU + before + ASK.format(""), **variables) == (
        "course_lib.errors.CourseError: Triton compiles kernels in this process and cannot interpret them; "
        "set TRITON_INTERPRET=1 before Python or the notebook's kernel starts"
    )


def test_without_triton_it_says_where_there_is_one():
    hidden = "import sys; sys.modules['triton'] = None\n"
    assert "the package triton is missing" in run(NO_GPU + hidden + ASK.format(""))
