"""Heads of real models: SmolLM2-135M 9/3 of 64, Qwen3-0.6B 16/8 of 128 with norms, Llama-3-8B 32/8, 70B 64/8 of 128."""

from __future__ import annotations

import pytest
import torch

from course_kernels.triton.rope_cache import rope_cache


@pytest.mark.parametrize(
    "heads, kv_heads, d, normed, kind",
    [
        (9, 3, 64, False, None),
        (16, 8, 128, True, None),
        (64, 8, 128, False, None),
        (32, 8, 128, False, torch.int8),
        (16, 8, 128, True, torch.float8_e4m3fn),
    ],
    ids=str,
)
def test_rope_cache_loads_128_bits_at_a_time(gpu, heads, kv_heads, d, normed, kind):
    tokens, slots = 64, 2**22
    q, k, v = gpu.empty(tokens, heads + 2 * kv_heads, d).split((heads, kv_heads, kv_heads), dim=1)
    cos, sin = (gpu.empty(tokens, d, dtype=torch.float32)[:, : d // 2] for _ in range(2))
    keys, values = gpu.empty(2, slots, kv_heads, d, dtype=kind)
    scale = gpu.empty(slots // 16, kv_heads, 16, dtype=torch.float32)
    scales = {"key_scales": scale, "value_scales": scale} if kind else {}
    norms = (gpu.empty(d), gpu.empty(d), 1e-6) if normed else ()
    rows = gpu.empty(tokens, dtype=torch.int64)
    [launch] = gpu.compile(rope_cache, q, k, v, cos, sin, keys, values, rows, *norms, **scales)
    assert launch.loads[128] >= 6  # the halves of q, k and v
    vectors = 3 + 4 * normed  # cos, sin, the slot; the halves of both weights: a row each, shared by all heads
    assert launch.loads.total() - launch.loads[128] <= vectors
