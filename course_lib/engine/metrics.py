"""What the engine measures: steps, requests that ended, and a trace of events. Plain data, for plots and servers."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass
from typing import Literal

from course_lib.cache.block_manager import BlockStats
from course_lib.engine.plan import Plan
from course_lib.engine.request import Request
from course_lib.engine.scheduler import Scheduler
from course_lib.outputs import RequestMetrics

Kind = Literal["arrival", "scheduled", "token", "preempted", "swapped_out", "swapped_in", "finished", "aborted"]


@dataclass(frozen=True)
class Event:
    """time: seconds on `time.perf_counter`'s clock. step: from 0. tokens: how many are fed, where kind is scheduled."""

    time: float
    step: int
    kind: Kind
    request_id: str
    index: int
    tokens: int = 0


@dataclass(frozen=True)
class StepRecord:
    """One step. Counts are of its end, before finished requests give their blocks back; times in seconds.

    prefill_tokens + decode_tokens: rows of the forward pass. waste: share of the slots in use that hold no token.
    forward_s includes block copies; the block manager's commit is part of it.
    """

    step: int
    time: float
    running: int
    waiting: int
    prefill_tokens: int
    decode_tokens: int
    preemptions: int
    blocks: BlockStats
    waste: float
    scheduling_s: float
    forward_s: float
    sampling_s: float


@dataclass(frozen=True)
class RequestRecord:
    """One completion that ended. times: TTFT, TPOT, ITL, where it got a token. queue_time: seconds from arrival to its
    first step, None where it was aborted before. cached_tokens: of the prompt, found in the prefix cache.
    finish_reason: "stop", "length" or "abort"; "rejected" where `perf.replay` was refused."""

    request_id: str
    index: int
    priority: int
    times: RequestMetrics
    queue_time: float | None
    prompt_tokens: int
    cached_tokens: int
    preemptions: int
    finish_reason: str


class Metrics:
    """history: how many of the latest entries of each list are kept, so that a server does not grow."""

    def __init__(self, history: int = 100_000):
        self.events: deque[Event] = deque(maxlen=history)
        self.steps: deque[StepRecord] = deque(maxlen=history)
        self.requests: deque[RequestRecord] = deque(maxlen=history)

    def event(self, time: float, step: int, kind: Kind, request: Request, tokens: int = 0) -> None:
        """Add to the trace."""
        self.events.append(Event(time, step, kind, request.group, request.index, tokens))

    def record_step(
        self,
        step: int,
        started: float,
        plan: Plan,
        decodes: int,
        scheduler: Scheduler,
        *,
        scheduling_s: float = 0.0,
        forward_s: float = 0.0,
        sampling_s: float = 0.0,
    ) -> None:
        """Trace the plan and record its step. decodes: `plan.decodes` when it was made."""
        for kind in ("preempted", "swapped_out", "swapped_in"):
            for request in getattr(plan, kind):
                self.event(started, step, kind, request)
        for request, n in plan.feeds:
            self.event(started, step, "scheduled", request, n)
        stats = scheduler.manager.stats()
        self.steps.append(
            StepRecord(
                step=step,
                time=started,
                running=len(scheduler.running),
                waiting=len(scheduler.waiting),
                prefill_tokens=plan.tokens - decodes,
                decode_tokens=decodes,
                preemptions=len(plan.preempted) + len(plan.swapped_out),
                blocks=stats,
                waste=stats.waste / (stats.in_use * scheduler.manager.block_size),
                scheduling_s=scheduling_s,
                forward_s=forward_s,
                sampling_s=sampling_s,
            )
        )

    def ended(self, request: Request) -> None:
        """Record a request that finished or was aborted."""
        seq = request.seq
        queue_time = None if request.first_scheduled is None else request.first_scheduled - seq.arrival
        self.requests.append(
            RequestRecord(
                request.group,
                request.index,
                request.priority,
                seq.metrics,
                queue_time,
                len(seq.prompt_ids),
                request.cached,
                request.preemptions,
                seq.finish_reason,
            )
        )
