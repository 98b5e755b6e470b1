"""Exercise 08, sixth part: give a table's blocks back, in the order that LRU eviction needs."""

from __future__ import annotations

from random import Random
from typing import Any

from course_lib.checks.core import Case, Mistake, Outcome, Problem, Property, members
from course_lib.checks.ex08_pool import Lists, random_pool, recount


def release(table: list[int], refs: list[int], free: list[int], cached: list[int], indexed: list[int]) -> Lists:
    return _release(table, refs, free, cached, indexed)


def _lowered(count: int) -> int:
    return count - 1


def _release(
    table, refs, free, cached, indexed, *,
    order=reversed, lower=_lowered, idle=lambda count: count == 0,
    known=lambda block, indexed: block in indexed, keep=list.append,
) -> Lists:  # fmt: skip
    """`release` with one part replaced by a wrong one."""
    for block in order(table):
        refs[block] = lower(refs[block])
        if idle(refs[block]):
            if known(block, indexed):
                keep(cached, block)
            else:
                free.append(block)
    return refs, free, cached


def _cached_and_free(
    table: list[int], refs: list[int], free: list[int], cached: list[int], indexed: list[int]
) -> Lists:
    for block in reversed(table):
        refs[block] -= 1
        if refs[block] == 0:
            free.append(block)
            if block in indexed:
                cached.append(block)
    return refs, free, cached


def _random_release(rng: Random, total: int) -> tuple[Any, ...]:
    (refs, free, cached), held = random_pool(rng, total)
    refs[held[0]] = refs[held[1]] = refs[held[2]] = 1  # two of them indexed, one not
    table = held[: len(held) - 1]
    return table, refs, free, cached, [*held[:2], *cached, *held[4:]]


def _at_the_front(cached: list[int], block: int) -> None:
    cached.insert(0, block)


released = members("refs", "free", "cached")

RELEASE = Problem(
    name="release",
    arguments=("table", "refs", "free", "cached", "indexed"),
    reference=release,
    public=lambda rng: [
        # Block 2 is partly filled and in no index; block 1 is known; block 0 has another holder.
        Case(
            "worked example",
            ([0, 1, 2], [2, 1, 1, 0], [3], [], [0, 1]),
            released(Outcome(([1, 0, 0, 0], [3, 2], [1]))),
        ),
        Case("edge case", ([4, 2, 5], [0, 0, 1, 0, 1, 1], [0], [3, 1], [1, 2, 3, 4])),  # two go behind two others
        Case("edge case", ([1, 0], [2, 3], [], [], [0, 1])),  # both have other holders
        Case("edge case", ([1, 0], [1, 1, 0], [2], [], [])),  # no prefix index
        Property("each block is held, free or cached", (([2, 0, 1], [1, 2, 1, 0], [3], [], [2]),), recount),
        Case("reference", _random_release(rng, 16)),
    ],
    hidden=lambda rng: [Case("reference", _random_release(rng, 4 * rng.randint(4, 9))) for _ in range(3)],
    view=released,
    mistakes=(
        Mistake(
            "freed-while-held",
            "Other tables may hold the block: give it back only when its count is 0.",
            lambda *a: _release(*a, idle=lambda count: True),
        ),
        Mistake(
            "counts-not-asked",
            "Lower each block's count first, and give back only those that reach 0: other tables may hold the rest.",
            lambda table, refs, free, cached, indexed: (refs, free + table, cached),
        ),
        Mistake(
            "count-not-lowered",
            "One table less holds each block: its reference count falls by 1.",
            lambda *a: _release(*a, lower=lambda count: count, idle=lambda count: count == 1),
        ),
        Mistake(
            "count-set-to-zero",
            "Only this table gives the block up: subtract 1, do not set the count to 0.",
            lambda *a: _release(*a, lower=lambda count: 0),
        ),
        Mistake(
            "content-forgotten",
            "A block that the prefix index knows stays cached: its content is of use until it is taken again.",
            lambda *a: _release(*a, known=lambda block, indexed: False),
        ),
        Mistake(
            "unknown-block-cached",
            "A block that no index knows can never be found again: it goes to `free`.",
            lambda *a: _release(*a, known=lambda block, indexed: True),
        ),
        Mistake(
            "first-block-first",
            "Release the last block first: a block must be evicted before those that it follows.",
            lambda *a: _release(*a, order=iter),
        ),
        Mistake(
            "put-in-front",
            "`cached` begins with the block released longest ago, so a block released now goes to the end.",
            lambda *a: _release(*a, keep=_at_the_front),
        ),
        Mistake(
            "also-free",
            "A cached block is not free as well: it would be handed out while the index still finds it.",
            _cached_and_free,
        ),
    ),
)
