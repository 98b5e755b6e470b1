"""Latency, throughput and goodput of a server over HTTP, at several levels of load in one run."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import asdict
from functools import partial

from rich.console import Console, Group
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn
from rich.table import Table

from course_lib.bench.client import complete, connect, served_model
from course_lib.bench.launch import own_server
from course_lib.bench.load import Level, Load, Send, closed_loop, open_loop
from course_lib.bench.report import conditions
from course_lib.errors import CourseError
from course_lib.perf.service import Objectives, Sample, backlog_growth, percentiles, summarise
from course_lib.perf.workload import Arrival

# From these on, a level's numbers come with a warning.
GROWING = 0.2  # of the requests that arrive stay in the queue
LATE = 0.1  # of the median TTFT is the client's own delay
BUSY = 0.7  # of the time the client computes


def bench_serve(
    url: str | None, model: str | None, levels: Sequence[Level], load: Load, objectives: Objectives, threads: int = 1
) -> dict:
    """Samples and their summary at each level; a level begins when the one before is answered.

    url: of a server with OpenAI's completions API; None starts `course serve` with `threads` threads, which should
    leave a core to this client. model: None takes the only one that the server has.
    Raises CourseError where no level is given, the server does not answer, or a warm-up request fails.
    """
    if not levels:
        raise CourseError("no load is given; ask for one or more of --rate and --concurrency")
    with contextlib.nullcontext(url) if url else own_server(model, threads) as address:
        served, limit, measured = asyncio.run(_run(address, model, levels, load, objectives))
    return conditions(
        benchmark="serve",
        url=url,  # None: course serve on this machine
        threads=None if url else threads,
        model=served,
        max_model_len=limit,
        objectives=asdict(objectives),
        **asdict(load),
    ) | {"levels": measured}


async def _run(
    url: str, model: str | None, levels: Sequence[Level], load: Load, objectives: Objectives
) -> tuple[str, int | None, list[dict]]:
    """(the model's name, its limit, what each level measured)."""
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    async with connect(url) as http:
        name, limit = await served_model(http, model)
        send = partial(complete, http, name)
        warmup, *each = load.arrivals(levels, limit)
        for sample in await closed_loop(warmup, send, len(warmup)):
            if sample.failure is not None:
                raise CourseError(f"a warm-up request failed, so nothing was measured: {sample.failure}")
        with Progress(*columns, console=Console(stderr=True)) as progress:
            bars = [progress.add_task(str(level), total=load.requests, start=False) for level in levels]
            measured = []
            for level, arrivals, bar in zip(levels, each, bars, strict=True):
                progress.start_task(bar)
                advance = partial(progress.advance, bar)
                measured.append(await measure(level, arrivals, objectives, _counted(send, advance)))
    return name, limit, measured


def _counted(send: Send, done: Callable[[], None]) -> Send:
    async def counted(arrival: Arrival, start: float) -> Sample:
        sample = await send(arrival, start)
        done()
        return sample

    return counted


async def measure(level: Level, arrivals: Sequence[Arrival], objectives: Objectives, send: Send) -> dict:
    """One level: its summary, what tells whether to trust it, and its samples; times in seconds from its begin.

    backlog_growth: see `perf.service`. lag: how late requests were sent. Both are None where the loop is closed.
    client_busy: CPU time of this process over the wall time; a client that computes all the time reads the clock late.
    failures: how many of each kind.
    """
    began, cpu = time.perf_counter(), time.process_time()
    if level.rate is None:
        samples, lags = await closed_loop(arrivals, send, level.concurrency), None
    else:
        samples, lags = await open_loop(arrivals, send)
    busy = (time.process_time() - cpu) / (time.perf_counter() - began)
    summary = asdict(summarise(samples, objectives))
    return asdict(level) | {
        "summary": {key: _named(value) if isinstance(value, dict) else value for key, value in summary.items()},
        "backlog_growth": None if lags is None else backlog_growth(samples),
        "lag": None if lags is None else _named(percentiles(lags)),
        "client_busy": busy,
        "failures": dict(Counter(sample.failure for sample in samples if sample.failure is not None)),
        "samples": [_plain(sample, began) for sample in samples],
    }


def _named(values: dict[int, float | None]) -> dict[str, float | None]:
    return {f"p{percent}": value for percent, value in values.items()}


def _plain(sample: Sample, began: float) -> dict:
    """For JSON, to the microsecond."""
    times = {at: getattr(sample, at) for at in ("start", "first", "end")}
    return {at: None if value is None else round(value - began, 6) for at, value in times.items()} | {
        "tokens": sample.tokens,
        "itl": [round(gap, 6) for gap in sample.itl],
        "failure": sample.failure,
    }


def show(result: dict) -> Group:
    """A column for each level, and below them a sentence for each reason not to trust one."""
    settings, levels = result["settings"], result["levels"]
    table = Table(title="{requests} requests at each level, {model}".format(**settings))
    table.add_column()
    for level in levels:
        table.add_column(_name(level), justify="right")
    rows = [
        ("completed / failed", lambda level, s: f"{s['completed']} / {s['failed']}"),
        ("requests/s", lambda level, s: f"{s['requests_per_s']:.2f}"),
        ("output tokens/s", lambda level, s: f"{s['output_tokens_per_s']:.1f}"),
        ("in the system, mean", lambda level, s: f"{s['concurrency']:.1f}"),
    ]
    rows += [
        (f"{label} {p}, ms", lambda level, s, key=key, p=p: _ms(s[key][p]))
        for label, key in (("TTFT", "ttft"), ("TPOT", "tpot"), ("ITL", "itl"), ("end to end", "e2e"))
        for p in ("p50", "p95", "p99")
    ]
    promised = ", ".join(f"{key.upper()} {s:g} s" for key, s in settings["objectives"].items() if s is not None)
    if promised:
        rows.append(("goodput, requests/s", lambda level, s: f"{s['goodput']:.2f}"))
        rows.append((f"met {promised}", lambda level, s: f"{s['attainment']:.0%}"))
    rows += [
        ("backlog growth", lambda level, s: "-" if level["rate"] is None else f"{level['backlog_growth']:+.0%}"),
        ("sent late p99, ms", lambda level, s: "-" if level["rate"] is None else _ms(level["lag"]["p99"])),
    ]
    for label, cell in rows:
        table.add_row(label, *(cell(level, level["summary"]) for level in levels))
    return Group(table, *(f"{_name(level)}: {remark}" for level in levels for remark in remarks(level)))


def remarks(level: dict) -> list[str]:
    """Why a level that `measure` returned is not to be taken at face value, a sentence each."""
    found = [f"{count} failed ({reason})." for reason, count in level["failures"].items()]
    if level["rate"] is not None:
        growth, lag, ttft = level["backlog_growth"], level["lag"]["p99"], level["summary"]["ttft"]["p50"]
        if growth > GROWING:
            found.append(
                f"unstable, the queue kept growing by {growth:.0%} of what arrived; a longer run has higher latencies."
            )
        if ttft is not None and lag > LATE * ttft:
            found.append(f"the client fell behind its schedule, p99 {_ms(lag)} ms; the latencies include this.")
    if level["client_busy"] > BUSY:
        found.append(f"the client itself computed {level['client_busy']:.0%} of the time, so it read the clock late.")
    return found


def _name(level: dict) -> str:
    return str(Level(level["rate"], level["concurrency"]))


def _ms(seconds: float | None) -> str:
    if seconds is None:
        return "-"
    return f"{seconds * 1e3:.0f}" if seconds >= 1 else f"{seconds * 1e3:.3g}"
