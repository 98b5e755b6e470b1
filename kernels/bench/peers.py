"""The same work by PyTorch. Each takes the kernel's arguments, prepares what is not timed, and returns the call."""

from __future__ import annotations

from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import Tensor

from course_kernels.reference import quantize, sampling
from course_kernels.reference.int4_matmul import dequantize

Call = Callable[[], Tensor]


def rms_norm(x: Tensor, weight: Tensor, eps: float) -> Call:
    return lambda: F.rms_norm(x, weight.shape, weight, eps)


def add_rms_norm(x: Tensor, residual: Tensor, weight: Tensor, eps: float) -> Call:
    return lambda: F.rms_norm(residual.add_(x), weight.shape, weight, eps)


def swiglu(gate_up: Tensor) -> Call:
    gate, up = gate_up.chunk(2, dim=-1)
    return lambda: F.silu(gate) * up


def decode_attention(
    query: Tensor, keys: Tensor, values: Tensor, block_tables: Tensor, context_lens: Tensor, window: None
) -> Call:
    """Sequences of one length, their keys and values gathered from the pages beforehand: [S, K, n, d]."""
    k, v = (_gather(store, block_tables, int(context_lens[0])) for store in (keys, values))
    q = query[:, :, None]
    return lambda: F.scaled_dot_product_attention(q, k, v, enable_gqa=True)


def prefill_attention(
    query: Tensor, keys: Tensor, values: Tensor, block_tables: Tensor, cu_seqlens: Tensor, context_lens: Tensor,
    window: None,
) -> Call:  # fmt: skip
    """One whole prompt, its keys and values gathered beforehand."""
    k, v = (_gather(store, block_tables, len(query)) for store in (keys, values))
    q = query.transpose(0, 1)[None]
    return lambda: F.scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=True)


def _gather(store: Tensor, block_tables: Tensor, tokens: int) -> Tensor:
    """[S, K, n, d], contiguous, of a store [blocks, P, K, d]."""
    return store[block_tables.long()].flatten(1, 2)[:, :tokens].transpose(1, 2).contiguous()


def int4_matmul(x: Tensor, qweight: Tensor, scales: Tensor, qzeros: Tensor) -> Call:
    """The weight in 16 bits, [N, K] as `nn.Linear` holds it."""
    weight = dequantize(qweight, scales, qzeros).T.to(x.dtype).contiguous()
    return lambda: F.linear(x, weight)


def int8_matmul(x: Tensor, weight: Tensor, x_scales: Tensor, weight_scales: Tensor, dtype: torch.dtype) -> Call:
    """Without the scales, and the result in int32: PyTorch has no public operation with them."""
    return lambda: torch._int_mm(x, weight.T)


def fp8_matmul(x: Tensor, weight: Tensor, x_scales: Tensor, weight_scales: Tensor, dtype: torch.dtype) -> Call:
    rows, columns = x_scales[:, None], weight_scales[None]
    return lambda: torch._scaled_mm(x, weight.T, rows, columns, out_dtype=dtype)


def quantize_per_token(x: Tensor, dtype: torch.dtype) -> Call:
    """Operation by operation, in float32."""
    return lambda: quantize.quantize_per_token(x, dtype)[0]


def sample(logits: Tensor, temperatures: Tensor, top_ps: Tensor, noise: Tensor) -> Call:
    """By a sort and a running sum, in float32."""
    return lambda: sampling.sample(logits, temperatures, top_ps, noise)
