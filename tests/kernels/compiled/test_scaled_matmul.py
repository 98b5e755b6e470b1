"""Weights of Llama-3-8B and SmolLM2-135M in int8 and float8_e4m3fn."""

from __future__ import annotations

import pytest
import torch

from course_kernels.triton.scaled_matmul import EIGHT_BIT, scaled_matmul
from course_kernels.triton.split_k import FEW_ROWS


# 16 to 128 rows of a tile: every configuration that the launcher has.
@pytest.mark.parametrize("tokens", [1, 32, 64, 2048])
@pytest.mark.parametrize("shape", [(4096, 14336), (576, 1536)], ids=str)
@pytest.mark.parametrize("kind", EIGHT_BIT, ids=str)
def test_tensor_cores_and_wide_loads(gpu, kind, shape, tokens):
    depth, columns = shape
    x, weight = gpu.empty(tokens, depth, dtype=kind), gpu.empty(columns, depth, dtype=kind)
    scales = gpu.empty(tokens, dtype=torch.float32), gpu.empty(columns, dtype=torch.float32)
    matmul, *_ = gpu.compile(scaled_matmul, x, weight, *scales, gpu.dtype)
    # wgmma and tcgen05 take 64 rows at a time, and Triton gives int8 to the older instruction on sm_100.
    wide = {"sm_90": "wgmma"} if kind == torch.int8 else {"sm_90": "wgmma", "sm_100": "tcgen05"}
    newest = wide.get(gpu.target.name, "mma") if tokens >= 64 else "mma"
    assert set(matmul.dots) == {"mfma" if gpu.target.gpu.backend == "hip" else newest}
    if tokens <= FEW_ROWS:
        assert matmul.loads[128] > matmul.loads.total() // 2  # the rest are scales
    if kind == torch.int8 and gpu.target.gpu.backend == "cuda":
        assert ".s32.s8.s8" in matmul.assembly
