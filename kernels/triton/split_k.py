"""Matrix products whose inner dimension is split among programs, because the output alone has too few tiles.

With few rows an output of N = 4096 columns is 16 to 32 tiles, and a GPU has more than a hundred multiprocessors, which
keep its memory busy only together: bandwidth times latency must be on its way at any time (Little's law). So each tile
is computed by S programs. Program s sums its share of K into partials[s], float32, and a second kernel adds the S
shares in order. Unlike atomic additions, which come in any order, it gives the same bits every time. The shares move
4 S T N bytes twice, mostly through the L2 cache.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

FEW_ROWS = 64  # up to here a product waits for its weights, beyond for the tensor cores
# Programs on a GPU with 108 (A100), 132 (H100, H200) or 148 (B200) multiprocessors: about four on each to wait for
# memory side by side, one on each to compute. One number for all, so that results have the same bits on each of them.
WAITING, COMPUTING = 512, 128
BLOCK = 512  # outputs of a program that adds the shares


def splits(rows: int, tiles: int, steps: int) -> int:
    """How many programs share a tile: a power of two, so many that `tiles` of them fill a GPU, and at most `steps`.

    rows: of x. tiles: of the output. steps: tiles along K, of which every program needs at least one.
    """
    programs = WAITING if rows <= FEW_ROWS else COMPUTING
    count = 1
    while 2 * count * tiles <= programs and 2 * count <= steps:
        count *= 2
    return count


@triton.jit
def _sum_splits(partials_ptr, y_ptr, size, SPLITS: tl.constexpr, BLOCK: tl.constexpr):
    offset = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    total = tl.zeros([BLOCK], tl.float32)
    for s in tl.static_range(SPLITS):  # unrolled: all loads are on their way at once
        total += tl.load(partials_ptr + s * size.to(tl.int64) + offset, mask=offset < size, other=0.0)
    tl.store(y_ptr + offset, total.to(y_ptr.dtype.element_ty), mask=offset < size)


def sum_splits(partials: Tensor, dtype: torch.dtype) -> Tensor:
    """The sum over the first axis, in order. partials [S, T, N] float32, contiguous; returns [T, N] in dtype."""
    count, tokens, columns = partials.shape
    y = torch.empty(tokens, columns, dtype=dtype, device=partials.device)
    size = tokens * columns
    _sum_splits[(triton.cdiv(size, BLOCK),)](partials, y, size, SPLITS=count, BLOCK=BLOCK, num_warps=4)
    return y


def output(count: int, tokens: int, columns: int, dtype: torch.dtype, device: torch.device) -> Tensor:
    """What a split product writes, [S, T, N]: shares in float32, or the result in `dtype` where S is 1."""
    return torch.empty(count, tokens, columns, dtype=dtype if count == 1 else torch.float32, device=device)
