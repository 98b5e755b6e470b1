"""Exercise 10, second part: who gives blocks up when there are too few."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from random import Random

from course_lib.checks.core import Case, Mistake, Problem

Tables = list[list[int]]


def choose_victims(tables: Tables, at: int, needed: int, free: int) -> list[int]:
    return _victims(tables, at, needed, free)


def _freed(table: list[int], holders: Counter[int]) -> int:
    """Blocks that nobody holds any more when `table` is given up, which is noted in `holders`."""
    holders.subtract(table)
    return sum(not holders[block] for block in table)


def _freed_if_alone(table: list[int], holders: Counter[int]) -> int:
    return sum(holders[block] == 1 for block in table)


def _backwards(tables: Tables, at: int) -> list[int]:
    return list(range(len(tables) - 1, at - 1, -1))


def _victims(tables, at, needed, free, *, freed=_freed, candidates=_backwards, spare=0) -> list[int]:
    """Take the candidates one by one until `needed` blocks are free, with one part replaced by a wrong one."""
    holders = Counter(block for table in tables for block in table)
    victims: list[int] = []
    for victim in candidates(tables, at):
        if free >= needed + spare:
            break
        victims.append(victim)
        free += freed(tables[victim], holders)
    return victims


def _among(candidates: Callable[[Tables, int], list[int]]) -> Callable[..., list[int]]:
    return lambda *args: _victims(*args, candidates=candidates)


def _victims_case(rng: Random) -> Case:
    """Six running requests; some share a prefix, as siblings of one prompt do."""
    prefix, blocks = rng.sample(range(100, 200), rng.randint(2, 4)), iter(rng.sample(range(100), 60))
    shares = rng.sample((True, True, True, False, False, False), 6)
    tables = [prefix * share + [next(blocks) for _ in range(rng.randint(1, 3))] for share in shares]
    free = rng.randint(0, 2)
    return Case("reference", (tables, rng.randint(0, 4), free + rng.randint(1, 9), free))


FOUR = [[0, 1, 2], [3, 4], [5, 6, 7], [8]]
SIBLINGS = [[0, 1], [2, 3], [4, 5, 6], [4, 5, 7]]  # the last two are completions of one prompt

CHOOSE_VICTIMS = Problem(
    name="choose_victims",
    arguments=("tables", "at", "needed", "free"),
    reference=choose_victims,
    public=lambda rng: [
        # Request 3 gives block 8, which is not enough for 3; request 2 gives three more.
        Case("worked example", (FOUR, 0, 3, 0), {"the result": [3, 2]}),
        Case("edge case", (FOUR, 0, 2, 2), {"the result": []}),
        Case("edge case", (FOUR, 0, 4, 1)),
        Case("edge case", (FOUR, 0, 1, 0)),
        # Request 3 frees only block 7. With request 2 the shared blocks 4 and 5 become free as well.
        Case("edge case", (SIBLINGS, 1, 3, 0), {"the result": [3, 2]}),
        Case("edge case", (SIBLINGS, 0, 4, 0), {"the result": [3, 2]}),
        # Requests 3 and 2 are not enough, and requests 0 and 1 come before: request 2 itself has to wait.
        Case("edge case", (FOUR, 2, 6, 0), {"the result": [3, 2]}),
        Case("edge case", (FOUR, 3, 1, 0), {"the result": [3]}),
        Case("reference", ([[0, 9], [1, 9], [2], [3, 9, 8], [4, 8]], 1, 4, 1)),
    ],
    hidden=lambda rng: [_victims_case(rng) for _ in range(6)],
    mistakes=(
        Mistake(
            "first-in-order",
            "The victims are taken from the front. The first in order is served first and preempted last.",
            _among(lambda tables, at: list(range(len(tables)))),
        ),
        Mistake(
            "nearest-first",
            "The search starts right behind the one that needs room. Start with the last in order.",
            _among(lambda tables, at: [*range(at + 1, len(tables)), at]),
        ),
        Mistake(
            "most-blocks-first",
            "The one with the most blocks is not the last in order. Size does not matter, or long requests starve.",
            _among(lambda tables, at: sorted(_backwards(tables, at), key=lambda i: -len(tables[i]))),
        ),
        Mistake(
            "only-one",
            "One victim may not be enough: go on until the blocks are there.",
            _among(lambda tables, at: [len(tables) - 1]),
        ),
        Mistake(
            "those-before",
            "Requests before the one that needs room keep their blocks. Where those behind are not enough, it waits.",
            _among(lambda tables, at: list(range(len(tables) - 1, -1, -1))),
        ),
        Mistake(
            "itself-spared",
            "Those behind are not enough, so the request gives its own blocks up too and waits: it is the last victim.",
            _among(lambda tables, at: list(range(len(tables) - 1, at, -1))),
        ),
        Mistake(
            "shared-blocks-counted",
            "A block that another running request holds does not become free: count only those nobody holds any more.",
            lambda *args: _victims(*args, freed=lambda table, holders: len(table)),
        ),
        Mistake(
            "shared-blocks-never-free",
            "A shared block becomes free when the last of its holders goes: count the holders down as victims go.",
            lambda *args: _victims(*args, freed=_freed_if_alone),
        ),
        Mistake(
            "free-blocks-ignored",
            "`free` blocks are there already: victims make up what is missing, needed - free.",
            lambda tables, at, needed, free: _victims(tables, at, needed, 0),
        ),
        Mistake(
            "one-too-many",
            "Exactly `needed` free blocks are enough: stop at >=, not at >.",
            lambda *args: _victims(*args, spare=1),
        ),
        Mistake(
            "all-behind",
            "Everybody behind was preempted. Stop as soon as enough blocks are free: each victim costs a recompute.",
            lambda tables, at, needed, free: _backwards(tables, at)[:-1] if free < needed else [],
        ),
        Mistake(
            "in-order-of-service",
            "List the victims in the order in which they go: the last in order first.",
            lambda *args: sorted(choose_victims(*args)),
        ),
    ),
)
