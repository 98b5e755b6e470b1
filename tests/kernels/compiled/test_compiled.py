"""compiled.md is what the kernels compile to now, and no row of it spills."""

from __future__ import annotations

import pytest

from course_kernels import compiled
from course_kernels.cuda import nvrtc

TEXT = compiled.PATH.read_text(encoding="utf-8")
OLD = f"kernels/compiled.md is out of date; renew it: {compiled.COMMAND}"


def part(begin: str, end: str | None = None) -> str:
    return TEXT[TEXT.index(begin) : TEXT.index(end) if end else None]


def test_it_explains_itself_and_lists_the_launches():
    assert part("# Compiled", "## Triton") == compiled.introduction() + "\n", OLD


def test_every_row_is_what_triton_compiles():
    """All targets and launches. The other tests of this process have compiled most of them, so it takes seconds."""
    if compiled.triton_version() not in TEXT:
        pytest.skip(f"kernels/compiled.md is of another Triton than this one: {compiled.triton_version()}")
    assert part("## Triton", "## CUDA C++") == compiled.triton_part() + "\n", OLD


def test_every_row_is_what_nvrtc_compiles():
    if nvrtc.nvrtc is None:
        pytest.skip("NVRTC has no build for this machine, so CUDA C++ is not tested")
    if compiled.cuda_version() not in TEXT:
        pytest.skip(f"kernels/compiled.md is of another NVRTC than this one: {compiled.cuda_version()}")
    assert part("## CUDA C++") == compiled.cuda_part(), OLD


def test_no_row_spills():
    column = compiled.COLUMNS.index("spilled") + 1
    rows = [line.strip("| ").split(" | ") for line in TEXT.splitlines() if line.startswith("| ") and "`_" in line]
    assert len(rows) > 100
    assert all(row[column] == "0" for row in rows)
