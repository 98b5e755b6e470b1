"""Seconds of a call, on a GPU as the docstring of `course_kernels.bench` says, on a CPU from one call."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch

CACHES = 8  # an operation reads about half of the bytes it moves, so its inputs fill the L2 cache four times
SAMPLE_S = 1e-3  # at least; CUDA events tell half a microsecond
WARM_S = 0.05  # a GPU raises its clock within milliseconds
REPEATS, FEWEST, TOGETHER_S = 20, 3, 0.5  # samples; fewer where they would take longer than that
MOST_SETS, MOST_CALLS = 64, 1024


@dataclass(frozen=True)
class Timed:
    """seconds: samples, each the mean of `calls` calls. graph: whether those were replayed from a CUDA graph, without
    which starting a kernel from Python can take longer than the kernel."""

    seconds: tuple[float, ...]
    calls: int
    graph: bool


def sets_needed(moved: float, device: str) -> int:
    """Over how many sets of tensors calls have to go round that move so many bytes each."""
    if device == "cpu":
        return 1
    cache = torch.cuda.get_device_properties(device).L2_cache_size
    return min(MOST_SETS, max(1, math.ceil(CACHES * cache / moved)))


def time_calls(calls: Sequence[Callable[[], object]], device: str) -> Timed:
    """Time calls that do the same on tensors of their own. Raises what they raise."""
    with torch.inference_mode():
        if device == "cpu":
            start = time.perf_counter()
            calls[0]()
            return Timed((time.perf_counter() - start,), 1, False)
        for call in calls:  # compiles, and makes what libraries make at their first call
            call()
        torch.cuda.synchronize()
        return _time_on_gpu(list(calls))


def _time_on_gpu(calls: list[Callable[[], object]]) -> Timed:
    replay = _capture(calls)
    once = min(_elapsed(replay or _plain(calls), FEWEST))
    rounds = max(1, min(MOST_CALLS // len(calls), math.ceil(SAMPLE_S / once)))
    calls = calls * rounds
    graph = replay is not None
    if graph and rounds > 1:
        replay = _capture(calls)
    run = replay or _plain(calls)
    _elapsed(run, math.ceil(WARM_S / (rounds * once)))
    repeats = max(FEWEST, min(REPEATS, int(TOGETHER_S / (rounds * once))))
    return Timed(tuple(seconds / len(calls) for seconds in _elapsed(run, repeats)), len(calls), graph)


def _capture(calls: list[Callable[[], object]]) -> Callable[[], None] | None:
    """All calls as one CUDA graph; None where one of them does what a graph cannot hold, such as reading a tensor."""
    graph = torch.cuda.CUDAGraph()
    try:
        with torch.cuda.graph(graph):
            outputs = [call() for call in calls]  # all kept, so that none is written where another was
    except RuntimeError:
        torch.cuda.synchronize()  # raises where the failure was not the capture's
        return None
    del outputs
    return graph.replay


def _plain(calls: list[Callable[[], object]]) -> Callable[[], None]:
    def run() -> None:
        for call in calls:
            call()

    return run


def _elapsed(run: Callable[[], object], repeats: int) -> list[float]:
    """Seconds of each run, from the device's clock. All are queued before the first has ended."""
    marks = [[torch.cuda.Event(enable_timing=True) for _ in range(2)] for _ in range(repeats)]
    for start, end in marks:
        start.record()
        run()
        end.record()
    torch.cuda.synchronize()
    return [start.elapsed_time(end) / 1e3 for start, end in marks]
