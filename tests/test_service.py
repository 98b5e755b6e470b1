"""Workloads, their replay and the summary of a run: worked figures, and a clock that only the test moves."""

from __future__ import annotations

import math
import statistics
from types import SimpleNamespace

import pytest
import torch

from course_lib import SamplingParams
from course_lib.engine import Engine
from course_lib.errors import CourseError, RequestError
from course_lib.perf import replay as replay_module
from course_lib.perf.replay import replay
from course_lib.perf.service import Objectives, Sample, backlog_growth, goodput, percentiles, samples, summarise
from course_lib.perf.workload import Arrival, log_normal_lengths, poisson_times, random_prompts

GREEDY = SamplingParams(temperature=0, max_tokens=4, ignore_eos=True)


def seeded(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def answered(start=0.0, ttft=1.0, gaps=(0.5, 0.5), **changes) -> Sample:
    """A completion of one token more than gaps."""
    fields = dict(start=start, first=start + ttft, end=start + ttft + sum(gaps), tokens=len(gaps) + 1, itl=tuple(gaps))
    return Sample(**(fields | changes))


REFUSED = Sample(start=0.0, end=0.0, failure="rejected")


# --- workload -----------------------------------------------------------------------------------------------------


def test_poisson_gaps_are_exponential_of_the_rate():
    times = poisson_times(4.0, 20_000, seeded())
    gaps = [b - a for a, b in zip([0.0, *times], times, strict=False)]
    assert min(gaps) > 0
    # The standard error of the mean is 1 / sqrt(20,000) = 0.7 % of it; an exponential's deviation equals its mean.
    assert statistics.mean(gaps) == pytest.approx(0.25, rel=0.03)
    assert statistics.stdev(gaps) == pytest.approx(0.25, rel=0.05)
    # P(gap > 2 means) = exp(-2), standard error 0.24 %.
    assert sum(gap > 0.5 for gap in gaps) / len(gaps) == pytest.approx(math.exp(-2), abs=0.01)


def test_one_seed_is_one_pattern_at_any_rate():
    slow, fast = poisson_times(1.0, 10, seeded(3)), poisson_times(8.0, 10, seeded(3))
    assert [8 * t for t in fast] == pytest.approx(slow)
    assert slow != poisson_times(1.0, 10, seeded(4))


@pytest.mark.parametrize("rate", [0, -1.0])
def test_a_rate_that_is_not_positive_is_named(rate):
    with pytest.raises(CourseError, match=f"rate is {rate:g}"):
        poisson_times(rate, 3, seeded())


def test_log_normal_lengths_have_the_mean_and_sigma_asked_for():
    lengths = log_normal_lengths(300, 0.5, 20_000, 10**6, seeded())
    # Truncation to whole tokens takes half a token off; the standard error is 0.4 %.
    assert statistics.mean(lengths) == pytest.approx(300, rel=0.02)
    assert statistics.stdev(map(math.log, lengths)) == pytest.approx(0.5, rel=0.03)
    cut = log_normal_lengths(30, 2.0, 1000, 64, seeded())
    assert (min(cut), max(cut)) == (1, 64)
    assert set(log_normal_lengths(7, 0, 5, 64, seeded())) == {7}


def test_prompts_share_no_prefix_while_there_are_tokens_to_begin_with():
    prompts = random_prompts(50, [1 + i % 9 for i in range(50)], seeded())
    assert [len(prompt) for prompt in prompts] == [1 + i % 9 for i in range(50)]
    assert {prompt[0] for prompt in prompts} == set(range(50))
    assert all(0 <= token < 50 for prompt in prompts for token in prompt)
    assert len(random_prompts(50, [3] * 120, seeded())) == 120 and random_prompts(50, [], seeded()) == []


# --- summary ------------------------------------------------------------------------------------------------------


def test_percentiles_lie_between_neighbours():
    assert percentiles([3, 1, 2]) == pytest.approx({50: 2, 95: 2.9, 99: 2.98})
    assert percentiles(list(range(101))) == {50: 50, 95: 95, 99: 99}
    assert percentiles([7.0]) == {50: 7, 95: 7, 99: 7}
    assert percentiles([]) == {50: None, 95: None, 99: None}


def test_summary_of_a_worked_run():
    run = [answered(0, 1, (0.5, 0.5)), answered(1, 2, (0.1, 0.1, 2.8)), answered(3, 1, ()), REFUSED]
    run.append(answered(2, 1, (0.5,), failure="abort"))  # its two tokens are of no use
    found = summarise(run, Objectives(ttft=2, tpot=0.5))
    assert found.seconds == 6  # from 0 to the last token of the second
    assert (found.completed, found.failed) == (3, 2)
    assert found.requests_per_s == 3 / 6 and found.output_tokens_per_s == (3 + 4 + 1) / 6
    assert found.ttft[50] == 1 and found.e2e[50] == 2
    assert found.tpot[50] == pytest.approx((0.5 + 1.0) / 2)  # of two completions: the third has one token
    # One stall of 2.8 s in five gaps is hidden in a mean of 1.0, not among the gaps.
    assert found.tpot[99] < 1.0 < found.itl[95] and found.itl[50] == 0.5
    assert found.goodput == 2 / 6 and found.attainment == 2 / 5  # the second is too slow per token
    assert found.concurrency == pytest.approx((2 + 5 + 1 + 1.5) / 6)


def test_rates_are_over_the_window_that_is_given():
    found = summarise([answered(10)], seconds=20)
    assert (found.seconds, found.requests_per_s, found.output_tokens_per_s) == (20, 1 / 20, 3 / 20)


@pytest.mark.parametrize(
    ("sample", "objectives", "good"),
    [
        (answered(), Objectives(), True),
        (answered(), Objectives(ttft=1.0, tpot=0.5), True),  # met where it is reached exactly
        (answered(), Objectives(ttft=0.9, tpot=0.5), False),
        (answered(), Objectives(ttft=1.0, tpot=0.4), False),
        (answered(), Objectives(tpot=0.4), False),
        (answered(gaps=()), Objectives(ttft=1.0, tpot=1e-9), True),  # one token has no TPOT
        (answered(gaps=()), Objectives(ttft=0.9, tpot=9.0), False),
        (answered(gaps=(0.1, 0.9)), Objectives(tpot=0.5), True),  # the mean counts, not the longest gap
        (answered(failure="abort"), Objectives(ttft=9.0, tpot=9.0), False),
        (REFUSED, Objectives(), False),
    ],
)
def test_when_a_request_is_good(sample, objectives, good):
    assert objectives.met_by(sample) is good
    assert goodput([sample], objectives, 2.0) == good / 2


def test_tokens_are_not_chunks():
    """A client that got five tokens in two pieces has one gap, and a TPOT by tokens."""
    sample = answered(gaps=(2.0,), tokens=5)
    assert sample.tpot == 0.5 and sample.itl == (2.0,)


def test_nothing_served_is_said_not_divided_by():
    refused = summarise([REFUSED, REFUSED], Objectives(ttft=1))
    assert (refused.completed, refused.failed, refused.goodput, refused.requests_per_s) == (0, 2, 0, 0)
    assert refused.ttft == {50: None, 95: None, 99: None}
    with pytest.raises(CourseError, match="no requests"):
        summarise([])


@pytest.mark.parametrize(("service_s", "growth"), [(0.5, 0.0), (1.0, 0.0), (2.0, 0.5), (4.0, 0.75)])
def test_backlog_grows_by_what_a_single_server_cannot_serve(service_s, growth):
    """One request a second comes, one at a time is served: beyond capacity 1 - mu / lambda of them pile up."""
    free, run = 0.0, []
    for arrival in range(200):
        free = max(free, arrival) + service_s
        run.append(Sample(start=float(arrival), end=free, first=free, tokens=1))
    assert backlog_growth(run) == pytest.approx(growth, abs=0.02)
    assert backlog_growth(run[::-1]) == backlog_growth(run)
    assert backlog_growth(run[:1]) == 0


def test_a_system_that_fills_does_not_grow():
    """Everybody is served at once, for 20 s: from the 20th arrival on, each finds 20."""
    run = [Sample(start=float(i), end=i + 20.5) for i in range(100)]
    assert backlog_growth(run) == pytest.approx(0, abs=1e-9)


# --- replay -------------------------------------------------------------------------------------------------------


class Clock:
    """Time that passes where the test says: in a step of the engine, or asleep."""

    def __init__(self, monkeypatch):
        self.now, self.slept = 100.0, []
        monkeypatch.setattr(replay_module, "perf_counter", lambda: self.now)
        monkeypatch.setattr(replay_module, "sleep", self.sleep)

    def sleep(self, seconds: float) -> None:
        self.slept.append(seconds)
        self.now += seconds


class SlowEngine:
    """One token for everybody per step of ten seconds; each request needs three."""

    def __init__(self, clock: Clock):
        self.clock, self.added, self.left, self.most = clock, [], {}, 0
        self.metrics = SimpleNamespace(requests=[])

    def add_request(self, prompt, params, *, arrival_time, **objectives) -> str:
        if not prompt:
            raise RequestError("the prompt is empty; give at least one token")
        self.added.append((prompt[0], arrival_time - 100, self.clock.now - 100, objectives))
        self.left[prompt[0]] = 3
        return str(prompt[0])

    @property
    def has_unfinished(self) -> bool:
        return bool(self.left)

    def step(self) -> list:
        self.clock.now += 10
        self.most = max(self.most, len(self.left))
        self.left = {name: left - 1 for name, left in self.left.items() if left > 1}
        return []


def test_replay_is_an_open_loop(monkeypatch):
    clock = Clock(monkeypatch)
    engine = SlowEngine(clock)
    arrivals = [Arrival(at, [i], GREEDY) for i, at in enumerate([5.0, 6.0, 7.5, 100.0])]
    assert replay(engine, [*arrivals[::-1]]) is engine.metrics
    # (request, when it was due, when the engine could take it): due times count, nobody waits for an answer.
    assert [entry[:3] for entry in engine.added] == [(0, 5, 5), (1, 6, 15), (2, 7.5, 15), (3, 100, 100)]
    assert engine.most == 3
    assert clock.slept == [5.0, 55.0]  # only where the engine is idle


def test_replay_hands_over_objectives_and_records_what_is_rejected(monkeypatch):
    engine = SlowEngine(Clock(monkeypatch))
    replay(engine, [Arrival(1.0, [8], GREEDY, priority=2, ttft=0.5, tpot=0.1), Arrival(2.0, [], GREEDY, priority=7)])
    assert engine.added[0][3] == {"priority": 2, "ttft": 0.5, "tpot": 0.1}
    [record] = engine.metrics.requests
    assert (record.finish_reason, record.priority, record.queue_time) == ("rejected", 7, None)
    [sample] = samples([record])
    assert sample == Sample(start=102.0, end=102.0, failure="rejected")


def test_replay_on_the_real_engine(tiny):
    engine = Engine(tiny, blocks=8, block_size=16)
    never_fits = Arrival(0.0, [5] * 200, GREEDY)
    times = poisson_times(200.0, 6, seeded())
    prompts = random_prompts(2048, [9] * 6, seeded())
    params = SamplingParams(max_tokens=4, ignore_eos=True, seed=1)
    arrivals = [Arrival(at, prompt, params) for at, prompt in zip(times, prompts, strict=True)]
    metrics = replay(engine, [never_fits, *arrivals])
    run = samples(metrics.requests)
    found = summarise(run)
    assert (found.completed, found.failed) == (6, 1)
    assert [s.tokens for s in run if not s.failure] == [4] * 6
    # Arrivals are those asked for, to the microsecond, although the engine was in a step when some came.
    arrived = sorted(s.start for s in run)
    assert [t - arrived[0] for t in arrived[1:]] == pytest.approx(times, abs=1e-6)
    assert all(s.tpot == pytest.approx(statistics.mean(s.itl)) for s in run if not s.failure)
    engine.manager.check_integrity()


def test_an_aborted_completion_failed_although_it_has_tokens(tiny):
    engine = Engine(tiny)
    name = engine.add_request([5, 6, 7], GREEDY)
    engine.step()
    engine.abort(name)
    [sample] = samples(engine.metrics.requests)
    assert (sample.failure, sample.tokens) == ("abort", 1)
    assert summarise([sample]).completed == 0
