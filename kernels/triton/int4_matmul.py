"""Weight-only int4 with groups: y = x W, W[k, n] = (q[k, n] - zero[k // g, n]) * scale[k // g, n], q and zero 0 to 15.

Source: Frantar et al., GPTQ, arXiv 2210.17323. The layout is that of its checkpoints in their second format, where a
zero is stored as it is; the first format stores zero - 1. Rows of K are in order (no act-order).

    qweight int32 [K/8, N]     word [r, n] holds q[8r + j, n] in bits 4j .. 4j + 3
    scales        [K/g, N]     in x's dtype
    qzeros  int32 [K/g, N/8]   word [i, c] holds zero[i, 8c + j] in bits 4j .. 4j + 3

With T rows of x, 2-byte elements:

    bytes  K N (1/2 + 5/(2g)) + 2 T (K + N)    at g = 128 0.52 bytes per weight, 3.8 times less than float16
    FLOPs  2 T K N

One row does 4 FLOPs per byte and waits for memory on every GPU: a GEMV on the ordinary cores (`_gemv`). More rows reuse
a weight once it is unpacked, on the tensor cores (`_gemm`). Both split K when the output has few tiles.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from course_kernels.launch import FLOATS, KernelError, check
from course_kernels.triton import split_k


@triton.jit
def _gemv(
    x_ptr, qweight_ptr, scales_ptr, qzeros_ptr, y_ptr, K, N,
    GROUP: tl.constexpr, WORDS: tl.constexpr, COLUMNS: tl.constexpr, SPLITS: tl.constexpr,
):  # fmt: skip
    """One row of x. A tile is WORDS x COLUMNS words of one group; a thread has four neighbouring columns: 128 bits.

    The ordinary cores could become the bottleneck: an H200 reads 4.8 TB/s / 0.52 B = 9 * 10^12 weights per second, and
    its 132 * 128 lanes at 1.8 GHz execute 30 * 10^12 instructions, three per weight. Shift, mask, convert to float,
    subtract the zero and multiply are five. These are two, a mask and a multiplication:

    - A float32 whose exponent bits are 0 is subnormal and has the value mantissa * 2^-149, and with a lowest exponent
      bit of 1 it still is a 24-bit number times 2^-149. So a nibble that is masked and not moved, bits 4j to 4j + 3,
      read as a float, is exactly q * 2^(4j - 149). No conversion; and one shift brings down the nibbles above bit 23.
    - x is multiplied by 2^(96 - 4j) beforehand, so that products are q * x * 2^-53: normal numbers for every |x| from
      2^-73 to 2^31. GPUs multiply subnormal numbers at full speed, unless a compiler is told to flush them to zero.
    - The zero is taken out of the sum: sum (q - zero) x = sum q x - zero * sum x.
    """
    column = tl.program_id(0) * COLUMNS + tl.arange(0, COLUMNS)
    mask = column < N
    steps = tl.cdiv(K // 8 // WORDS, SPLITS)
    first = tl.program_id(1) * steps * WORDS
    last = tl.minimum(first + steps * WORDS, K // 8)
    total = tl.zeros([WORDS, COLUMNS], tl.float32)
    for start in range(first, last, WORDS):
        row = start + tl.arange(0, WORDS)
        words = tl.load(qweight_ptr + row[:, None].to(tl.int64) * N + column[None, :], mask=mask[None, :], other=0)
        words = words.to(tl.uint32, bitcast=True)
        group = start * 8 // GROUP
        scale = tl.load(scales_ptr + group * N + column, mask=mask, other=0.0).to(tl.float32)
        zero = tl.load(qzeros_ptr + group * (N // 8) + column // 8, mask=mask, other=0)
        zero = ((zero >> column % 8 * 4) & 15).to(tl.float32)
        sum_x = tl.zeros([WORDS], tl.float32)
        sum_qx = tl.zeros([WORDS, COLUMNS], tl.float32)
        for j in tl.static_range(8):
            x = tl.load(x_ptr + row * 8 + j).to(tl.float32)
            q = (words if j < 6 else words >> 24) & (15 << j % 6 * 4)
            sum_x += x
            sum_qx += q.to(tl.float32, bitcast=True) * (x * 2.0 ** (96 - j % 6 * 4))[:, None]
        total += scale[None, :] * (sum_qx * 2.0**53 - zero[None, :] * sum_x[:, None])
    y = tl.sum(total, axis=0).to(y_ptr.dtype.element_ty)
    tl.store(y_ptr + tl.program_id(1) * N + column, y, mask=mask)


@triton.jit
def _gemm(
    x_ptr, qweight_ptr, scales_ptr, qzeros_ptr, y_ptr, T, K, N, x_stride,
    GROUP: tl.constexpr, ROWS: tl.constexpr, DEPTH: tl.constexpr, COLUMNS: tl.constexpr, SPLITS: tl.constexpr,
):  # fmt: skip
    """An output tile of ROWS x COLUMNS, K in steps of DEPTH within one group.

    Programs that follow one another have the same columns: they find the weights in the L2 cache, so that DRAM gives
    each weight once. A word is loaded once and becomes eight rows of the weight's tile through a third axis.
    """
    row = tl.program_id(0).to(tl.int64) * ROWS + tl.arange(0, ROWS)
    column = tl.program_id(1) * COLUMNS + tl.arange(0, COLUMNS)
    row_mask, mask = row < T, column < N
    steps = tl.cdiv(K // DEPTH, SPLITS)
    first = tl.program_id(2) * steps * DEPTH
    last = tl.minimum(first + steps * DEPTH, K)
    shift = 4 * tl.arange(0, 8)
    total = tl.zeros([ROWS, COLUMNS], tl.float32)
    for start in range(first, last, DEPTH):
        depth = start + tl.arange(0, DEPTH)
        x = tl.load(x_ptr + row[:, None] * x_stride + depth[None, :], mask=row_mask[:, None], other=0.0)
        word = start // 8 + tl.arange(0, DEPTH // 8)
        words = tl.load(qweight_ptr + word[:, None].to(tl.int64) * N + column[None, :], mask=mask[None, :], other=0)
        group = start // GROUP
        scale = tl.load(scales_ptr + group * N + column, mask=mask, other=0.0)
        zero = tl.load(qzeros_ptr + group * (N // 8) + column // 8, mask=mask, other=0)
        zero = (zero >> column % 8 * 4) & 15
        q = (words[:, None, :] >> shift[None, :, None]) & 15
        # q - zero is exact in any dtype; its product with the scale is rounded, as a dequantised weight would be.
        weight = (q - zero[None, None, :]).to(x.dtype) * scale[None, None, :]
        total = tl.dot(x, tl.reshape(weight, [DEPTH, COLUMNS]), total, input_precision="ieee")
    share = tl.program_id(2).to(tl.int64) * T
    y = y_ptr + (share + row)[:, None] * N + column[None, :]
    tl.store(y, total.to(y_ptr.dtype.element_ty), mask=row_mask[:, None] & mask[None, :])


def int4_matmul(x: Tensor, qweight: Tensor, scales: Tensor, qzeros: Tensor) -> Tensor:
    """x times the dequantised weight.

    x [T, K] float32, float16 or bfloat16; qweight int32 [K/8, N], packed along K; scales [K/g, N] in x's dtype; qzeros
    int32 [K/g, N/8], packed along N. g, the size of a group, is a multiple of 16. Returns [T, N] in x's dtype. A single
    row must have |x| < 2^31. Raises KernelError for other input.
    """
    tokens, depth, columns, group = check_int4(x, qweight, scales, qzeros)
    if tokens == 0:
        return x.new_empty(0, columns)
    if tokens == 1:
        words = min(16, _power_of_two_in(group // 8))
        tile = {"WORDS": words, "COLUMNS": 256, "num_warps": max(1, words // 2)}
        steps = depth // 8 // words
    else:
        tile = _gemm_tile(tokens) | {"DEPTH": min(64, _power_of_two_in(group)), "COLUMNS": 128}
        steps = depth // tile["DEPTH"]
    rows = triton.cdiv(tokens, tile.get("ROWS", 1))
    grid = (rows, triton.cdiv(columns, tile["COLUMNS"]))
    splits = split_k.splits(tokens, grid[0] * grid[1], steps)
    y = split_k.output(splits, tokens, columns, x.dtype, x.device)
    arguments = (x, qweight, scales, qzeros, y)
    if tokens == 1:
        _gemv[grid[1], splits](*arguments, depth, columns, GROUP=group, SPLITS=splits, **tile)
    else:
        _gemm[*grid, splits](*arguments, tokens, depth, columns, x.stride(0), GROUP=group, SPLITS=splits, **tile)
    return y[0] if splits == 1 else split_k.sum_splits(y, x.dtype)


def _gemm_tile(tokens: int) -> dict[str, int]:
    """Rows of a tile: no more than the tokens need, as each is computed, and at most what registers hold."""
    rows = min(128, max(16, triton.next_power_of_2(tokens)))
    return {"ROWS": rows, "num_warps": 8 if rows == 128 else 4}


def _power_of_two_in(number: int) -> int:
    """The largest power of two that divides the number: Triton's tiles are powers of two, and must end with a group."""
    return number & -number


def check_int4(x: Tensor, qweight: Tensor, scales: Tensor, qzeros: Tensor) -> tuple[int, int, int, int]:
    """T, K, N and g of `int4_matmul`'s arguments. Raises KernelError unless they fit together."""
    # fmt: off
    size = check("int4_matmul", x=(x, "T K", FLOATS), qweight=(qweight, "K/8 N", torch.int32),
                 scales=(scales, "K/g N", x.dtype), qzeros=(qzeros, "K/g N/8", torch.int32))
    # fmt: on
    depth, columns, groups = size["K"], size["N"], size["K/g"]
    if depth != 8 * size["K/8"] or columns != 8 * size["N/8"]:
        raise KernelError(
            f"int4_matmul: x has {depth} columns, qweight {size['K/8']} rows and {columns} columns, and qzeros "
            f"{size['N/8']} columns; a word of qweight holds 8 rows, one of qzeros 8 columns"
        )
    if groups == 0 or depth % groups or depth // groups % 16:
        raise KernelError(
            f"int4_matmul: {groups} groups of scales for {depth} rows; a group must have a multiple of 16 rows"
        )
    if not all(weight.is_contiguous() for weight in (qweight, scales, qzeros)):
        raise KernelError("int4_matmul: the weight is a slice of another; call .contiguous() on its three tensors")
    return size["T"], depth, columns, depth // groups
