"""Timing that is fair: warm, repeated, synchronised with the device, spread kept."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass

import torch

MIN_SAMPLES = 3


@dataclass(frozen=True)
class Timing:
    """Seconds of each repetition, in the order they were taken."""

    samples: tuple[float, ...]

    @property
    def median(self) -> float:
        return statistics.median(self.samples)

    @property
    def p10(self) -> float:
        return quantile(self.samples, 0.10)

    @property
    def p90(self) -> float:
        return quantile(self.samples, 0.90)

    def __str__(self) -> str:
        median, p10, p90 = (f"{seconds * 1e3:.3g}" for seconds in (self.median, self.p10, self.p90))
        return f"{median} ms (p10 {p10}, p90 {p90}, {len(self.samples)} samples)"


def measure(fn: Callable[[], object], repeats: int = 7, warmup: int = 1, at_most_s: float = float("inf")) -> Timing:
    """Wall-clock time of `fn()`, `repeats` times after `warmup` calls that are not counted.

    A GPU runs behind Python, so the clock is read only after the device has finished. Stops early, with at least
    three samples, once the counted calls have taken `at_most_s` seconds: a slow machine then answers with a wider
    spread rather than later.
    """
    for _ in range(warmup):
        fn()
    samples: list[float] = []
    while len(samples) < repeats and (len(samples) < MIN_SAMPLES or sum(samples) < at_most_s):
        synchronize()
        start = time.perf_counter()
        fn()
        synchronize()
        samples.append(time.perf_counter() - start)
    return Timing(tuple(samples))


def synchronize() -> None:
    """Wait until the GPU has done everything asked of it; nothing on a CPU."""
    if torch.cuda.is_available():
        torch.cuda.synchronize()


def quantile(samples: tuple[float, ...], q: float) -> float:
    """The q-quantile of the samples (0 <= q <= 1), linear between neighbours, as `numpy.quantile`."""
    ordered = sorted(samples)
    place = q * (len(ordered) - 1)
    low = int(place)
    high = min(low + 1, len(ordered) - 1)
    return ordered[low] + (place - low) * (ordered[high] - ordered[low])
