"""The ways to run with less: without the warm zygote, and without seccomp."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest

from course_lib.grading.grader import grade
from course_lib.grading.process import Spawner
from tests.exercises.conftest import LIMITS, SEED, with_function

WITHOUT_SECCOMP = """
import json, sys
sys.modules["pyseccomp"] = None  # as where it is not installed
from course_lib.grading.sandbox import isolate
print(json.dumps(isolate()))
"""


@pytest.mark.skipif(sys.platform == "win32", reason="sockets reach a child another way on Windows")
def test_spawned_children_grade_alike(tmp_path):
    """What macOS does: each child a new interpreter."""
    path = tmp_path / "student.ipynb"
    source = "import os\ndef step_seconds(*args):\n    os._exit(7)"
    path.write_text(json.dumps(with_function("step_seconds", source, number="01")))
    with Spawner() as starter:
        result = grade(path, "student.ipynb", starter, SEED, LIMITS)
    assert [f.name for f in result.functions if f.failure] == ["step_seconds"]
    assert "exit status 7" in result.functions[-1].failure.text
    assert result.points == result.max_points - 4


@pytest.mark.skipif(sys.platform != "linux", reason="seccomp and Landlock are Linux's")
def test_a_weaker_sandbox_says_so():
    done = subprocess.run([sys.executable, "-c", WITHOUT_SECCOMP], capture_output=True, text=True, check=True)
    report = json.loads(done.stdout)
    assert "pyseccomp or libseccomp is missing" in report["network"]
    assert "pyseccomp or libseccomp is missing" in report["processes"] and "RLIMIT_NPROC" in report["processes"]
