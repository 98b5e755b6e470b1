"""Weights of real models: Llama-3-8B at group 128, SmolLM2-135M at 32 and 192."""

from __future__ import annotations

import pytest
import torch

from course_kernels.triton.int4_matmul import int4_matmul
from course_kernels.triton.split_k import FEW_ROWS

SHAPES = [(4096, 14336, 128), (576, 1536, 32), (576, 576, 192)]  # K, N, group


def arguments(gpu, tokens: int, depth: int, columns: int, group: int):
    packed = gpu.empty(depth // 8, columns, dtype=torch.int32)
    zeros = gpu.empty(depth // group, columns // 8, dtype=torch.int32)
    return gpu.empty(tokens, depth), packed, gpu.empty(depth // group, columns), zeros


@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_one_row_streams_the_weight_128_bits_at_a_time(gpu, shape):
    gemv, add = gpu.compile(int4_matmul, *arguments(gpu, 1, *shape))
    assert gemv.loads[128] and gemv.dots.total() == 0
    # Nothing but the scales, the zeros and x, of which a thread needs single elements, comes in smaller pieces.
    assert set(add.loads) == {64 if gpu.target.gpu.backend == "hip" else 128}
    # The nibbles are read as subnormal numbers, which must not be flushed to zero.
    keeps = ".amdhsa_float_denorm_mode_32 3" in gemv.assembly
    assert keeps if gpu.target.gpu.backend == "hip" else "ftz" not in gemv.assembly


# 16 to 128 rows of a tile: every configuration that the launcher has.
@pytest.mark.parametrize("tokens", [2, 32, 64, 2048])
@pytest.mark.parametrize("shape", SHAPES[:2], ids=str)
def test_several_rows_use_tensor_cores(gpu, tokens, shape):
    gemm, *_ = gpu.compile(int4_matmul, *arguments(gpu, tokens, *shape))
    wide = {"sm_90": "wgmma", "sm_100": "tcgen05"} if tokens >= 64 else {}  # these take 64 rows at a time
    assert set(gemm.dots) == {"mfma" if gpu.target.gpu.backend == "hip" else wide.get(gpu.target.name, "mma")}
    if tokens <= FEW_ROWS and gpu.target.gpu.backend == "cuda":
        assert gemm.loads[128]
    elif tokens <= FEW_ROWS:  # at group 32 a tile is 4 x 128 words, two for each of the 256 lanes of AMD's four warps
        assert gemm.loads[128 if shape[2] > 32 else 64]


def test_a_long_prompt_is_not_split(gpu):
    [gemm] = gpu.compile(int4_matmul, *arguments(gpu, 2048, 4096, 4096, 128))
    assert gemm.grid == (16, 32, 1)
