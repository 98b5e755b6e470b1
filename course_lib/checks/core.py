"""What an exercise is made of: problems, their cases, and the mistakes each case is there to catch.

A problem is one function of the learner. The same problem is judged in two places: in the notebook, where the function
is called directly, and by the grader, where it lives in another process. Both pass a `Call`; nothing else differs.
"""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

from torch import Tensor

from course_lib.config import ModelConfig


@dataclass(frozen=True)
class Outcome:
    """What one call gave: a value, or the error that ended it.

    args: the arguments after the call, for functions that write in place. calls: what the learner's function passed to
    the function arguments it was given, in order. error: type name and text, or None.
    """

    value: Any = None
    args: Sequence[Any] = ()
    calls: Sequence[list[Any]] = ()
    error: tuple[str, str] | None = None


Call = Callable[[tuple[Any, ...]], Outcome]


@dataclass(frozen=True)
class Case:
    """One call and what it must give: `want` worked out by hand, or the reference's answer when there is none.

    raises: name of the exception that the call must raise instead.
    """

    stage: str  # "worked example", "edge case", "reference"
    args: tuple[Any, ...]
    want: dict[str, Any] | None = None
    raises: str | None = None


@dataclass(frozen=True)
class Property:
    """Something that must hold between several calls. `holds` gets their views and returns None, or what is wrong."""

    text: str
    calls: tuple[tuple[Any, ...], ...]
    holds: Callable[[list[dict[str, Any]]], str | None]
    stage: str = "property"


@dataclass(frozen=True)
class Play:
    """The function at work in a larger system, which calls it as often as it needs, as the engine calls a policy.

    `play` gets a stand-in for the function and returns None, or what is wrong; it raises CourseError where a result is
    of no use to it. Where the function raises, so does the stand-in, and the play ends.
    """

    text: str
    play: Callable[[Callable[..., Any]], str | None]
    stage: str = "in the engine"


@dataclass(frozen=True)
class Mistake:
    """A known wrong way. `wrong` is the function as it would be written; when the learner's answers are its answers,
    `hint` is what to say. The key is for reports and tests."""

    key: str
    hint: str
    wrong: Callable[..., Any]


def result_only(outcome: Outcome) -> dict[str, Any]:
    return {"the result": outcome.value}


def members(*names: str) -> Callable[[Outcome], dict[str, Any]]:
    """A view for a function that returns a tuple: each of its members by name, so that a difference says which.

    Only whether it is a tuple, and of how many, is compared as "the result".
    """

    def view(outcome: Outcome) -> dict[str, Any]:
        value = outcome.value
        found = value if type(value) is tuple else ()
        whole = (None,) * len(found) if type(value) is tuple else value
        return {"the result": whole} | dict.fromkeys(names) | dict(zip(names, found, strict=False))

    return view


@dataclass(frozen=True)
class Problem:
    """One function. `public` and `hidden` make its cases from a seeded generator; `view` picks what is compared."""

    name: str
    arguments: tuple[str, ...]
    reference: Callable[..., Any]
    public: Callable[[random.Random], list[Case | Property | Play]]
    hidden: Callable[[random.Random], list[Case | Property | Play]]
    mistakes: tuple[Mistake, ...]
    view: Callable[[Outcome], dict[str, Any]] = result_only
    public_points: int = 2
    hidden_points: int = 2


@dataclass(frozen=True)
class Exercise:
    """The problems of one notebook. `notebook` is its file name in exercises/ and solutions/."""

    number: str
    title: str
    notebook: str
    problems: tuple[Problem, ...]

    def __iter__(self) -> Iterator[Problem]:
        return iter(self.problems)


@dataclass(frozen=True)
class Failure:
    """The first thing that was wrong: where, what, and the likely cause when it is a known one."""

    stage: str  # "type", "shape", "dtype", or the stage of the case
    case: str  # the call, as one would write it
    text: str
    hint_key: str | None = None
    hint: str | None = None


@dataclass
class Result:
    """passed: how many cases passed before the first failure, or all of them."""

    passed: int = 0
    failure: Failure | None = field(default=None)


def describe(problem: Problem, args: Sequence[Any]) -> str:
    """The call as text: tensors by type and shape, a few integers by value, configurations by their letters."""
    inside = ", ".join(f"{name}={_short(arg)}" for name, arg in zip(problem.arguments, args, strict=True))
    return f"{problem.name}({inside})"


def _short(value: Any) -> str:
    match value:
        case Tensor() if value.dim() == 1 and len(value) <= 4 and not value.is_floating_point():
            return str(value.tolist())
        case Tensor():
            return f"{str(value.dtype).removeprefix('torch.')}{list(value.shape)}"
        case ModelConfig():
            return f"<{_letters(value)}>"
        case float():
            return f"{value:.6g}"
    return value.__name__ if callable(value) else repr(value)


def _letters(config: ModelConfig) -> str:
    heads = f"K={config.kv_heads} d={config.head_dim}"
    if mla := config.mla:
        heads = f"r={mla.kv_lora_rank} p={mla.qk_rope_head_dim} a={mla.qk_nope_head_dim} v={mla.v_head_dim}"
    windows = "".join(f" w={w} in {n} of them" for w, n in Counter(config.windows).items() if w is not None)
    return f"L={config.layers}{windows} h={config.hidden} H={config.heads} {heads} f={config.ffn} V={config.vocab}"
