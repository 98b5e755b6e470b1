"""Make exercises/ from solutions/ with nbgrader's own preprocessors.

    python -m course_lib.grading.release [SOLUTIONS] [EXERCISES]

The learner's notebooks are never edited by hand: `tests/exercises/test_release.py` compares the two folders.
"""

from __future__ import annotations

import sys
from pathlib import Path

import nbformat
from nbformat import NotebookNode
from nbgrader.preprocessors import (
    CheckCellMetadata,
    ClearHiddenTests,
    ClearMarkScheme,
    ClearOutput,
    ClearSolutions,
    ComputeChecksums,
    LockCells,
)

# The steps of `nbgrader generate_assignment`, without those for its database, a header file and test templates.
STEPS = (
    LockCells,
    ClearSolutions,
    ClearOutput,
    CheckCellMetadata,
    ClearHiddenTests,
    ClearMarkScheme,
    ComputeChecksums,
    CheckCellMetadata,
)


def release(solution: NotebookNode) -> NotebookNode:
    """The learner's version: solutions and hidden tests replaced, outputs cleared, check cells locked."""
    notebook, resources = nbformat.from_dict(solution), {}
    for step in STEPS:
        notebook, resources = step().preprocess(notebook, resources)
    return notebook


def release_text(path: Path) -> str:
    """The learner's version of the notebook at `path`, as the text of its file."""
    return nbformat.writes(release(nbformat.read(path, as_version=4))) + "\n"


def main(solutions: Path, exercises: Path) -> None:
    for path in sorted(solutions.glob("*.ipynb")):
        target = exercises / path.name
        target.write_text(release_text(path), encoding="utf-8")
        print(target)


if __name__ == "__main__":
    main(*map(Path, sys.argv[1:3] or ("solutions", "exercises")))
