"""A serving engine without a model: the real scheduler and block manager, on a clock that is computed.

The scheduler touches no tensors, so it decides here as it does in `Engine`. How long a step takes is a function of its
plan: one unit of time, or the roofline bound of a GPU that is not there. Runs are exact and repeatable.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable
from itertools import count

from course_lib.cache import BlockManager
from course_lib.cache.prefix import PrefixIndex
from course_lib.config import ModelConfig
from course_lib.engine.metrics import Metrics
from course_lib.engine.plan import CopyBlock, Plan
from course_lib.engine.request import Request
from course_lib.engine.scheduler import Scheduler
from course_lib.errors import CourseError, RequestError
from course_lib.perf.counts import pass_cost
from course_lib.perf.roofline import Machine, time_bound
from course_lib.perf.workload import Arrival
from course_lib.sequence import Sequence

TOKEN = 0  # what a model that is not there generates
NO_LIMIT = 2**31  # of the context; what the pool can hold is the scheduler's business


def one_step(plan: Plan) -> float:
    """Time is the number of steps."""
    return 1.0


def roofline_step(config: ModelConfig, machine: Machine, link: float, block_size: int = 16) -> Callable[[Plan], float]:
    """Seconds of a step: the roofline bound of its forward pass in 16 bit, then its swapped blocks over the host link.

    link: bytes/s in one direction. Nothing else costs time, so a real engine is slower.
    """
    block_bytes = block_size * config.kv_bytes_per_token(2)

    def seconds(plan: Plan) -> float:
        cost = pass_cost(config, [n for _, n in plan.feeds], [request.computed for request, _ in plan.feeds])
        moved = sum(len(each.blocks) for each in plan.memory if not isinstance(each, CopyBlock))
        return time_bound(cost, machine).seconds + moved * block_bytes / link

    return seconds


class SimulatedEngine:
    """blocks, block_size, index, scheduler, settings: as in `Engine`. seconds: how long the step of a plan takes.

    now: the clock, from 0; times in `metrics` are on it. Each request generates all tokens that it asks for. One that
    the scheduler rejects becomes a record without tokens, as in `replay`.
    """

    def __init__(
        self,
        seconds: Callable[[Plan], float] = one_step,
        *,
        blocks: int = 256,
        block_size: int = 16,
        index: PrefixIndex | None = None,
        scheduler: Callable[..., Scheduler] = Scheduler,
        **settings,
    ):
        self.seconds = seconds
        self.manager = BlockManager(blocks, block_size, index)
        self.scheduler = scheduler(self.manager, **settings)
        self.metrics = Metrics()
        self.now, self.steps = 0.0, 0
        self._ids = count()

    def run(self, arrivals: Iterable[Arrival], until: float = float("inf")) -> Metrics:
        """Serve the arrivals to the last token, or up to `until`: what is unfinished then stays so.

        Raises CourseError where one of them asks for more than one completion.
        """
        waiting = deque(sorted(arrivals, key=lambda arrival: arrival.time))
        while (waiting or self.has_unfinished) and self.now < until:
            if not self.has_unfinished:
                self.now = max(self.now, waiting[0].time)
            while waiting and waiting[0].time <= self.now:
                self._add(waiting.popleft())
            if self.has_unfinished:
                self.step()
        return self.metrics

    @property
    def has_unfinished(self) -> bool:
        """True where `step` has something to do."""
        return bool(self.scheduler.waiting or self.scheduler.running)

    def step(self) -> None:
        """Schedule, let the time pass that the step takes, give a token to each request whose tokens are computed."""
        plan = self.scheduler.schedule(self.now)
        decodes, started = plan.decodes, self.now
        self.now += self.seconds(plan)
        for request, n in plan.feeds:
            self.manager.commit(request.id, request.tokens(request.computed, request.computed + n))
        for [request] in self.scheduler.computed(plan):
            request.seq.append(TOKEN, self.now)
            self.metrics.event(self.now, self.steps, "token", request)
        self.metrics.record_step(self.steps, started, plan, decodes, self.scheduler, forward_s=self.now - started)
        for request in self.scheduler.retire():
            self.metrics.event(self.now, self.steps, "finished", request)
            self.metrics.ended(request)
        self.steps += 1

    def _add(self, arrival: Arrival) -> None:
        if arrival.params.n != 1:
            raise CourseError(f"n is {arrival.params.n}; a simulated request has one completion, so ask for n = 1")
        sequence = Sequence(
            prompt=None,
            prompt_ids=arrival.prompt,
            params=arrival.params,
            sampler=None,
            text=_NoText(),
            eos_ids=(),
            limit=NO_LIMIT,
            arrival=arrival.time,
        )
        number = next(self._ids)
        request = Request(number, str(number), 0, sequence, arrival.priority, arrival.ttft, arrival.tpot)
        try:
            self.scheduler.add(request)
        except RequestError:
            sequence.finish_reason = "rejected"
            self.metrics.ended(request)
            return
        self.metrics.event(arrival.time, self.steps, "arrival", request)


class _NoText:
    """Stands for a `TextStream`: tokens that no model drew have no text."""

    text = ""

    def push(self, token: int) -> None: ...

    def flush(self) -> None: ...
