"""The explorer of notebook 10: one workload of two classes through the scheduler, under a chosen order and pool."""

from __future__ import annotations

import torch
from matplotlib.figure import Figure

from course_lib.engine import EarliestDeadline, Fcfs, Metrics, Priority, Recompute, Swap
from course_lib.engine.policies import Order
from course_lib.perf.service import percentiles
from course_lib.perf.simulation import SimulatedEngine
from course_lib.perf.workload import Arrival, log_normal_lengths, poisson_times
from course_lib.plots.style import INK, MUTED, Picture, label, styled
from course_lib.plots.timeline import draw_timeline, spans
from course_lib.sampling import SamplingParams

CLASSES = ("chat", "batch")  # level 0 and level 2
TTFT = {"chat": 20.0, "batch": 100.0}  # objectives, in steps
ORDERS = ("first come", "priority", "priority with ageing", "earliest deadline")
PREEMPTIONS = {"recompute": Recompute, "swap": Swap}
REQUESTS, SEATS, BUDGET = 36, 6, 32
CAPACITY = SEATS / 24  # requests per step: an answer has 24 tokens on average


def workload(load: float) -> list[Arrival]:
    """Two of three are chat; the same requests at any load, only closer together. Times in steps."""
    random = torch.Generator().manual_seed(10)
    times = poisson_times(load * CAPACITY, REQUESTS, random)
    prompts = log_normal_lengths(16, 0.5, REQUESTS, 60, random)
    answers = log_normal_lengths(24, 0.5, REQUESTS, 60, random)
    kinds = ["batch" if draw < 1 / 3 else "chat" for draw in torch.rand(REQUESTS, generator=random).tolist()]
    return [
        Arrival(time, [1] * prompt, SamplingParams(max_tokens=new), 2 * CLASSES.index(kind), TTFT[kind], 3.0)
        for time, prompt, new, kind in zip(times, prompts, answers, kinds, strict=True)
    ]


def order_named(name: str, ageing: float) -> Order:
    """The policy object behind a choice of the explorer; ageing in steps per level."""
    match name:
        case "first come":
            return Fcfs()
        case "priority":
            return Priority(ageing=1e9)
        case "priority with ageing":
            return Priority(ageing=ageing)
        case _:
            return EarliestDeadline()


def serve(order: str, ageing: float, blocks: int, preemption: str, load: float) -> Metrics:
    """Run the workload through the scheduler; every step takes one unit of time."""
    engine = SimulatedEngine(
        blocks=blocks,
        block_size=8,
        order=order_named(order, ageing),
        preemption=PREEMPTIONS[preemption](),
        max_num_seqs=SEATS,
        max_num_batched_tokens=BUDGET,
    )
    return engine.run(workload(load))


@styled
def scheduling_setting(order: str, ageing: float, blocks: int, preemption: str, load: float) -> Figure:
    """Left what happened to each request, right the steps to the first token of each class."""
    metrics = serve(order, ageing, blocks, preemption, load)
    figure = Picture(figsize=(12.5, 7), layout="constrained")
    left, right = figure.subplots(1, 2, width_ratios=[2.8, 1])
    kinds = {record.request_id: CLASSES[record.priority // 2] for record in metrics.requests}
    draw_timeline(left, spans(metrics), {number: f"{kind} {number}" for number, kind in kinds.items()})
    left.set_xlim(0, len(metrics.steps))
    left.set_xlabel("steps (grey: waits, blue: prompt, orange: answer, hatched: preempted)")
    evicted = sum(step.preemptions for step in metrics.steps)
    left.set_title(f"{len(metrics.steps)} steps, {evicted} preemptions")
    ticks = []
    for x, (kind, limit) in enumerate(TTFT.items()):
        found = [record.times.ttft for record in metrics.requests if kinds[record.request_id] == kind]
        ticks.append(f"{kind}\n{sum(ttft <= limit for ttft in found)} of {len(found)}\nin time")
        right.plot([x] * len(found), found, "o", color=MUTED, alpha=0.5, mew=0)
        right.plot([x - 0.4, x + 0.4], [limit, limit], color=INK, lw=1, ls="--")
        label(right, x - 0.4, limit, "promised", dx=1, dy=7, fontsize=10)
        for name, side in ((50, -1), (95, 1)):
            at = percentiles(found)[name]
            right.plot([x - 0.12, x + 0.12], [at, at], color=INK)
            label(right, x + 0.14 * side, at, f"p{name} {at:.0f}", dx=3 * side, fontsize=10)
    right.set_xticks(range(len(CLASSES)), ticks)
    right.set_xlim(-0.6, len(CLASSES) - 0.4)
    right.set_ylim(0, max(160, right.get_ylim()[1]))
    right.set_ylabel("steps to the first token")
    return figure
