"""The scheduler's decisions as small classes: when requests join, who comes first, how one gives its blocks up."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence

from course_lib.cache.block_manager import BlockManager
from course_lib.engine.plan import Plan, SwapOut
from course_lib.engine.request import Request, State
from course_lib.errors import RequestError


class ContinuousBatching:
    """Requests join and leave between any two steps (Orca, OSDI 2022, section 3). Prompts are fed whole.

    Decodes ride along with the prompts, so a running request gets a token in every step; but the token budget must
    admit the longest prompt beside them, or that prompt, and all behind it, wait until enough of them have ended. A
    step with such a prompt takes long.
    """

    def admits(self, running: Sequence[Request]) -> bool:
        """True where waiting requests may join now."""
        return True

    def admitted(self, filling: bool) -> None:
        """Told after each attempt. filling: some joined, and another would have if the token budget were larger."""

    def piece(self, request: Request, left: int, budget: int) -> int:
        """Tokens to feed, where `left` of the step's token budget are; 0: not in this step.

        A preempted request may have outgrown the budget since its prompt was checked. It alone is cut.
        """
        if request.known > budget:
            return min(request.remaining, left)
        return request.remaining if request.remaining <= left else 0

    def check(self, prompt: int, budget: int) -> None:
        """Raise RequestError where a prompt of that length can never be fed."""
        if prompt > budget:
            raise RequestError(
                f"the prompt has {prompt} tokens and {type(self).__name__} feeds prompts whole, in steps of at most "
                f"{budget} tokens; shorten it, raise max_num_batched_tokens or use ChunkedPrefill"
            )


class StaticBatching(ContinuousBatching):
    """A batch is filled, over several steps where its prompts exceed a step's budget, and runs until its last request
    is done. Nobody takes the place of those that finish before."""

    def __init__(self):
        self._filling = True

    def admits(self, running: Sequence[Request]) -> bool:
        self._filling = self._filling or not running
        return self._filling

    def admitted(self, filling: bool) -> None:
        self._filling = filling


class ChunkedPrefill(ContinuousBatching):
    """Prompts are cut to what the decodes leave of the token budget, which may then be small: it bounds the time of a
    step, and so the gap between a running request's tokens (Sarathi-Serve, arXiv 2403.02310)."""

    def piece(self, request: Request, left: int, budget: int) -> int:
        return min(request.remaining, left)

    def check(self, prompt: int, budget: int) -> None:
        """Any prompt can be cut."""


class Order(ABC):
    """Who is admitted first, and who is preempted last."""

    @abstractmethod
    def key(self, request: Request) -> float:
        """Smaller comes first. It may change only when the request gets a token."""


class Fcfs(Order):
    """First come, first served."""

    def key(self, request: Request) -> float:
        return request.seq.arrival


class Priority(Order):
    """By priority, which improves by one level for every `ageing` seconds since arrival, so that nobody starves.

    priority - (now - arrival) / ageing orders at any time as priority * ageing + arrival does: a request of level p is
    treated as if it had come p * ageing seconds later. Only those that arrive within that time can overtake it.
    """

    def __init__(self, ageing: float = 10.0):
        if ageing <= 0:
            raise RequestError(f"ageing is {ageing} seconds per level; it must be above 0")
        self.ageing = ageing

    def key(self, request: Request) -> float:
        return request.priority * self.ageing + request.seq.arrival


class EarliestDeadline(Order):
    """By the time at which the next token is due: arrival + TTFT objective + TPOT objective * tokens so far.

    ttft, tpot: objectives, in seconds, of requests that bring none. As every deadline is finite, nobody starves.
    """

    def __init__(self, ttft: float = 10.0, tpot: float = 1.0):
        self.ttft, self.tpot = ttft, tpot

    def key(self, request: Request) -> float:
        ttft = self.ttft if request.ttft is None else request.ttft
        tpot = self.tpot if request.tpot is None else request.tpot
        return request.seq.arrival + ttft + tpot * len(request.seq.output)


class Preemption(ABC):
    """How a running request gives its blocks up."""

    @abstractmethod
    def evict(self, request: Request, manager: BlockManager, plan: Plan) -> None:
        """Free the request's blocks, set its state and note it in the plan."""


class Recompute(Preemption):
    """Free the blocks; prompt and output so far are the new prompt. Costs a prefill (arXiv 2309.06180, section 4.5)."""

    def evict(self, request: Request, manager: BlockManager, plan: Plan) -> None:
        manager.free(request.id)
        request.state, request.computed = State.WAITING, 0
        plan.preempted.append(request)


class Swap(Preemption):
    """Copy the blocks to host memory, and back later. Costs two transfers, and host memory for all that are swapped.

    host_blocks: how many the host holds at most, None for no limit. A request that finds no room there is recomputed.
    """

    def __init__(self, host_blocks: int | None = None):
        if host_blocks is not None and host_blocks < 0:
            raise RequestError(f"host_blocks is {host_blocks}; it must be at least 0, or None for no limit")
        self.host_blocks = host_blocks
        self._swapped: list[Request] = []  # those that came back or ended are dropped when the next one goes

    def evict(self, request: Request, manager: BlockManager, plan: Plan) -> None:
        blocks = manager.table(request.id).blocks[: manager.blocks_needed(request.computed)]
        self._swapped = [other for other in self._swapped if other.state is State.SWAPPED]
        held = sum(manager.blocks_needed(other.computed) for other in self._swapped)
        if self.host_blocks is not None and held + len(blocks) > self.host_blocks:
            return Recompute().evict(request, manager, plan)
        self._swapped.append(request)
        plan.memory.append(SwapOut(request.id, tuple(blocks)))
        manager.free(request.id)
        request.state = State.SWAPPED
        plan.swapped_out.append(request)
