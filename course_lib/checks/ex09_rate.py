"""Exercise 09, second and third part: the rate that a server can sustain, and a prompt cut to the token budget."""

from __future__ import annotations

from course_lib.checks.core import Case, Mistake, Problem, Property
from course_lib.checks.ex01_counts import number, proportional

# --- sustainable_rate ---


def sustainable_rate(seats: int, tokens: float, fixed: float, each: float) -> float:
    return seats / (tokens * (fixed + each * seats))


SUSTAINABLE_RATE = Problem(
    name="sustainable_rate",
    arguments=("seats", "tokens", "fixed", "each"),
    reference=sustainable_rate,
    public=lambda rng: [
        # A step of 8 takes 12 + 8 = 20 ms, so a request stays 100 * 20 ms = 2 s: 8 seats serve 4 requests per s.
        Case("worked example", (8, 100, 0.012, 0.001), number(4.0)),
        Case("edge case", (1, 100, 0.009, 0.001), number(1.0)),
        Case("edge case", (8, 1, 0.012, 0.001), number(400.0)),
        Case("edge case", (10, 50, 0.02, 0.0), number(10.0)),  # memory-bound: a step costs the same for any batch
        Case("edge case", (10, 50, 0.0, 0.002), number(10.0)),  # compute-bound: more seats do not help
        Property(
            "answers half as long double the rate",
            ((16, 300, 0.01, 0.0005), (16, 150, 0.01, 0.0005)),
            proportional(2),
        ),
        Case("reference", (64, 213.5, 0.0175, 0.00025)),
    ],
    hidden=lambda rng: [
        Case(
            "reference", (rng.randint(2, 256), rng.uniform(20, 900), rng.uniform(0.005, 0.05), rng.uniform(1e-4, 1e-3))
        )
        for _ in range(3)
    ],
    mistakes=(
        Mistake(
            "one-request",
            "That is the rate of one seat, and all serve at once. Little's law: seats = rate * time in a seat.",
            lambda s, n, f, e: 1 / (n * (f + e * s)),
        ),
        Mistake(
            "step-of-one",
            "All seats are busy at that rate, so every step serves `seats` sequences and takes fixed + each * seats.",
            lambda s, n, f, e: s / (n * (f + e)),
        ),
        Mistake(
            "each-left-out",
            "A step takes longer with more sequences in it: fixed + each * seats.",
            lambda s, n, f, e: s / (n * f),
        ),
        Mistake(
            "fixed-left-out",
            "Every step pays `fixed` once, for reading the weights.",
            lambda s, n, f, e: s / (n * e * s),
        ),
        Mistake(
            "fixed-for-each-sequence",
            "`fixed` is paid once for a step, however many sequences share it: that is what batching gains.",
            lambda s, n, f, e: s / (n * s * (f + e)),
        ),
        Mistake(
            "tokens-per-second",
            "That is the rate of tokens. A request needs `tokens` steps before its seat is free again.",
            lambda s, n, f, e: s / (f + e * s),
        ),
        Mistake(
            "seconds-per-request",
            "That is a time; the rate is its inverse, in requests per second.",
            lambda s, n, f, e: n * (f + e * s) / s,
        ),
        Mistake(
            "time-in-the-seat",
            "That is how long a request holds its seat, W. Little's law gives the rate: seats = rate * W.",
            lambda s, n, f, e: n * (f + e * s),
        ),
        Mistake(
            "little-multiplied",
            "Little's law is seats = rate * W, so divide the seats by the time in a seat.",
            lambda s, n, f, e: s * n * (f + e * s),
        ),
    ),
)


# --- prefill_chunks ---


def prefill_chunks(prompt: int, decodes: int, budget: int) -> list[int]:
    room = budget - decodes
    return [min(room, prompt - done) for done in range(0, prompt, room)]


def _equal_chunks(prompt: int, decodes: int, budget: int) -> list[int]:
    count = -(-prompt // (budget - decodes))
    return [prompt // count + (i < prompt % count) for i in range(count)]


PREFILL_CHUNKS = Problem(
    name="prefill_chunks",
    arguments=("prompt", "decodes", "budget"),
    reference=prefill_chunks,
    public=lambda rng: [
        # 4 of the 36 tokens go to the decodes; the prompt gets 32 in each step, and 4 are left for the last.
        Case("worked example", (100, 4, 36), {"the result": [32, 32, 32, 4]}),
        Case("edge case", (96, 4, 36), {"the result": [32, 32, 32]}),
        Case("edge case", (5, 4, 36), {"the result": [5]}),
        Case("edge case", (3, 7, 8), {"the result": [1, 1, 1]}),
        Case("edge case", (70, 0, 32), {"the result": [32, 32, 6]}),
        Property(
            "the chunks add up to the prompt",
            ((511, 9, 64), (512, 9, 64), (1, 9, 64)),
            lambda views: next(
                (
                    f"the chunks of {want} tokens add up to {sum(view['the result'])}"
                    for view, want in zip(views, (511, 512, 1), strict=True)
                    if sum(view["the result"]) != want
                ),
                None,
            ),
        ),
        Case("reference", (2000, 37, 256)),
    ],
    hidden=lambda rng: [
        Case("reference", (rng.randint(50, 3000), decodes := rng.randint(0, 60), decodes + rng.randint(1, 90)))
        for _ in range(4)
    ],
    mistakes=(
        Mistake(
            "budget-per-request",
            "The budget is that of the whole step: each decode takes 1 of it, and the prompt gets what is left.",
            lambda p, d, b: prefill_chunks(p, 0, b),
        ),
        Mistake(
            "whole-prompt",
            "The prompt was fed in one step. Together with the decodes a step has at most `budget` tokens.",
            lambda p, d, b: [p],
        ),
        Mistake(
            "equal-chunks",
            "Fill each step up to the budget; the last chunk is what remains. Equal chunks leave budget unused.",
            _equal_chunks,
        ),
        Mistake(
            "rest-dropped",
            "The last chunk may be smaller than the room of a step; without it the prompt is never complete.",
            lambda p, d, b: [b - d] * (p // (b - d)),
        ),
        Mistake(
            "last-chunk-full",
            "The last chunk holds only the tokens that remain, not the room of a whole step.",
            lambda p, d, b: [b - d] * -(-p // (b - d)),
        ),
        Mistake(
            "empty-chunk",
            "When the prompt is complete, no chunk follows: a chunk of 0 tokens would be a step for nothing.",
            lambda p, d, b: [min(b - d, p - done) for done in range(0, p + 1, b - d)],
        ),
        Mistake(
            "decodes-counted-once",
            "The decodes are fed in every step, so they take their tokens from each step's budget, not from one alone.",
            lambda p, d, b: [first := min(p, b - d), *prefill_chunks(p - first, 0, b)],
        ),
        Mistake(
            "count-for-sizes",
            "Return the list of the chunks' sizes, not how many there are.",
            lambda p, d, b: len(prefill_chunks(p, d, b)),
        ),
    ),
)
