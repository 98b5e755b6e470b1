"""Exercise 10, fifth part: how many requests got what they were promised."""

from __future__ import annotations

from collections.abc import Callable
from itertools import pairwise
from random import Random

from course_lib.checks.core import Case, Mistake, Problem, Property, members
from course_lib.perf.service import Objectives, Sample

Served = tuple[float, list[float], str]  # arrival, time of each token, finish reason
COMPLETED = ("stop", "length")


def goodput(requests: list[Served], ttft: float, tpot: float, seconds: float) -> tuple[float, float]:
    return _goodput(requests, ttft, tpot, seconds)


def _sample(request: Served) -> Sample:
    arrival, times, reason = request
    failure = None if reason in COMPLETED else reason
    return Sample(arrival, times[-1] if times else arrival, times[0] if times else None, len(times), failure=failure)


def _kept(request: Served, ttft: float, tpot: float) -> bool:
    return Objectives(ttft, tpot).met_by(_sample(request))


def _completed(requests: list[Served]) -> list[Served]:
    return [request for request in requests if request[2] in COMPLETED]


def _goodput(requests, ttft, tpot, seconds, *, good=_kept, all_of=lambda requests: requests) -> tuple[float, float]:
    """(goodput, attainment), with one part replaced by a wrong one."""
    count = sum(good(request, ttft, tpot) for request in requests)
    return count / seconds, count / len(all_of(requests))


def _judged(rule: Callable[..., bool]) -> Callable[..., tuple[float, float]]:
    """`goodput` where rule(sample, token times, ttft, tpot) decides about a completed request."""

    def good(request: Served, ttft: float, tpot: float) -> bool:
        return request[2] in COMPLETED and rule(_sample(request), request[1], ttft, tpot)

    return lambda *args: _goodput(*args, good=good)


def _with_tpot(of: Callable[[Sample, list[float]], float]) -> Callable[..., tuple[float, float]]:
    """`goodput` with another idea of what TPOT is."""
    return _judged(lambda s, times, ttft, tpot: s.ttft <= ttft and (len(times) == 1 or of(s, times) <= tpot))


def _whatever_the_reason(request: Served, ttft: float, tpot: float) -> bool:
    arrival, times, _ = request
    return bool(times) and _kept((arrival, times, "stop"), ttft, tpot)


def _nothing_is_good(request: Served, ttft: float, tpot: float) -> bool:
    return not request[1] or _kept(request, ttft, tpot)


def _by_mean(requests: list[Served], ttft: float, tpot: float, seconds: float) -> tuple[float, float]:
    done = [_sample(request) for request in _completed(requests)]
    paces = [sample.tpot for sample in done if sample.tpot is not None]
    kept = sum(s.ttft for s in done) / len(done) <= ttft and sum(paces) / len(paces) <= tpot
    return len(done) * kept / seconds, len(done) * kept / len(requests)


def _tokens(requests: list[Served], ttft: float, tpot: float, seconds: float) -> tuple[float, float]:
    count = sum(len(request[1]) for request in requests if _kept(request, ttft, tpot))
    return count / seconds, goodput(requests, ttft, tpot, seconds)[1]


def _requests(rng: Random, n: int = 12) -> list[Served]:
    """Requests of which about half keep objectives of 1 s to the first token and 0.1 s per token after it."""
    requests = []
    for i in range(n):
        arrival = rng.uniform(0, 10)
        reason = ("stop", "length", "stop", "abort", "rejected", "length")[i % 6]
        time, times = arrival + rng.choice((0.3, 0.6, 1.4)), []
        gap = rng.choice((0.03, 0.07, 0.13))
        for _ in range(0 if reason == "rejected" else rng.choice((1, 2, 9, 30))):
            times.append(time)
            time += gap * rng.choice((0.6, 1.4))
        requests.append((arrival, times, reason))
    return requests


# Objectives below: 1 s to the first token, 0.5 s per token after it.
ONE_TOKEN = (0.0, [0.5], "length")
FAST = (1.0, [1.5, 1.75, 2.0], "stop")
SLOW = (2.0, [2.5, 3.25], "stop")  # 0.75 s per token
CRAWLING = (2.0, [2.5, 4.5], "stop")  # 2 s per token
LATE = (3.0, [5.5, 5.75], "length")
EXACT = (4.0, [5.0, 5.5], "length")
UNEVEN = (4.5, [5.0, 5.25, 5.5, 6.5], "stop")  # gaps of 0.25, 0.25 and 1 s
NEITHER = (5.0, [7.5, 9.5], "length")
ABORTED = (5.0, [5.5, 5.75], "abort")
REJECTED = (6.0, [], "rejected")

GOODPUT = Problem(
    name="goodput",
    arguments=("requests", "ttft", "tpot", "seconds"),
    reference=goodput,
    view=members("goodput", "attainment"),
    public=lambda rng: [
        # One of the four kept both promises: 1 in 2 s, and a quarter of all.
        Case("worked example", ([FAST, SLOW, LATE, REJECTED], 1.0, 0.5, 2.0), {"goodput": 0.5, "attainment": 0.25}),
        Case("edge case", ([CRAWLING, FAST], 1.0, 0.5, 1.0), {"goodput": 1.0, "attainment": 0.5}),
        Case("edge case", ([ONE_TOKEN, LATE], 1.0, 0.5, 4.0), {"goodput": 0.25, "attainment": 0.5}),
        Case("edge case", ([ABORTED, FAST], 1.0, 0.5, 1.0), {"goodput": 1.0, "attainment": 0.5}),
        Case("edge case", ([EXACT], 1.0, 0.5, 1.0), {"goodput": 1.0, "attainment": 1.0}),
        Case("edge case", ([UNEVEN, NEITHER], 1.0, 0.6, 1.0), {"goodput": 1.0, "attainment": 0.5}),
        Case("edge case", ([REJECTED, REJECTED], 1.0, 0.5, 1.0), {"goodput": 0.0, "attainment": 0.0}),
        Property(
            "in twice the time the same requests are half the goodput, and the same attainment",
            (([FAST, SLOW, EXACT], 1.0, 0.5, 3.0), ([FAST, SLOW, EXACT], 1.0, 0.5, 6.0)),
            lambda views: (
                None
                if views[0]["goodput"] == 2 * views[1]["goodput"] and views[0]["attainment"] == views[1]["attainment"]
                else f"got {views[0]['goodput']:.6g} and {views[1]['goodput']:.6g} requests/s"
            ),
        ),
        Case("reference", (_requests(rng), 1.0, 0.1, 20.0)),
    ],
    hidden=lambda rng: [Case("reference", (_requests(rng, 24), 1.0, 0.1, rng.uniform(5, 50))) for _ in range(3)],
    mistakes=(
        Mistake(
            "either-objective",
            "A request must keep both objectives: a fast first token does not make up for slow ones after it.",
            _judged(lambda s, times, ttft, tpot: s.ttft <= ttft or (s.tpot or 0) <= tpot),
        ),
        Mistake(
            "ttft-only",
            "The time per token after the first is promised too: check TPOT as well.",
            _judged(lambda s, times, ttft, tpot: s.ttft <= ttft),
        ),
        Mistake(
            "tpot-only",
            "The time to the first token is promised too: check TTFT as well.",
            _judged(lambda s, times, ttft, tpot: s.tpot is None or s.tpot <= tpot),
        ),
        Mistake(
            "by-mean",
            "The means of the run say nothing about a single user: judge each request, then count.",
            _by_mean,
        ),
        Mistake(
            "failed-left-out",
            "Attainment is the share of all requests: those that were rejected or aborted stay in the denominator.",
            lambda *a: _goodput(*a, all_of=lambda requests: _completed(requests) or requests),
        ),
        Mistake(
            "unanswered-left-out",
            "Attainment is the share of all requests: one that got no token is a broken promise, not a missing value.",
            lambda *a: _goodput(*a, all_of=lambda requests: [r for r in requests if r[1]] or requests),
        ),
        Mistake(
            "aborted-counted",
            'A request that ended with "abort" was not served, however fast its tokens came.',
            lambda *a: _goodput(*a, good=_whatever_the_reason),
        ),
        Mistake(
            "rejected-counted",
            "A rejected request got no token at all: it cannot be good.",
            lambda *a: _goodput(*a, good=_nothing_is_good),
        ),
        Mistake(
            "one-token-dropped",
            "A completion of one token has no TPOT to miss: its TTFT decides.",
            _judged(lambda s, times, ttft, tpot: s.ttft <= ttft and s.tpot is not None and s.tpot <= tpot),
        ),
        Mistake(
            "gaps-miscounted",
            "n tokens have n - 1 gaps: divide the time from the first to the last token by n - 1.",
            _with_tpot(lambda s, times: (times[-1] - times[0]) / len(times)),
        ),
        Mistake(
            "tpot-from-arrival",
            "TPOT starts at the first token: the wait before it is TTFT, and would count twice.",
            _with_tpot(lambda s, times: s.e2e / len(times)),
        ),
        Mistake(
            "worst-gap",
            "TPOT is the mean over one completion, not its longest gap.",
            _with_tpot(lambda s, times: max(b - a for a, b in pairwise(times))),
        ),
        Mistake(
            "strictly-below",
            "Exactly the objective is still kept: <=, not <.",
            _judged(lambda s, times, ttft, tpot: s.ttft < ttft and (s.tpot is None or s.tpot < tpot)),
        ),
        Mistake("tokens-per-second", "Goodput counts requests, not their tokens.", _tokens),
        Mistake(
            "all-completed",
            "That is throughput: it also counts requests that came too late to be of use.",
            _judged(lambda s, times, ttft, tpot: True),
        ),
    ),
)
