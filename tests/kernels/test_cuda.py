"""int4_gemv.cu: compiled with NVRTC for GPUs that are not there, and run on the CPU, a thread for a thread."""

from __future__ import annotations

import ctypes
import shutil
import subprocess
from pathlib import Path

import pytest
import torch

pytest.importorskip("triton", reason="Triton has no build for this machine, so its kernels are not tested")
pytest.importorskip("cuda.bindings.nvrtc", reason="NVRTC has no build for this machine, so CUDA C++ is not tested")

from course_kernels.cuda import int4_matmul, nvrtc  # noqa: E402
from course_kernels.launch import KernelError  # noqa: E402
from course_kernels.offline import cubin_resources  # noqa: E402
from course_kernels.reference import int4_matmul as reference  # noqa: E402

SHIM = Path(__file__).with_name("cuda_on_cpu.cpp")


@pytest.mark.parametrize("architecture", ["sm_80", "sm_90", "sm_100"])
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16], ids=str)
@pytest.mark.parametrize("group", [32, 128, 192])
def test_compiles_to_wide_loads_and_shuffles(architecture, dtype, group):
    compiled = nvrtc.compile_cuda(int4_matmul.SOURCE, architecture, *int4_matmul.options(dtype, group))
    assert "ld.global.nc.v4.u32" in compiled.ptx and "shfl.sync.bfly" in compiled.ptx
    assert ".ftz" not in compiled.ptx  # nibbles are subnormal numbers
    registers, spilled = cubin_resources(compiled.cubin)
    assert spilled == 0
    assert registers <= 64  # 64 K registers of a multiprocessor hold four blocks of 256 threads


def test_a_mistake_in_the_source_is_reported():
    with pytest.raises(KernelError, match='for sm_90: .* identifier "no_such_name" is undefined'):
        nvrtc.compile_cuda("__device__ void f() { no_such_name; }", "sm_90")


@pytest.mark.parametrize(
    ("depth", "columns", "group", "shares"), [(32, 8, 32, 1), (192, 40, 192, 1), (1152, 72, 64, 3), (2048, 32, 128, 2)]
)
def test_runs_on_the_cpu_as_the_reference(depth, columns, group, shares, tmp_path):
    """Columns that are no multiple of a block's, rows that are no multiple of a share's."""
    if not (compiler := shutil.which("g++")):
        pytest.skip("there is no g++ to compile the kernel for the CPU")
    library = tmp_path / "int4_gemv.so"
    source = Path(int4_matmul.__file__).with_name("int4_gemv.cu")
    flags = ["-std=c++20", "-O1", "-shared", "-fPIC", "-pthread", f'-DKERNEL="{source}"', "-Wno-unknown-pragmas"]
    flags += int4_matmul.options(torch.bfloat16, group)
    subprocess.run([compiler, *flags, SHIM, "-o", library], check=True)

    generator = torch.Generator().manual_seed(0)
    x = torch.randn(1, depth, generator=generator).bfloat16()
    qweight = reference.pack(torch.randint(0, 16, (depth, columns), generator=generator), 0)
    qzeros = reference.pack(torch.randint(0, 16, (depth // group, columns), generator=generator), 1)
    scales = (torch.rand(depth // group, columns, generator=generator) / depth**0.5).bfloat16()
    partials = torch.full((shares, columns), torch.nan)
    run = ctypes.CDLL(library).run
    run(
        -(-columns // int4_matmul.COLUMNS), shares, 32 * int4_matmul.WARPS,
        *(ctypes.c_void_p(tensor.data_ptr()) for tensor in (x, qweight, scales, qzeros, partials)), depth, columns,
    )  # fmt: skip
    want = reference.int4_matmul(x.double(), qweight, scales.double(), qzeros)
    torch.testing.assert_close(partials.sum(0, keepdim=True).double(), want, rtol=1e-5, atol=1e-5)
