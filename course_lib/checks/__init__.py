"""Checks of the exercises: `check("02.append", append)` in a notebook, the same cases and more in `course grade`."""

from __future__ import annotations

import secrets
from collections.abc import Callable
from importlib import import_module
from typing import Any

from course_lib.checks.core import Exercise, Failure, Problem
from course_lib.checks.run import PUBLIC_SEED, local_call, run
from course_lib.errors import CourseError

EXERCISES = ("01", "02", "03", "04", "08", "09", "10", "A1")


class CheckFailed(AssertionError):
    """A function does not do what its docstring says. Jupyter shows the message alone, without a traceback."""

    def _render_traceback_(self) -> list[str]:
        """What IPython prints instead of a traceback (IPython.core.interactiveshell.showtraceback)."""
        return str(self).splitlines()


def load_exercise(number: str) -> Exercise:
    """The exercise with this number, as "02". Raises CourseError when there is none."""
    if number not in EXERCISES:
        raise CourseError(f"there is no exercise {number}; there are {', '.join(EXERCISES)}")
    return import_module(f"course_lib.checks.ex{number}").EXERCISE


def find_problem(name: str) -> Problem:
    """The problem called for example "02.append". Raises CourseError when there is none."""
    number, _, function = name.partition(".")
    exercise = load_exercise(number)
    for problem in exercise:
        if problem.name == function:
            return problem
    names = ", ".join(f"{number}.{problem.name}" for problem in exercise)
    raise CourseError(f"exercise {number} has no function {function!r}; it has {names}")


def check(name: str, function: Callable[..., Any], hidden: bool = False) -> None:
    """Judge one function: prints a line when its cases pass, raises CheckFailed with the first difference when not.

    hidden: the cases that a teacher's hidden test runs; their numbers are new each time.
    """
    problem = find_problem(name)
    if not callable(function):
        raise CheckFailed(f"{name}: pass the function itself, as in check({name!r}, {problem.name})")
    result = run(problem, local_call(function), secrets.randbits(64) if hidden else PUBLIC_SEED, hidden)
    if result.failure:
        raise CheckFailed(f"{name}: not yet\n{explain(result.failure)}")
    kind = "hidden" if hidden else "public"
    print(f"{name}: {kind} checks passed ({result.passed} cases).", end=" ")
    print("" if hidden else "The grader runs more, with other numbers.")


def explain(failure: Failure) -> str:
    """A failure in the lines that a learner reads: the call, the difference, the likely cause."""
    lines = [f"  {failure.stage}: {failure.case}", f"  {failure.text}"]
    if failure.hint:
        lines.append(f"  Likely cause: {failure.hint}")
    return "\n".join(lines)


__all__ = ["CheckFailed", "check", "explain", "find_problem", "load_exercise"]
