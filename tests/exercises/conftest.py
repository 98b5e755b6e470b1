"""Submissions made from the solution notebooks, and one warm grader for all tests."""

from __future__ import annotations

import copy
import json
from collections.abc import Callable, Iterator
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest

from course_lib.checks import load_exercise
from course_lib.grading.grader import GRADED, Grade, grade
from course_lib.grading.limits import Limits
from course_lib.grading.process import Starter, starter

ROOT = Path(__file__).parents[2]
SEED = 20_260_101
# Short, so that endless loops cost little; generous enough for a busy machine's honest work.
LIMITS = Limits(call_seconds=3, cells_seconds=5)

needs_triton = pytest.mark.skipif(
    find_spec("triton") is None, reason="exercise A1 needs Triton, which has no build for this machine"
)


def notebook(number: str, folder: str = "solutions") -> dict[str, Any]:
    """The notebook of an exercise as JSON."""
    return json.loads((ROOT / folder / load_exercise(number).notebook).read_text(encoding="utf-8"))


def grade_id(cell: dict[str, Any]) -> str | None:
    """nbgrader's id of a cell."""
    return cell["metadata"].get("nbgrader", {}).get("grade_id")


def with_function(name: str, source: str, number: str = "02") -> dict[str, Any]:
    """The solution notebook with the cell of one function replaced."""
    changed = copy.deepcopy(notebook(number))
    [cell] = [cell for cell in changed["cells"] if grade_id(cell) == f"solve-{name}"]
    cell["source"] = source
    return changed


def with_cell(source: str, at: int = 2, number: str = "02") -> dict[str, Any]:
    """The solution notebook with one more code cell, by default before everything else that runs."""
    changed = copy.deepcopy(notebook(number))
    cell = {"cell_type": "code", "id": "extra", "metadata": {}, "outputs": [], "execution_count": None}
    changed["cells"].insert(at - 1, cell | {"source": source})
    return changed


def failures(grade: Grade) -> dict[str, str]:
    """What is said of each function that did not get all its points."""
    return {function.name: function.failure.text for function in grade.functions if function.failure}


def only_positions_fails(grade: Grade) -> str:
    """The text for `positions`; every other function has full points."""
    assert grade.status == GRADED
    assert list(failures(grade)) == ["positions"], failures(grade)
    assert grade.points == grade.max_points - 4
    return failures(grade)["positions"]


@pytest.fixture(scope="session")
def children() -> Iterator[Starter]:
    with starter() as made:
        yield made


@pytest.fixture
def grade_notebook(children: Starter, tmp_path: Path) -> Callable[..., Grade]:
    """Grade a notebook given as JSON, text or bytes; `limits` can be narrowed."""

    def run(content: dict[str, Any] | bytes, limits: Limits = LIMITS, name: str = "student.ipynb") -> Grade:
        path = tmp_path / name
        path.write_bytes(content if isinstance(content, bytes) else json.dumps(content).encode())
        return grade(path, name, children, SEED, limits)

    return run
