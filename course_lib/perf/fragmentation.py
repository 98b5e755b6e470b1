"""How much of a KV memory holds tokens, for ways of handing it out: a saturated server that decodes step by step.

Kinds of waste as in Kwon et al. 2023 (arXiv 2309.06180, section 3.1, Fig. 3); Orca's three reservations as in their
section 6.1: the limit, a power of two, and the true length, which no server knows.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from course_lib.cache import BlockManager


@dataclass(frozen=True)
class MemoryUse:
    """Shares of the memory, mean over the steps after the warm-up; they add up to 1. running: mean requests at once.

    held: holds a token. later: its request will fill it. never: given to a request that will not fill it. gaps: given
    to nobody, because the next request does not fit there. preempted: times that a request lost its blocks.
    """

    held: float
    later: float
    never: float
    gaps: float
    running: float
    preempted: int


class Reservation:
    """One contiguous piece per request for its whole life, at the first gap that is large enough.

    reserve: slots to reserve for (prompt, output) tokens.
    """

    def __init__(self, memory: int, reserve: Callable[[int, int], int]):
        self.memory, self.reserve = memory, reserve
        self.places: dict[int, tuple[int, int]] = {}  # request: first slot, slots

    def admit(self, request: int, prompt: int, output: int) -> bool:
        size, end = self.reserve(prompt, output), 0
        for start, taken in sorted(self.places.values()):
            if start - end >= size:
                break
            end = start + taken
        if end + size > self.memory:
            return False
        self.places[request] = end, size
        return True

    def grow(self, request: int) -> bool:
        return True

    def free(self, request: int) -> None:
        del self.places[request]

    def slots(self, request: int, held: int) -> int:
        """Slots that the request has while it holds so many tokens."""
        return self.places[request][1]


class Blocks:
    """Blocks on demand, by the engine's own `BlockManager`. New requests leave one block in a hundred free."""

    def __init__(self, memory: int, block_size: int):
        self.manager = BlockManager(memory // block_size, block_size)

    def admit(self, request: int, prompt: int, output: int) -> bool:
        left = self.manager.available - self.manager.blocks_needed(prompt)
        if left < self.manager.pool.total // 100:
            return False
        self.manager.allocate(request, [0] * prompt)
        self.manager.commit(request, [0] * prompt)
        return True

    def grow(self, request: int) -> bool:
        if self.manager.extend(request, 1) is None:
            return False
        self.manager.commit(request, [0])
        return True

    def free(self, request: int) -> None:
        self.manager.free(request)

    def slots(self, request: int, held: int) -> int:
        """Slots that the request has while it holds so many tokens."""
        return self.manager.blocks_needed(held) * self.manager.block_size


def simulate(
    allocator: Reservation | Blocks, lengths: Sequence[tuple[int, int]], memory: int, steps: int, warmup: int
) -> MemoryUse:
    """Serve requests of (prompt, output) tokens, first come first served; the list repeats, so the queue never empties.

    Each step every running request gets one token. Where that does not fit, the youngest request loses its memory and
    starts again at the head of the queue. memory: slots, in tokens.
    """
    queue = deque(enumerate(lengths))  # (request, (prompt, output))
    running: dict[int, tuple[int, int]] = {}
    held: dict[int, int] = {}  # tokens of each running request, the oldest first
    shares, requests, preempted, following = [0.0] * 4, 0, 0, len(lengths)
    for step in range(steps):
        while queue and allocator.admit(queue[0][0], *queue[0][1]):
            request, size = queue.popleft()
            running[request], held[request] = size, size[0]
            queue.append((following, lengths[following % len(lengths)]))
            following += 1
        for request in list(held):
            while request in held and not allocator.grow(request):
                youngest, _ = held.popitem()
                allocator.free(youngest)
                queue.appendleft((youngest, running.pop(youngest)))
                preempted += step >= warmup
            if request in held:
                held[request] += 1
        if step >= warmup:
            requests += len(held)
            for i, value in enumerate(_use(allocator, running, held, memory)):
                shares[i] += value / memory
        for request in [r for r, now in held.items() if now == sum(running[r])]:
            allocator.free(request)
            del held[request], running[request]
    counted = steps - warmup
    return MemoryUse(*(share / counted for share in shares), requests / counted, preempted)


def _use(
    allocator: Reservation | Blocks, running: dict[int, tuple[int, int]], held: dict[int, int], memory: int
) -> tuple[int, int, int, int]:
    """Slots held, filled later, never filled, and given to nobody."""
    slots = {request: allocator.slots(request, now) for request, now in held.items()}
    filled = sum(min(slots[request], sum(size)) for request, size in running.items())
    tokens, given = sum(held.values()), sum(slots.values())
    return tokens, filled - tokens, given - filled, memory - given
