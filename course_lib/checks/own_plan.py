"""Put a learner's `plan_step` of exercise 09 in the place of the engine's scheduling decisions."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from course_lib.cache.block_manager import BlockManager
from course_lib.engine import Plan, Request, Scheduler, State
from course_lib.engine.plan import CopyBlock
from course_lib.errors import CourseError, RequestError

Pair = tuple[int, int]  # request id; tokens that remain to be fed, or that are fed
PlanStep = Callable[[list[Pair], list[Pair], int, int], list[Pair]]


def plan_fault(feeds: Any, running: list[Pair], waiting: list[Pair], budget: int, max_seqs: int) -> str | None:
    """Why the engine cannot perform what `plan_step` answered to the other arguments, in one sentence, or None."""
    if type(feeds) is not list or not all(_is_pair(feed) for feed in feeds):
        return "plan_step must return a list of pairs (id, tokens), both of them int"
    if not feeds:
        return (
            f"plan_step fed nobody (running: {len(running)}, waiting: {len(waiting)}); the next step would be "
            "the same, and so on for ever"
        )
    remaining = dict(running + waiting)
    seen: set[int] = set()
    for request, n in feeds:
        if request not in remaining:
            return f"plan_step fed request {request}, which is neither running nor waiting"
        if request in seen:
            return f"plan_step fed request {request} twice in one step; put all its tokens into one pair"
        if n < 1:
            return f"plan_step gave request {request} {n} tokens; leave out who gets none"
        if n > remaining[request]:
            return f"plan_step gave request {request} {n} tokens; its remaining is {remaining[request]}"
        seen.add(request)
    total, seats = sum(n for _, n in feeds), len(running) + len(seen & dict(waiting).keys())
    if total > budget:
        return f"plan_step fed {total} tokens in one step; the budget is {budget}"
    if seats > max_seqs:
        return f"plan_step let {seats} requests run at once; max_seqs is {max_seqs}"
    return None


def _is_pair(feed: Any) -> bool:
    return type(feed) is tuple and len(feed) == 2 and all(type(number) is int for number in feed)


class PlannedScheduler(Scheduler):
    """The engine's bookkeeping with a learner's decisions, first come, first served.

        Engine(llm, scheduler=PlannedScheduler, plan_step=plan_step, max_num_seqs=8, max_num_batched_tokens=32)

    Nobody is preempted: where the pool runs out of blocks, `schedule` raises CourseError, as it does for a plan that
    cannot be performed (`plan_fault`).
    """

    def __init__(
        self, manager: BlockManager, *, plan_step: PlanStep, max_num_seqs: int = 64, max_num_batched_tokens: int = 512
    ):
        super().__init__(manager, max_num_seqs=max_num_seqs, max_num_batched_tokens=max_num_batched_tokens)
        self.plan_step = plan_step

    def check(self, request: Request) -> None:
        """As in `Scheduler`; a request is one completion here, so n > 1 is refused too."""
        if request.siblings:
            raise RequestError(f"n is {request.seats}; a plan_step counts one seat for each request, so use n = 1")
        super().check(request)

    def schedule(self, now: float) -> Plan:
        """What `plan_step` decides. Raises CourseError where it cannot be performed."""
        requests = {request.id: request for request in (*self.running, *self.waiting)}
        running, waiting = (
            [(request.id, request.remaining) for request in sorted(group, key=self._key)]
            for group in (self.running, self.waiting)
        )
        limits = self.max_num_batched_tokens, self.max_num_seqs
        feeds = self.plan_step(list(running), list(waiting), *limits)  # copies: it may use its lists up
        if fault := plan_fault(feeds, running, waiting, *limits):
            raise CourseError(fault)
        plan = Plan()
        for request, n in ((requests[i], n) for i, n in feeds):
            if not (self._grow(request, n, plan) if request.state is State.RUNNING else self._join(request, plan, now)):
                raise CourseError(
                    f"the pool of {self.manager.stats().total} blocks is full and a plan_step cannot preempt; give "
                    "the engine more blocks or lower max_num_seqs"
                )
            plan.feed(request, min(n, request.remaining))  # fewer remain where the prefix cache had some
        return plan

    def _grow(self, request: Request, n: int, plan: Plan) -> bool:
        """Blocks for the next n tokens of a running request; False where there are none."""
        copies = self.manager.extend(request.id, n)
        plan.memory += [CopyBlock(source, target) for source, target in copies or ()]
        return copies is not None

    def _join(self, request: Request, plan: Plan, now: float) -> bool:
        """Let a waiting request run; False where there are no blocks for its prompt."""
        if not self._open(request, plan):
            return False
        request.first_scheduled, request.cached = now, request.computed
        self.waiting.remove(request)
        self.running.append(request)
        return True
