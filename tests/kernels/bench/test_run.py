"""The benchmark as a whole: everything on tiny shapes, nothing without a GPU, and no kernel left out."""

from __future__ import annotations

import ast
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from course_kernels import bench as package
from course_kernels.bench.cases import cases
from course_kernels.bench.plan import SECTIONS, plan
from course_kernels.bench.sizes import FULL, SMALL

KERNELS = Path(package.__file__).parent.parent


def bench(*options: str, **environment: str) -> subprocess.CompletedProcess:
    clean = {name: value for name, value in os.environ.items() if not name.startswith(("TRITON", "COURSE"))}
    return subprocess.run(
        [sys.executable, "-m", "course_kernels.bench", *options],
        env=clean | {"OMP_NUM_THREADS": "1"} | environment,
        capture_output=True,
        text=True,
    )


@pytest.mark.slow
def test_small_mode_runs_everything(tmp_path):
    """Every entry but those that only a GPU can run. Nothing is claimed of the machine."""
    pytest.importorskip("triton", reason="Triton has no build for this machine")
    path = tmp_path / "bench.json"
    done = bench("--small", "--json", str(path))
    assert done.returncode == 0, done.stdout + done.stderr
    assert "interpreted: times mean nothing" in done.stdout and "All checks passed" in done.stdout
    result = json.loads(path.read_text())
    assert result["settings"]["small"] and result["versions"]["triton"] and result["rates"] == {}
    assert [section for section in result if section in SECTIONS] == list(SECTIONS)
    records = [record for section in SECTIONS for record in result[section]]
    needs_gpu = [record["name"] for record in records if record["status"] != "done"]
    assert all("CUDA" in name for name in needs_gpu) and len(needs_gpu) == 4, needs_gpu
    for record in result["kernels"]:
        if record["status"] == "done":
            assert min(record["seconds"]) > 0 and record["bytes"] > 0 and record["counted"]
            assert record["peer"] is None or min(record["peer"]["seconds"]) > 0, record["peer"]
            assert record["verdict"]["share"] is None and record["verdict"]["reached"] is None
    for record in result["model"][1:]:
        assert [run["batch"] for run in record["runs"]] == [1, SMALL.batch]
        assert all(len(run["step_s"]) == SMALL.new_tokens - 1 for run in record["runs"])


def test_without_a_gpu_it_says_so_in_one_sentence():
    done = bench(CUDA_VISIBLE_DEVICES="")
    assert done.returncode == 1
    assert done.stderr.count("\n") == 1 and "needs an NVIDIA GPU and torch sees none; --small runs it" in done.stderr


def test_every_kernel_is_checked_and_measured():
    operations = set()
    for file in (KERNELS / "triton").glob("*.py"):
        reference = KERNELS / "reference" / file.name
        if reference.exists():
            public = functions(file) & functions(reference)
            operations |= {f"{file.stem}.{name}" for name in public}
    assert len(operations) >= 9
    assert {case.operation for case in cases(FULL)} == operations
    assert len({entry.name for entry in plan(False, 0)}) == len(plan(False, 0))


def functions(file: Path) -> set[str]:
    found = ast.parse(file.read_text()).body
    return {node.name for node in found if isinstance(node, ast.FunctionDef) and not node.name.startswith("_")}
