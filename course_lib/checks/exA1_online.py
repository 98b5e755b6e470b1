"""Exercise A1, second part: attention with an online softmax, and the ways in which a kernel gets it wrong."""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from torch import Tensor

from course_lib.checks.exA1_memory import KernelError

Attention = Callable[[Tensor, Tensor, Tensor, Tensor, Tensor, int], Tensor]


def online_attention(
    query: Tensor, keys: Tensor, values: Tensor, starts: Tensor, ends: Tensor, tile: int
) -> Tensor:  # the result does not depend on the tile
    out = torch.zeros_like(query)
    for s, (start, end) in enumerate(zip(starts.tolist(), ends.tolist(), strict=True)):
        scores = keys[s, start:end].double() @ query[s].double() / math.sqrt(query.shape[1])
        out[s] = scores.softmax(dim=0) @ values[s, start:end].double()
    return out


def _higher(peak: Tensor, of_tile: Tensor) -> Tensor:
    return torch.maximum(peak, of_tile)


def rescaled(old: Tensor, new: Tensor, shrink: Tensor) -> Tensor:
    return old * shrink + new


def added(old: Tensor, new: Tensor, shrink: Tensor) -> Tensor:
    return old + new


def _zero_for_no_peak(peak: Tensor) -> Tensor:
    return torch.zeros_like(peak) if peak == -torch.inf else peak


def _or_zero(out: Tensor, total: Tensor) -> Tensor:
    return out / (total if total > 0 else 1.0)


def _tile(store: Tensor, first: int, tile: int) -> Tensor:
    """Rows first .. first + tile - 1 of [n, d] in float32; those past the end are 0."""
    rows = torch.zeros(tile, store.shape[1])
    there = store[first : first + tile]
    rows[: len(there)] = there
    return rows


def _attend(
    query, keys, values, starts, ends, tile, *,
    tiles=lambda start, end, tile: range(start // tile * tile, end, tile), seen=lambda j, start, end: start <= j < end,
    scale=lambda d: d**-0.5, hidden=-torch.inf, first_peak=-torch.inf, peak=_higher, base=_zero_for_no_peak,
    join=(rescaled, rescaled), exp=torch.exp, divided=_or_zero, rounded=False, values_masked=True, own=lambda s: s,
) -> Tensor:  # fmt: skip
    """A kernel, tile by tile, with one of its parts replaced by a wrong one.

    join: how total and out take in a tile. rounded: whether both are kept in query's dtype. own: whose keys are read.
    """
    results = []
    kept = query.dtype if rounded else torch.float32
    for s, (start, end) in enumerate(zip(starts.tolist(), ends.tolist(), strict=True)):
        at, total, out = torch.tensor(first_peak), torch.tensor(0.0), torch.zeros(query.shape[1])
        for first in tiles(start, end, tile):
            visible = torch.tensor([seen(j, start, end) for j in range(first, first + tile)])
            k, v = (_tile(store[own(s)], first, tile) for store in (keys, values))
            v = v.where(visible[:, None], 0.0) if values_masked else v
            scores = (k @ query[s].float() * scale(query.shape[1])).where(visible, hidden)
            new = peak(at, scores.max())
            weights, shrink = exp(scores - base(new)), exp(at - base(new))
            total = join[0](total, weights.sum(), shrink).to(kept).float()
            out = join[1](out, weights @ v, shrink).to(kept).float()
            at = new
        results.append(divided(out, total))
    return torch.stack(results).type_as(query)


def keys_not_masked(query, keys, values, starts, ends, tile) -> Tensor:
    """The hidden scores are replaced, so only a tile that reaches past the last buffer shows."""
    if -(-int(ends[-1]) // tile) * tile > keys.shape[1]:
        raise KernelError
    return online_attention(query, keys, values, starts, ends, tile)


def tiles_on_their_own(query, keys, values, starts, ends, tile) -> Tensor:
    """A softmax in each tile, and the mean of their results."""
    parts = []
    for first in range(0, keys.shape[1], tile):
        parts.append((starts.clamp(min=first), ends.clamp(max=first + tile)))
    outs = [online_attention(query, keys, values, start, end, tile) for start, end in parts]
    counts = torch.stack([(end > start) for start, end in parts]).sum(dim=0)
    return (torch.stack(outs).float().sum(dim=0) / counts.clamp(min=1)[:, None]).type_as(query)


def wrong(**parts: Any) -> Attention:
    """A kernel with some of its parts replaced; see `_attend`."""
    return partial(_attend, **parts)
