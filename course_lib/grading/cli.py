"""`course grade FILE_OR_FOLDER ...`: grade notebooks and write reports."""

from __future__ import annotations

import json as json_module
import secrets
import sys
import traceback
from collections.abc import Iterator
from pathlib import Path

from tqdm import tqdm

from course_lib.errors import CourseError
from course_lib.grading import report
from course_lib.grading.grader import FAULT, Grade, grade
from course_lib.grading.limits import Limits
from course_lib.grading.process import Starter, starter


def grade_command(paths: list[Path], json: Path | None = None, html: Path | None = None) -> int:
    """Grade every notebook in `paths` (files, or folders read with their subfolders), a line for each on stdout.

    Returns the exit status: 0 when every file has its result, whatever its points; 1 when the grader itself failed on
    one. Raises CourseError where a path does not exist, holds no notebook, or a report cannot be written.
    """
    files = [found for path in paths for found in find_notebooks(path)]
    if len(paths) > 1:  # names are relative to their folder, so say which
        files = [(file, _printable(file.as_posix())) for file, _ in files]
    seed, limits = secrets.randbits(53), Limits()  # 53 bits survive any JSON reader
    grades = []
    with starter() as children, tqdm(files, unit="notebook", leave=False, disable=None) as bar:
        for path, name in bar:
            grades.append(_grade_or_fault(path, name, children, seed, limits))
            bar.write(report.line(grades[-1]))
    weak = {f"{what} {how}" for one in grades for what, how in one.isolation.items() if "not isolated" in how}
    if weak:
        print(f"note: {'; '.join(sorted(weak))}; docs/grading.md says what that means", file=sys.stderr)
    written = report.as_json(grades, seed, limits)
    if json:
        _write(json, json_module.dumps(written, indent=2) + "\n")
    if html:
        _write(html, report.as_html(written))
    return int(any(one.status == FAULT for one in grades))


def find_notebooks(path: Path) -> Iterator[tuple[Path, str]]:
    """(file, name in the report) of a notebook, or of all below a folder in order, without Jupyter's checkpoints."""
    if path.is_file():
        yield path, _printable(path.name)
        return
    if not path.is_dir():
        raise CourseError(f"{path} does not exist; give a notebook or a folder of notebooks")
    # is_file: a folder or a named pipe may bear the name of a notebook, and reading a pipe would wait for ever.
    files = sorted(p for p in path.rglob("*.ipynb") if p.is_file() and ".ipynb_checkpoints" not in p.parts)
    if not files:
        raise CourseError(f"{path} holds no notebook (*.ipynb)")
    yield from ((file, _printable(file.relative_to(path).as_posix())) for file in files)


def _printable(name: str) -> str:
    """A file name may hold control characters and bytes of no encoding; a report may not."""
    return "".join(c if c.isprintable() else "?" for c in name)


def _grade_or_fault(path: Path, name: str, children: Starter, seed: int, limits: Limits) -> Grade:
    try:
        return grade(path, name, children, seed, limits)
    except Exception as error:  # a fault of the grader with one file must not cost the others their grades
        traceback.print_exc()
        return Grade(name, FAULT, reason=f"the grader failed with {type(error).__name__}: {error}")


def _write(path: Path, text: str) -> None:
    try:
        path.write_text(text, encoding="utf-8")
    except OSError as error:
        raise CourseError(f"the report {path} cannot be written ({error.strerror})") from None
