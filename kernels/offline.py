"""Compile what launchers launch for a GPU that is not there, and read what came out: registers, spills, instructions.

Launchers are called as usual, on tensors of device "meta". These have shapes and strides and no memory, so real sizes
cost nothing, and a launcher that reads a tensor's content, which would make the host wait for the GPU, fails.
"""

from __future__ import annotations

import dataclasses
import re
import subprocess
import tempfile
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache, cached_property
from pathlib import Path

import triton
from triton.backends.compiler import GPUTarget
from triton.compiler import CompiledKernel
from triton.runtime.jit import JITFunction

from course_kernels import launch
from course_kernels.inspection import Report
from course_kernels.occupancy import MULTIPROCESSORS, Resident, resident

CUOBJDUMP = Path(triton.__file__).parent / "backends" / "nvidia" / "bin" / "cuobjdump"
LAUNCH_OPTIONS = ("num_warps", "num_stages")


@dataclass(frozen=True)
class Target:
    """An architecture."""

    name: str
    gpu: GPUTarget

    @property
    def shared_limit(self) -> int:
        """Bytes of shared memory that one block of threads can have."""
        return MULTIPROCESSORS[self.name].shared_limit


TARGETS = {
    target.name: target
    for target in (
        Target("sm_80", GPUTarget("cuda", 80, 32)),
        Target("sm_90", GPUTarget("cuda", 90, 32)),
        Target("sm_100", GPUTarget("cuda", 100, 32)),
        Target("gfx942", GPUTarget("hip", "gfx942", 64)),
    )
}


@dataclass(frozen=True)
class Compiled:
    """One launch: the kernel as the target's machine code; the grid and the constexpr values of the launcher."""

    name: str
    target: Target
    grid: tuple[int, ...]
    constants: dict[str, object]
    kernel: CompiledKernel

    @property
    def warps(self) -> int:
        """Warps of a block (of 64 threads on AMD's GPUs)."""
        return self.kernel.metadata.num_warps

    @property
    def stages(self) -> int:
        """Iterations of a loop whose loads are on their way at once; without such a loop it has no effect."""
        return self.kernel.metadata.num_stages

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
    def resident(self) -> Resident:
        """Blocks that one multiprocessor holds at once."""
        return resident(self.target.name, self.registers, self.shared, self.warps)

    @property
    def sass(self) -> str:
        """NVIDIA machine code in words, an instruction per line; "" for AMD, whose assembly is that already."""
        if self.target.gpu.backend == "hip":
            return ""
        return "\n".join(re.findall(r"/\*[0-9a-f]{4,}\*/\s+(\S.*?) *;", cuobjdump("-sass", self.kernel.asm["cubin"])))

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
        return ptx_loads(self.assembly)

    def report(self) -> Report:
        """All of it as plain data."""
        fields = {field.name: getattr(self, field.name) for field in dataclasses.fields(Report)}
        return Report(**fields | {"target": self.target.name, "dots": dict(self.dots), "loads": dict(self.loads)})

    @cached_property
    def _resources(self) -> tuple[int, int]:
        if self.target.gpu.backend == "cuda":
            return cubin_resources(self.kernel.asm["cubin"])
        counts = (rf"\.{name}:\s+(\d+)" for name in ("vgpr_count", "private_segment_fixed_size"))
        registers, spilled = (int(re.search(count, self.assembly)[1]) for count in counts)
        return registers, spilled


def ptx_loads(ptx: str) -> Counter[int]:
    """Instructions of PTX that load from global memory, into registers or shared memory, by the bits of a thread."""
    loads = re.findall(r"\bld\.global\S*?(?:\.v(\d))?\.[bfsu](\d+)\s", ptx)
    copies = re.findall(r"\bcp\.async\.c[ag]\.shared\.global[^;]*?\], \[[^;]*?\], 0x([0-9a-f]+)", ptx)
    return Counter(int(lanes or 1) * int(bits) for lanes, bits in loads) + Counter(int(n, 16) * 8 for n in copies)


@cache  # the same kernel is launched in many ways
def cubin_resources(cubin: bytes) -> tuple[int, int]:
    """Registers per thread of NVIDIA machine code that holds one kernel, and bytes per thread that it spills."""
    usage = cuobjdump("-res-usage", cubin)
    registers, spilled = (int(re.search(rf"\b{name}:(\d+)", usage)[1]) for name in ("REG", "STACK"))
    return registers, spilled


def cuobjdump(option: str, cubin: bytes) -> str:
    """What NVIDIA's tool, which comes with Triton, prints of machine code."""
    with tempfile.NamedTemporaryFile(suffix=".cubin") as file:
        file.write(cubin)
        file.flush()
        command = [CUOBJDUMP, option, file.name]
        return subprocess.run(command, capture_output=True, text=True, check=True).stdout


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
def compiling_for(target: Target, **options: int) -> Iterator[list[Compiled]]:
    """Within it, launches compile for the target and run nothing; the list grows by one `Compiled` per launch.

    options replace the launcher's own: num_warps and num_stages of every kernel, a constexpr of the kernels that have
    one of that name. Tensors must be on device "meta". Raises RuntimeError where this process interprets kernels. Not
    thread-safe.
    """
    if launch.INTERPRETED:
        raise RuntimeError("TRITON_INTERPRET is set, so this process cannot compile; start one without it")
    launches: list[Compiled] = []
    run, devices, drivers = JITFunction.run, launch.DEVICES, dict(vars(triton.runtime.driver))

    def compile_only(self: JITFunction, *args, grid, warmup, **kwargs) -> CompiledKernel:
        bound = self.signature.bind(*args, **{name: kwargs.pop(name) for name in self.arg_names if name in kwargs})
        bound.apply_defaults()
        named = bound.arguments
        named |= {name: value for name, value in options.items() if name in named}
        kwargs |= {name: options[name] for name in LAUNCH_OPTIONS if name in options}
        kernel = run(self, grid=grid, warmup=True, **named, **kwargs)
        constants = {parameter.name: named[parameter.name] for parameter in self.params if parameter.is_constexpr}
        grid = grid(named) if callable(grid) else grid
        launches.append(Compiled(kernel.name, target, tuple(grid), constants, kernel))
        return kernel

    JITFunction.run, launch.DEVICES = compile_only, {"meta"}
    triton.runtime.driver.set_active(_Driver(target))
    try:
        yield launches
    finally:
        JITFunction.run, launch.DEVICES = run, devices
        vars(triton.runtime.driver).update(drivers)
