"""The clock, on a GPU whose time only its kernels move."""

from __future__ import annotations

from contextlib import contextmanager
from types import SimpleNamespace

import pytest
import torch

from course_kernels.bench import clock


class FakeGpu:
    """torch.cuda with a clock that only kernels move. Kernels take `seconds`; events tell milliseconds."""

    def __init__(self, monkeypatch, seconds: float, capturable: bool = True):
        self.now, self.seconds, self.capturing, self.launched = 0.0, seconds, None, 0
        gpu = self

        class Event:
            def __init__(self, enable_timing):
                assert enable_timing

            def record(self):
                self.at = gpu.now

            def elapsed_time(self, end):
                return 1e3 * (end.at - self.at)

        class Graph:
            def replay(self):
                gpu.now += self.kernels * gpu.seconds

        @contextmanager
        def graph(into):
            if not capturable:
                raise RuntimeError("operation not permitted when stream is capturing")
            self.capturing = []
            yield
            into.kernels, self.capturing = len(self.capturing), None

        for name, value in {"Event": Event, "CUDAGraph": Graph, "graph": graph, "synchronize": lambda: None}.items():
            monkeypatch.setattr(torch.cuda, name, value)

    def kernel(self) -> None:
        self.launched += 1
        if self.capturing is None:
            self.now += self.seconds
        else:
            self.capturing.append(1)


def test_short_kernels_fill_a_sample_of_a_graph(monkeypatch):
    gpu = FakeGpu(monkeypatch, seconds=1e-5)
    timed = clock.time_calls([gpu.kernel] * 8, "cuda")
    assert timed.graph and timed.calls == 8 * 13  # 13 rounds of 80 us are the first to pass a millisecond
    assert timed.seconds == pytest.approx([1e-5] * clock.REPEATS)
    assert gpu.launched == 8 + 8 + 104  # warm-up, first capture, second capture


def test_long_kernels_get_fewer_samples(monkeypatch):
    gpu = FakeGpu(monkeypatch, seconds=0.1)
    timed = clock.time_calls([gpu.kernel], "cuda")
    assert timed.calls == 1 and timed.seconds == pytest.approx([0.1] * 5)


def test_what_no_graph_can_hold_is_timed_without(monkeypatch):
    gpu = FakeGpu(monkeypatch, seconds=1e-5, capturable=False)
    timed = clock.time_calls([gpu.kernel] * 8, "cuda")
    assert not timed.graph and timed.seconds == pytest.approx([1e-5] * clock.REPEATS)


def test_sets_pass_the_cache_several_times(monkeypatch):
    properties = SimpleNamespace(L2_cache_size=50_000_000)
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda device: properties)
    assert clock.sets_needed(1e9, "cuda") == 1
    assert clock.sets_needed(1e7, "cuda") == 40
    assert clock.sets_needed(1e3, "cuda") == clock.MOST_SETS
    assert clock.sets_needed(1e3, "cpu") == 1
