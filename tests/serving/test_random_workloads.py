"""The scheduler under random arrivals, lengths, priorities, n, aborts and policies, on pools of a few blocks.

What is checked after every step stands in `simulation.py`.
"""

from __future__ import annotations

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from course_lib.errors import RequestError
from tests.serving.simulation import Simulation, random_scheduler, random_workload, refusal


def test_random_workloads_try_what_they_should():
    """The generator's own test: preemption, prefix hits, forks, aborts, waiting and a full host occur, each often."""
    runs = [random_workload(seed) for seed in range(1_000)]
    assert sum(any(r.preemptions for r in run.requests) for run in runs) > 200
    assert sum(any(r.cached for r in run.requests) for run in runs) > 100
    assert sum(any(r.index for r in run.requests) for run in runs) > 300
    assert sum(any(not r.seq.finished for r in run.requests) for run in runs) > 100
    assert sum(run.swaps > 0 and run.fallbacks > 0 for run in runs) > 20
    assert sum(any((r.first_scheduled or 0) > r.seq.arrival for r in run.requests) for run in runs) > 300


@pytest.mark.slow
@pytest.mark.parametrize("part", range(4))
def test_random_workloads(part):
    """4 x 5,000 workloads, each reproducible by its seed, none of them among those above."""
    for seed in range(1_000 + part * 5_000, 6_000 + part * 5_000):
        try:
            random_workload(seed)
        except Exception as error:
            raise AssertionError(f"random_workload({seed}) failed") from error


class SchedulerMachine(RuleBasedStateMachine):
    """Hypothesis chooses the calls one by one, and shortens the sequence where one fails."""

    @initialize(random=st.randoms(use_true_random=False))
    def start(self, random):
        self.simulation = Simulation(random_scheduler(random))

    @rule(
        prompt=st.lists(st.integers(1, 3), min_size=1, max_size=12),
        new=st.integers(1, 10),
        n=st.integers(1, 3),
        priority=st.integers(-2, 2),
        cache_salt=st.sampled_from(["", "tenant"]),
    )
    def add(self, prompt, new, n, priority, cache_salt):
        refused = refusal(self.simulation.scheduler, len(prompt), new, n)
        try:
            self.simulation.add(prompt, new, n, priority, cache_salt=cache_salt)
            assert not refused
        except RequestError:
            assert refused

    @precondition(lambda self: self.simulation.unfinished)
    @rule(data=st.data())
    def abort(self, data):
        self.simulation.abort(data.draw(st.sampled_from(self.simulation.unfinished)))

    @rule()
    def step(self):
        self.simulation.step()

    @invariant()
    def nothing_overlaps(self):
        scheduler = self.simulation.scheduler
        listed = scheduler.waiting + scheduler.running
        assert len(set(listed)) == len(listed)
        assert {request.id for request in scheduler.running} == scheduler.manager.tables.keys()

    def teardown(self):
        if hasattr(self, "simulation"):
            self.simulation.run()


TestSchedulerMachine = SchedulerMachine.TestCase
TestSchedulerMachine.settings = settings(max_examples=150, stateful_step_count=25, deadline=None)
