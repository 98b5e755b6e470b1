"""Odd cells and files: each gets its note or its reason, and what can be graded is."""

from __future__ import annotations

import copy

import pytest

from course_lib.grading.grader import NOT_RUN, UNREADABLE
from course_lib.grading.limits import Limits
from tests.exercises.conftest import grade_id, notebook, only_positions_fails, with_cell, with_function

POSITIONS_FROM_ZERO = "import torch\ndef positions(cached, new):\n    return torch.arange(new)"


@pytest.mark.parametrize(
    "source,said",
    [
        ("1 / 0", "ZeroDivisionError"),
        ("def broken(:", "SyntaxError"),
        ("import sys; sys.exit(1)", "SystemExit"),
        ("import os; os._exit(1)", "it ended the Python process with exit status 1"),
        ("while True: pass", "it ran longer than the limit of 2 s"),
        ("while True: print('x' * 10_000_000)", "it printed or wrote more than"),
        ("get_ipython().run_line_magic('matplotlib', 'inline')", "NameError"),
    ],
)
def test_bad_cell_is_noted_and_the_rest_counts(grade_notebook, source, said):
    grade = grade_notebook(with_cell(source), Limits(call_seconds=3, cells_seconds=2))
    assert grade.points == grade.max_points
    [note] = grade.notes
    assert note.startswith("Cell 2 did not run through") and said in note


def test_magics_are_left_out(grade_notebook):
    grade = grade_notebook(with_cell("%matplotlib inline\n!ls\nif True:\n    %time 1"))
    assert (grade.points, grade.notes) == (grade.max_points, [])


def test_notebook_whose_cells_all_end_the_process_is_not_run(grade_notebook):
    changed = copy.deepcopy(notebook("02"))
    for cell in changed["cells"]:
        cell["source"] = "import os; os._exit(1)" if cell["cell_type"] == "code" else cell["source"]
    changed["cells"].append(with_cell('check("02.append", append)')["cells"][1])
    grade = grade_notebook(changed)
    assert grade.status == NOT_RUN and "ended the program" in grade.reason and not grade.functions


def test_deleted_and_tampered_checks_change_nothing(grade_notebook):
    changed = with_function("positions", POSITIONS_FROM_ZERO)
    kept = []
    for cell in changed["cells"]:
        if grade_id(cell) == "check-append":
            continue
        if grade_id(cell) == "check-positions":
            cell["source"] = "print('02.positions: public checks passed')"
        kept.append(cell)
    grade = grade_notebook(changed | {"cells": kept})
    only_positions_fails(grade)
    assert grade.notes == [
        "The check cell of append, positions was changed or deleted; the grader's own cases counted."
    ]


def test_silenced_errors_earn_nothing(grade_notebook):
    changed = with_function("positions", POSITIONS_FROM_ZERO)
    for cell in changed["cells"]:
        if grade_id(cell) == "check-positions":
            cell["source"] = "try:\n    check('02.positions', positions)\nexcept BaseException:\n    print('passed')"
    only_positions_fails(grade_notebook(changed))


def test_missing_function(grade_notebook):
    text = only_positions_fails(grade_notebook(with_function("positions", "# nothing here")))
    assert text == "the notebook defines no function of this name"


def test_duplicated_cells_are_noted_and_the_last_counts(grade_notebook):
    changed = with_function("positions", POSITIONS_FROM_ZERO)
    right = [
        c for c in notebook("02")["cells"] if c["metadata"].get("nbgrader", {}).get("grade_id") == "solve-positions"
    ]
    grade = grade_notebook(changed | {"cells": changed["cells"] + right})
    assert grade.points == grade.max_points
    assert "solve-positions" in grade.notes[0]


# --- files that are no notebooks ---


@pytest.mark.parametrize(
    "content,said",
    [
        (b"", "not valid JSON"),
        (b'{"cells": [', "not valid JSON"),
        (b"\x89PNG\r\n\x1a\n\xff\xfe\x00", "not text"),
        (b"[" * 200_000, "nested too deeply"),
        (b"[1, 2]", "no list of cells"),
        (b'{"cells": {"0": 1}}', "no list of cells"),
        (b'{"cells": [1, null, {"cell_type": "code", "source": 3}]}', "no code cells"),
        (b'{"cells": [{"cell_type": "code", "source": "x = 1"}]}', "does not say which exercise"),
        (b"9" * 10_000, "not valid JSON"),
        (b" " * 21_000_000, "larger than 20 MB"),
        (
            b'{"cells": [{"cell_type": "code", "source": "#' + b"x" * 1_000_000 + b'"}]}',
            "more than 1,000,000 characters",
        ),
    ],
    ids=lambda value: value if isinstance(value, str) else "file",
)
def test_unreadable_is_not_zero(grade_notebook, content, said):
    grade = grade_notebook(content)
    assert grade.status == UNREADABLE and said in grade.reason and grade.functions == []


def test_exercise_is_known_without_metadata(grade_notebook):
    changed = notebook("02")
    del changed["metadata"]
    grade = grade_notebook(changed)
    assert (grade.exercise, grade.points) == ("02", grade.max_points)
