"""Exercise 09, first part: how many steps static and continuous batching need.

A request of n output tokens takes part in n steps: the one that computes its prompt gives the first token.
"""

from __future__ import annotations

from heapq import heapreplace
from random import Random
from statistics import mean

from course_lib.checks.core import Case, Mistake, Problem, Property
from course_lib.checks.ex01_counts import number, proportional

LENGTHS = [3, 5, 2, 8, 4, 2]
LONG_LAST = [2, 2, 2, 2, 2, 2, 9]


def random_lengths(rng: Random) -> list[int]:
    """A few long answers among many short ones."""
    return [rng.randint(60, 90) if rng.random() < 0.15 else rng.randint(1, 25) for _ in range(rng.randint(20, 40))]


def batches(lengths: list[int], seats: int) -> list[list[int]]:
    return [lengths[i : i + seats] for i in range(0, len(lengths), seats)]


# --- static_steps ---


def static_steps(lengths: list[int], seats: int) -> int:
    return sum(map(max, batches(lengths, seats)))


STATIC_STEPS = Problem(
    name="static_steps",
    arguments=("lengths", "seats"),
    reference=static_steps,
    public=lambda rng: [
        # Batches [3, 5], [2, 8], [4, 2] last 5, 8 and 4 steps.
        Case("worked example", (LENGTHS, 2), number(17)),
        Case("edge case", (LENGTHS, 1), number(24)),
        Case("edge case", (LENGTHS, 6), number(8)),
        Case("edge case", (LENGTHS, 100), number(8)),
        Case("edge case", (LENGTHS, 4), number(12)),
        Case("edge case", ([], 4), number(0)),
        Property(
            "answers twice as long need twice the steps", ((LENGTHS, 4), ([2 * n for n in LENGTHS], 4)), proportional(2)
        ),
        Case("reference", (random_lengths(rng), 5)),
    ],
    hidden=lambda rng: [Case("reference", (random_lengths(rng), seats)) for seats in (3, 7, 16)],
    mistakes=(
        Mistake(
            "means-for-longest",
            "A batch runs until its longest answer is done: the longest counts, not the mean.",
            lambda lengths, seats: sum(map(mean, batches(lengths, seats))),
        ),
        Mistake(
            "seats-always-full",
            "sum / seats is the bound with every seat busy; here seats stay empty until the longest answer is done.",
            lambda lengths, seats: -(-sum(lengths) // seats),
        ),
        Mistake(
            "freed-seats-refilled",
            "A free seat was given to the next request. That is continuous batching; a static batch waits for its end.",
            lambda lengths, seats: continuous_steps(lengths, seats),
        ),
        Mistake(
            "sorted-by-length",
            "Batches are formed in order of arrival. Nobody knows an answer's length before it is generated.",
            lambda lengths, seats: static_steps(sorted(lengths), seats),
        ),
        Mistake(
            "longest-of-all",
            "Each batch lasts as long as its own longest answer, not as long as the longest of all.",
            lambda lengths, seats: len(batches(lengths, seats)) * max(lengths, default=0),
        ),
        Mistake(
            "one-batch",
            "More requests than seats need several batches, one after the other.",
            lambda lengths, seats: max(lengths, default=0),
        ),
        Mistake(
            "no-batching",
            "The answers of one batch are generated together: a step gives each of them a token.",
            lambda lengths, seats: sum(lengths),
        ),
        Mistake(
            "last-batch-dropped",
            "The last batch may be smaller than `seats`; it has to run as well.",
            lambda lengths, seats: sum(max(b) for b in batches(lengths, seats) if len(b) == seats),
        ),
    ),
)


# --- continuous_steps ---


def continuous_steps(lengths: list[int], seats: int) -> int:
    return _listed(lengths, seats)


def _listed(lengths: list[int], seats: int, gap: int = 0) -> int:
    """First-come list scheduling; a seat that was left is free again `gap` steps later."""
    free = [0] * seats  # the step from which each seat is free, as a heap
    for n in lengths:
        heapreplace(free, free[0] + n + gap)
    return max(free) - gap if lengths else 0


CONTINUOUS_STEPS = Problem(
    name="continuous_steps",
    arguments=("lengths", "seats"),
    reference=continuous_steps,
    public=lambda rng: [
        # Seat A: 3, then 2 in steps 3-4, then 8 in steps 5-12. Seat B: 5, then 4 in steps 5-8, then 2 in steps 9-10.
        Case("worked example", (LENGTHS, 2), number(13)),
        Case("edge case", (LENGTHS, 1), number(24)),
        Case("edge case", (LENGTHS, 100), number(8)),
        Case("edge case", ([4, 4, 4, 4], 2), number(8)),  # equal lengths: nothing to gain
        Case("edge case", (LONG_LAST, 3), number(13)),  # the long one came last, and runs alone at the end
        Case("edge case", ([9, 1, 1, 8], 2), number(10)),
        Case("edge case", ([], 4), number(0)),
        Property(
            "answers twice as long need twice the steps", ((LENGTHS, 4), ([2 * n for n in LENGTHS], 4)), proportional(2)
        ),
        Case("reference", (random_lengths(rng), 5)),
    ],
    hidden=lambda rng: [Case("reference", (random_lengths(rng), seats)) for seats in (3, 7, 16)],
    mistakes=(
        Mistake(
            "sum-over-seats",
            "sum / seats needs every seat busy to the end; here seats run empty at the end, while long answers go on.",
            lambda lengths, seats: -(-sum(lengths) // seats),
        ),
        Mistake(
            "static-refill",
            "The next request takes a seat as soon as one is free; it does not wait until all seats are.",
            static_steps,
        ),
        Mistake(
            "seats-dealt-in-turn",
            "Requests wait in one queue and take whichever seat is free first; they are not dealt out in turn.",
            lambda lengths, seats: max((sum(lengths[i::seats]) for i in range(seats)), default=0),
        ),
        Mistake(
            "longest-first",
            "First come, first served: nobody knows an answer's length before it is generated, so do not sort.",
            lambda lengths, seats: _listed(sorted(lengths, reverse=True), seats),
        ),
        Mistake(
            "shortest-first",
            "Requests are served in order of arrival, not shortest first: their lengths are not known in advance.",
            lambda lengths, seats: _listed(sorted(lengths), seats),
        ),
        Mistake(
            "finished-not-removed",
            "A finished request kept its seat for one more step. Whoever waits takes it in the very next step.",
            lambda lengths, seats: _listed(lengths, seats, gap=1),
        ),
        Mistake(
            "seat-reused-in-its-last-step",
            "A seat is free after the last step of the request in it; that step cannot serve the next one as well.",
            lambda lengths, seats: _listed(lengths, seats, gap=-1),
        ),
        Mistake(
            "seats-unlimited",
            "At most `seats` requests run at once; the others wait.",
            lambda lengths, seats: max(lengths, default=0),
        ),
        Mistake(
            "one-at-a-time",
            "The requests in the seats run together: a step gives each of them a token.",
            lambda lengths, seats: sum(lengths),
        ),
    ),
)
