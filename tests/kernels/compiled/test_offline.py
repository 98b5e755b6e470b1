"""What `offline` reads from compiled kernels, on kernels whose answer is known."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
import torch
import triton
import triton.language as tl

from course_kernels import launch
from course_kernels.occupancy import resident
from course_kernels.offline import TARGETS, compiling_for
from course_kernels.triton.norm import rms_norm

README = Path(__file__).parents[3] / "kernels" / "README.md"


@triton.jit
def _copy(x_ptr, y_ptr, gap, SIZE: tl.constexpr):
    at = tl.arange(0, SIZE)
    tl.store(y_ptr + at, tl.load(x_ptr + at * gap))


@triton.jit
def _hold_all(x_ptr, y_ptr, SIZE: tl.constexpr):
    """Every element is needed until the last load has arrived, so all of them must be held."""
    at = tl.arange(0, SIZE)
    x = tl.load(x_ptr + at)
    tl.store(y_ptr + at, x * tl.sum(x, axis=0) + tl.max(x, axis=0))


@triton.jit
def _square(x_ptr, y_ptr, SIZE: tl.constexpr):
    at = tl.arange(0, SIZE)[:, None] * SIZE + tl.arange(0, SIZE)[None, :]
    x = tl.load(x_ptr + at)
    tl.store(y_ptr + at, tl.dot(x, x))


def compile_on(target: str, kernel, *arguments, **options):
    with compiling_for(TARGETS[target]) as launches:
        kernel[(7,)](*arguments, **options)
    [compiled] = launches
    assert compiled.grid == (7,)
    return compiled


def tensors(elements: int, dtype: torch.dtype) -> tuple[torch.Tensor, torch.Tensor]:
    return torch.empty(elements, dtype=dtype, device="meta"), torch.empty(elements, dtype=dtype, device="meta")


@pytest.mark.parametrize("target", TARGETS)
def test_width_of_loads(target):
    wide = compile_on(target, _copy, *tensors(4096, torch.float16), 1, SIZE=4096)
    single = compile_on(target, _copy, *tensors(4096, torch.float16), 3, SIZE=4096)
    assert set(wide.loads) == {128} and set(single.loads) == {16}
    assert single.loads.total() == 8 * wide.loads.total()


@pytest.mark.parametrize("target", TARGETS)
def test_spills(target):
    """A thread has 255 registers on NVIDIA GPUs and 512 on AMD's."""
    lanes = TARGETS[target].gpu.warp_size
    fits, spills = (
        compile_on(target, _hold_all, *tensors(n * lanes, torch.float32), SIZE=n * lanes, num_warps=1)
        for n in (32, 512)
    )
    assert fits.spilled == 0 < spills.spilled
    assert fits.registers < spills.registers


@pytest.mark.parametrize(
    "target, kind", [("sm_80", "mma"), ("sm_90", "wgmma"), ("sm_100", "tcgen05"), ("gfx942", "mfma")]
)
def test_tensor_cores(target, kind):
    dot = compile_on(target, _square, *tensors(128 * 128, torch.float16), SIZE=128)
    assert set(dot.dots) == {kind}
    assert dot.shared > 0
    assert not compile_on(target, _copy, *tensors(64, torch.float16), 1, SIZE=64).dots


def test_options_replace_the_launcher_s():
    x, y = tensors(4096, torch.float16)
    with compiling_for(TARGETS["sm_90"], num_warps=2, SIZE=1024) as launches:
        _copy[(7,)](x, y, 1, 4096, num_warps=8)  # by position, as a learner may write it
        _copy[lambda constants: (4096 // constants["SIZE"],)](x, y, gap=1, SIZE=4096)
    positional, named = launches
    assert [launch.warps for launch in launches] == [2, 2]
    assert positional.constants == named.constants == {"SIZE": 1024}
    assert positional.grid == (7,) and named.grid == (4,)
    with pytest.raises(TypeError, match="too many positional arguments"), compiling_for(TARGETS["sm_90"]):
        _copy[(7,)](x, y, 1, 4096, 5)


def test_occupancy_is_llvm_s():
    """Waves per SIMD that the registers allow, which the AMD backend writes into its assembly."""
    for wanted in (32, 128, 256):
        launch = compile_on("gfx942", _hold_all, *tensors(wanted * 64, torch.float32), SIZE=wanted * 64, num_warps=1)
        [waves] = re.findall(r"; Occupancy: (\d+)", launch.assembly)
        assert resident("gfx942", launch.registers, shared=0, warps=1).warps == 4 * int(waves)


def test_machine_code_in_words():
    assert "LDG.E.128" in compile_on("sm_80", _copy, *tensors(4096, torch.float16), 1, SIZE=4096).sass
    amd = compile_on("gfx942", _copy, *tensors(4096, torch.float16), 1, SIZE=4096)
    assert amd.sass == "" and "load_dwordx4" in amd.assembly


def test_a_cpu_tensor_is_refused_where_kernels_are_compiled():
    x = torch.ones(2, 8)
    sentence = (
        "rms_norm: x is on the CPU, where Triton only interprets kernels; move it to a GPU, or set TRITON_INTERPRET"
    )
    with pytest.raises(launch.KernelError, match=sentence):
        rms_norm(x, x[0], 1e-6)


def test_the_example_of_the_readme(capsys):
    [_, example, _] = re.findall(r"```python\n(.*?)```", README.read_text(encoding="utf-8"), re.DOTALL)
    exec(example, {})
    assert "ld.global.v4.b32" in capsys.readouterr().out


def test_everything_is_put_back_after_an_error():
    with pytest.raises(ZeroDivisionError), compiling_for(TARGETS["sm_90"]):
        _ = 1 // 0
    assert launch.DEVICES == {"cuda"}
    with pytest.raises(launch.KernelError, match="x is on meta, and Triton kernels run on cuda"):
        rms_norm(torch.empty(2, 8, device="meta"), torch.empty(8, device="meta"), 1e-6)
