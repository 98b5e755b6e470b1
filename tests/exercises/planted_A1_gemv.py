"""Wrong solutions of exercise A1: a vector times packed 4-bit weights."""

from __future__ import annotations

from functools import partial

import torch
import triton
import triton.language as tl

from course_kernels.memcheck import memcheck
from tests.exercises.planting import planted


@memcheck
@triton.jit
def _kernel(
    x_ptr, qweight_ptr, scales_ptr, qzeros_ptr, y_ptr, K, N,
    GROUP: tl.constexpr, COLUMNS: tl.constexpr, WRONG: tl.constexpr,
):  # fmt: skip
    program = 0 if WRONG == "program 0" else tl.program_id(0)
    column = program * COLUMNS + tl.arange(0, COLUMNS)
    inside = column >= 0 if WRONG == "not masked" else column < N
    j = tl.arange(0, 8)
    place = j
    if WRONG == "high first":
        place = 7 - j
    if WRONG == "bytes swapped":
        place = j ^ 1
    if WRONG == "awq":
        place = j // 2 + 4 * (j % 2)
    total = tl.zeros([COLUMNS], tl.float32)
    for r in range(0, K // 8):
        word = qweight_ptr + r * N + column[None, :]
        shift = 4 * place[:, None]
        if WRONG == "transposed":
            word = qweight_ptr + column[None, :] * (K // 8) + r
        if WRONG == "packed along N":
            word = qweight_ptr + (8 * r + j[:, None]) * (N // 8) + column[None, :] // 8
            shift = 4 * (column[None, :] % 8)
        q = tl.load(word, mask=inside[None, :], other=0) >> shift
        if WRONG != "no and":
            q = q & 15
        group = 8 * r // GROUP
        if WRONG == "group of the word":
            group = r // GROUP
        if WRONG == "group 0":
            group = 0
        scale = tl.load(scales_ptr + group * N + column, mask=inside, other=0.0).to(tl.float32)
        zero_word = column if WRONG == "zero word" else column // 8
        zero = tl.load(qzeros_ptr + group * (N // 8) + zero_word, mask=inside, other=0)[None, :]
        zero = (zero >> 4 * (j[:, None] if WRONG == "zero of the row" else column[None, :] % 8)) & 15
        if WRONG == "zero after the scale":
            weight = q * scale - zero
        elif WRONG == "zero added":
            weight = (q + zero) * scale
        elif WRONG == "no zero":
            weight = q * scale
        elif WRONG == "zero plus 1":
            weight = (q - zero - 1) * scale
        elif WRONG == "scale at the end":
            weight = (q - zero).to(tl.float32)
        else:
            weight = (q - zero) * scale
        at = 8 * r + j
        if WRONG == "planar":
            at = r + j * (K // 8)
        if WRONG == "one x":
            at = r + 0 * j
        x = tl.load(x_ptr + at)
        if WRONG == "sum in 16 bits":
            total = (total + tl.sum(x[:, None] * weight, axis=0)).to(x.dtype)
        else:
            total = total + tl.sum(x[:, None] * weight, axis=0)
    if WRONG == "scale at the end":
        total = total * scale
    tl.store(y_ptr + column, total, mask=inside)


def launch(x, qweight, scales, qzeros, wrong):
    """The launcher of the exercise."""
    K, N = len(x), qweight.shape[1]
    y = torch.full((N,), torch.nan, dtype=x.dtype)
    columns = min(32, triton.next_power_of_2(N))
    group = K // len(scales)
    _kernel[(triton.cdiv(N, columns),)](x, qweight, scales, qzeros, y, K, N, GROUP=group, COLUMNS=columns, WRONG=wrong)
    return y


for _hint, _wrong in {
    "high-nibble-first": "high first",
    "nibbles-of-a-byte-swapped": "bytes swapped",
    "order-of-awq": "awq",
    "nibble-not-cut-out": "no and",
    "packed-along-the-columns": "packed along N",
    "words-transposed": "transposed",
    "x-does-not-match": "planar",
    "one-x-for-a-word": "one x",
    "zero-after-the-scale": "zero after the scale",
    "zero-added": "zero added",
    "zero-left-out": "no zero",
    "zero-plus-one": "zero plus 1",
    "zero-of-the-row": "zero of the row",
    "zero-word-of-the-column": "zero word",
    "group-of-the-word": "group of the word",
    "first-group-only": "group 0",
    "scale-at-the-end": "scale at the end",
    "past-the-end": "not masked",
    "first-columns-only": "program 0",
    "sum-in-16-bits": "sum in 16 bits",
}.items():
    planted("int4_gemv", _hint)(partial(launch, wrong=_wrong))
