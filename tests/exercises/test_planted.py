"""Every planted wrong solution fails with the hint that names its mistake; every known mistake is recognised."""

from __future__ import annotations

from collections import Counter
from importlib import import_module

import pytest

from course_lib.checks import EXERCISES, CheckFailed, check, load_exercise
from course_lib.checks.run import local_call, run
from tests.exercises import planted_A1
from tests.exercises.planting import PLANTED, Planted

for _number in EXERCISES:
    import_module(f"tests.exercises.planted_{_number}")  # fills PLANTED

PROBLEMS = {problem.name: (number, problem) for number in EXERCISES for problem in load_exercise(number)}
MISTAKES = [(problem, mistake) for _, problem in PROBLEMS.values() for mistake in problem.mistakes]


@pytest.mark.parametrize("case", PLANTED, ids=lambda p: f"{p.problem}-{p.hint}")
def test_planted_mistake_is_named(case: Planted):
    number, problem = PROBLEMS[case.problem]
    failure = run(problem, local_call(case.function)).failure
    assert failure is not None, "the wrong solution passed the public checks"
    assert failure.hint_key == case.hint, failure
    with pytest.raises(CheckFailed) as raised:
        check(f"{number}.{case.problem}", case.function)
    assert failure.hint in str(raised.value)


@pytest.mark.parametrize("hidden", [False, True])
@pytest.mark.parametrize("problem,mistake", MISTAKES, ids=lambda x: getattr(x, "key", None) or x.name)
def test_known_mistake_gets_its_own_hint(problem, mistake, hidden):
    failure = run(problem, local_call(mistake.wrong), seed=7, hidden=hidden).failure
    if not hidden:
        assert failure is not None and failure.hint_key == mistake.key, failure
    elif failure is not None:  # hidden cases repeat only some of the public ones with other numbers
        assert failure.hint, failure


@pytest.mark.parametrize("number", EXERCISES)
def test_at_least_five_wrong_solutions_for_each_function(number):
    if number == "A1" and planted_A1.SKIPPED:
        pytest.skip(planted_A1.SKIPPED)
    planted = Counter(case.problem for case in PLANTED)
    assert {p.name: planted[p.name] for p in load_exercise(number) if planted[p.name] < 5} == {}


def test_hints_are_unambiguous():
    for _, problem in PROBLEMS.values():
        keys = [mistake.key for mistake in problem.mistakes]
        assert len(keys) == len(set(keys)), problem.name
