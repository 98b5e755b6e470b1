"""Grade one submission: cases and answers stay here, the submission runs in a child."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path

from course_lib.checks import load_exercise
from course_lib.checks.core import Failure, Problem
from course_lib.checks.run import PUBLIC_SEED, run
from course_lib.grading.child import Child
from course_lib.grading.limits import Limits
from course_lib.grading.process import Starter
from course_lib.grading.submission import Submission, Unreadable, read_submission

MAX_FATAL_CELLS = 5  # cells that may end the child, each costing a new one, before the notebook counts as not runnable

GRADED, UNREADABLE, NOT_RUN, FAULT = "graded", "unreadable", "not run", "grader fault"


@dataclass(frozen=True)
class FunctionGrade:
    """Points of one function, and the first failure among its public and its hidden cases."""

    name: str
    points: int
    max_points: int
    public: Failure | None
    hidden: Failure | None  # None too when the hidden cases were not run because a public one failed

    @property
    def failure(self) -> Failure | None:
        return self.public or self.hidden


@dataclass
class Grade:
    """What became of one file. Points mean something only where status is "graded"; `reason` says why it is not."""

    name: str
    status: str
    exercise: str | None = None
    reason: str | None = None
    functions: list[FunctionGrade] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    isolation: dict[str, str] = field(default_factory=dict)

    @property
    def points(self) -> int:
        return sum(function.points for function in self.functions)

    @property
    def max_points(self) -> int:
        return sum(function.max_points for function in self.functions)


def grade(path: Path, name: str, starter: Starter, seed: int, limits: Limits) -> Grade:
    """Grade the notebook at `path`. The hidden cases' numbers come from `seed`. Whatever the notebook does is a result;
    an exception from here is a fault of the grader or of the machine."""
    try:
        submission = read_submission(path)
    except Unreadable as error:
        return Grade(name, UNREADABLE, reason=str(error))
    exercise = load_exercise(submission.exercise)
    result = Grade(name, GRADED, exercise=exercise.number)
    result.notes += submission.notes([problem.name for problem in exercise])
    with _Runner(submission, starter, limits, result) as runner:
        for problem in exercise:
            if not runner.ready():
                result.status = NOT_RUN
                result.reason = f"more than {MAX_FATAL_CELLS} cells ended the program that runs the notebook"
                result.functions.clear()
                break
            result.functions.append(_grade_function(problem, runner, seed))
    return result


def _grade_function(problem: Problem, runner: _Runner, seed: int) -> FunctionGrade:
    """Public cases first; the hidden ones only for a function that passes them."""

    def call(args):
        return runner.child.call(problem.name, args)

    public = run(problem, call, PUBLIC_SEED).failure
    hidden = None if public else run(problem, call, seed, hidden=True).failure
    points = 0 if public else problem.public_points + (0 if hidden else problem.hidden_points)
    return FunctionGrade(problem.name, points, problem.public_points + problem.hidden_points, public, hidden)


class _Runner:
    """Keeps a child with the submission's definitions at hand: a function that ends its child costs only itself."""

    def __init__(self, submission: Submission, starter: Starter, limits: Limits, result: Grade):
        self._cells = submission.runnable()
        self._starter, self._limits, self._result = starter, limits, result
        self.child: Child | None = None

    def ready(self) -> bool:
        """Have a living child that has run the cells; False when the cells keep ending it."""
        for _ in range(MAX_FATAL_CELLS + 1):
            if self.child and self.child.alive:
                return True
            self._start()
        return bool(self.child and self.child.alive)

    def _start(self) -> None:
        """A new child. A cell that ends it is left out from then on."""
        if self.child:
            self.child.close()
        self.child = Child(self._starter, self._limits)
        self._result.isolation = self.child.isolation
        for error in self.child.run_cells(self._cells):
            then = "the others ran without it" if error.fatal else "the cells after it still ran"
            note = f"Cell {error.index} did not run through: {error.text}; {then}."
            if note not in self._result.notes:  # a new child meets the same errors again
                self._result.notes.append(note)
            if error.fatal:
                self._cells = [cell for cell in self._cells if cell[0] != error.index]

    def __enter__(self) -> _Runner:
        return self

    def __exit__(self, *exc: object) -> None:
        if self.child:
            self.child.close()
