"""Sampling in one launch: temperature, softmax, top-p and the draw, one program per row of logits.

Sources: nucleus sampling, Holtzman et al., arXiv 1904.09751, section 3.1; the threshold instead of a sort, as in
FlashInfer's samplers, arXiv 2501.01005. Drawing is an exponential race: argmax p_i / e_i with e_i ~ Exp(1) has
distribution p, and needs neither normalised probabilities nor a running sum.

Top-p keeps the most probable tokens until their mass reaches top_p, which sounds like a sort of V numbers per row, then
a softmax, a running sum and a scatter, each through memory and each a launch. It is the search for one number: the
largest w such that the tokens with weights 2^(s_i - max s) >= w have the mass. Positive floats are ordered as their
bits are, so bisection finds it in 30 steps, exactly, whatever the distribution.

    bytes  S V (b + 4)    logits of b bytes and noise from memory; logits come from the L2 cache in the 32 other passes
    FLOPs  about 5 S V per pass
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from course_kernels.launch import FLOATS, check
from course_kernels.reference.sampling import GREEDY_BELOW

LOG2_E = 1.4426950408889634
ONE = 0x3F800000  # the bits of 1.0, the largest weight; all weights lie in 0 .. ONE, fewer than 2^30 numbers
BLOCK = 8192


@triton.jit
def _weights(logits_ptr, column, V, peak, scale):
    """2^((logit - peak) * scale), in (0, 1], and 0 beyond the row's end."""
    logits = tl.load(logits_ptr + column, mask=column < V, other=float("-inf")).to(tl.float32)
    return tl.exp2((logits - peak) * scale)


@triton.jit
def _sample(
    logits_ptr, temperatures_ptr, top_ps_ptr, noise_ptr, tokens_ptr, V, logits_stride, noise_stride,
    GREEDY_BELOW: tl.constexpr, LOG2_E: tl.constexpr, ONE: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    row = tl.program_id(0).to(tl.int64)
    logits_ptr += row * logits_stride
    noise_ptr += row * noise_stride
    temperature = tl.load(temperatures_ptr + row)
    top_p = tl.load(top_ps_ptr + row)
    greedy = temperature < GREEDY_BELOW
    scale = LOG2_E / tl.where(greedy, 1.0, temperature)
    columns = tl.arange(0, BLOCK)

    peaks = tl.full([BLOCK], float("-inf"), tl.float32)
    for start in range(0, V, BLOCK):
        column = start + columns
        peaks = tl.maximum(peaks, tl.load(logits_ptr + column, mask=column < V, other=float("-inf")).to(tl.float32))
    peak = tl.max(peaks, axis=0)

    low, high = 0, ONE + 1  # the mass of the weights from `low` on reaches top_p, of those from `high` on does not
    if greedy:
        low = ONE
    elif top_p < 1:
        masses = tl.zeros([BLOCK], tl.float32)
        for start in range(0, V, BLOCK):
            masses += _weights(logits_ptr, start + columns, V, peak, scale)
        wanted = top_p * tl.sum(masses, axis=0)
        for _ in range(30):
            middle = (low + high) // 2
            masses = tl.zeros([BLOCK], tl.float32)
            for start in range(0, V, BLOCK):
                weights = _weights(logits_ptr, start + columns, V, peak, scale)
                masses += tl.where(weights.to(tl.int32, bitcast=True) >= middle, weights, 0.0)
            reached = tl.sum(masses, axis=0) >= wanted
            low = tl.where(reached, middle, low)
            high = tl.where(reached, high, middle)

    best = tl.full([BLOCK], -1.0, tl.float32)
    tokens = tl.zeros([BLOCK], tl.int32)
    for start in range(0, V, BLOCK):
        column = start + columns
        weights = _weights(logits_ptr, column, V, peak, scale)
        noise = tl.load(noise_ptr + column, mask=column < V, other=1.0)
        race = tl.where(greedy, 1.0, weights / noise)
        race = tl.where((weights.to(tl.int32, bitcast=True) >= low) & (column < V), race, -1.0)
        tokens = tl.where(race > best, column, tokens)
        best = tl.maximum(race, best)
    token = tl.min(tl.where(best == tl.max(best, axis=0), tokens, V), axis=0)
    tl.store(tokens_ptr + row, token.to(tl.int64))


def sample(logits: Tensor, temperatures: Tensor, top_ps: Tensor, noise: Tensor) -> Tensor:
    """Token ids, int64 [S]: of each row one token that top-p keeps, argmax softmax(logits / temperature) / noise.

    logits [S, V] float32, float16 or bfloat16, -inf for a token that is not allowed; temperatures [S] float32, 0 for
    greedy, which takes the first of the largest; top_ps [S] float32, above 0, 1 for all; noise [S, V] float32 from
    Exp(1), at least 1e-30. Tokens as probable as the last one kept are kept too. Raises KernelError for other input.
    """
    # fmt: off
    size = check("sample", logits=(logits, "S V", FLOATS), temperatures=(temperatures, "S", torch.float32),
                 top_ps=(top_ps, "S", torch.float32), noise=(noise, "S V", torch.float32))
    # fmt: on
    tokens = torch.empty(size["S"], dtype=torch.int64, device=logits.device)
    if size["S"] == 0:
        return tokens
    _sample[(size["S"],)](
        logits, temperatures, top_ps, noise, tokens, size["V"], logits.stride(0), noise.stride(0),
        GREEDY_BELOW=GREEDY_BELOW, LOG2_E=LOG2_E, ONE=ONE,
        BLOCK=min(BLOCK, triton.next_power_of_2(size["V"])), num_warps=16,
    )  # fmt: skip
    return tokens
