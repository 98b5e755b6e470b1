"""Exercise A1, third part: a vector times a matrix of packed 4-bit weights.

Letters: K inputs, N outputs, g size of a group along K, q a stored weight and zero its zero point (both 0 to 15).
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from random import Random
from typing import Any

import torch
from torch import Tensor

from course_kernels.reference import int4_matmul as reference
from course_lib.checks.core import Case, Mistake, Problem
from course_lib.checks.exA1_memory import KernelError, normal, power_of_two

COLUMNS = 32  # of a program, in the exercise's launcher
AWQ_PLACE = torch.tensor([0, 4, 1, 5, 2, 6, 3, 7])  # of the weight j in a word of AWQ, whose order is 0 2 4 6 1 3 5 7
Gemv = Callable[[Tensor, Tensor, Tensor, Tensor], Tensor]


def int4_gemv(x: Tensor, qweight: Tensor, scales: Tensor, qzeros: Tensor) -> Tensor:
    return reference.int4_matmul(x.double()[None], qweight, scales.double(), qzeros)[0].type_as(x)


def _word(words: Tensor, row: Tensor, column: Tensor, width: int) -> Tensor:
    """words at row * width + column. Raises KernelError past the tensor's end."""
    at = row * width + column
    if int(at.max()) >= words.numel():
        raise KernelError
    return words.flatten()[at]


def _nibble(word: Tensor, place: Tensor) -> Tensor:
    return word >> 4 * place & 15


def _weight(q: Tensor, zero: Tensor, scale: Tensor) -> Tensor:
    return (q - zero) * scale


def _stored(qweight: Tensor, k: Tensor, n: Tensor) -> Tensor:
    return _nibble(_word(qweight, k // 8, n, qweight.shape[1]), k % 8)


def _zero(qzeros: Tensor, group: Tensor, k: Tensor, n: Tensor) -> Tensor:
    return _nibble(_word(qzeros, group, n // 8, qzeros.shape[1]), n % 8)


def _gemv(
    x, qweight, scales, qzeros, *,
    stored=_stored, group=lambda k, g: k // g, zero=_zero, weight=_weight, order=lambda k, K: k, rounded=False,
    columns=lambda N: N,
) -> Tensor:  # fmt: skip
    """A kernel with one of its parts replaced by a wrong one.

    order: which element of x meets row k. rounded: whether sums are kept in x's dtype. columns: how many are computed.
    """
    K, N = len(x), qweight.shape[1]
    k, n = torch.arange(K)[:, None], torch.arange(N)[None]
    groups = group(k, K // len(scales))
    w = weight(stored(qweight, k, n), zero(qzeros, groups, k, n), _word(scales, groups, n, N).float())
    products = x[order(k[:, 0], K)].float()[:, None] * w
    total = products.sum(dim=0)
    if rounded:
        total = torch.zeros(N, dtype=x.dtype)
        for row in products:
            total = (total.float() + row).type_as(x)
    y = torch.full((N,), torch.nan, dtype=x.dtype)
    y[: columns(N)] = total.type_as(x)[: columns(N)]
    return y


def _scale_at_the_end(x: Tensor, qweight: Tensor, scales: Tensor, qzeros: Tensor) -> Tensor:
    """The sum is multiplied once, by the last group's scale."""
    return int4_gemv(x, qweight, scales[-1:].expand_as(scales), qzeros)


def _tile_not_masked(x: Tensor, qweight: Tensor, scales: Tensor, qzeros: Tensor) -> Tensor:
    N = qweight.shape[1]
    if N % min(COLUMNS, power_of_two(N)):
        raise KernelError
    return int4_gemv(x, qweight, scales, qzeros)


def _wrong(**parts: Any) -> Gemv:
    return partial(_gemv, **parts)


def _case(rng: Random, K: int, N: int, group: int, dtype: torch.dtype = torch.float32) -> tuple:
    """Random arguments whose results are around 1."""
    generator = torch.Generator().manual_seed(rng.getrandbits(62))
    q = torch.randint(0, 16, (K, N), generator=generator)
    zeros = torch.randint(0, 15, (K // group, N), generator=generator)
    scales = (0.01 + 0.04 * torch.rand(K // group, N, generator=generator)).to(dtype)
    return normal(rng, K, dtype=dtype), reference.pack(q, 0), scales, reference.pack(zeros, 1)


def _example() -> tuple:
    """Column 0 holds 1 0 2 0 0 0 0 3 with zero point 1 and scale 0.5, the others their zero point, 0."""
    qweight, qzeros = (torch.zeros(1, n, dtype=torch.int32) for n in (8, 1))
    qweight[0, 0], qzeros[0, 0] = 0x30000201, 0x00000001
    scales = torch.ones(1, 8)
    scales[0, 0] = 0.5
    return torch.tensor([1.0, 10.0, 100.0, 0.0, 0.0, 0.0, 0.0, 1000.0]), qweight, scales, qzeros


def _overflowing() -> tuple:
    """Partial sums of 120,000 that cancel: too large for float16 on the way, and 0 at the end."""
    K, N = 32, 8
    x = torch.full((K,), 1000.0, dtype=torch.float16)
    x[K // 2 :] *= -1
    q, zeros = torch.full((K, N), 15), torch.zeros(K // 16, N, dtype=torch.int64)
    return x, reference.pack(q, 0), torch.full((K // 16, N), 0.5, dtype=torch.float16), reference.pack(zeros, 1)


INT4_GEMV = Problem(
    name="int4_gemv",
    arguments=("x", "qweight", "scales", "qzeros"),
    reference=int4_gemv,
    public_points=5,
    hidden_points=5,
    public=lambda rng: [
        # ((1 - 1) * 1 + (0 - 1) * 10 + (2 - 1) * 100 + (3 - 1) * 1000) * 0.5
        Case("worked example", _example(), {"the result": torch.tensor([1045.0] + 7 * [0.0])}),
        Case("edge case", _case(rng, K=16, N=16, group=16)),  # two words, one group
        Case("edge case", _case(rng, K=144, N=8, group=16)),
        Case("edge case", _case(rng, K=16, N=40, group=16)),  # the last program has columns that do not exist
        Case("edge case", _overflowing()),
        Case("reference", _case(rng, K=64, N=40, group=32)),
        Case("reference", _case(rng, K=48, N=72, group=16, dtype=torch.float16)),
    ],
    hidden=lambda rng: [
        Case("reference", _case(rng, K=group * groups, N=8 * rng.randint(5, 9), group=group, dtype=dtype))
        for groups, group, dtype in ((2, 16, torch.float32), (1, 48, torch.float32), (2, 32, torch.float16))
    ],
    mistakes=(
        Mistake(
            "high-nibble-first",
            "The first of the eight weights is in the lowest four bits: shift by 4 * j.",
            _wrong(stored=lambda words, k, n: _stored(words, k - k % 8 + 7 - k % 8, n)),
        ),
        Mistake(
            "nibbles-of-a-byte-swapped",
            "In each byte the low four bits come first: weight j is in bits 4j to 4j + 3.",
            _wrong(stored=lambda words, k, n: _stored(words, k ^ 1, n)),
        ),
        Mistake(
            "order-of-awq",
            "AWQ packs in the order 0 2 4 6 1 3 5 7; GPTQ, here, in the order 0 to 7.",
            _wrong(stored=lambda words, k, n: _stored(words, k - k % 8 + AWQ_PLACE[k % 8], n)),
        ),
        Mistake(
            "nibble-not-cut-out",
            "After the shift the higher weights, or the sign, are still there: & 15.",
            _wrong(stored=lambda words, k, n: words[k // 8, n] >> 4 * (k % 8)),
        ),
        Mistake(
            "packed-along-the-columns",
            "A word of qweight holds eight rows of one column, not eight columns of one row.",
            _wrong(stored=lambda words, k, n: _nibble(_word(words, k, n // 8, words.shape[1] // 8), n % 8)),
        ),
        Mistake(
            "words-transposed",
            "qweight is [K / 8, N]: the words of a column lie N apart.",
            _wrong(stored=lambda words, k, n: _nibble(_word(words, n, k // 8, len(words)), k % 8)),
        ),
        Mistake(
            "x-does-not-match",
            "Word r holds the rows 8r to 8r + 7: its nibble j meets x[8r + j], not x[r + j * K / 8].",
            _wrong(order=lambda k, K: k % 8 * (K // 8) + k // 8),
        ),
        Mistake(
            "one-x-for-a-word",
            "The eight weights of a word meet eight elements of x: x[8r + j], not x[r].",
            _wrong(order=lambda k, K: k // 8),
        ),
        Mistake(
            "zero-after-the-scale",
            "The zero point is on the scale of q: subtract it first, (q - zero) * scale.",
            _wrong(weight=lambda q, zero, scale: q * scale - zero),
        ),
        Mistake(
            "zero-added",
            "The zero point is the q that stands for 0: subtract it.",
            _wrong(weight=lambda q, zero, scale: (q + zero) * scale),
        ),
        Mistake(
            "zero-left-out",
            "The zero point is missing: (q - zero) * scale.",
            _wrong(weight=lambda q, zero, scale: q * scale),
        ),
        Mistake(
            "zero-plus-one",
            "Only GPTQ's first format stores zero - 1; here the zero point is stored as it is.",
            _wrong(weight=lambda q, zero, scale: (q - zero - 1) * scale),
        ),
        Mistake(
            "zero-of-the-row",
            "The zero points are packed along the columns: shift by 4 * (column % 8), not by the row's place.",
            _wrong(zero=lambda words, group, k, n: _nibble(_word(words, group, n // 8, words.shape[1]), k % 8)),
        ),
        Mistake(
            "zero-word-of-the-column",
            "A word of qzeros holds eight columns, and a row of it N / 8 words: column // 8.",
            _wrong(zero=lambda words, group, k, n: _nibble(_word(words, group, n, words.shape[1]), n % 8)),
        ),
        Mistake(
            "group-of-the-word",
            "The group of word r is that of its rows, 8r // g, not r // g.",
            _wrong(group=lambda k, g: k // 8 // g),
        ),
        Mistake(
            "first-group-only",
            "Each group has scales and zero points of its own: row k // g of both.",
            _wrong(group=lambda k, g: 0 * k),
        ),
        Mistake(
            "scale-at-the-end",
            "The scale changes from group to group: multiply before the groups are added.",
            _scale_at_the_end,
        ),
        Mistake(
            "past-the-end",
            "N is no multiple of a program's columns: mask every load and the store with column < N.",
            _tile_not_masked,
        ),
        Mistake(
            "first-columns-only",
            "Program p has the columns from p * COLUMNS on; all of them computed the first ones.",
            _wrong(columns=lambda N: min(COLUMNS, N)),
        ),
        Mistake(
            "sum-in-16-bits",
            "A partial sum passed 65,504, the largest number of float16: keep the total in float32.",
            _wrong(rounded=True),
        ),
    ),
)
