"""Read a submitted notebook: untrusted JSON in, a list of code cells out."""

from __future__ import annotations

import json
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from course_lib.checks import EXERCISES

MAX_BYTES = 20_000_000  # of the file, outputs and pictures included
MAX_CODE = 1_000_000  # characters of all code cells
ENGINE_TAG = "course-engine"  # cells that run the engine or measure: long, and not what is graded
CHECK_CALL = re.compile(r"""check\(\s*["']([\dA]\d)\.(\w+)["']""")
SHELL = re.compile(r"^(\s*)[%!].*$", re.MULTILINE)  # IPython's line magics and shell commands


class Unreadable(Exception):
    """The file is not a notebook of this course; the message is a sentence for the report."""


@dataclass(frozen=True)
class Cell:
    """A code cell; `number` counts all cells from 1, as a person would in Jupyter."""

    number: int
    source: str
    grade_id: str | None  # nbgrader's id
    tags: tuple[str, ...]


@dataclass(frozen=True)
class Submission:
    """The code of a notebook and the exercise it belongs to."""

    exercise: str
    cells: tuple[Cell, ...]

    def runnable(self) -> list[tuple[int, str]]:
        """(number, source) of the cells to run, without shell commands and the parts that run the engine."""
        return [
            (cell.number, SHELL.sub(r"\1pass", cell.source))
            for cell in self.cells
            if ENGINE_TAG not in cell.tags and not cell.source.lstrip().startswith("%%")
        ]

    def notes(self, names: list[str]) -> list[str]:
        """What is odd about the notebook and did not change the points, one sentence each."""
        notes = []
        checks = {cell.source.split("\n")[0].strip() for cell in self.cells}
        changed = [name for name in names if f'check("{self.exercise}.{name}", {name})' not in checks]
        if changed:
            notes.append(
                f"The check cell of {', '.join(changed)} was changed or deleted; the grader's own cases counted."
            )
        ids = [cell.grade_id for cell in self.cells if cell.grade_id]
        if twice := sorted({i for i in ids if ids.count(i) > 1}):
            notes.append(f"Cells are there more than once ({', '.join(twice)}); the last definition of a name counted.")
        return notes


def read_submission(path: Path) -> Submission:
    """Raises Unreadable, with the reason, for anything that is not a notebook of one of the exercises."""
    try:
        if path.stat().st_size > MAX_BYTES:
            raise Unreadable(f"the file is larger than {MAX_BYTES // 1_000_000} MB")
        notebook = json.loads(path.read_bytes())
    except OSError as error:
        raise Unreadable(f"the file cannot be read ({error.strerror})") from None
    except UnicodeDecodeError:
        raise Unreadable("the file is not text, so it is not a notebook") from None
    except RecursionError:
        raise Unreadable("the file is nested too deeply to be a notebook") from None
    except json.JSONDecodeError as error:
        raise Unreadable(
            f"the file is not valid JSON (line {error.lineno}, column {error.colno}: {error.msg})"
        ) from None
    except ValueError as error:
        raise Unreadable(f"the file is not valid JSON ({error})") from None
    if not isinstance(notebook, dict) or not isinstance(notebook.get("cells"), list):
        raise Unreadable("the file is JSON but not a notebook: it has no list of cells")
    cells = tuple(cell for i, raw in enumerate(notebook["cells"], 1) if (cell := _code_cell(i, raw)))
    if not cells:
        raise Unreadable("the notebook has no code cells")
    if sum(len(cell.source) for cell in cells) > MAX_CODE:
        raise Unreadable(f"the notebook has more than {MAX_CODE:,} characters of code")
    return Submission(_exercise_of(notebook, cells, path.name), cells)


def _code_cell(number: int, raw: Any) -> Cell | None:
    """The code cell in `raw`, or None: text cells, and cells without a usable source, hold nothing to grade."""
    if not isinstance(raw, dict) or raw.get("cell_type") != "code":
        return None
    source = raw.get("source")
    if isinstance(source, list) and all(isinstance(line, str) for line in source):
        source = "".join(source)
    if not isinstance(source, str):
        return None
    metadata = raw.get("metadata") if isinstance(raw.get("metadata"), dict) else {}
    nbgrader = metadata.get("nbgrader") if isinstance(metadata.get("nbgrader"), dict) else {}
    tags = metadata.get("tags") if isinstance(metadata.get("tags"), list) else []
    grade_id = nbgrader.get("grade_id")
    return Cell(number, source, str(grade_id)[:80] if grade_id else None, tuple(map(str, tags)))


def _exercise_of(notebook: dict[str, Any], cells: tuple[Cell, ...], file_name: str) -> str:
    """The exercise's number: from the notebook's metadata, else from its checks, else from the file's name."""
    metadata = notebook.get("metadata")
    course = metadata.get("course") if isinstance(metadata, dict) else None
    said = course.get("exercise") if isinstance(course, dict) else None
    called = [match[1] for cell in cells for match in CHECK_CALL.finditer(cell.source)]
    for number in [said, *called, file_name[:2]]:
        if number in EXERCISES:
            return number
    raise Unreadable(f"the notebook does not say which exercise it is; the course has {', '.join(EXERCISES)}")
