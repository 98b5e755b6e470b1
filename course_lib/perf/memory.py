"""What fits: weights and KV cache against the memory of one or more accelerators."""

from __future__ import annotations

import math
from bisect import bisect_right
from dataclasses import dataclass

from course_lib.errors import CourseError
from course_lib.facts import Device, ModelShape


@dataclass(frozen=True)
class MemoryPlan:
    """The memory of D devices, split evenly, and what a model and its sequences want of it. All sizes in bytes."""

    memory: float  # of all devices
    usable: float  # the share that weights and KV cache may take; activations and the runtime live in the rest
    weights: float
    kv_per_sequence: float

    @property
    def kv_budget(self) -> float:
        """What is left for the cache; negative where the weights alone do not fit."""
        return self.usable - self.weights

    @property
    def max_sequences(self) -> int:
        """floor((memory * utilisation - weights) / (bytes per token * n)), 0 where not even one fits."""
        return max(0, math.floor(self.kv_budget / self.kv_per_sequence))


def plan_memory(
    model: ModelShape,
    device: Device,
    context: int,
    bytes_per_weight: float = 2,
    bytes_per_kv: float = 2,
    devices: int = 1,
    utilisation: float = 0.9,
) -> MemoryPlan:
    """Plan for sequences of `context` tokens each, every one at its full length.

    utilisation: share of the memory for weights and KV (vLLM's --gpu-memory-utilization plays this role). With several
    devices each holds whole KV heads, so those are stored more than once when there are fewer heads than devices; the
    latent of MLA is one head. Layers with a sliding window keep their window only.
    Raises CourseError where the memory of the device is not known.
    """
    if device.memory is None:
        raise CourseError(f"the memory of {device.name} is not in the course's tables; choose another device")
    kv_heads = model.kv_heads or 1
    copies = math.ceil(kv_heads / devices) * devices / kv_heads
    memory = devices * device.memory
    return MemoryPlan(
        memory=memory,
        usable=utilisation * memory,
        weights=model.params * bytes_per_weight,
        kv_per_sequence=copies * model.kv_bytes(context, bytes_per_element=bytes_per_kv),
    )


def longest_context(
    model: ModelShape,
    device: Device,
    sequences: int,
    bytes_per_weight: float = 2,
    bytes_per_kv: float = 2,
    devices: int = 1,
    utilisation: float = 0.9,
) -> float:
    """The most tokens that each of `sequences` can hold, whatever the model was trained for; see `plan_memory`.

    0 where the weights leave no room for a token, infinite where every layer has a window and all windows fit.
    """

    def plan(n: int) -> MemoryPlan:
        return plan_memory(model, device, n, bytes_per_weight, bytes_per_kv, devices, utilisation)

    budget, windows = plan(1).kv_budget, model.layer_windows
    if None not in windows and sequences * plan(max(windows)).kv_per_sequence <= budget:
        return math.inf
    most = range(1, math.ceil(2 * device.memory * devices))  # a token takes at least half a byte
    return bisect_right(most, budget, key=lambda n: sequences * plan(n).kv_per_sequence)
