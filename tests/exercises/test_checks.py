"""What a learner sees of a check: the order of questions, one difference, the likely cause."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch

from course_lib.checks import CheckFailed, check
from course_lib.checks.compare import compare
from course_lib.checks.core import Case, Mistake, Play, Problem, describe
from course_lib.checks.ex01_counts import TOY, linear_flops
from course_lib.checks.ex02_mask import causal_mask, positions
from course_lib.checks.ex03_bytes import LATENT
from course_lib.checks.run import local_call, run
from course_lib.errors import CourseError
from course_lib.grading.codec import Foreign


def message(name: str, function) -> str:
    with pytest.raises(CheckFailed) as raised:
        check(name, function)
    return str(raised.value)


def test_pass_says_public_and_no_more(capsys):
    check("02.positions", positions)
    said = capsys.readouterr().out
    assert said.startswith("02.positions: public checks passed (6 cases).")
    assert "all" not in said and "The grader runs more" in said


@pytest.mark.parametrize(
    "function,stage",
    [
        (lambda cached, new: [True], "type:"),
        (lambda cached, new: torch.ones(2), "shape:"),
        (lambda cached, new: causal_mask(cached, new).int(), "dtype:"),
        (lambda cached, new: ~causal_mask(cached, new), "worked example:"),
        (lambda cached, new: causal_mask(cached, new) if cached else ~causal_mask(0, new), "edge case:"),
        (lambda cached, new: causal_mask(cached, new) if new != 5 else ~causal_mask(cached, 5), "property:"),
        (lambda cached, new: causal_mask(cached, new) if new < 9 else ~causal_mask(cached, new), "reference:"),
    ],
)
def test_questions_come_in_order(function, stage):
    assert message("02.causal_mask", function).splitlines()[1].strip().startswith(stage)


def test_a_call_shows_few_integers_by_value():
    """One works a case out by hand with its block table or the ends of its windows; other tensors are too long."""
    problem = Problem("f", ("x", "table", "long"), len, list, list, ())
    args = torch.ones(2, 3), torch.tensor([2, 0, 1], dtype=torch.int32), torch.arange(9)
    assert describe(problem, args) == "f(x=float32[2, 3], table=[2, 0, 1], long=int64[9])"


def test_a_call_shows_what_a_configuration_caches():
    problem = Problem("f", ("config",), len, list, list, ())
    windowed = replace(TOY, layers=3, windows=(4, None, 4))
    assert describe(problem, (windowed,)) == "f(config=<L=3 w=4 in 2 of them h=8 H=6 K=3 d=4 f=10 V=50>)"
    assert describe(problem, (LATENT,)) == "f(config=<L=2 h=8 H=6 r=8 p=2 a=5 v=4 f=10 V=50>)"


def test_failure_is_short_and_shows_the_first_difference():
    def wrong(cached, new):
        mask = causal_mask(cached, new)
        mask[-1, -1] = False
        return mask

    text = message("02.causal_mask", wrong)
    assert "causal_mask(cached=2, new=2)" in text
    assert "the result at index [1, 3]: got False, want True; 1 of 8 elements differ" in text
    assert "tensor(" not in text and len(text.splitlines()) <= 4


def doubled(text, play):
    """A problem whose only case is a play: the function doubles a number, and halving is a known mistake."""
    mistake = Mistake("halved", "Multiply by 2.", lambda x: x // 2)
    return Problem("double", ("x",), lambda x: 2 * x, lambda rng: [Play(text, play)], lambda rng: [], (mistake,))


def test_a_play_calls_the_function_as_often_as_it_needs():
    def powers(double):
        value = 1
        for _ in range(5):
            value = double(value)
        return None if value == 32 else f"five doublings of 1 gave {value}"

    problem = doubled("powers of two", powers)
    assert run(problem, local_call(lambda x: 2 * x)).failure is None
    failure = run(problem, local_call(lambda x: x // 2)).failure
    assert (failure.stage, failure.case, failure.text) == (
        "in the engine",
        "powers of two",
        "five doublings of 1 gave 0",
    )
    assert failure.hint_key == "halved"
    assert run(problem, local_call(lambda x: 2 * x if x < 8 else 0)).failure.hint is None


def test_a_play_ends_where_the_function_raises_or_gives_what_is_of_no_use():
    def use(double):
        raise CourseError(f"{double(3)} is odd")

    problem = doubled("one call", use)
    failure = run(problem, local_call(lambda x: x / 0)).failure
    assert failure.case == "double(x=3)" and failure.text.startswith("raised ZeroDivisionError")
    assert run(problem, local_call(lambda x: 7)).failure.text == "7 is odd"


@pytest.mark.parametrize(
    "value,said",
    [
        ((3, 1), "worked example: block_count(tokens=10, block_size=4)\n  the empty slots: got 1, want 2"),
        ((3, 2, 0), "the result: got 3 items, want 2"),
        ([3, 2], "the result: got a list, want a tuple"),
        (3, "the result: got a number, want a tuple"),
        (None, "the result: got None, want a tuple"),
    ],
)
def test_members_of_a_returned_tuple_are_named(value, said):
    assert said in message("08.block_count", lambda tokens, block_size: value)


def test_error_in_the_function_is_named_without_a_traceback():
    def wrong(cached, new):
        first = cached
        return [][first]

    text = message("02.positions", wrong)
    assert "raised IndexError: list index out of range (line 3 of the function)" in text and "Traceback" not in text


def test_a_call_in_place_of_the_function_is_explained():
    assert "pass the function itself" in message("02.positions", positions(1, 2))


def test_check_does_not_let_one_case_spoil_another():
    def greedy(buffer, new, length):
        end = length + new.shape[1]
        if end > buffer.shape[1]:
            raise ValueError
        buffer[:, length:end] = new
        new.fill_(0)  # vandalism on the argument must not reach the next case
        return end

    check("02.append", greedy)


def test_check_does_not_let_one_case_spoil_another_through_a_nested_list():
    case = Case("reference", ([[1, 2], [3]],), {"the result": 3})
    problem = Problem("count", ("lists",), len, lambda rng: [case, case], lambda rng: [], ())

    def emptying(lists):
        count = 0
        while any(lists):
            next(filter(None, lists)).pop()
            count += 1
        return count

    assert run(problem, local_call(emptying)).failure is None


def test_equal_numbers_of_other_types_pass():
    check("01.linear_flops", lambda *args: float(linear_flops(*args)))
    check("01.linear_flops", lambda *args: np.float64(linear_flops(*args)))


@pytest.mark.parametrize("name", ["99.append", "02.nothing", "append"])
def test_unknown_names_are_answered(name):
    with pytest.raises(CourseError, match="there is no exercise|has no function"):
        check(name, print)


@pytest.mark.parametrize(
    "got,want,stage",
    [
        (1, 1, None),
        (1.0, 1, None),
        (np.int64(3), 3, None),
        (True, 1, "type"),
        (torch.tensor(1), 1, "type"),
        (None, 1, "type"),
        (float("nan"), 1, "value"),
        (float("inf"), 1, "value"),
        (10**400, 1, "value"),
        (1 + 1e-12, 1, None),
        (1 + 1e-6, 1, "value"),
        ([1, 2], [1, 2], None),
        ((1, 2), [1, 2], "type"),
        ([1], [1, 2], "shape"),
        ([1, 2, 3], [1, 2], "shape"),
        ("a", "b", "value"),
        (Foreign("Yes"), 1, "type"),
        (torch.ones(2), torch.ones(3), "shape"),
        (torch.ones(2), torch.ones(2).double(), "dtype"),
        (torch.tensor([1.0, float("nan")]), torch.ones(2), "value"),
        (torch.ones(0), torch.ones(0), None),
        (np.ones(2), torch.ones(2), "type"),
        (torch.ones(2) + 1e-7, torch.ones(2), None),
        (torch.ones(2) + 1e-3, torch.ones(2), "value"),
        (torch.ones(2, requires_grad=True), torch.ones(2), None),
    ],
)
def test_compare(got, want, stage):
    difference = compare(got, want)
    assert (difference and difference.stage) == stage


def test_long_text_is_cut():
    assert len(compare("x" * 10**6, "y").text) < 200
