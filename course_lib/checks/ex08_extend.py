"""Exercise 08, fifth part: room for the next token of a sequence, with copy-on-write after a fork.

Letters: b tokens per block. `refs` and `free` are the lists of `ex08_pool`.
"""

from __future__ import annotations

from random import Random
from typing import Any

from course_lib.checks.core import Case, Mistake, Outcome, Problem, members
from course_lib.checks.ex08_pool import random_pool

Result = tuple[list[int], list[int], list[int], list[tuple[int, int]]]


def extend(table: list[int], length: int, refs: list[int], free: list[int], block_size: int) -> Result:
    return _extend(table, length, refs, free, block_size)


def _at_border(table: list[int], length: int, block_size: int) -> bool:
    return length % block_size == 0


def _held_by_others(count: int) -> bool:
    return count > 1


def _take(free: list[int]) -> int:
    if not free:
        raise ValueError("no block is free")
    return free.pop()


def _give_up(source: int, refs: list[int], free: list[int]) -> None:
    refs[source] -= 1


def _extend(
    table, length, refs, free, block_size, *,
    border=_at_border, shared=_held_by_others, take=_take, first=1, give_up=_give_up,
    copy=lambda source, target: (source, target), written=lambda source, target: target,
) -> Result:  # fmt: skip
    """`extend` with one part replaced by a wrong one. first: count of a new block. written: what the table then has."""
    if border(table, length, block_size):
        target = take(free)
        refs[target] = first
        return [*table, target], refs, free, []
    source = table[-1]
    if not shared(refs[source]):
        return table, refs, free, []
    target = take(free)
    refs[target] = first
    give_up(source, refs, free)
    return [*table[:-1], written(source, target)], refs, free, [copy(source, target)]


def _freed_source(source: int, refs: list[int], free: list[int]) -> None:
    refs[source] -= 1
    free.append(source)


def _shared_before_full(table: list[int], length: int, refs: list[int], free: list[int], block_size: int) -> Result:
    shared = bool(table) and refs[table[-1]] > 1
    return _extend(table, length, refs, free, block_size, border=lambda *a: not shared and _at_border(*a))


def _whole_copy(table: list[int], length: int, refs: list[int], free: list[int], block_size: int) -> Result:
    if length % block_size == 0 or refs[table[-1]] == 1:
        return _extend(table, length, refs, free, block_size)
    copies = []
    for source in table:
        copies.append((source, _take(free)))
        refs[source] -= 1
        refs[copies[-1][1]] = 1
    return [target for _, target in copies], refs, free, copies


def _asks_first(table: list[int], length: int, refs: list[int], free: list[int], block_size: int) -> Result:
    if not free:
        raise ValueError("no block is free")
    return _extend(table, length, refs, free, block_size)


def _random_extension(rng: Random, b: int, rest: int, others: int) -> tuple[Any, ...]:
    """A sequence of 3 full blocks and `rest` tokens whose last block `others` other tables hold."""
    (refs, free, _), held = random_pool(rng, 16)
    table = held[: 4 if rest else 3]
    refs[table[-1]] = 1 + others
    return table, 3 * b + rest, refs, free, b


extended = members("the table", "refs", "free", "copies")

EXTEND = Problem(
    name="extend",
    arguments=("table", "length", "refs", "free", "block_size"),
    reference=extend,
    public=lambda rng: [
        # Two tables hold both blocks. The sixth token falls into block 1, so the writer takes a copy of it: block 2.
        Case(
            "worked example",
            ([0, 1], 5, [2, 2, 0, 0], [3, 2], 4),
            extended(Outcome(([0, 2], [2, 1, 1, 0], [3], [(1, 2)]))),
        ),
        Case("edge case", ([0, 1], 5, [2, 1, 0, 0], [3, 2], 4)),  # its last block is its own
        Case("edge case", ([0, 1], 8, [2, 2, 0, 0], [3, 2], 4)),  # full blocks are not written: no copy
        Case("edge case", ([0, 1], 8, [1, 1, 0, 0], [3, 2], 4)),
        Case("edge case", ([0, 1], 7, [1, 1, 0, 0], [3, 2], 4)),  # the last free place
        Case("edge case", ([], 0, [1, 0, 0], [2, 1], 4)),
        Case("edge case", ([0, 1], 6, [3, 3, 0], [2], 4)),  # two others still share the source
        Case("edge case", ([0, 1], 5, [1, 1], [], 4)),  # needs no block
        Case("edge case", ([0, 1], 8, [1, 1], [], 4), raises="ValueError"),
        Case("edge case", ([0, 1], 5, [2, 2], [], 4), raises="ValueError"),
        Case("reference", _random_extension(rng, 16, 5, 2)),
    ],
    hidden=lambda rng: [
        Case("reference", _random_extension(rng, 16, rest, others))
        for rest, others in ((0, 1), (rng.randint(1, 15), 1), (rng.randint(1, 15), 0), (15, 2))
    ],
    view=extended,
    public_points=3,
    hidden_points=3,
    mistakes=(
        Mistake(
            "written-to-shared",
            "Another table holds this block: the new token would overwrite the other sequence's. Copy it first.",
            lambda *a: _extend(*a, shared=lambda count: False),
        ),
        Mistake(
            "copied-without-need",
            "A block that only this table holds is written in place: copy where its count is above 1.",
            lambda *a: _extend(*a, shared=lambda count: True),
        ),
        Mistake(
            "full-block-copied",
            "A full block is never written again, so it stays shared: ask first whether a new block is needed.",
            _shared_before_full,
        ),
        Mistake(
            "source-still-counted",
            "After the copy this table does not hold the source any more: its count falls by 1.",
            lambda *a: _extend(*a, give_up=lambda source, refs, free: None),
        ),
        Mistake(
            "source-freed",
            "Others still hold the source: it does not go to the free list.",
            lambda *a: _extend(*a, give_up=_freed_source),
        ),
        Mistake(
            "target-not-counted",
            "This table holds the block that it took: its count is 1.",
            lambda *a: _extend(*a, first=0),
        ),
        Mistake(
            "source-left-in-table",
            "The table still has the source: the new token would be written into the shared block. Put the copy there.",
            lambda *a: _extend(*a, written=lambda source, target: source),
        ),
        Mistake(
            "copy-reversed",
            "A copy is (source, target): from the shared block to the new one.",
            lambda *a: _extend(*a, copy=lambda source, target: (target, source)),
        ),
        Mistake(
            "block-for-every-token",
            "A new block is needed only where the last one is full, at every b-th token.",
            lambda *a: _extend(*a, border=lambda table, length, b: True),
        ),
        Mistake(
            "block-one-late",
            "The token at position `length` finds the last block full where b divides `length`: it needs a block now.",
            lambda *a: _extend(*a, border=lambda table, length, b: length > len(table) * b),
        ),
        Mistake(
            "block-one-early",
            "The last place of a block is a place: a new block is needed where b divides `length`.",
            lambda *a: _extend(*a, border=lambda table, length, b: (length + 1) % b == 0),
        ),
        Mistake(
            "whole-sequence-copied",
            "Only the block that is written is copied; the full ones before it stay shared.",
            _whole_copy,
        ),
        Mistake(
            "room-not-checked",
            "Raise ValueError where a block is needed and none is free; the engine then makes room.",
            lambda *a: _extend(*a, take=list.pop),
        ),
        Mistake(
            "gives-up-early",
            "Most steps need no block at all: ask for a free one only where it is needed.",
            _asks_first,
        ),
    ),
)
