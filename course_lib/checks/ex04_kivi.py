"""Exercise 04, seventh part: the newest tokens stay in float, and leave it in whole groups (KIVI, arXiv 2402.02750).

Letters: R tokens that stay in float, g tokens of a group, m groups that leave, K KV heads, d size of a head.
"""

from __future__ import annotations

from random import Random
from typing import Any

import torch
from torch import Tensor

from course_lib.checks.core import Case, Mistake, Outcome, Play, Problem, Property, members
from course_lib.checks.ex04_append import filled
from course_lib.checks.ex04_dequantize import int4_dequantize
from course_lib.checks.ex04_engine import kivi_play
from course_lib.checks.ex04_int4 import int4_quantize

Result = tuple[Tensor, Tensor]


def kivi_append(recent: Tensor, new: Tensor, group: int, residual: int) -> Result:
    return _append(recent, new, group, residual)


def _whole(count: int, group: int, residual: int) -> int:
    """How many groups leave when there are `count` tokens in float."""
    return max(count - residual, 0) // group


def _oldest(tokens: Tensor, leave: int) -> tuple[Tensor, Tensor]:
    return tokens[:leave], tokens[leave:]


def _append(recent, new, group, residual, *, groups=_whole, cut=_oldest, join=lambda old, new: (old, new)) -> Result:
    """`kivi_append` with one part replaced by a wrong one. cut: (tokens that leave, tokens that stay)."""
    tokens = torch.cat(join(recent, new))
    many = min(groups(len(tokens), group, residual), len(tokens) // group)
    leaving, recent = cut(tokens, many * group)
    return leaving.reshape(many, group, *tokens.shape[1:]), recent


def _of_new_alone(recent: Tensor, new: Tensor, group: int, residual: int) -> Result:
    leaving, kept = kivi_append(new[:0], new, group, residual)
    return leaving, torch.cat((recent, kept))


def _newest(tokens: Tensor, leave: int) -> tuple[Tensor, Tensor]:
    stay = len(tokens) - leave
    return tokens[stay:], tokens[:stay]


def _all_at_once(count: int, group: int, residual: int) -> int:
    return count // group if count >= residual + group else 0


def _reversed_groups(*args: Any) -> Result:
    leaving, recent = kivi_append(*args)
    return leaving.flip(0), recent


def _flat(*args: Any) -> Result:
    leaving, recent = kivi_append(*args)
    return leaving.flatten(0, 1), recent


def _exactly_residual(recent: Tensor, new: Tensor, group: int, residual: int) -> Result:
    leaving, rest = kivi_append(recent, new, group, residual)
    return leaving, rest[max(len(rest) - residual, 0) :]


def _stacked(*args: Any) -> Result:
    leaving, recent = kivi_append(*args)
    return torch.stack(leaving.unbind()), recent


def _append_case(recent: int, new: int, group: int, residual: int, K: int = 2, d: int = 4) -> tuple[Any, ...]:
    tokens = filled(recent + new, K, d)
    return tokens[:recent], tokens[recent:], group, residual


def _random_append(rng: Random, group: int, residual: int, most: int) -> tuple[Any, ...]:
    """recent: what a cache can hold before the call, up to R + g - 1 tokens."""
    return _append_case(rng.randrange(residual + group), rng.randint(1, most), group, residual)


def _same_groups(views: list[dict[str, Any]]) -> str | None:
    whole, *chunks = views
    leaving = torch.cat([view["the groups that leave"] for view in chunks])
    same = leaving.equal(whole["the groups that leave"]) and chunks[-1]["recent"].equal(whole["recent"])
    return None if same else "the groups or the tokens in float differ"


groups_and_recent = members("the groups that leave", "recent")


def _public(rng: Random) -> list[Case | Property | Play]:
    tokens = filled(23, 1, 2)
    first = kivi_append(tokens[:0], tokens[:6], 4, 5)[1]
    second = kivi_append(first, tokens[6:10], 4, 5)[1]
    column = _append_case(4, 3, 2, 3, K=1, d=1)
    return [
        # 7 tokens, of which the newest 3 stay: 4 may leave, as two groups of 2, and the oldest do.
        Case(
            "worked example",
            column,
            groups_and_recent(
                Outcome((torch.tensor([[1.0, 2.0], [3.0, 4.0]])[..., None, None],
                         torch.tensor([5.0, 6.0, 7.0])[:, None, None]))
            ),
        ),
        Case("edge case", _append_case(4, 1, 4, 4)),  # 5 tokens: only one is beyond the newest 4
        Case("edge case", _append_case(7, 1, 4, 4)),  # just enough for a group
        Case("edge case", _append_case(0, 3, 4, 8)),
        Case("edge case", _append_case(0, 21, 4, 6)),  # a chunk of several groups
        Case("edge case", _append_case(1, 2, 3, 0)),  # nothing stays
        Case("edge case", _append_case(10, 6, 4, 7)),
        Property(
            "the groups are the same in whatever chunks the tokens come",
            (
                (tokens[:0], tokens, 4, 5),
                (tokens[:0], tokens[:6], 4, 5), (first, tokens[6:10], 4, 5), (second, tokens[10:], 4, 5),
            ),
            _same_groups,
        ),
        Case("reference", _random_append(rng, 8, 16, 40)),
        kivi_play([13, 1, 1, 9, 1, 6], 4, 8, kivi_append, int4_quantize, int4_dequantize),
    ]  # fmt: skip


def _hidden(rng: Random) -> list[Case | Play]:
    cases = [
        Case("reference", _random_append(rng, group, residual, most))
        for group, residual, most in ((4, 8, 3), (rng.randint(2, 7), rng.randint(3, 20), 40), (16, 16, 60))
    ]
    chunks = [rng.randint(1, 12) for _ in range(5)]
    return [*cases, kivi_play(chunks, 4, rng.randint(3, 9), kivi_append, int4_quantize, int4_dequantize)]


KIVI_APPEND = Problem(
    name="kivi_append",
    arguments=("recent", "new", "group", "residual"),
    reference=kivi_append,
    public=_public,
    hidden=_hidden,
    view=groups_and_recent,
    public_points=3,
    hidden_points=3,
    mistakes=(
        Mistake(
            "newest-leave",
            "The newest tokens stay in float; the oldest leave.",
            lambda *a: _append(*a, cut=_newest),
        ),
        Mistake(
            "residual-ignored",
            "Whole groups leave only from what is beyond the newest R tokens: count - R, not count.",
            lambda *a: _append(*a, groups=lambda count, g, R: count // g),
        ),
        Mistake(
            "never-flushed",
            "Nothing leaves the float window, so nothing is saved: it may hold R + g - 1 tokens at most.",
            lambda *a: _append(*a, groups=lambda count, g, R: 0),
        ),
        Mistake(
            "one-group-a-call",
            "A long chunk fills several groups at once: all whole groups beyond the newest R leave.",
            lambda *a: _append(*a, groups=lambda count, g, R: min(_whole(count, g, R), 1)),
        ),
        Mistake(
            "rounded-up",
            "A group leaves when it is whole beyond the newest R: rounding up takes tokens that should stay.",
            lambda *a: _append(*a, groups=lambda count, g, R: -(-max(count - R, 0) // g)),
        ),
        Mistake(
            "one-late",
            "R + g tokens are enough for a group to leave and R to stay: the comparison is >=, not >.",
            lambda *a: _append(*a, groups=lambda count, g, R: max(count - R - 1, 0) // g),
        ),
        Mistake(
            "one-early",
            "With R + g - 1 tokens a group would leave only R - 1 behind: wait for one more.",
            lambda *a: _append(*a, groups=lambda count, g, R: max(count - R + 1, 0) // g),
        ),
        Mistake(
            "all-at-once",
            "When a group is whole beyond the newest R, that group leaves; the R stay.",
            lambda *a: _append(*a, groups=_all_at_once),
        ),
        Mistake(
            "residual-in-groups",
            "R counts tokens and need not be whole groups: count // g - R // g lets some of the newest R leave.",
            lambda *a: _append(*a, groups=lambda count, g, R: max(count // g - R // g, 0)),
        ),
        Mistake(
            "exactly-residual",
            "Tokens are lost: those that are beyond the newest R but not yet a whole group stay in float too.",
            _exactly_residual,
        ),
        Mistake(
            "counted-twice",
            "Tokens that leave are no longer in float: cut them off the window, or they are attended to twice.",
            lambda *a: _append(*a, cut=lambda tokens, leave: (tokens[:leave], tokens)),
        ),
        Mistake(
            "of-new-alone",
            "The tokens that waited in float leave first: join them with the new ones before counting.",
            _of_new_alone,
        ),
        Mistake(
            "new-first",
            "The new tokens come behind the ones that waited: torch.cat((recent, new)).",
            lambda *a: _append(*a, join=lambda old, new: (new, old)),
        ),
        Mistake(
            "no-group-leaves",
            "Where no group leaves, return an empty tensor, [0, g, K, d]: torch.stack makes none of an empty list.",
            _stacked,
        ),
        Mistake(
            "groups-reversed",
            "Return the groups in the order of the text, the oldest first.",
            _reversed_groups,
        ),
        Mistake(
            "groups-joined",
            "Return the groups apart, [m, g, K, d]: each is quantised with scales of its own.",
            _flat,
        ),
    ),
)
