"""Widths of Llama-3-8B (hidden 4096, FFN 14336) and SmolLM2-135M (576)."""

from __future__ import annotations

import pytest
import torch

from course_kernels.launch import EIGHT_BIT
from course_kernels.triton.quantize import quantize_per_token

CONVERSION = "cvt.rn.satfinite.e4m3x2.f32"


@pytest.mark.parametrize("width", [576, 4096, 14336])
@pytest.mark.parametrize("kind", EIGHT_BIT, ids=str)
def test_rows_are_read_128_bits_at_a_time(gpu, kind, width):
    [launch] = gpu.compile(quantize_per_token, gpu.empty(64, width), kind)
    assert set(launch.loads) == {128}
    if gpu.target.gpu.backend == "cuda":
        assert "st.global.v4.b32" in launch.assembly
    has_conversion = gpu.target.name in ("sm_90", "sm_100")
    assert (CONVERSION in launch.assembly) == (has_conversion and kind == torch.float8_e4m3fn)
    # `to_bits` works on subnormal numbers, which must not be flushed to zero.
    keeps = ".amdhsa_float_denorm_mode_32 3" in launch.assembly
    assert keeps if gpu.target.gpu.backend == "hip" else "ftz" not in launch.assembly


def test_the_longest_row_fits_in_registers(gpu):
    for kind in EIGHT_BIT:
        gpu.compile(quantize_per_token, gpu.empty(8, 32768), kind)
