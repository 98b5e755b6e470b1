"""compiled.md: what every kernel becomes on every target. `python -m course_kernels.compiled` writes it anew.

The same sources and versions of the compilers give the same file, so a change of a kernel shows in it what it costs.
"""

from __future__ import annotations

from pathlib import Path

import torch
import triton

from course_kernels.catalogue import LAUNCHES
from course_kernels.cuda import int4_matmul as cuda
from course_kernels.cuda import nvrtc
from course_kernels.occupancy import resident
from course_kernels.offline import TARGETS, compiling_for, cubin_resources, ptx_loads

PATH = Path(__file__).with_suffix(".md")
COMMAND = "TRITON_INTERPRET=0 python -m course_kernels.compiled"
NVIDIA = ("sm_90", "sm_80", "sm_100")
CASES = (*((target, torch.float16) for target in (*NVIDIA, "gfx942")), ("sm_90", torch.bfloat16))
DEVICES = {"sm_80": "A100", "sm_90": "H100, H200", "sm_100": "B200", "gfx942": "MI300X"}
TILES = ("ROWS", "COLUMNS", "DEPTH", "TILE", "WORDS", "HEADS", "BLOCK", "SPLITS")  # the constants that make a tile

HEADER = f"""# Compiled kernels

`{COMMAND}` writes this file, and a test says when it is out of date. No number here
was measured: it is what the compiler made of each launch, and what follows from it.

| column | meaning |
|---|---|
| tile | the constants that set how much a program works on; letters as in the kernel's file |
| warps | warps of a block |
| stages | iterations of a loop whose loads are on their way at once; no effect without such a loop |
| registers | 32-bit registers of a thread |
| spilled | bytes of a thread that found no register and lie in DRAM |
| shared | bytes of shared memory of a block |
| resident | blocks on one multiprocessor at once, their warps as a share of its slots, the budget that ends first |
| dots | tensor-core instructions: kind x their number |
| loads | instructions that load from global memory: bits that a thread gets from one x their number |

`kernels/occupancy.py` computes what is resident. Instructions are counted as they stand in the assembly (PTX; for AMD
AMDGCN), so one in a loop counts once.
"""
COLUMNS = "kernel tile warps stages registers spilled shared resident dots loads".split()


def render() -> str:
    """The file's text."""
    return "\n".join((introduction(), triton_part(), cuda_part()))


def introduction() -> str:
    """What the columns mean, and the launches with their sizes."""
    sizes = _table(["launch", "size"], [[name, launch.size] for name, launch in LAUNCHES.items()])
    return f"{HEADER}\n## The launches\n\nSizes of Llama-3-8B unless another model is named.\n\n{sizes}"


def triton_version() -> str:
    """The line that names Triton."""
    return f"Compiled by triton {triton.__version__}."


def triton_part() -> str:
    """A table for every case, with a row per kernel."""
    parts = [f"## Triton\n\n{triton_version()}\n"]
    for target, dtype in CASES:
        rows = []
        for name, launch in LAUNCHES.items():
            with compiling_for(TARGETS[target]) as kernels:
                launch.call(dtype)
            for kernel in kernels:
                resources = kernel.warps, kernel.stages, kernel.registers, kernel.spilled, kernel.shared
                cells = _cells(kernel.name, kernel.constants, target, *resources, kernel.dots, kernel.loads)
                rows.append([name, *cells])
        parts.append(f"### {target} ({DEVICES[target]}), {_name(dtype)}\n\n{_table(['launch', *COLUMNS], rows)}")
    return "\n".join(parts)


def cuda_version() -> str:
    """The line that names NVRTC."""
    return f"Compiled by NVRTC {nvrtc.version()}. Compare it with `_gemv` above."


def cuda_part() -> str:
    """The launch "int4_matmul 1 row" in CUDA C++, with a row per case."""
    rows = []
    tile, shared = {"ROWS": cuda.ROWS, "COLUMNS": cuda.COLUMNS}, 4 * cuda.WARPS * cuda.COLUMNS  # its one array
    for target, dtype in CASES:
        if target in NVIDIA:
            compiled = nvrtc.compile_cuda(cuda.SOURCE, target, *cuda.options(dtype, group=128))
            resources = (cuda.WARPS, 1, *cubin_resources(compiled.cubin), shared)
            cells = _cells("int4_gemv", tile, target, *resources, {}, ptx_loads(compiled.ptx))
            rows.append([f"{target}, {_name(dtype)}", *cells])
    return f"## CUDA C++\n\n{cuda_version()}\n\n{_table(['target', *COLUMNS], rows)}"


def _cells(
    name: str, constants: dict, target: str, warps: int, stages: int, registers: int, spilled: int, shared: int,
    dots: dict[str, int], loads: dict[int, int],
) -> list[str]:  # fmt: skip
    """What stands under COLUMNS."""
    tile = ", ".join(f"{constant} {constants[constant]}" for constant in TILES if constant in constants)
    fits = resident(target, registers, shared, warps)
    numbers = map(str, (warps, stages, registers, spilled, shared))
    share = f"{fits.blocks}, {100 * fits.share:.3g} %, {fits.limit}"
    return [f"`{name}`", tile, *numbers, share, _counts(dots), _counts(loads)]


def _table(columns: list[str], rows: list[list[str]]) -> str:
    return "".join(f"| {' | '.join(row)} |\n" for row in (columns, ["---"] * len(columns), *rows))


def _counts(counts: dict[str, int] | dict[int, int]) -> str:
    return ", ".join(f"{kind} x {counts[kind]}" for kind in sorted(counts, reverse=True))


def _name(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")


if __name__ == "__main__":
    PATH.write_text(render(), encoding="utf-8")
    print(f"{PATH.name} is written. {triton_version()}")
