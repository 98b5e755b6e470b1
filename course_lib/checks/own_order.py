"""Put a learner's order of exercise 10 into the serving engine, and play arrivals against it on a clock of steps."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from operator import index
from unittest import mock

from course_lib.cache.block_manager import BlockManager
from course_lib.engine import Engine, Request, Scheduler
from course_lib.engine import engine as engine_module
from course_lib.engine.plan import Plan
from course_lib.engine.policies import Order
from course_lib.errors import CourseError
from course_lib.perf.workload import Arrival

AgedOrder = Callable[[list[int], list[float], float, float], list[int]]
"""(priorities, arrivals, now, ageing) -> indices in the order of service."""


class Ranked(Order):
    """By a list that is made anew for each step."""

    def __init__(self):
        self.rank: dict[int, int] = {}

    def key(self, request: Request) -> float:
        return self.rank[request.id]


class OwnScheduler(Scheduler):
    """The engine's scheduler, which asks `aged_order` once a step who comes first. ageing: seconds per level.

    settings: those of `Scheduler` but `order`. `schedule` raises CourseError where the answer is not each index once.
    """

    def __init__(self, manager: BlockManager, *, aged_order: AgedOrder, ageing: float, **settings):
        super().__init__(manager, order=Ranked(), **settings)
        self.aged_order, self.ageing = aged_order, ageing

    def schedule(self, now: float) -> Plan:
        requests = sorted([*self.running, *self.waiting], key=lambda request: request.id)
        arrivals = [request.seq.arrival for request in requests]
        answer = self.aged_order([request.priority for request in requests], arrivals, now, self.ageing)
        self.order.rank = {requests[i].id: place for place, i in enumerate(_checked(answer, len(requests)))}
        return super().schedule(now)


def _checked(answer: Sequence[int], n: int) -> list[int]:
    try:
        places = [index(i) for i in answer]
    except TypeError:
        places = []
    if sorted(places) != list(range(n)):
        raise CourseError(f"of {n} requests the order must name each index 0 to {n - 1} once; got {repr(answer)[:80]}")
    return places


def play_in_steps(engine: Engine, arrivals: Sequence[Arrival], limit: int = 10_000) -> dict[str, list[int]]:
    """As `replay_steps`, with the engine's own clock in steps as well, so that ageing is the same on every machine.

    Returns each request's tokens by its id, in order of arrival. All times are in steps, those of `arrivals` and of
    the engine's metrics too. Raises CourseError where the engine is not done after `limit` steps.
    """
    due, now = deque(sorted(arrivals, key=lambda arrival: arrival.time)), 0
    tokens: dict[str, list[int]] = {}
    # The engine reads one clock; replacing it for one run keeps the engine free of exercise code.
    with mock.patch.object(engine_module, "perf_counter", lambda: float(now)):
        while due or engine.has_unfinished:
            if now == limit:
                raise CourseError(f"the engine is not done after {limit} steps: the order keeps it from getting on")
            while due and due[0].time <= now:
                new = due.popleft()
                name = engine.add_request(new.prompt, new.params, priority=new.priority, arrival_time=new.time)
                tokens[name] = []
            for output in engine.step():
                tokens[output.request_id].append(output.token_id)
            now += 1
    return tokens
