"""Compile what launchers launch for a GPU that is not there, and read what came out: registers, spills, instructions.

Launchers are called as usual, on tensors of device "meta". These have shapes and strides and no memory, so real sizes
cost nothing, and a launcher that reads a tensor's content, which would make the host wait for the GPU, fails.
"""

from __future__ import annotations

import re
import subprocess
import tempfile
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

import triton
from triton.backends.compiler import GPUTarget
from triton.compiler import CompiledKernel
from triton.runtime.jit import JITFunction

from course_kernels import launch

CUOBJDUMP = Path(triton.__file__).parent / "backends" / "nvidia" / "bin" / "cuobjdump"
KIB = 1024


@dataclass(frozen=True)
class Target:
    """An architecture, and the bytes of shared memory that one block of threads can have on it."""

    name: str
    gpu: GPUTarget
    shared_limit: int


# Limits: CUDA C++ Programming Guide, "Technical Specifications per Compute Capability", shared memory per thread block;
# AMD Instinct MI300 CDNA3 ISA, local data share of a work-group.
TARGETS = {
    target.name: target
    for target in (
        Target("sm_80", GPUTarget("cuda", 80, 32), 163 * KIB),
        Target("sm_90", GPUTarget("cuda", 90, 32), 227 * KIB),
        Target("sm_100", GPUTarget("cuda", 100, 32), 227 * KIB),
        Target("gfx942", GPUTarget("hip", "gfx942", 64), 64 * KIB),
    )
}


@dataclass(frozen=True)
class Compiled:
    """One launch: the kernel as the target's machine code, and the grid that the launcher asked for."""

    name: str
    target: Target
    grid: tuple[int, ...]
    kernel: CompiledKernel

    @property
    def assembly(self) -> str:
        """PTX for NVIDIA, AMDGCN for AMD."""
        return self.kernel.asm["ptx" if self.target.gpu.backend == "cuda" else "amdgcn"]

    @property
    def shared(self) -> int:
        """Bytes of shared memory per block of threads."""
        return self.kernel.metadata.shared

    @property
    def registers(self) -> int:
        """32-bit registers per thread."""
        return self._resources[0]

    @property
    def spilled(self) -> int:
        """Bytes per thread that did not fit in registers and lie in local memory, that is, in the GPU's DRAM."""
        return self._resources[1]

    @property
    def dots(self) -> Counter[str]:
        """Tensor-core instructions by kind: mma, wgmma, tcgen05 (NVIDIA) or mfma (AMD)."""
        return Counter(re.findall(r"\b(?:v_)?(mma|wgmma|tcgen05|mfma)(?=[._](?:mma|sync|f32|i32))", self.assembly))

    @property
    def loads(self) -> Counter[int]:
        """Instructions that load from global memory, by the bits that each thread gets from one."""
        if self.target.gpu.backend == "hip":
            kinds = re.findall(
                r"\b(?:global|buffer)_load_(?:lds_)?(dwordx[234]|dword|\w?short\w*|\w?byte\w*)", self.assembly
            )
            bits = {"dwordx4": 128, "dwordx3": 96, "dwordx2": 64, "dword": 32}
            return Counter(bits.get(kind, 16 if "short" in kind else 8) for kind in kinds)
        loads = re.findall(r"\bld\.global\S*?(?:\.v(\d))?\.[bfsu](\d+)\s", self.assembly)
        copies = re.findall(r"\bcp\.async\.c[ag]\.shared\.global[^;]*?\], \[[^;]*?\], 0x([0-9a-f]+)", self.assembly)
        return Counter(int(lanes or 1) * int(bits) for lanes, bits in loads) + Counter(int(n, 16) * 8 for n in copies)

    @cached_property
    def _resources(self) -> tuple[int, int]:
        if self.target.gpu.backend == "cuda":
            return cubin_resources(self.kernel.asm["cubin"])
        counts = (rf"\.{name}:\s+(\d+)" for name in ("vgpr_count", "private_segment_fixed_size"))
        registers, spilled = (int(re.search(count, self.assembly)[1]) for count in counts)
        return registers, spilled


def cubin_resources(cubin: bytes) -> tuple[int, int]:
    """Registers per thread of NVIDIA machine code that holds one kernel, and bytes per thread that it spills."""
    with tempfile.NamedTemporaryFile(suffix=".cubin") as file:
        file.write(cubin)
        file.flush()
        command = [CUOBJDUMP, "-res-usage", file.name]
        usage = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    registers, spilled = (int(re.search(rf"\b{name}:(\d+)", usage)[1]) for name in ("REG", "STACK"))
    return registers, spilled


class _Driver:
    """As much of a GPU's driver as Triton asks when it compiles."""

    def __init__(self, target: Target):
        self.target = target

    def get_current_target(self) -> GPUTarget:
        return self.target.gpu

    def get_current_device(self) -> str:
        return self.target.name  # Triton keeps compiled kernels by device

    def get_current_stream(self, device: str) -> int:
        return 0


@contextmanager
def compiling_for(target: Target) -> Iterator[list[Compiled]]:
    """Within it, launches compile for the target and run nothing; the list grows by one `Compiled` per launch.

    Tensors must be on device "meta". Raises RuntimeError where this process interprets kernels. Not thread-safe.
    """
    if launch.INTERPRETED:
        raise RuntimeError("TRITON_INTERPRET is set, so this process cannot compile; start one without it")
    launches: list[Compiled] = []
    run, devices, drivers = JITFunction.run, launch.DEVICES, dict(vars(triton.runtime.driver))

    def compile_only(self: JITFunction, *args, grid, warmup, **kwargs) -> CompiledKernel:
        kernel = run(self, *args, grid=grid, warmup=True, **kwargs)
        launches.append(Compiled(kernel.name, target, tuple(grid), kernel))
        return kernel

    JITFunction.run, launch.DEVICES = compile_only, {"meta"}
    triton.runtime.driver.set_active(_Driver(target))
    try:
        yield launches
    finally:
        JITFunction.run, launch.DEVICES = run, devices
        vars(triton.runtime.driver).update(drivers)
