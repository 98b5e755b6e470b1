"""Reports of a grading run: a line per submission, JSON for programs, one HTML page for people."""

from __future__ import annotations

import platform
from dataclasses import asdict
from datetime import UTC, datetime
from importlib.metadata import PackageNotFoundError, version
from importlib.resources import files
from typing import Any

import jinja2

from course_lib.checks.core import Failure
from course_lib.grading.grader import GRADED, FunctionGrade, Grade
from course_lib.grading.limits import Limits

FORMAT = 1  # of the JSON; grows when a field changes its meaning


def line(grade: Grade) -> str:
    """One line for the terminal."""
    if grade.status != GRADED:
        return f"  --/--   {grade.name}: {grade.status}, {grade.reason}"
    missed = [_missed(function) for function in grade.functions if function.failure]
    tail = f"  not yet: {', '.join(missed)}" if missed else ""
    return f"{grade.points:>4}/{grade.max_points:<4} {grade.name}{tail}"


def _missed(function: FunctionGrade) -> str:
    return f"{function.name} ({function.failure.hint_key or function.failure.stage})"


def as_json(grades: list[Grade], seed: int, limits: Limits) -> dict[str, Any]:
    """The whole run. `seed` reproduces the hidden cases; points are null for a file that was not graded."""
    return {
        "format": FORMAT,
        "created": datetime.now(UTC).isoformat(timespec="seconds"),
        "seed": seed,
        "versions": _versions(),
        "limits": limits.as_dict(),
        "submissions": [_submission(grade) for grade in grades],
    }


def _submission(grade: Grade) -> dict[str, Any]:
    graded = grade.status == GRADED
    return {
        "name": grade.name,
        "exercise": grade.exercise,
        "status": grade.status,
        "reason": grade.reason,
        "points": grade.points if graded else None,
        "max_points": grade.max_points if graded else None,
        "functions": [_function(function) for function in grade.functions],
        "notes": grade.notes,
        "isolation": grade.isolation,
    }


def _function(function: FunctionGrade) -> dict[str, Any]:
    return {
        "name": function.name,
        "points": function.points,
        "max_points": function.max_points,
        "public": _verdict(function.public),
        "hidden": "not run" if function.public else _verdict(function.hidden),
        "failure": asdict(function.failure) if function.failure else None,
    }


def _verdict(failure: Failure | None) -> str:
    return "failed" if failure else "passed"


def _versions() -> dict[str, str]:
    found = {"python": platform.python_version(), "platform": platform.platform()}
    for package in ("llm-inference-course", "torch", "numpy"):
        try:
            found[package] = version(package)
        except PackageNotFoundError:
            found[package] = "not installed"
    return found


def as_html(report: dict[str, Any]) -> str:
    """One page that needs no other file. Everything from a submission is escaped."""
    template = files("course_lib").joinpath("assets/grade_report.html").read_text(encoding="utf-8")
    return (
        jinja2.Environment(autoescape=True, trim_blocks=True, lstrip_blocks=True).from_string(template).render(report)
    )
