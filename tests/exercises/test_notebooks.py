"""The exercise notebooks: solutions pass, starters fail, and the two folders say the same."""

from __future__ import annotations

import os
import re
import shutil
import sys
from pathlib import Path

import nbclient
import nbformat
import pytest
from nbgrader.apps import NbGraderAPI
from traitlets.config import Config

from course_lib.checks import EXERCISES, load_exercise
from course_lib.grading.grader import GRADED, UNREADABLE
from course_lib.grading.release import release_text
from tests.exercises.conftest import ROOT, grade_id, needs_triton, notebook

each_exercise = pytest.mark.parametrize("number", EXERCISES)
each_that_runs = pytest.mark.parametrize(
    "number", [pytest.param(number, marks=needs_triton) if number == "A1" else number for number in EXERCISES]
)


@each_that_runs
def test_solution_gets_every_point(grade_notebook, number):
    grade = grade_notebook(notebook(number))
    assert [(f.name, f.failure) for f in grade.functions if f.failure] == []
    assert grade.points == grade.max_points > 0
    assert (grade.status, grade.notes) == (GRADED, [])


@each_that_runs
def test_starter_gets_none_and_is_told_so(grade_notebook, number):
    grade = grade_notebook(notebook(number, "exercises"))
    assert grade.status == GRADED != UNREADABLE and grade.points == 0
    assert {function.failure.hint_key for function in grade.functions} == {"starter"}
    assert grade.notes == []


@each_that_runs
def test_solution_runs_from_top_to_bottom(number):
    path = ROOT / "solutions" / load_exercise(number).notebook
    done = nbclient.NotebookClient(nbformat.read(path, as_version=4), timeout=120, resources={}).execute()
    text = "".join(o.get("text", "") for cell in done.cells for o in cell.get("outputs", []))
    for problem in load_exercise(number):
        assert f"{number}.{problem.name}: public checks passed" in text
        assert f"{number}.{problem.name}: hidden checks passed" in text
    assert "all tests passed" not in text.lower()


def test_starter_check_says_what_to_do_without_a_traceback():
    """As Jupyter shows it: the message of the first check, and nothing of the inside."""
    starter = nbformat.read(ROOT / "exercises" / load_exercise("02").notebook, as_version=4)
    starter.cells = [cell for cell in starter.cells if cell.cell_type == "code"][:3]
    client = nbclient.NotebookClient(starter, timeout=120, allow_errors=True)
    [output] = client.execute().cells[2].outputs
    shown = "\n".join(output["traceback"])
    assert "the function is still the starter" in shown and "Write the function's body first." in shown
    assert "Traceback" not in shown and "course_lib" not in shown and len(shown.splitlines()) <= 4


@each_exercise
def test_exercises_are_released_from_solutions(number):
    name = load_exercise(number).notebook
    committed = (ROOT / "exercises" / name).read_text(encoding="utf-8")
    assert committed == release_text(ROOT / "solutions" / name), "run python -m course_lib.grading.release"
    assert "SOLUTION" not in committed and "HIDDEN" not in committed


@each_exercise
def test_check_cells_fit_the_problems(number):
    cells = notebook(number)["cells"]
    for problem in load_exercise(number):
        [solve] = [cell for cell in cells if grade_id(cell) == f"solve-{problem.name}"]
        [check] = [cell for cell in cells if grade_id(cell) == f"check-{problem.name}"]
        assert re.search(rf"def {problem.name}\(\s*{problem.arguments[0]}\b", "".join(solve["source"]))
        assert "".join(check["source"]).startswith(f'check("{number}.{problem.name}", {problem.name})\n')
        assert check["metadata"]["nbgrader"]["points"] == problem.public_points + problem.hidden_points


def test_nbgrader_itself_makes_the_same_release(tmp_path, monkeypatch):
    """`nbgrader generate_assignment` on solutions/, as a teacher would run it."""
    scripts = str(Path(sys.executable).parent)  # nbgrader calls `alembic` by name
    monkeypatch.setenv("PATH", scripts + os.pathsep + os.environ["PATH"])
    for number in EXERCISES:
        folder = tmp_path / "source" / f"ex{number}"
        folder.mkdir(parents=True)
        shutil.copy(ROOT / "solutions" / load_exercise(number).notebook, folder)
    config = Config()
    config.CourseDirectory.root = str(tmp_path)
    api = NbGraderAPI(config=config)
    for number in EXERCISES:
        assert api.generate_assignment(f"ex{number}")["success"]
        name = load_exercise(number).notebook
        made = nbformat.read(tmp_path / "release" / f"ex{number}" / name, as_version=4)
        assert made.cells == nbformat.read(ROOT / "exercises" / name, as_version=4).cells
