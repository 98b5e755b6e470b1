"""Every kernel launched once at the size of a real model: what compiled.md tabulates and what a notebook inspects.

Sizes are those of Llama-3-8B unless another model is named: hidden 4096, 32 query heads over 8 KV heads of 128,
FFN 14336. Tensors have no memory (device "meta"), see `course_kernels.offline`.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from course_kernels.triton.decode_attention import decode_attention
from course_kernels.triton.int4_matmul import int4_matmul
from course_kernels.triton.norm import add_rms_norm, rms_norm
from course_kernels.triton.prefill_attention import prefill_attention
from course_kernels.triton.quantize import quantize_per_token
from course_kernels.triton.rope_cache import rope_cache
from course_kernels.triton.sampling import sample
from course_kernels.triton.scaled_matmul import scaled_matmul
from course_kernels.triton.swiglu import swiglu

HIDDEN, FFN, HEADS, KV_HEADS, D = 4096, 14336, 32, 8, 128
GEMMA = (8, 4, 256)  # heads of Gemma-3-4B
BLOCKS, BLOCK_SIZE, TABLE = 65536, 16, 256
INT8, FP8, INT32, FLOAT32 = torch.int8, torch.float8_e4m3fn, torch.int32, torch.float32


@dataclass(frozen=True)
class Launch:
    """A call of a launcher: its size in words, and the call itself, which takes the model's dtype."""

    size: str
    call: Callable[[torch.dtype], object]


def _empty(*shape: int, dtype: torch.dtype) -> Tensor:
    return torch.empty(*shape, dtype=dtype, device="meta")


def _norm(dtype: torch.dtype) -> None:
    rms_norm(_empty(64, HIDDEN, dtype=dtype), _empty(HIDDEN, dtype=dtype), 1e-6)


def _add_norm(dtype: torch.dtype) -> None:
    x = _empty(64, HIDDEN, dtype=dtype)
    add_rms_norm(x, x, _empty(HIDDEN, dtype=dtype), 1e-6)


def _rope(
    heads: int, kv_heads: int, normed: bool = False, cache: torch.dtype | None = None
) -> Callable[[torch.dtype], None]:
    def call(dtype: torch.dtype) -> None:
        qkv = _empty(64, heads + 2 * kv_heads, D, dtype=dtype).split((heads, kv_heads, kv_heads), dim=1)
        angles = _empty(64, D // 2, dtype=FLOAT32)
        store, slots = _empty(BLOCKS * BLOCK_SIZE, kv_heads, D, dtype=cache or dtype), _empty(64, dtype=torch.int64)
        norms = (_empty(D, dtype=dtype), _empty(D, dtype=dtype), 1e-6) if normed else ()
        rope_cache(*qkv, angles, angles, store, store, slots, *norms, **_scales(cache, kv_heads))

    return call


def _scales(cache: torch.dtype | None, kv_heads: int) -> dict[str, Tensor]:
    scale = _empty(BLOCKS, kv_heads, BLOCK_SIZE, dtype=FLOAT32)
    return {} if cache is None else {"key_scales": scale, "value_scales": scale}


def _attention(
    tokens: int, sequences: int, model: tuple[int, int, int] = (HEADS, KV_HEADS, D),
    cache: torch.dtype | None = None, window: int | None = None,
) -> Callable[[torch.dtype], None]:  # fmt: skip
    """Prefill of the tokens, or decode where there is one per sequence."""
    heads, kv_heads, d = model

    def call(dtype: torch.dtype) -> None:
        store = _empty(BLOCKS, BLOCK_SIZE, kv_heads, d, dtype=cache or dtype)
        query, tables = _empty(tokens, heads, d, dtype=dtype), _empty(sequences, TABLE, dtype=INT32)
        lengths, bounds = _empty(sequences, dtype=INT32), _empty(sequences + 1, dtype=INT32)
        scales = _scales(cache, kv_heads)
        if tokens == sequences:
            decode_attention(query, store, store, tables, lengths, window=window, **scales)
        else:
            prefill_attention(query, store, store, tables, bounds, lengths, window=window, **scales)

    return call


def _int4(tokens: int) -> Callable[[torch.dtype], None]:
    def call(dtype: torch.dtype) -> None:
        weight, groups = _empty(HIDDEN // 8, FFN, dtype=INT32), HIDDEN // 128
        scales, zeros = _empty(groups, FFN, dtype=dtype), _empty(groups, FFN // 8, dtype=INT32)
        int4_matmul(_empty(tokens, HIDDEN, dtype=dtype), weight, scales, zeros)

    return call


def _quantize(kind: torch.dtype) -> Callable[[torch.dtype], object]:
    return lambda dtype: quantize_per_token(_empty(64, HIDDEN, dtype=dtype), kind)


def _scaled(tokens: int, kind: torch.dtype) -> Callable[[torch.dtype], None]:
    def call(dtype: torch.dtype) -> None:
        x, weight = _empty(tokens, HIDDEN, dtype=kind), _empty(FFN, HIDDEN, dtype=kind)
        scaled_matmul(x, weight, _empty(tokens, dtype=FLOAT32), _empty(FFN, dtype=FLOAT32), dtype)

    return call


def _sample(dtype: torch.dtype) -> None:
    vocabulary = 151936
    parameter, noise = _empty(64, dtype=FLOAT32), _empty(64, vocabulary, dtype=FLOAT32)
    sample(_empty(64, vocabulary, dtype=dtype), parameter, parameter, noise)


TOKENS, PROMPTS, STEP = "64 tokens", "2,048 tokens of 4 sequences", "32 sequences, tables of 256 blocks of 16 tokens"
WEIGHT, OF_GEMMA = "4096 x 14336", "8/4 heads of 256 (Gemma-3-4B)"
LAUNCHES = {
    "rms_norm": Launch(TOKENS, _norm),
    "add_rms_norm": Launch(TOKENS, _add_norm),
    "swiglu": Launch(TOKENS, lambda dtype: swiglu(_empty(64, 2 * FFN, dtype=dtype))),
    "rope_cache": Launch(TOKENS, _rope(HEADS, KV_HEADS)),
    "rope_cache norm": Launch(f"{TOKENS}, 16/8 heads (Qwen3-0.6B)", _rope(16, 8, normed=True)),
    "rope_cache int8": Launch(f"{TOKENS}, int8 cache", _rope(HEADS, KV_HEADS, cache=INT8)),
    "rope_cache fp8": Launch(f"{TOKENS}, fp8 cache", _rope(HEADS, KV_HEADS, cache=FP8)),
    "prefill_attention": Launch(PROMPTS, _attention(2048, 4)),
    "prefill_attention window": Launch(f"{PROMPTS}, window 1,024", _attention(2048, 4, window=1024)),
    "prefill_attention int8": Launch(f"{PROMPTS}, int8 cache", _attention(2048, 4, cache=INT8)),
    "prefill_attention fp8": Launch(f"{PROMPTS}, fp8 cache", _attention(2048, 4, cache=FP8)),
    "prefill_attention d=256": Launch(f"{PROMPTS}, {OF_GEMMA}", _attention(2048, 4, GEMMA)),
    "decode_attention": Launch(STEP, _attention(32, 32)),
    "decode_attention int8": Launch(f"{STEP}, int8 cache", _attention(32, 32, cache=INT8)),
    "decode_attention fp8": Launch(f"{STEP}, fp8 cache", _attention(32, 32, cache=FP8)),
    "decode_attention d=256": Launch(f"{STEP}, {OF_GEMMA}", _attention(32, 32, GEMMA)),
    "int4_matmul 1 row": Launch(f"{WEIGHT}, group 128", _int4(1)),
    "int4_matmul 32 rows": Launch(f"{WEIGHT}, group 128", _int4(32)),
    "int4_matmul 2048 rows": Launch(f"{WEIGHT}, group 128", _int4(2048)),
    "quantize_per_token int8": Launch(f"{TOKENS}, hidden 4096", _quantize(INT8)),
    "quantize_per_token fp8": Launch(f"{TOKENS}, hidden 4096", _quantize(FP8)),
    "scaled_matmul int8 1 row": Launch(WEIGHT, _scaled(1, INT8)),
    "scaled_matmul int8 2048 rows": Launch(WEIGHT, _scaled(2048, INT8)),
    "scaled_matmul fp8 1 row": Launch(WEIGHT, _scaled(1, FP8)),
    "scaled_matmul fp8 2048 rows": Launch(WEIGHT, _scaled(2048, FP8)),
    "sample": Launch("64 rows of 151,936 logits (Qwen3)", _sample),
}
