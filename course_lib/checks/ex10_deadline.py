"""Exercise 10, first part: when the next token of a request is due."""

from __future__ import annotations

from random import Random
from typing import Any

from course_lib.checks.core import Case, Mistake, Problem, Property
from course_lib.checks.ex01_counts import number


def next_deadline(arrival: float, token_times: list[float], ttft: float, tpot: float) -> float:
    return arrival + ttft + tpot * len(token_times)


def _delay_changes_nothing(views: list[dict[str, Any]]) -> str | None:
    early, late = (view["the result"] for view in views)
    return None if early == late else f"got {early:.6g} after tokens in time, and {late:.6g} after late ones"


def _deadline_case(rng: Random) -> Case:
    arrival = rng.uniform(0, 100)
    times = sorted(arrival + rng.uniform(0, 60) for _ in range(rng.randint(2, 30)))
    return Case("reference", (arrival, times, rng.uniform(0.1, 5), rng.uniform(0.01, 0.5)))


NEXT_DEADLINE = Problem(
    name="next_deadline",
    arguments=("arrival", "token_times", "ttft", "tpot"),
    reference=next_deadline,
    public=lambda rng: [
        # Promised: the first token at 10 + 2 = 12, the second at 12.5, the third at 13, the fourth at 13.5.
        Case("worked example", (10.0, [11.5, 12.0, 12.75], 2.0, 0.5), number(13.5)),
        Case("edge case", (10.0, [], 2.0, 0.5), number(12.0)),
        Case("edge case", (10.0, [11.5], 2.0, 0.5), number(12.5)),
        Property(
            "a token that came late does not move the deadline of the next",
            ((0.0, [1.0, 1.5], 1.0, 0.5), (0.0, [7.0, 9.0], 1.0, 0.5)),
            _delay_changes_nothing,
        ),
        Case("reference", (3.25, [4.0, 4.5, 6.0, 6.25, 9.0], 0.75, 0.25)),
    ],
    hidden=lambda rng: [_deadline_case(rng) for _ in range(3)],
    mistakes=(
        Mistake(
            "one-token-behind",
            "With no token yet the first is due at arrival + ttft. Each token adds one tpot: tokens, not tokens - 1.",
            lambda a, times, ttft, tpot: a + ttft + tpot * (len(times) - 1),
        ),
        Mistake(
            "first-token-free",
            "After the first token the second is due, one tpot later: count all tokens so far, not all but one.",
            lambda a, times, ttft, tpot: a + ttft + tpot * max(len(times) - 1, 0),
        ),
        Mistake(
            "one-token-ahead",
            "The first token is due at arrival + ttft: with none generated no tpot is added.",
            lambda a, times, ttft, tpot: a + ttft + tpot * (len(times) + 1),
        ),
        Mistake(
            "from-first-token",
            "Counted from when the first token came, a late start is forgiven. The promise counts from the arrival.",
            lambda a, times, ttft, tpot: times[0] + tpot * len(times) if times else a + ttft,
        ),
        Mistake(
            "from-last-token",
            "Counted from when the last token came, every delay is forgiven. The promise counts from the arrival.",
            lambda a, times, ttft, tpot: times[-1] + tpot if times else a + ttft,
        ),
        Mistake(
            "ttft-only",
            "After the first token the next ones are due too: each adds one tpot.",
            lambda a, times, ttft, tpot: a + ttft,
        ),
        Mistake(
            "ttft-left-out",
            "The first token may take ttft: the others follow it, so ttft is in every deadline.",
            lambda a, times, ttft, tpot: a + tpot * len(times),
        ),
        Mistake(
            "without-arrival",
            "A deadline is a time on the clock of `arrival`, not a duration: those of different requests are compared.",
            lambda a, times, ttft, tpot: ttft + tpot * len(times),
        ),
    ),
)
