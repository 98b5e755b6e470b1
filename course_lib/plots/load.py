"""Figures of notebook 09, second half: requests in the system, load curves, stalls, the price of chunks, one run."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
import torch
from matplotlib.figure import Figure

from course_lib.bench.batching import POLICIES
from course_lib.engine import Engine, Metrics
from course_lib.llm import LLM
from course_lib.perf.replay import replay_steps
from course_lib.perf.workload import Arrival, log_normal_lengths, poisson_times, random_prompts
from course_lib.plots.style import DECODE, INK, MUTED, PREFILL, label, log_y, new_figure, new_stack, si, styled
from course_lib.plots.timeline import draw_legend, draw_timeline, spans
from course_lib.sampling import SamplingParams


@styled
def in_system(times: Sequence[float], counts: Sequence[int], mean: float) -> Figure:
    """Requests in the system: counts[i] of them from times[i] to times[i + 1], in seconds, and their mean."""
    figure, [axes] = new_figure(10, 3.6)
    axes.fill_between(times, counts, step="post", color=DECODE, alpha=0.25, lw=0)
    axes.step(times, counts, where="post", color=DECODE, lw=1.5)
    axes.axhline(mean, color=INK, lw=1.5, ls="--")
    label(axes, times[-1], mean, f"mean N = {mean:.2f}", dx=8, dy=9, weight="bold")
    axes.set_xlim(0, times[-1] * 1.2)
    axes.set_ylim(0, None)
    axes.set_xlabel("seconds")
    axes.set_ylabel("requests in the system")
    axes.set_title("The shaded area is the sum of all times in the system")
    return figure


@styled
def load_curves(rates: Sequence[float], runs: Mapping[str, Sequence[tuple[float, float, float]]]) -> Figure:
    """What a server answers, and how late, against what is asked; rates in requests/s.

    runs: {name: (requests/s served, p50 and p95 of the time to first token in seconds), one for each rate}.
    """
    figure, (left, right) = new_figure(11, 4.4, columns=2)
    left.plot(rates, rates, color=MUTED, ls=":", lw=1.5)
    label(left, rates[-1], rates[-1], "all of it", MUTED, dx=8)
    for i, (name, points) in enumerate(runs.items()):
        style = {"color": (MUTED, INK)[i % 2], "marker": "os"[i % 2]}
        served, p50, p95 = zip(*points, strict=True)
        left.plot(rates, served, **style)
        label(left, rates[-1], served[-1], name, style["color"], dx=8, dy=(-7, 7)[i % 2], weight="bold")
        right.plot(rates, p50, **style)
        right.plot(rates, p95, color=style["color"], ls="--", lw=1.2)
        label(right, rates[-1], p50[-1], name, style["color"], dx=8, weight="bold")
    for axes in (left, right):
        axes.set_xlim(0, rates[-1] * 1.45)
        axes.set_xlabel("requests/s that arrive, λ")
    left.set_ylim(0, None)
    left.set_ylabel("requests/s that are served")
    left.set_title("throughput")
    log_y(right, "s")
    right.set_title("time to first token: p50, dashed p95")
    return figure


@styled
def token_gaps(runs: Mapping[str, tuple[Sequence[float], Sequence[float], float]], what: str) -> Figure:
    """Gaps between the tokens of running requests while a long prompt joins, one panel for each run.

    runs: {title: (time of each token, gap before it, when the long prompt had its first token)}, in seconds after the
    prompt's arrival.
    """
    figure, panels = new_stack(10, 1.4 * len(runs) + 0.8, [1] * len(runs))
    highest = max(max(gaps) for _, gaps, _ in runs.values())
    for axes, (title, (times, gaps, first)) in zip(panels, runs.items(), strict=True):
        axes.axvline(first, color=PREFILL, lw=1.5, ls="--")
        axes.vlines(times, 0, np.array(gaps) * 1e3, color=DECODE, lw=3.5, zorder=3)
        label(axes, first, highest * 0.75e3, f"first token: {si(first, 's')}", PREFILL, dx=6)
        worst = int(np.argmax(gaps))
        label(axes, times[worst], gaps[worst] * 0.9e3, f"{gaps[worst] * 1e3:.0f} ms", DECODE, dx=-6, weight="bold")
        axes.set_ylim(0, highest * 1.1e3)
        axes.set_ylabel("ms")
        axes.set_title(title, fontsize=12)
    panels[-1].set_xlim(0, None)
    panels[-1].set_xlabel(f"seconds after the long prompt arrived ({what})")
    return figure


@styled
def chunk_price(panels: Mapping[str, tuple[Sequence[int], Sequence[float], Sequence[float], float]]) -> Figure:
    """Largest gap between two tokens of the others, and time to the prompt's first token, against the token budget.

    panels: {title: (budgets, gaps in s, times in s, B*)}; B*: tokens from which the arithmetic sets a step's time.
    """
    figure, axes = new_figure(11, 4.6, columns=len(panels))
    for each, (title, (budgets, gaps, firsts, critical)) in zip(axes, panels.items(), strict=True):
        each.axvline(critical, color=MUTED, lw=1.2, ls="--")
        label(each, critical, max(firsts) * 1.6, f"B* = {critical:.0f}", MUTED, dx=5)
        each.plot(budgets, firsts, color=PREFILL, marker="o")
        label(each, budgets[1], firsts[1], "first token of the long prompt", PREFILL, dx=8, dy=9, weight="bold")
        each.plot(budgets, gaps, color=DECODE, marker="o")
        label(each, budgets[1], gaps[1], "longest gap of the others", DECODE, dx=8, dy=-14, weight="bold")
        each.set_xscale("log", base=2)
        each.set_xticks(budgets, [f"{budget:,}" for budget in budgets], rotation=45)
        each.minorticks_off()
        each.set_xlim(min(critical, budgets[0]) / 1.5, budgets[-1] * 1.3)
        log_y(each, "s")
        each.set_ylim(min(gaps) / 2.5, max(firsts) * 2.2)
        each.set_xlabel("token budget of a step, C")
        each.set_title(title)
    return figure


def batching_run(
    llm: LLM, requests: int, mean_output: int, rate: float, seed: int, policy: str, seats: int, budget: int
) -> Figure:
    """Serve requests that arrive at `rate` per step, and draw what happened; see `widgets.batching_explorer`.

    Prompts have 24 tokens on average and at most 60. Raises RequestError where the budget cannot serve them.
    """
    generator = torch.Generator().manual_seed(seed)
    outputs = log_normal_lengths(mean_output, 1.0, requests, 5 * mean_output, generator)
    prompts = random_prompts(llm.model.config.vocab, log_normal_lengths(24, 1.0, requests, 60, generator), generator)
    params = [SamplingParams(temperature=0, max_tokens=n, ignore_eos=True) for n in outputs]
    arrivals = map(Arrival, poisson_times(rate, requests, generator), prompts, params)
    settings = {"max_num_seqs": seats, "max_num_batched_tokens": budget, "batching": POLICIES[policy]()}
    blocks = seats * -(-(60 + 5 * mean_output) // 16)
    metrics = replay_steps(Engine(llm, blocks=blocks, **settings), list(arrivals))
    steps = list(metrics.steps)
    busy = sum(step.running for step in steps) / (seats * len(steps))
    gap = max(max(record.times.itl, default=0) for record in metrics.requests)
    title = f"{len(steps)} steps, {busy:.0%} of the seats busy\nlongest gap between two tokens: {si(gap, 's')}"
    return one_run(metrics, budget, title)


@styled
def one_run(metrics: Metrics, budget: int, title: str = "") -> Figure:
    """The timeline of a run in steps, and below it the tokens that each step fed, under their budget."""
    table = spans(metrics)
    figure, (above, below) = new_stack(11, 2.6 + min(0.24 * len(table), 7), [len(table) + 1, 7])
    draw_timeline(above, table)
    draw_legend(above, table)
    above.set_title(title)
    step = np.array([record.step for record in metrics.steps])
    decode, prefill = (
        np.array([getattr(r, f"{kind}_tokens") for r in metrics.steps]) for kind in ("decode", "prefill")
    )
    below.bar(step, decode, width=1, align="edge", color=DECODE)
    below.bar(step, prefill, width=1, align="edge", bottom=decode, color=PREFILL)
    below.axhline(budget, color=INK, lw=1, ls="--")
    label(below, 0, budget, f"budget {budget}", dx=4, dy=8)
    below.set_ylim(0, 1.3 * budget)
    below.set_xlim(0, step[-1] + 1)
    below.set_ylabel("tokens")
    below.set_xlabel("steps")
    return figure
