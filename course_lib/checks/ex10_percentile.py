"""Exercise 10, fourth part: a percentile, linear between neighbours."""

from __future__ import annotations

import math
from collections.abc import Callable
from random import Random

import numpy as np

from course_lib.checks.core import Case, Mistake, Problem, Property
from course_lib.checks.ex01_counts import number


def percentile(values: list[float], q: float) -> float:
    return float(np.percentile(values, q))


def _at(place: Callable[[int, float], float], *, swapped: bool = False) -> Callable[[list[float], float], float]:
    """`percentile` that interpolates at place(n, q / 100) of the ordered values, kept inside them."""

    def wrong(values: list[float], q: float) -> float:
        ordered = sorted(values)
        where = min(max(place(len(ordered), q / 100), 0), len(ordered) - 1)
        low = math.floor(where)
        share = where - low if not swapped else 1 - (where - low)
        return ordered[low] + share * (ordered[min(low + 1, len(ordered) - 1)] - ordered[low])

    return wrong


def _unsorted(values: list[float], q: float) -> float:
    where = (len(values) - 1) * q / 100
    low = int(where)
    return values[low] + (where - low) * (values[min(low + 1, len(values) - 1)] - values[low])


def _shuffled(rng: Random, n: int) -> list[float]:
    return [round(rng.lognormvariate(0, 1), 4) for _ in range(n)]


PERCENTILE = Problem(
    name="percentile",
    arguments=("values", "q"),
    reference=percentile,
    public=lambda rng: [
        # In order 1, 2, 3, 5, 9. 90 % of the way from place 0 to place 4 is 3.6: 5 + 0.6 * (9 - 5).
        Case("worked example", ([3.0, 9.0, 1.0, 5.0, 2.0], 90), number(7.4)),
        Case("edge case", ([3.0, 9.0, 1.0, 5.0, 2.0], 50), number(3.0)),
        Case("edge case", ([4.0, 1.0, 3.0, 2.0], 50), number(2.5)),
        Case("edge case", ([4.0, 1.0, 3.0, 2.0], 0), number(1.0)),
        Case("edge case", ([4.0, 1.0, 3.0, 2.0], 100), number(4.0)),
        Case("edge case", ([7.5], 99), number(7.5)),
        Property(
            "the median of 0, 10 and 20 does not depend on their order",
            (([0.0, 10.0, 20.0], 50), ([20.0, 0.0, 10.0], 50)),
            lambda views: None if views[0] == views[1] else "the results differ",
        ),
        Case("reference", (_shuffled(rng, 40), 95)),
    ],
    hidden=lambda rng: [Case("reference", (_shuffled(rng, rng.randint(5, 60)), q)) for q in (50, 95, 99)],
    mistakes=(
        Mistake("unsorted", "Put the values in order first: a percentile is a place in the sorted list.", _unsorted),
        Mistake(
            "place-from-n",
            "Places run from 0 to n - 1, so q percent of the way is (n - 1) * q / 100, not n * q / 100.",
            _at(lambda n, p: n * p),
        ),
        Mistake(
            "one-place-low",
            "The place is (n - 1) * q / 100, counted from 0; n * q / 100 - 1 is too low.",
            _at(lambda n, p: n * p - 1),
        ),
        Mistake(
            "place-from-n-plus-1",
            "(n + 1) * q / 100 is another definition. Here the smallest value is q = 0 and the largest q = 100.",
            _at(lambda n, p: (n + 1) * p - 1),
        ),
        Mistake(
            "nearest-rank",
            "That is the nearest-rank definition. Here the result lies between two neighbours: interpolate.",
            _at(lambda n, p: math.ceil(n * p) - 1),
        ),
        Mistake(
            "not-interpolated",
            "Between two places the result lies between their values: add the fraction of the step to the next one.",
            _at(lambda n, p: math.floor((n - 1) * p)),
        ),
        Mistake(
            "next-value",
            "Between two places the result lies between their values: the upper one alone is too large.",
            _at(lambda n, p: math.ceil((n - 1) * p)),
        ),
        Mistake(
            "rounded-place",
            "Do not round the place: at 3.6 the result is 60 % of the way from place 3 to place 4.",
            _at(lambda n, p: round((n - 1) * p)),
        ),
        Mistake(
            "shares-swapped",
            "At place 3.6 the value at place 4 weighs 0.6 and the one at place 3 weighs 0.4.",
            _at(lambda n, p: (n - 1) * p, swapped=True),
        ),
        Mistake(
            "q-as-share",
            "q is in percent, from 0 to 100: divide it by 100.",
            _at(lambda n, p: (n - 1) * p * 100),
        ),
        Mistake(
            "mean",
            "The mean is not a percentile: it says nothing about the slowest requests.",
            lambda v, q: sum(v) / len(v),
        ),
    ),
)
