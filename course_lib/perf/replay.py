"""Play a list of arrivals against an engine in process, on the real clock."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from time import perf_counter, sleep

from tqdm import tqdm

from course_lib.engine import Engine, Metrics, RequestRecord
from course_lib.errors import RequestError
from course_lib.outputs import RequestMetrics
from course_lib.perf.workload import Arrival


def replay(engine: Engine, arrivals: Sequence[Arrival], *, use_tqdm: bool = False) -> Metrics:
    """Add each request when it is due and step the engine until all are done; returns `engine.metrics`.

    Open loop: requests come at their times, however slow the answers are. What falls due during a step is added after
    it, and counts from when it was due. A request that admission control rejects becomes a record without tokens whose
    finish_reason is "rejected". The times count from the call; an engine that served before keeps its old records.
    """
    start = perf_counter()
    due = deque(sorted(arrivals, key=lambda arrival: arrival.time))
    with tqdm(total=sum(arrival.params.n for arrival in due), disable=not use_tqdm) as bar:
        while due or engine.has_unfinished:
            while due and start + due[0].time <= perf_counter():
                arrival = due.popleft()
                if not _add(engine, arrival, start + arrival.time):
                    bar.update(arrival.params.n)
            if engine.has_unfinished:
                bar.update(sum(output.finish_reason is not None for output in engine.step()))
            elif due:
                sleep(max(0.0, start + due[0].time - perf_counter()))
    return engine.metrics


def _add(engine: Engine, arrival: Arrival, time: float) -> bool:
    """False where the request is rejected."""
    try:
        engine.add_request(
            arrival.prompt,
            arrival.params,
            priority=arrival.priority,
            ttft=arrival.ttft,
            tpot=arrival.tpot,
            arrival_time=time,
        )
    except RequestError:
        times, name = RequestMetrics(time, ()), f"rejected-{len(engine.metrics.requests)}"
        record = RequestRecord(name, 0, arrival.priority, times, None, len(arrival.prompt), 0, 0, "rejected")
        engine.metrics.requests.append(record)
        return False
    return True


def replay_steps(engine: Engine, arrivals: Sequence[Arrival]) -> Metrics:
    """As `replay`, with times in steps of the engine: exact, and the same on every machine.

    A request joins the queue before the first step that is not earlier than its time. Steps are counted from the call.
    Where nobody is left to serve, the next arrival comes at once, so that no step is empty. Raises RequestError where
    a request can never be served.
    """
    due = deque(sorted(arrivals, key=lambda arrival: arrival.time))
    now = 0.0
    while due or engine.has_unfinished:
        if not engine.has_unfinished:
            now = max(now, due[0].time)
        while due and due[0].time <= now:
            arrival = due.popleft()
            engine.add_request(
                arrival.prompt, arrival.params, priority=arrival.priority, ttft=arrival.ttft, tpot=arrival.tpot
            )
        engine.step()
        now += 1
    return engine.metrics
