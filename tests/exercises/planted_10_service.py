"""Wrong solutions of exercise 10: what users got of what they were promised."""

from __future__ import annotations

import math
import statistics
from itertools import pairwise

import numpy as np

from tests.exercises.planting import planted

# --- percentile ---


@planted("percentile", "unsorted")
def as_it_comes(values, q):
    place = (len(values) - 1) * q / 100
    low, high = math.floor(place), math.ceil(place)
    return values[low] + (place - low) * (values[high] - values[low])


@planted("percentile", "place-from-n")
def from_n(values, q):
    values = sorted(values)
    place = min(len(values) * q / 100, len(values) - 1)
    low, high = math.floor(place), math.ceil(place)
    return values[low] + (place - low) * (values[high] - values[low])


@planted("percentile", "nearest-rank")
def rank(values, q):
    return sorted(values)[max(math.ceil(len(values) * q / 100), 1) - 1]


@planted("percentile", "not-interpolated")
def lower(values, q):
    return sorted(values)[int((len(values) - 1) * q / 100)]


@planted("percentile", "next-value")
def higher(values, q):
    return float(np.percentile(values, q, method="higher"))


@planted("percentile", "rounded-place")
def nearest(values, q):
    return sorted(values)[round((len(values) - 1) * q / 100)]


@planted("percentile", "place-from-n-plus-1")
def weibull(values, q):
    return float(np.percentile(values, q, method="weibull"))


@planted("percentile", "mean")
def average(values, q):
    return statistics.fmean(values)


# --- goodput ---


def _count(requests, seconds, keeps, total=None):
    good = [request for request in requests if keeps(*request)]
    return len(good) / seconds, len(good) / (len(requests) if total is None else total)


def _times(arrival, times):
    return times[0] - arrival, (times[-1] - times[0]) / (len(times) - 1) if len(times) > 1 else 0.0


@planted("goodput", "either-objective")
def one_is_enough(requests, ttft, tpot, seconds):
    def keeps(arrival, times, reason):
        if reason in ("abort", "rejected"):
            return False
        first, pace = _times(arrival, times)
        return first <= ttft or pace <= tpot

    return _count(requests, seconds, keeps)


@planted("goodput", "ttft-only")
def first_token_in_time(requests, ttft, tpot, seconds):
    return _count(requests, seconds, lambda a, times, reason: reason in ("stop", "length") and times[0] - a <= ttft)


@planted("goodput", "by-mean")
def mean_in_time(requests, ttft, tpot, seconds):
    done = [(a, times) for a, times, reason in requests if reason in ("stop", "length")]
    mean_ttft = statistics.fmean(times[0] - a for a, times in done)
    mean_tpot = statistics.fmean((times[-1] - times[0]) / (len(times) - 1) for _, times in done if len(times) > 1)
    if mean_ttft <= ttft and mean_tpot <= tpot:
        return len(done) / seconds, len(done) / len(requests)
    return 0.0, 0.0


def _keeps_both(ttft, tpot):
    def keeps(arrival, times, reason):
        if reason not in ("stop", "length"):
            return False
        first, pace = _times(arrival, times)
        return first <= ttft and pace <= tpot

    return keeps


@planted("goodput", "failed-left-out")
def share_of_completed(requests, ttft, tpot, seconds):
    done = [request for request in requests if request[2] in ("stop", "length")]
    return _count(requests, seconds, _keeps_both(ttft, tpot), total=len(done) or len(requests))


@planted("goodput", "unanswered-left-out")
def rejected_skipped(requests, ttft, tpot, seconds):
    answered = [request for request in requests if request[1]]
    return _count(requests, seconds, _keeps_both(ttft, tpot), total=len(answered) or len(requests))


@planted("goodput", "aborted-counted")
def reason_ignored(requests, ttft, tpot, seconds):
    keeps = _keeps_both(ttft, tpot)
    return _count(requests, seconds, lambda a, times, reason: bool(times) and keeps(a, times, "stop"))


@planted("goodput", "one-token-dropped")
def needs_two_tokens(requests, ttft, tpot, seconds):
    keeps = _keeps_both(ttft, tpot)
    return _count(requests, seconds, lambda a, times, reason: len(times) > 1 and keeps(a, times, reason))


@planted("goodput", "gaps-miscounted")
def divided_by_tokens(requests, ttft, tpot, seconds):
    def keeps(arrival, times, reason):
        if reason not in ("stop", "length"):
            return False
        return times[0] - arrival <= ttft and (times[-1] - times[0]) / len(times) <= tpot

    return _count(requests, seconds, keeps)


@planted("goodput", "worst-gap")
def every_gap(requests, ttft, tpot, seconds):
    def keeps(arrival, times, reason):
        if reason not in ("stop", "length"):
            return False
        return times[0] - arrival <= ttft and all(b - a <= tpot for a, b in pairwise(times))

    return _count(requests, seconds, keeps)


@planted("goodput", "all-completed")
def throughput(requests, ttft, tpot, seconds):
    return _count(requests, seconds, lambda a, times, reason: reason in ("stop", "length"))
