"""The roofline: two ceilings, the bound they put on any pass, and where a model crosses from one to the other.

Source: Williams, Waterman, Patterson, "Roofline: an insightful visual performance model", CACM 52(4), 2009.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from course_lib.config import ModelConfig
from course_lib.errors import CourseError
from course_lib.facts import Device
from course_lib.perf.counts import PassCost, decode_cost, decode_flops_per_key, matmul_params, prefill_cost


@dataclass(frozen=True)
class Machine:
    """The two ceilings of a machine: F in FLOP/s and BW in bytes/s."""

    name: str
    flops: float
    bandwidth: float
    dtype: str = "16 bit"  # of the matrix products that reach `flops`

    @classmethod
    def from_facts(cls, device: Device) -> Machine:
        """The data-sheet ceilings of a device. Raises CourseError when its peak FLOP/s is not known."""
        if device.flops is None:
            raise CourseError(f"no confirmed peak FLOP/s is known for {device.name}: only its bandwidth can be used")
        return cls(name=device.label, flops=device.flops, bandwidth=device.bandwidth)

    @property
    def ridge(self) -> float:
        """I* = F / BW, the FLOP/byte from which the arithmetic, not the memory, sets the time."""
        return self.flops / self.bandwidth

    def attainable(self, intensity: float) -> float:
        """FLOP/s that work of this intensity can reach at most: min(F, I * BW)."""
        return min(self.flops, intensity * self.bandwidth)


@dataclass(frozen=True)
class Bound:
    """A lower bound on the time of one pass, in seconds, and the ceiling that sets it."""

    compute: float
    memory: float

    @property
    def seconds(self) -> float:
        return max(self.compute, self.memory)

    @property
    def limit(self) -> str:
        return "compute" if self.compute > self.memory else "memory"


def time_bound(cost: PassCost, machine: Machine) -> Bound:
    """T >= max(FLOPs / F, bytes / BW): both at their peak, and perfectly overlapped."""
    return Bound(compute=cost.flops / machine.flops, memory=cost.bytes / machine.bandwidth)


def tpot_bound(
    config: ModelConfig,
    machine: Machine,
    batch: int,
    context: int,
    bytes_per_weight: float = 2,
    bytes_per_kv: float = 2,
) -> float:
    """Seconds per output token of each of B sequences, at least."""
    return time_bound(decode_cost(config, batch, context, bytes_per_weight, bytes_per_kv), machine).seconds


def ttft_bound(
    config: ModelConfig,
    machine: Machine,
    prompt: int,
    bytes_per_weight: float = 2,
    bytes_per_kv: float = 2,
    mfu: float = 1.0,
) -> float:
    """Seconds to the first token of one prompt, at least; `mfu` is the share of F that the arithmetic reaches."""
    bound = time_bound(prefill_cost(config, prompt, bytes_per_weight, bytes_per_kv), machine)
    return max(bound.compute / mfu, bound.memory)


def critical_batch(machine: Machine, bytes_per_weight: float = 2) -> float:
    """B*, the tokens in a step from which a linear layer is bound by compute: 2 B / b_w = I*."""
    return machine.ridge * bytes_per_weight / 2


def critical_context(config: ModelConfig, machine: Machine, bytes_per_kv: float = 2) -> float:
    """n*, the context beyond which no batch makes a whole decode step compute-bound; infinite if there is none.

    I(B, n) = (2P + 4LHd n) B / (P b_w + B n kv), with kv = 2LKd b, grows with B towards (2P + 4LHd n) / (n kv).
    That limit is below I* when n > n* = 2P / (I* kv - 4LHd). Full attention is assumed in every layer; with latent
    attention the terms for 4LHd and kv are its own.
    """
    kv = config.kv_bytes_per_token(bytes_per_kv)
    denominator = machine.ridge * kv - decode_flops_per_key(config)
    return 2 * matmul_params(config) / denominator if denominator > 0 else math.inf
