"""The helpers behind notebook 10: the engine on a computed clock, the figures and the explorer."""

from __future__ import annotations

import pytest

from course_lib import SamplingParams, facts
from course_lib.engine import (
    ContinuousBatching,
    EarliestDeadline,
    Engine,
    Fcfs,
    Priority,
    Scheduler,
    StaticBatching,
    Swap,
)
from course_lib.errors import CourseError, RequestError
from course_lib.perf.counts import decode_cost
from course_lib.perf.roofline import Machine, time_bound
from course_lib.perf.service import Objectives, Sample, samples, summarise
from course_lib.perf.simulation import SimulatedEngine, one_step, roofline_step
from course_lib.perf.timing import Timing
from course_lib.perf.workload import Arrival
from course_lib.plots.preemption import break_even, measured_ways, ways_back
from course_lib.plots.scheduling import attainment, first_tokens, goodput_curve, queues, spread, waits
from course_lib.plots.scheduling_explorer import ORDERS, PREEMPTIONS, serve, workload
from course_lib.widgets import scheduling_explorer


def request(time: float, prompt: int | list[int], new: int, priority: int = 0, **objectives) -> Arrival:
    ids = [1] * prompt if isinstance(prompt, int) else prompt
    params = SamplingParams(temperature=0, max_tokens=new, ignore_eos=True)
    return Arrival(time, ids, params, priority, **objectives)


def texts(figure) -> str:
    return "\n".join(t for axes in figure.axes for t in (axes.get_title("left"), *(x.get_text() for x in axes.texts)))


SETTINGS = {
    "fcfs": dict(order=Fcfs()),
    "priority": dict(order=Priority(5.0)),
    "deadline": dict(order=EarliestDeadline(5.0, 1.0)),
    "swap": dict(preemption=Swap()),
    "static": dict(batching=StaticBatching()),
    "whole prompts": dict(batching=ContinuousBatching()),
}


@pytest.mark.parametrize("settings", SETTINGS.values(), ids=SETTINGS)
def test_the_simulated_engine_plans_as_the_real_one(tiny, settings):
    """Requests that come in pairs, to a pool that is too small: the same events in the same steps."""
    common = dict(blocks=12, block_size=8, max_num_seqs=4, max_num_batched_tokens=40) | settings
    arrivals = [request(2 * (i // 2), [i + 1, *range(10 + 3 * i)], 10 + 7 * i % 13, priority=i % 3) for i in range(8)]
    simulated = SimulatedEngine(one_step, **common).run(arrivals)

    engine, due = Engine(tiny, **common), list(arrivals)
    while due or engine.has_unfinished:
        while due and due[0].time <= engine.steps:
            one = due.pop(0)
            engine.add_request(one.prompt, one.params, priority=one.priority, arrival_time=one.time)
        engine.step()
    assert sum(record.preemptions for record in engine.metrics.requests)

    def trace(metrics):
        return [(e.step, e.kind, e.request_id, e.tokens) for e in metrics.events]

    assert trace(simulated) == trace(engine.metrics)
    for ours, theirs in zip(simulated.steps, engine.metrics.steps, strict=True):
        for name in ("running", "waiting", "prefill_tokens", "decode_tokens", "preemptions", "blocks", "waste"):
            assert getattr(ours, name) == getattr(theirs, name), name


def test_times_are_those_of_the_computed_clock():
    """Two steps for the prompt of 6 at a budget of 4, each of 10; the second request waits for the seat."""
    engine = SimulatedEngine(lambda plan: 10.0, max_num_seqs=1, max_num_batched_tokens=4)
    first, second = engine.run([request(5, 6, 2), request(7, 1, 1)]).requests
    assert first.times.arrival == 5 and first.times.token_times == (25, 35)
    assert second.queue_time == 35 - 7 and second.times.token_times == (45,)
    assert engine.now == 45 and engine.steps == 4


def test_an_idle_engine_jumps_to_the_next_arrival_and_stops_where_it_is_told():
    engine = SimulatedEngine()
    metrics = engine.run([request(3, 1, 2), request(100, 1, 50)], until=110)
    assert [record.times.token_times for record in metrics.requests] == [(4, 5)]
    assert engine.now == 110 and engine.has_unfinished


def test_what_the_scheduler_rejects_is_a_record_without_tokens():
    class Full(Scheduler):
        def check(self, request):
            super().check(request)
            if self.waiting:
                raise RequestError("full")

    engine = SimulatedEngine(blocks=2, block_size=4, scheduler=Full, max_num_seqs=1)
    metrics = engine.run([request(0, 2, 3), request(0, 2, 3), request(0, 9, 9)])
    kinds = [record.finish_reason for record in metrics.requests]
    assert kinds == ["rejected", "rejected", "length"]
    assert summarise(samples(metrics.requests), Objectives(ttft=1e9)).attainment == pytest.approx(1 / 3)


def test_a_simulated_request_has_one_completion():
    many = Arrival(0, [1], SamplingParams(n=2))
    with pytest.raises(CourseError, match="n is 2; .* ask for n = 1"):
        SimulatedEngine().run([many])


def test_a_step_lasts_as_long_as_its_bound_and_its_swaps():
    """Two requests of 17 tokens decode together; then one of 2 blocks of 16 goes over a link of 1 GB/s."""
    config, machine = facts.model("Llama-3.1-8B").config, Machine.from_facts(facts.device("H100"))
    bound = roofline_step(config, machine, link=1e9)
    engine = SimulatedEngine(bound, blocks=5, preemption=Swap())
    engine.run([request(0, 16, 40), request(0, 16, 40)])
    steps = {step.step: step.forward_s for step in engine.metrics.steps}
    assert steps[1] == pytest.approx(time_bound(decode_cost(config, 2, 17), machine).seconds)
    [out] = [event.step for event in engine.metrics.events if event.kind == "swapped_out"]
    context = 16 + out  # of the one that stays
    moved = 2 * 16 * config.kv_bytes_per_token(2) / 1e9
    assert steps[out] == pytest.approx(time_bound(decode_cost(config, 1, context), machine).seconds + moved)


def stream(length: int) -> list[Arrival]:
    level_0 = [request(0, 8, 20)] * 4 + [request(t, 8, 20) for t in range(0, length, 5)]
    return level_0 + [request(11, 8, 20, priority=2)]


@pytest.mark.parametrize(("order", "expected"), [(Priority(1e9), [110, 210]), (Priority(20), [50, 50])])
def test_plain_priority_starves_and_ageing_bounds_it(order, expected):
    """What section 1 of the notebook says: the wait grows with the stream, or does not."""
    found = []
    for length in (100, 200):
        records = SimulatedEngine(order=order, max_num_seqs=4, max_num_batched_tokens=64).run(stream(length)).requests
        found += [record.times.ttft for record in records if record.priority == 2]
    assert found == expected


def test_the_explorers_workload_is_the_same_at_any_load():
    slow, fast = workload(0.5), workload(2.0)
    assert [a.prompt for a in slow] == [a.prompt for a in fast]
    assert slow[-1].time == pytest.approx(4 * fast[-1].time)


@pytest.mark.parametrize("preemption", PREEMPTIONS)
@pytest.mark.parametrize("order", ORDERS)
def test_every_setting_of_the_explorer_serves_everybody(order, preemption):
    metrics = serve(order, 16, 16, preemption, 2.0)
    assert all(record.finish_reason == "length" for record in metrics.requests) and len(metrics.requests) == 36
    assert sum(step.preemptions for step in metrics.steps)


def test_ageing_lies_between_first_come_and_priority():
    def ttfts(*setting):
        return sorted((r.request_id, r.times.ttft) for r in serve(*setting).requests)

    assert ttfts("priority with ageing", 1e-6, 64, "recompute", 1.2) == ttfts("first come", 1, 64, "recompute", 1.2)
    assert ttfts("priority with ageing", 1e6, 64, "recompute", 1.2) == ttfts("priority", 1, 64, "recompute", 1.2)


def test_the_explorer_redraws_for_each_control():
    explorer = scheduling_explorer()
    seen = {explorer.picture.value}
    changes = (("order", "earliest deadline"), ("blocks", 16), ("load", 0.8), ("preemption", "swap"))
    for name, value in (*changes, ("order", "priority with ageing"), ("ageing", 2)):
        explorer.controls[name].value = value
        assert explorer.message.value == "" and explorer.picture.value not in seen
        seen.add(explorer.picture.value)


def test_figures_name_what_they_show():
    assert "ageing" in texts(waits([100, 200], {"priority": [110, 210], "ageing": [50, 50]}))
    written = texts(spread({"a": list(range(101))}, "steps", "title"))
    for text in ("p50 50", "p95 95", "p99 99", "mean 50"):
        assert text in written
    assert {"chat", "batch"} <= set(texts(attainment([1, 2], {"chat": {"a": [1, 0]}, "batch": {"a": [1, 1]}})).split())
    assert "TTFT 1 s" in texts(goodput_curve([1, 2], [1, 1.5], [1, 0.5], "TTFT 1 s", "title"))
    run = SimulatedEngine(max_num_seqs=1).run([request(0, 1, 3)] * 3)
    assert "fast" in texts(queues({"fast": run.steps}))
    written = texts(break_even({"A": 5e9, "B": 203e9}, {"PCIe 5": 63e9}, "title"))
    assert "5 GB/s" in written and "203 GB/s" in written and "PCIe 5" in written
    assert "swap" in texts(ways_back([1, 2], {"recompute": [1, 2]}, {"swap": [3, 4]}, "title"))
    assert "out and back" in texts(measured_ways([1, 2], [Timing((1.0, 2.0))] * 2, [Timing((0.1, 0.2))] * 2, "title"))


def test_first_tokens_counts_in_time_late_and_refused():
    run = [Sample(0, 2, 1, 2), Sample(1, 9, 6, 2), Sample(2, 2, failure="rejected")]
    assert "open: 1 in time, 1 late, 1 refused" in texts(first_tokens({"open": run}, objective=2))
