"""Heads of real models: Llama-3-8B has 32 over 8 of 128 elements, Gemma-3-4B 8 over 4 of 256."""

from __future__ import annotations

import pytest
import torch

from course_kernels.triton.decode_attention import decode_attention
from course_kernels.triton.prefill_attention import prefill_attention

LLAMA, GEMMA = (32, 8, 128), (8, 4, 256)
FP8 = torch.float8_e4m3fn
PREFILL_DOT = {"sm_80": "mma", "sm_90": "wgmma", "sm_100": "tcgen05", "gfx942": "mfma"}


def batch(gpu, tokens, sequences, model, cache):
    """query, keys, values, block_tables, context_lens; and the scales of an 8-bit cache."""
    heads, kv_heads, d = model
    store, tables = gpu.empty(65536, 16, kv_heads, d, dtype=cache), gpu.empty(sequences, 256, dtype=torch.int32)
    scale = gpu.empty(65536, kv_heads, 16, dtype=torch.float32)
    scales = {"key_scales": scale, "value_scales": scale} if cache else {}
    return (gpu.empty(tokens, heads, d), store, store, tables, gpu.empty(sequences, dtype=torch.int32)), scales


@pytest.mark.parametrize("model, cache", [(LLAMA, None), (LLAMA, FP8), (GEMMA, FP8)])
def test_decode_reads_128_bits_at_a_time_for_a_real_dot(gpu, model, cache):
    arguments, scales = batch(gpu, 32, 32, model, cache)
    attention, combine = gpu.compile(decode_attention, *arguments, **scales)
    assert attention.grid == (model[1], 512 // (32 * model[1]), 32)
    assert combine.grid == (32 * model[0],)
    # 16 rows are too few for wgmma and tcgen05, which take 64.
    assert set(attention.dots) == {"mfma" if gpu.target.gpu.backend == "hip" else "mma"}
    assert attention.loads[128] and combine.loads[128]
    if gpu.target.gpu.backend == "cuda":  # 32 bits: block numbers, lengths and scales
        assert set(attention.loads) <= {128, 32}


def test_decode_of_a_large_batch_is_one_kernel(gpu):
    arguments, _ = batch(gpu, 64, 64, LLAMA, None)
    [attention] = gpu.compile(decode_attention, *arguments)
    assert attention.grid == (8, 1, 64)


# The window brings the third stretch of keys.
@pytest.mark.parametrize(
    "model, cache, window", [(LLAMA, None, 1024), (LLAMA, FP8, None), (GEMMA, None, None), (GEMMA, FP8, None)]
)
def test_prefill_uses_the_widest_tensor_cores(gpu, model, cache, window):
    (query, keys, values, tables, lengths), scales = batch(gpu, 2048, 4, model, cache)
    bounds = gpu.empty(5, dtype=torch.int32)
    [attention] = gpu.compile(prefill_attention, query, keys, values, tables, bounds, lengths, window=window, **scales)
    assert set(attention.dots) == {PREFILL_DOT[gpu.target.name]}
    assert attention.loads[128]
