"""The ceilings of the machine this runs on, measured in about two seconds: memory bandwidth and FLOP/s.

Choices, and why:
- Decode reads weights and writes almost nothing, so the ceiling is a rate of reading: of a sum over a large float32
  tensor, which is vectorised and uses every thread, or of a matrix-vector product, the operation that decode spends
  its time in, whichever is higher. The product is that of the model's layers, packed by `linear.pack`. Where it stays
  under the sum, the gap belongs to the library's kernel, not to the memory. On a machine whose cores are busy, the
  threads of the sum wait for each other and the order can turn round.
- Tensors are at least four times the last-level cache, or the cache would answer instead of the memory.
- FLOP/s is what such a layer reaches on as many rows as it is wide, with the caller's threads and data type.
- A ceiling is the best of the sizes, each at the tenth percentile of its times: other load on the machine can only make
  a run slower. STREAM (McCalpin 1995), the usual bandwidth benchmark, reports its best run for the same reason.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import torch
from torch import nn

from course_lib.linear import pack
from course_lib.perf.roofline import Machine
from course_lib.perf.timing import Timing, measure

MIB = 2**20
SECONDS_PER_READING = 0.15  # keeps the whole probe under three seconds
DEFAULT_CACHE = 32 * MIB  # assumed where the operating system does not tell
LARGEST_TENSOR = 1024 * MIB


@dataclass(frozen=True)
class Reading:
    """One operation at one size. `work` is in bytes or FLOP, the rates in work per second."""

    operation: str  # "read", "copy" (one read and one write), "gemv", "matmul"
    work: float
    timing: Timing

    @property
    def rate(self) -> float:
        """What a run usually reaches, from the median time."""
        return self.work / self.timing.median

    @property
    def ceiling(self) -> float:
        """What the machine can do, from the tenth percentile of the times."""
        return self.work / self.timing.p10

    def __str__(self) -> str:
        unit, what = ("GFLOP/s", "GFLOP") if self.operation == "matmul" else ("GB/s", "GB")
        low, high = self.work / self.timing.p90, self.work / self.timing.p10
        spread = f"p10 {low / 1e9:.1f}, p90 {high / 1e9:.1f}, {len(self.timing.samples)} samples"
        return f"{self.operation:6} {self.work / 1e9:7.3f} {what:5} {self.rate / 1e9:8.1f} {unit} ({spread})"


@dataclass(frozen=True)
class MeasuredMachine(Machine):
    """A `Machine` that was measured, with every reading and the conditions."""

    device: str = "cpu"
    threads: int = 1  # of PyTorch's CPU operations
    readings: tuple[Reading, ...] = ()

    def best(self, operation: str) -> float:
        """The ceiling of one operation over the sizes, in bytes/s or FLOP/s."""
        return _best(self.readings, operation)


def probe(device: str | None = None, dtype: torch.dtype | None = None) -> MeasuredMachine:
    """Measure this machine, once per process for each device, data type and number of threads.

    device: "cpu" or "cuda"; default the GPU if there is one. dtype: of the matrix product; default float32 on a CPU
    and bfloat16 on a GPU (float16 where it has no bfloat16 units). Uses the number of threads that is set now.
    """
    device = device or ("cuda" if torch.cuda.is_available() else "cpu")
    if dtype is None:
        dtype = torch.float32 if device == "cpu" else _half_type()
    return _probe(device, dtype, torch.get_num_threads())


def read_bandwidth(nbytes: int, device: str = "cpu") -> Reading:
    """Bytes per second of reading one float32 tensor of `nbytes`, over and over: from a cache if it fits in one."""
    tensor = torch.ones(nbytes // 4, device=device)
    return _reading("read", 4 * tensor.numel(), tensor.sum)


@cache
def _probe(device: str, dtype: torch.dtype, threads: int) -> MeasuredMachine:
    smallest = min(max(64 * MIB, 4 * last_level_cache(device)), LARGEST_TENSOR)
    readings = []
    for nbytes in dict.fromkeys((smallest, min(2 * smallest, LARGEST_TENSOR))):
        readings += _memory_readings(nbytes, device)
    for side in (512, 1024) if device == "cpu" else (4096, 8192):
        ones = torch.ones(side, side, device=device, dtype=dtype)
        layer = _layer(ones)
        readings.append(_reading("matmul", 2 * side**3, lambda layer=layer, x=ones: layer(x)))
    plural = "" if threads == 1 else "s"
    name = f"this CPU, {threads} thread{plural}" if device == "cpu" else torch.cuda.get_device_name()
    return MeasuredMachine(
        name=name,
        flops=_best(readings, "matmul"),
        bandwidth=max(_best(readings, "read"), _best(readings, "gemv")),
        dtype=str(dtype).removeprefix("torch."),
        device=device,
        threads=threads,
        readings=tuple(readings),
    )


def _best(readings: Sequence[Reading], operation: str) -> float:
    return max(reading.ceiling for reading in readings if reading.operation == operation)


def _memory_readings(nbytes: int, device: str) -> list[Reading]:
    weight = torch.ones(nbytes // 4 // 4096, 4096, device=device)
    x, target = torch.ones(1, 4096, device=device), torch.empty_like(weight)
    layer, size = _layer(weight), 4 * weight.numel()
    return [
        _reading("read", size, weight.sum),
        _reading("gemv", size, lambda: layer(x)),
        _reading("copy", 2 * size, lambda: target.copy_(weight)),
    ]


def _layer(weight: torch.Tensor) -> nn.Module:
    """The linear layer that the engine makes of a weight [out, in] on its device."""
    layer = nn.Linear(*reversed(weight.shape), bias=False, device="meta")
    layer.weight = nn.Parameter(weight, requires_grad=False)
    return pack(layer) if weight.device.type == "cpu" else layer


def _reading(operation: str, work: float, fn: Callable[[], object]) -> Reading:
    return Reading(operation, work, measure(fn, repeats=15, warmup=1, at_most_s=SECONDS_PER_READING))


def last_level_cache(device: str) -> int:
    """Bytes of the largest cache; 32 MiB where the operating system does not tell."""
    if device == "cuda":
        return torch.cuda.get_device_properties(0).L2_cache_size
    sizes = [path.read_text().strip() for path in Path("/sys/devices/system/cpu/cpu0/cache").glob("index*/size")]
    return max((int(size.removesuffix("K")) * 1024 for size in sizes if size.endswith("K")), default=DEFAULT_CACHE)


def _half_type() -> torch.dtype:
    return torch.bfloat16 if torch.cuda.is_bf16_supported(including_emulation=False) else torch.float16
