"""Exercise 10, sixth part: what can never be served."""

from __future__ import annotations

from random import Random
from typing import Any

from course_lib.checks.core import Case, Mistake, Problem

Limits = dict[str, Any]


def never_fits(prompt: int, new: int, n: int, limits: Limits) -> str:
    return _limit(prompt, new, n, limits)


def _seats(prompt: int, new: int, n: int, limits: Limits) -> bool:
    return n > limits["max_num_seqs"]


def _budget(prompt: int, new: int, n: int, limits: Limits) -> bool:
    return not limits["chunked"] and prompt > limits["max_num_batched_tokens"]


def _pool(prompt: int, new: int, n: int, limits: Limits) -> bool:
    return prompt + new - 1 > limits["blocks"] * limits["block_size"]


def _limit(*args, seats=_seats, budget=_budget, pool=_pool, upside_down=False) -> str:
    """The first limit that is passed, or "fits"; one of the tests can be replaced by a wrong one."""
    tests = {"max_num_seqs": seats, "max_num_batched_tokens": budget, "blocks": pool}
    passed = [name for name, test in tests.items() if test(*args)]
    return (passed[-1] if upside_down else passed[0]) if passed else "fits"


def limits(blocks: int, block_size: int, seats: int, budget: int, chunked: bool = True) -> Limits:
    return {
        "blocks": blocks,
        "block_size": block_size,
        "max_num_seqs": seats,
        "max_num_batched_tokens": budget,
        "chunked": chunked,
    }


SMALL = limits(blocks=4, block_size=8, seats=4, budget=16)
WHOLE = limits(blocks=4, block_size=8, seats=4, budget=16, chunked=False)


def _limits_case(rng: Random) -> Case:
    """A request near one of the limits: on it, or one above."""
    blocks, size, seats, above = rng.randint(8, 30), rng.choice((4, 8, 16)), rng.randint(2, 6), rng.randint(0, 1)
    new, prompt, n, budget = rng.randint(2, 20), rng.randint(8, 30), rng.randint(1, seats), rng.randint(40, 90)
    match rng.randrange(3):
        case 0:
            prompt = blocks * size + 1 - new + above
        case 1:
            budget = prompt - above
        case 2:
            n = seats + above
    return Case("reference", (prompt, new, n, limits(blocks, size, seats, budget, chunked=rng.random() < 0.5)))


NEVER_FITS = Problem(
    name="never_fits",
    arguments=("prompt", "new", "n", "limits"),
    reference=never_fits,
    public=lambda rng: [
        # 30 + 4 - 1 = 33 tokens need a slot, and the pool has 4 * 8 = 32.
        Case("worked example", (30, 4, 1, SMALL), {"the result": "blocks"}),
        Case("edge case", (30, 3, 1, SMALL), {"the result": "fits"}),
        Case("edge case", (30, 20, 1, SMALL), {"the result": "blocks"}),
        Case("edge case", (17, 2, 1, WHOLE), {"the result": "max_num_batched_tokens"}),
        Case("edge case", (16, 2, 1, WHOLE), {"the result": "fits"}),
        Case("edge case", (17, 2, 1, SMALL), {"the result": "fits"}),
        Case("edge case", (3, 2, 5, SMALL), {"the result": "max_num_seqs"}),
        Case("edge case", (3, 2, 4, SMALL), {"the result": "fits"}),
        Case("edge case", (20, 10, 3, SMALL), {"the result": "fits"}),  # its completions can run one after the other
        Case("edge case", (40, 9, 9, WHOLE), {"the result": "max_num_seqs"}),
        Case("edge case", (40, 9, 1, WHOLE), {"the result": "max_num_batched_tokens"}),
        Case("reference", (14, 4, 2, WHOLE)),
    ],
    hidden=lambda rng: [_limits_case(rng) for _ in range(10)],
    mistakes=(
        Mistake(
            "last-token-counted",
            "The last generated token is not fed back, so it needs no slot: prompt + new - 1 do.",
            lambda *a: _limit(*a, pool=lambda p, new, n, lim: p + new > lim["blocks"] * lim["block_size"]),
        ),
        Mistake(
            "prompt-only",
            "Generated tokens need slots as well: a request that starts and cannot end would wait for ever.",
            lambda *a: _limit(*a, pool=lambda p, new, n, lim: p > lim["blocks"] * lim["block_size"]),
        ),
        Mistake(
            "blocks-rounded-down",
            "A block that is filled in part is a whole block: round up, or compare tokens with blocks * block_size.",
            lambda *a: _limit(*a, pool=lambda p, new, n, lim: (p + new - 1) // lim["block_size"] > lim["blocks"]),
        ),
        Mistake(
            "blocks-for-tokens",
            "A block holds block_size tokens: the pool has blocks * block_size slots.",
            lambda *a: _limit(*a, pool=lambda p, new, n, lim: p + new - 1 > lim["blocks"]),
        ),
        Mistake(
            "every-completion-at-once",
            "The n completions share their prompt and can be preempted one by one: it is enough that one of them fits.",
            lambda *a: _limit(*a, pool=lambda p, new, n, lim: n * (p + new - 1) > lim["blocks"] * lim["block_size"]),
        ),
        Mistake(
            "budget-although-chunked",
            "With chunked prefill a prompt is cut to the budget: only prompts that are fed whole must fit in one step.",
            lambda *a: _limit(*a, budget=lambda p, new, n, lim: p > lim["max_num_batched_tokens"]),
        ),
        Mistake(
            "budget-ignored",
            "Without chunked prefill a prompt above the token budget is never fed: it and all behind it wait for ever.",
            lambda *a: _limit(*a, budget=lambda *_: False),
        ),
        Mistake(
            "budget-for-new-tokens",
            "The budget is for one step. Generated tokens come in later steps, one in each: only the prompt counts.",
            lambda *a: _limit(
                *a, budget=lambda p, new, n, lim: not lim["chunked"] and p + new - 1 > lim["max_num_batched_tokens"]
            ),
        ),
        Mistake(
            "seats-ignored",
            "Each of the n completions needs a seat: n must not be above max_num_seqs.",
            lambda *a: _limit(*a, seats=lambda *_: False),
        ),
        Mistake(
            "last-seat-unused",
            "n completions fit in n seats: reject only n > max_num_seqs.",
            lambda *a: _limit(*a, seats=lambda p, new, n, lim: n >= lim["max_num_seqs"]),
        ),
        Mistake(
            "full-budget-rejected",
            "A prompt as long as the budget fits in one step: reject only what is longer.",
            lambda *a: _limit(
                *a, budget=lambda p, new, n, lim: not lim["chunked"] and p >= lim["max_num_batched_tokens"]
            ),
        ),
        Mistake(
            "last-limit-named",
            "Where several limits are passed, name the first of max_num_seqs, max_num_batched_tokens, blocks.",
            lambda *a: _limit(*a, upside_down=True),
        ),
    ),
)
