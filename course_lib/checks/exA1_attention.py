"""Exercise A1, second part: the cases of attention with an online softmax, and its known mistakes.

Letters: S sequences, n keys of a buffer, d size of a head. peak, total and out are those of the exercise's text.
"""

from __future__ import annotations

import math
from random import Random
from typing import Any

import torch

from course_lib.checks.compare import compare
from course_lib.checks.core import Case, Mistake, Problem, Property
from course_lib.checks.exA1_memory import normal
from course_lib.checks.exA1_online import (
    added,
    keys_not_masked,
    online_attention,
    rescaled,
    tiles_on_their_own,
    wrong,
)

LOG_2 = math.log(2)


def _case(
    rng: Random, windows: list[tuple[int, int]], n: int, d: int, tile: int, *,
    size: float = 1.0, outside: tuple[bool, bool] = (True, True), dtype: torch.dtype = torch.float32,
) -> tuple:  # fmt: skip
    """Arguments for sequences that see the keys start .. end - 1. outside: whether NaN lies before and behind them."""
    S = len(windows)
    query = normal(rng, S, d, dtype=dtype)
    keys, values = size * normal(rng, S, n, d, dtype=dtype), normal(rng, S, n, d, dtype=dtype)
    for s, (start, end) in enumerate(windows):
        for store in (keys, values):
            store[s, : start if outside[0] else 0] = torch.nan
            store[s, end if outside[1] else n :] = torch.nan
    starts, ends = torch.tensor(windows, dtype=torch.int32).T.contiguous()
    return query, keys, values, starts, ends, tile


def _scores(scores: list[float], values: list[float], tile: int, dtype: torch.dtype = torch.float32, end=None) -> tuple:
    """One sequence of head size 1 with these scores; it sees the first `end` keys, or all."""
    keys, values = (torch.tensor(x, dtype=dtype)[None, :, None] for x in (scores, values))
    window = (torch.tensor([at], dtype=torch.int32) for at in (0, end or len(scores)))
    return torch.ones(1, 1, dtype=dtype), keys, values, *window, tile


def _same(views: list[dict[str, Any]]) -> str | None:
    for view in views[1:]:
        if difference := compare(view["the result"], views[0]["the result"], "the result"):
            return difference.text
    return None


def _public(rng: Random) -> list[Case | Property]:
    ragged = _case(rng, [(0, 37), (3, 40), (20, 21)], n=40, d=16, tile=16)
    example = _scores([0.0, LOG_2, 2 * LOG_2, 3 * LOG_2], [7.0, 10.0, 2.0, 50.0], 2, end=3)
    return [
        # Weights 1, 2 and 4 of the values 7, 10 and 2: (7 + 20 + 8) / 7. The third raises the peak.
        Case("worked example", example, {"the result": torch.tensor([[5.0]])}),
        Case("edge case", _case(rng, [(0, 1)], n=4, d=4, tile=4, outside=(False, False))),
        Case("edge case", _case(rng, [(0, 8), (0, 6)], n=8, d=4, tile=4, outside=(False, False))),
        Case("edge case", _scores([120.0, -120.0, 119.0, 100.0], [1.0, 2.0, 3.0, 4.0], 1)),
        Case("edge case", _scores([-120.0, -121.0, -122.0, -119.0], [1.0, 2.0, 3.0, 4.0], 2)),
        Case("edge case", _case(rng, [(9, 15), (2, 12)], n=16, d=4, tile=4, outside=(False, False))),
        Case("edge case", _case(rng, [(0, 6), (5, 10)], n=12, d=4, tile=4)),
        Case("edge case", _case(rng, [(0, 6), (5, 10)], n=10, d=4, tile=4)),  # the last tile reaches past the buffer
        Case("edge case", _case(rng, [(0, 6), (6, 6)], n=8, d=4, tile=4)),  # the second one sees no key: zeros
        Case("reference", ragged),
        Property("the size of the tile changes nothing", tuple((*ragged[:-1], tile) for tile in (16, 4, 64)), _same),
        Case("edge case", _scores([0.0] * 192, [2000.0] * 192, 64, torch.float16)),
        Case("reference", _case(rng, [(70, 300), (0, 9)], n=300, d=64, tile=64, dtype=torch.float16)),
    ]


def _random_case(rng: Random, d: int, tile: int, dtype: torch.dtype) -> Case:
    n = rng.randint(20, 70)
    windows = [(start, rng.randint(start + 1, n)) for start in (0, rng.randint(1, n - 2), rng.randint(1, n - 2))]
    return Case("reference", _case(rng, [*windows, (5, 5)], n, d, tile, size=rng.choice((1, 4)), dtype=dtype))


ONLINE_ATTENTION = Problem(
    name="online_attention",
    arguments=("query", "keys", "values", "starts", "ends", "tile"),
    reference=online_attention,
    public_points=5,
    hidden_points=5,
    public=_public,
    hidden=lambda rng: [
        _random_case(rng, 16, 16, torch.float32),
        _random_case(rng, 8, 8, torch.float16),
        _random_case(rng, 1, 32, torch.float32),
        Case("reference", _scores([rng.uniform(80, 200) for _ in range(7)], [float(i) for i in range(7)], 2)),
    ],
    mistakes=(
        Mistake(
            "peak-not-subtracted",
            "exp of a large score is infinite: subtract the peak first, in every exponent.",
            wrong(first_peak=0.0, peak=lambda peak, of_tile: peak),
        ),
        Mistake(
            "nothing-rescaled",
            "The earlier terms were taken against a lower peak: multiply total and out by exp(old peak - new peak).",
            wrong(join=(added, added)),
        ),
        Mistake(
            "total-not-rescaled",
            "out shrinks with the new peak and total does not: multiply total by exp(old peak - new peak) as well.",
            wrong(join=(added, rescaled)),
        ),
        Mistake(
            "out-not-rescaled",
            "total shrinks with the new peak and out does not: multiply out by exp(old peak - new peak) as well.",
            wrong(join=(rescaled, added)),
        ),
        Mistake(
            "rescaled-the-wrong-way",
            "The factor is exp(old peak - new peak), at most 1; exp(new - old) is infinite in the first tile.",
            wrong(join=(lambda old, new, shrink: old / shrink + new,) * 2),
        ),
        Mistake(
            "rescaled-too-late",
            "Only what was there before the tile shrinks: rescale first, then add the tile's own terms.",
            wrong(join=(lambda old, new, shrink: (old + new) * shrink,) * 2),
        ),
        Mistake(
            "peak-of-the-tile",
            "The peak is the maximum of all keys so far. The tile's own lets exp(old peak - new peak) become infinite.",
            wrong(peak=lambda peak, of_tile: of_tile),
        ),
        Mistake(
            "peak-from-zero",
            "A peak of 0 stays when all scores are far below it, and every weight rounds to 0: begin at -inf.",
            wrong(first_peak=0.0),
        ),
        Mistake(
            "scale-left-out",
            "The scores are multiplied by scale, 1 / sqrt(d).",
            wrong(scale=lambda d: 1.0),
        ),
        Mistake(
            "not-divided",
            "Divide out by total at the end: the weights do not add up to 1 before.",
            wrong(divided=lambda out, total: out),
        ),
        Mistake(
            "tiles-on-their-own",
            "That is a softmax in each tile and the mean of the results. Peak, total and out run through all tiles.",
            tiles_on_their_own,
        ),
        Mistake(
            "powers-of-two",
            "2 ** x is exp(x) only after x was multiplied by log2(e): use tl.exp.",
            wrong(exp=torch.exp2),
        ),
        Mistake(
            "hidden-score-zero",
            "A key that is not seen got the score 0, which has a weight: its score must be -inf.",
            wrong(hidden=0.0),
        ),
        Mistake(
            "one-key-too-many",
            "The keys are those at positions start .. end - 1: position < end.",
            wrong(seen=lambda j, start, end: start <= j <= end),
        ),
        Mistake(
            "last-tile-dropped",
            "A last tile that is partly filled holds keys too: go on up to end, and mask.",
            wrong(tiles=lambda start, end, tile: range(start // tile * tile, end // tile * tile, tile)),
        ),
        Mistake(
            "first-sequence-only",
            "Sequence s has its keys at s * stride: all programs read those of sequence 0.",
            wrong(own=lambda s: 0),
        ),
        Mistake(
            "start-ignored",
            "Keys before start are not seen: position >= start.",
            wrong(tiles=lambda start, end, tile: range(0, end, tile), seen=lambda j, start, end: j < end),
        ),
        Mistake(
            "empty-tile",
            "In a tile without a visible key the peak is still -inf, and -inf - (-inf) is NaN: subtract 0 there.",
            wrong(tiles=lambda start, end, tile: range(0, end, tile), base=lambda peak: peak),
        ),
        Mistake(
            "values-not-masked",
            "A weight of 0 does not hide NaN (0 * NaN is NaN): mask the load of the values too, other=0.0.",
            wrong(values_masked=False),
        ),
        Mistake(
            "past-the-end",
            "The last tile reaches past the keys of the last sequence: mask the loads of keys and values.",
            keys_not_masked,
        ),
        Mistake(
            "no-key",
            "A sequence that sees no key: -inf - (-inf) and 0 / 0 are NaN. The result is 0: divide by 1 there.",
            wrong(base=lambda peak: peak, divided=lambda out, total: out / total),
        ),
        Mistake(
            "sum-in-16-bits",
            "192 * 2000 does not fit into float16, whose largest number is 65,504: keep total and out in float32.",
            wrong(rounded=True),
        ),
    ),
)
