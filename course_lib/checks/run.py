"""Run a problem's cases against a function and explain the first failure."""

from __future__ import annotations

import copy
import dataclasses
import random
from collections.abc import Callable, Sequence
from typing import Any

from torch import Tensor

from course_lib.checks.compare import compare
from course_lib.checks.core import Call, Case, Failure, Mistake, Outcome, Play, Problem, Property, Result, describe
from course_lib.errors import CourseError

PUBLIC_SEED = 0
NO_RETURN = "The function returned None: is a `return` missing?"
STARTER = "Write the function's body first."

Observed = tuple[tuple[Any, ...], Outcome]  # the arguments of a call, and what it gave


def run(problem: Problem, call: Call, seed: int = PUBLIC_SEED, hidden: bool = False) -> Result:
    """Run the public cases (or the hidden ones, whose numbers come from `seed`) up to the first failure."""
    cases = (problem.hidden if hidden else problem.public)(random.Random(seed))
    seen: list[Observed] = []
    for passed, case in enumerate(cases):
        match case:
            case Case():
                failure, observed = _run_case(problem, case, call)
            case Property():
                failure, observed = _run_property(problem, case, call)
            case Play():
                failure, observed = _run_play(problem, case, call)
        seen += observed
        if failure:
            rest = [later for later in cases[passed + 1 :] if isinstance(later, Case)]
            return Result(passed, failure if failure.hint else _with_hint(problem, failure, call, seen, rest))
    return Result(len(cases), None)


def local_call(function: Callable[..., Any]) -> Call:
    """A call in this process. Arguments are copied, so that a function that writes in place cannot spoil a case."""

    def call(args: tuple[Any, ...]) -> Outcome:
        calls: list[list[Any]] = []
        given = tuple(_recorder(arg, calls) if callable(arg) else _copy(arg) for arg in args)
        try:
            value = function(*given)
        except Exception as error:
            return Outcome(args=given, calls=calls, error=(type(error).__name__, _text(error, function)))
        return Outcome(value, given, calls)

    return call


def _text(error: Exception, function: Callable[..., Any]) -> str:
    """The error's message on one line, with the line of the learner's code it came from: what a traceback is read for.

    That is the innermost line in the function's file. In Jupyter a cell is a file, with a kernel and its launcher.
    """
    text = " ".join(str(error).split())[:300]
    code, place = getattr(function, "__code__", None), ""
    trace = error.__traceback__
    while trace and code:
        inner = trace.tb_frame.f_code
        if inner.co_filename == code.co_filename:
            name = "the function" if inner is code else inner.co_name
            place = f" (line {trace.tb_lineno - inner.co_firstlineno + 1} of {name})"
        trace = trace.tb_next
    return text + place


def _copy(arg: Any) -> Any:
    return arg.clone() if isinstance(arg, Tensor) else copy.deepcopy(arg)


def _recorder(function: Callable[..., Any], calls: list[list[Any]]) -> Callable[..., Any]:
    def record(*args: Any) -> Any:
        calls.append(copy.deepcopy(list(args)))
        return function(*args)

    return record


def _run_case(problem: Problem, case: Case, call: Call) -> tuple[Failure | None, list[Observed]]:
    outcome = call(case.args)
    text, observed = describe(problem, case.args), [(case.args, outcome)]
    if case.raises:
        if outcome.error and outcome.error[0] == case.raises:
            return None, observed
        got = f"raised {outcome.error[0]}" if outcome.error else "it returned"
        return Failure(case.stage, text, f"this call must raise {case.raises}, but {got}"), observed
    if outcome.error:
        return _raised(case.stage, text, outcome), observed
    want = case.want or problem.view(local_call(problem.reference)(case.args))
    difference = compare(problem.view(outcome), want)
    if difference is None:
        return None, observed
    stage = case.stage if difference.stage == "value" else difference.stage
    missing = NO_RETURN if outcome.value is None else None
    return Failure(stage, text, difference.text, missing and "no-return", missing), observed


def _run_property(problem: Problem, case: Property, call: Call) -> tuple[Failure | None, list[Observed]]:
    observed = [(args, call(args)) for args in case.calls]
    for args, outcome in observed:
        if outcome.error:
            return _raised(case.stage, describe(problem, args), outcome), observed
    try:
        wrong = case.holds([problem.view(outcome) for _, outcome in observed])
    except (TypeError, ValueError, AttributeError, IndexError, RuntimeError):
        wrong = "the results are not of the right type or shape"
    text = ", ".join(describe(problem, args) for args in case.calls)
    return wrong and Failure(case.stage, text, f"{case.text}: {wrong}"), observed


class _Raised(Exception):
    """The function raised inside a play."""


def _run_play(problem: Problem, case: Play, call: Call) -> tuple[Failure | None, list[Observed]]:
    observed: list[Observed] = []

    def stand_in(*args: Any) -> Any:
        observed.append((args, call(args)))
        if observed[-1][1].error:
            raise _Raised
        return observed[-1][1].value

    try:
        wrong = case.play(stand_in)
    except _Raised:
        args, outcome = observed[-1]
        return _raised(case.stage, describe(problem, args), outcome), observed
    except CourseError as error:
        wrong = str(error)
    return wrong and Failure(case.stage, case.text, wrong), observed


def _raised(stage: str, text: str, outcome: Outcome) -> Failure:
    name, message = outcome.error
    if name == "NotImplementedError":
        return Failure(stage, text, "the function is still the starter", "starter", STARTER)
    # An error without a name is a sentence of the grader, about a limit.
    said = f"raised {name}" if name and not message else f"raised {name}: {message}" if name else message
    return Failure(stage, text, said)


def _with_hint(problem: Problem, failure: Failure, call: Call, seen: list[Observed], rest: list[Case]) -> Failure:
    """Name the known mistake that gives the same answers, right and wrong ones, as the function has given so far.

    Where several do, later cases decide between them.
    """

    def agree(mistakes: Sequence[Mistake], observed: Observed) -> list[Mistake]:
        args, outcome = observed
        return [mistake for mistake in mistakes if _same(problem, local_call(mistake.wrong)(args), outcome)]

    suspects: Sequence[Mistake] = problem.mistakes
    for observed in seen:
        suspects = agree(suspects, observed)
    for case in rest:
        if len(suspects) < 2:
            break
        suspects = agree(suspects, (case.args, call(case.args))) or suspects
    if not suspects:
        return failure
    return dataclasses.replace(failure, hint_key=suspects[0].key, hint=suspects[0].hint)


def _same(problem: Problem, wrong: Outcome, outcome: Outcome) -> bool:
    if wrong.error or outcome.error:
        return bool(wrong.error and outcome.error) and wrong.error[0] == outcome.error[0]
    return compare(problem.view(outcome), problem.view(wrong)) is None
