"""What users of a server get: latencies by percentile, throughput, goodput under objectives.

One `Sample` per completion, whether the engine measured it in process (`samples`) or an HTTP client did; `summarise`
does not know the difference.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np

from course_lib.engine import RequestRecord
from course_lib.errors import CourseError

PERCENTILES = (50, 95, 99)


@dataclass(frozen=True)
class Sample:
    """One completion as its user saw it; times in seconds on one clock.

    start: when it was due to be served. first: its first token came. end: its last token came, or it failed.
    tokens: of the output. itl: gaps between what came. failure: why the user did not get it, None where all came.
    """

    start: float
    end: float
    first: float | None = None
    tokens: int = 0
    itl: tuple[float, ...] = ()
    failure: str | None = None

    @property
    def ttft(self) -> float:
        """Time to first token, of a completion that has one."""
        return self.first - self.start

    @property
    def tpot(self) -> float | None:
        """Mean time per output token after the first; None where there was only one."""
        return (self.end - self.first) / (self.tokens - 1) if self.tokens > 1 else None

    @property
    def e2e(self) -> float:
        """End to end: from start to the last token."""
        return self.end - self.start


@dataclass(frozen=True)
class Objectives:
    """What a user was promised, in seconds: at most so long to the first token, and per token after it, on the mean of
    one completion. None: nothing was."""

    ttft: float | None = None
    tpot: float | None = None

    def met_by(self, sample: Sample) -> bool:
        """True where both hold. A failed request meets none. One token has no TPOT: then the TTFT alone decides."""
        if sample.failure is not None:
            return False
        in_time = self.ttft is None or sample.ttft <= self.ttft
        return in_time and (self.tpot is None or sample.tpot is None or sample.tpot <= self.tpot)


@dataclass(frozen=True)
class Summary:
    """A run. Percentiles {50: .., 95: .., 99: ..} in seconds, of completed requests only: read them beside `failed`.

    seconds: the window that all rates are over. tpot: of the means, one per completion of two tokens or more. itl: of
    all gaps of all completions, so a stall of one step shows here although it vanishes in a mean.
    output_tokens_per_s, requests_per_s: of completed requests. goodput: requests per second that met the objectives.
    attainment: their share of all requests, failed ones too. concurrency: mean number in the system.
    """

    seconds: float
    completed: int
    failed: int
    ttft: dict[int, float | None]
    tpot: dict[int, float | None]
    itl: dict[int, float | None]
    e2e: dict[int, float | None]
    output_tokens_per_s: float
    requests_per_s: float
    goodput: float
    attainment: float
    concurrency: float


def samples(records: Iterable[RequestRecord]) -> list[Sample]:
    """The samples of `engine.metrics.requests`, one per completion (n > 1 makes n). The aborted and rejected failed."""
    return [_sample(record) for record in records]


def _sample(record: RequestRecord) -> Sample:
    start, times = record.times.arrival, record.times.token_times
    return Sample(
        start=start,
        end=times[-1] if times else start,
        first=times[0] if times else None,
        tokens=len(times),
        itl=tuple(record.times.itl),
        failure=None if record.finish_reason in ("stop", "length") else record.finish_reason,
    )


def percentiles(values: Sequence[float]) -> dict[int, float | None]:
    """p50, p95 and p99, linear between neighbouring order statistics (numpy's default, type 7 of Hyndman and Fan 1996);
    None where there are no values. With fewer than 100 values p99 lies between the two largest."""
    found = np.percentile(values, PERCENTILES).tolist() if len(values) else [None] * len(PERCENTILES)
    return dict(zip(PERCENTILES, found, strict=True))


def goodput(samples: Sequence[Sample], objectives: Objectives, seconds: float) -> float:
    """Requests per second of the window that met both objectives.

    DistServe (arXiv 2401.09670, section 1) calls goodput the highest request rate per GPU at which a stated share of
    requests, say 90 %, meets both. That rate is read off runs at several rates, where `Summary.attainment` falls below
    the share; this is what one run delivered.
    """
    return _rate(sum(map(objectives.met_by, samples)), seconds)


def summarise(samples: Sequence[Sample], objectives: Objectives | None = None, seconds: float | None = None) -> Summary:
    """What a run served.

    seconds: the window; by default from the first start to the last end, filling and draining included. objectives:
    none by default, and then every completed request is good. concurrency is Little's law (sum of times in the system
    over the window), exact where all of them lie inside the window.
    Raises CourseError where there are no samples.
    """
    if not samples:
        raise CourseError("the run has no requests, so there is nothing to summarise; send at least one")
    objectives = objectives or Objectives()
    if seconds is None:
        seconds = max(s.end for s in samples) - min(s.start for s in samples)
    done = [s for s in samples if s.failure is None]
    return Summary(
        seconds=seconds,
        completed=len(done),
        failed=len(samples) - len(done),
        ttft=percentiles([s.ttft for s in done]),
        tpot=percentiles([s.tpot for s in done if s.tpot is not None]),
        itl=percentiles([gap for s in done for gap in s.itl]),
        e2e=percentiles([s.e2e for s in done]),
        output_tokens_per_s=_rate(sum(s.tokens for s in done), seconds),
        requests_per_s=_rate(len(done), seconds),
        goodput=goodput(samples, objectives, seconds),
        attainment=sum(map(objectives.met_by, samples)) / len(samples),
        concurrency=_rate(sum(s.e2e for s in samples), seconds),
    )


def _rate(amount: float, seconds: float) -> float:
    return amount / seconds if seconds else 0.0  # all were rejected in one instant


def backlog_growth(samples: Sequence[Sample]) -> float:
    """How many more requests are in the system for each that arrives: the slope of the number that an arrival finds.

    About 0 where the server keeps up. Where it cannot, 1 - (what it serves) / (what arrives): its latencies then grow
    with the length of the run, and their percentiles say nothing of the server. The first quarter of the arrivals,
    which find a system that fills, does not count. A short run's slope is chance in part: of simulated M/M/1 queues
    with 64 arrivals, 7 in 100 exceed 0.2 at a load of 0.8, and 98 at a load of 2.
    """
    starts, ends = (np.sort([getattr(s, at) for s in samples]) for at in ("start", "end"))
    found = np.arange(len(starts)) - np.searchsorted(ends, starts)
    counted = found[len(found) // 4 :]
    return float(np.polyfit(np.arange(len(counted)), counted, 1)[0]) if len(counted) > 1 else 0.0
