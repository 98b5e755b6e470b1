"""Exercise 02, second part: the positions of new tokens behind a cache, and the mask of a chunk of them."""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor

from course_lib.checks.compare import compare
from course_lib.checks.core import Case, Mistake, Problem, Property

# --- positions ---


def positions(cached: int, new: int) -> Tensor:
    return torch.arange(cached, cached + new)


def _joined(views: list[dict[str, Any]]) -> str | None:
    first, second, whole = (view["the result"] for view in views)
    difference = compare(torch.cat((first, second)), whole, "the two joined")
    return difference and difference.text


POSITIONS = Problem(
    name="positions",
    arguments=("cached", "new"),
    reference=positions,
    public=lambda rng: [
        Case("worked example", (5, 3), {"the result": torch.tensor([5, 6, 7])}),
        Case("edge case", (0, 4)),
        Case("edge case", (7, 1)),
        Case("edge case", (0, 1)),
        Property(
            "the positions of 2 tokens and then 3 more are those of 5 at once",
            ((4, 2), (6, 3), (4, 5)),
            _joined,
        ),
        Case("reference", (1023, 65)),
    ],
    hidden=lambda rng: [Case("reference", (rng.randint(1, 5000), rng.randint(1, 300))) for _ in range(3)],
    mistakes=(
        Mistake(
            "from-zero",
            "The new tokens continue the sequence: the first one's position is `cached`, not 0.",
            lambda cached, new: torch.arange(new),
        ),
        Mistake(
            "one-late",
            "Positions count from 0, so the token after `cached` others stands at `cached`: len - 1, not len.",
            lambda cached, new: torch.arange(cached + 1, cached + new + 1),
        ),
        Mistake(
            "after-the-new-ones",
            "The offset grows after the tokens are fed: the new ones start at `cached`, not at cached + new.",
            lambda cached, new: torch.arange(cached + new, cached + 2 * new),
        ),
        Mistake(
            "one-offset-for-all",
            "Every token of the chunk has its own position: cached, cached + 1, and so on.",
            lambda cached, new: torch.full((new,), cached),
        ),
        Mistake(
            "whole-sequence",
            "Only the new tokens are fed, so only they need positions: `new` of them.",
            lambda cached, new: torch.arange(cached + new),
        ),
        Mistake(
            "one-too-many",
            "There are `new` positions; the end of torch.arange is not included.",
            lambda cached, new: torch.arange(cached, cached + new + 1),
        ),
        Mistake(
            "float-positions",
            "Positions index tables and are counted: int64, torch.arange's own type for integers.",
            lambda cached, new: torch.arange(cached, cached + new, dtype=torch.float32),
        ),
        Mistake(
            "list-for-tensor",
            "The engine takes a tensor of positions, int64 [new], not a list.",
            lambda cached, new: list(range(cached, cached + new)),
        ),
    ),
)


# --- causal_mask ---


def causal_mask(cached: int, new: int) -> Tensor:
    return torch.ones(new, cached + new, dtype=torch.bool).tril(diagonal=cached)


def _tril(rows: int, columns: int, diagonal: int = 0) -> Tensor:
    return torch.ones(rows, columns, dtype=torch.bool).tril(diagonal)


def _stacked(views: list[dict[str, Any]]) -> str | None:
    """A mask of 2 and a mask of 3 behind it are the rows of the mask of 5; the first lacks the later columns."""
    first, second, whole = (view["the result"] for view in views)
    difference = compare(first, whole[:2, : first.shape[1]], "first chunk") or compare(
        second, whole[2:], "second chunk"
    )
    return difference and difference.text


CAUSAL_MASK = Problem(
    name="causal_mask",
    arguments=("cached", "new"),
    reference=causal_mask,
    public=lambda rng: [
        # Two cached tokens, two new ones: the first new token (position 2) must not see the second (position 3).
        Case(
            "worked example",
            (2, 2),
            {"the result": torch.tensor([[True, True, True, False], [True, True, True, True]])},
        ),
        Case("edge case", (0, 3)),
        Case("edge case", (4, 1)),
        Case("edge case", (0, 1)),
        Property("the mask of 5 tokens is the mask of 2 above the mask of 3", ((1, 2), (3, 3), (1, 5)), _stacked),
        Case("reference", (37, 11)),
    ],
    hidden=lambda rng: [Case("reference", (rng.randint(1, 90), rng.randint(2, 40))) for _ in range(3)],
    mistakes=(
        Mistake(
            "rows-from-zero",
            "Row i belongs to position cached + i, so it sees cached + i + 1 keys: shift the diagonal by `cached`.",
            lambda cached, new: _tril(new, cached + new),
        ),
        Mistake(
            "no-mask",
            "With a cache a mask is still needed: in a chunk of several tokens the first must not see the later ones.",
            lambda cached, new: torch.ones(new, cached + new, dtype=torch.bool),
        ),
        Mistake(
            "inverted",
            "True means that a key may be seen; here True marks the hidden ones.",
            lambda cached, new: ~causal_mask(cached, new),
        ),
        Mistake(
            "new-tokens-only",
            "The new tokens see the cached keys as well: the mask has cached + new columns.",
            lambda cached, new: _tril(new, new),
        ),
        Mistake(
            "cache-hidden",
            "The cached tokens come before all new ones, so every row sees them: their columns are True.",
            lambda cached, new: torch.cat((torch.zeros(new, cached, dtype=torch.bool), _tril(new, new)), dim=1),
        ),
        Mistake(
            "own-token-hidden",
            "A token attends to itself: key position <= query position, not <.",
            lambda cached, new: _tril(new, cached + new, cached - 1),
        ),
        Mistake(
            "one-too-far",
            "Each row shows one key of the future: key position <= query position.",
            lambda cached, new: _tril(new, cached + new, cached + 1),
        ),
        Mistake(
            "whole-sequence",
            "Only the new tokens are queries: the mask has `new` rows, the last ones of the full square.",
            lambda cached, new: _tril(cached + new, cached + new),
        ),
        Mistake(
            "transposed",
            "Rows are queries, columns are keys: [new, cached + new].",
            lambda cached, new: causal_mask(cached, new).T.contiguous(),
        ),
        Mistake(
            "float-mask",
            "The mask is boolean; build it with dtype=torch.bool or by a comparison.",
            lambda cached, new: causal_mask(cached, new).float(),
        ),
        Mistake(
            "additive-mask",
            "The mask is boolean; 0 and -inf belong to the scores, which `attend` fills in.",
            lambda cached, new: torch.zeros(new, cached + new).masked_fill(~causal_mask(cached, new), -math.inf),
        ),
    ),
)
