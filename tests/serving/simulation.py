"""The scheduler and the block manager driven by a model without tensors, with every promise checked after every step.

A block's content is a list of token ids, each with the cache salt of who wrote it. A wrong block table, a copy that is
missing or comes too late, a prefix hit on blocks that are not computed, or that are another tenant's: each shows as a
token that is not where the request has it.
"""

from __future__ import annotations

from itertools import count
from random import Random

from course_lib.cache import BlockManager, HashIndex, RadixIndex
from course_lib.engine.plan import CopyBlock, Plan, SwapIn, SwapOut
from course_lib.engine.policies import (
    ChunkedPrefill,
    ContinuousBatching,
    EarliestDeadline,
    Fcfs,
    Priority,
    Recompute,
    StaticBatching,
    Swap,
)
from course_lib.engine.request import Request, State
from course_lib.engine.scheduler import Scheduler
from course_lib.errors import RequestError
from course_lib.sampling import SamplingParams
from course_lib.sequence import Sequence

Cell = tuple[int, str] | None


class NoText:
    """Stands for a TextStream; the fake tokens have no text."""

    text = ""

    def push(self, token: int) -> None: ...

    def flush(self) -> None: ...


class Simulation:
    """Time is the number of the step. `step` fails where the scheduler or the manager breaks a promise."""

    def __init__(self, scheduler: Scheduler, eos_ids: tuple[int, ...] = (0,)):
        self.scheduler, self.manager, self.eos_ids = scheduler, scheduler.manager, eos_ids
        size = self.manager.block_size
        self.blocks: list[list[Cell]] = [[None] * size for _ in range(self.manager.pool.total)]
        self.host: dict[int, list[list[Cell]]] = {}
        self.requests: list[Request] = []  # every admitted completion
        self.aborted: set[Request] = set()
        self.ids = count()
        self.now = 0
        self.longest = self.swaps = self.fallbacks = 0  # fallbacks: recomputed because the host was full
        self.bounds: dict[Request, int] = {}  # first come, first served: the step by which it is done

    @property
    def unfinished(self) -> list[Request]:
        return [request for request in self.requests if request.state is not State.FINISHED]

    @property
    def host_blocks(self) -> int:
        return sum(map(len, self.host.values()))

    def add(self, prompt: list[int], new: int, n: int = 1, priority: int = 0, **settings) -> Request:
        """Raises RequestError where the scheduler refuses the request."""
        params = SamplingParams(n=n, max_tokens=new)
        leader, *siblings = [
            Request(
                next(self.ids),
                "group",
                i,
                Sequence(None, prompt, params, None, NoText(), self.eos_ids, 10**6, float(self.now)),
                priority,
                **settings,
            )
            for i in range(n)
        ]
        leader.siblings = siblings
        self.scheduler.add(leader)
        self.requests += [leader, *siblings]
        self.longest = max(self.longest, len(prompt) + new)
        work = sum(len(r.seq.prompt_ids) + r.seq.max_new for r in self.unfinished)
        for request in (leader, *siblings):
            self.bounds[request] = self.now + work
        return leader

    def abort(self, request: Request) -> None:
        self.aborted |= {request, *request.siblings}
        self.scheduler.remove(request)
        self.host.pop(request.id, None)
        assert request.id not in self.manager.tables
        self.manager.check_integrity()

    def step(self) -> Plan:
        decoding = [request for request in self.scheduler.running if request.remaining == 1]
        computed = {request: request.computed for request in self.scheduler.running}
        key = self.scheduler._key
        plan = self.scheduler.schedule(self.now)
        gone = plan.preempted + plan.swapped_out
        fed = {request for request, _ in plan.feeds}
        assert plan.tokens == sum(n for _, n in plan.feeds) <= self.scheduler.max_num_batched_tokens
        assert plan.tokens > 0 or not self.unfinished, "a step without progress"
        assert len(fed) == len(plan.feeds) and all(0 < n <= request.remaining for request, n in plan.feeds)
        assert sum(request.seats for request in self.scheduler.running) <= self.scheduler.max_num_seqs
        assert fed.issuperset(set(decoding) - set(gone)), "a decode was left out"
        assert not gone or not (plan.admitted or plan.swapped_in), "a step that preempts admits"
        for victim in gone:
            assert all(key(victim) > key(request) for request in self.scheduler.running), "a victim was not the last"
        self._check_budget_is_used(plan)
        ready = [plan.feeds[i][0] for i in plan.ready]
        self._perform(plan)
        if (limit := getattr(self.scheduler.preemption, "host_blocks", None)) is not None:
            assert self.host_blocks <= limit, "the host holds more than it may"
            self.swaps += len(plan.swapped_out)
            self.fallbacks += len(plan.preempted)
            for victim in plan.preempted:
                needs = self.manager.blocks_needed(computed[victim])
                assert self.host_blocks + needs > limit, "a request was recomputed though the host had room"
        drawing = self.scheduler.computed(plan)
        assert [group[0] for group in drawing] == ready
        self.now += 1
        for request in (request for group in drawing for request in group):
            request.seq.append(self._next_token(request), float(self.now))
        self.scheduler.retire()
        self.manager.check_integrity()
        return plan

    def run(self) -> None:
        """Step until all is done, within a stated number of steps, and find nothing left behind.

        The first running request advances in every step. It stays the first until one arrives or a token is generated,
        whatever the order, so no two of these events are further apart than the longest request has tokens.
        """
        limit = self.now + (len(self.requests) + sum(r.seq.max_new for r in self.unfinished)) * self.longest
        while self.unfinished:
            self.step()
            assert self.now <= limit, "a request starves"
            if isinstance(self.scheduler.order, Fcfs):
                assert all(self.now < self.bounds[request] for request in self.unfinished), "a request starves"
        stats = self.manager.stats()
        assert not self.manager.tables and not stats.in_use and not self.host
        assert stats.free + stats.cached == stats.total
        assert not self.scheduler.waiting and not self.scheduler.running
        for request in self.requests:
            assert request.seq.finished != (request in self.aborted)

    def _check_budget_is_used(self, plan: Plan) -> None:
        """Tokens are left over only where nobody could have used them."""
        scheduler = self.scheduler
        left = scheduler.max_num_batched_tokens - plan.tokens
        if not left or plan.preempted or plan.swapped_out:
            return
        fed = dict(plan.feeds)
        whole = not isinstance(scheduler.batching, ChunkedPrefill)
        assert whole or all(fed[request] == request.remaining for request in scheduler.running)
        if scheduler.waiting and not isinstance(scheduler.batching, StaticBatching):
            head = scheduler.waiting[0]
            seats = sum(request.seats for request in scheduler.running) + head.seats
            assert (
                seats > scheduler.max_num_seqs
                or (whole and head.remaining > left)
                or not self.manager.can_allocate(head.tokens(0, head.known), head.cache_salt)
            ), "the budget was not used"

    def _perform(self, plan: Plan) -> None:
        for operation in plan.memory:
            match operation:
                case CopyBlock(source, target):
                    self.blocks[target] = list(self.blocks[source])
                case SwapOut(request, blocks):
                    self.host[request] = [list(self.blocks[block]) for block in blocks]
                case SwapIn(request, first, blocks):
                    kept = self.host.pop(request)
                    for i, block in enumerate(blocks):
                        self.blocks[block] = list(kept[first + i])
        size = self.manager.block_size
        for request, n in plan.feeds:
            table = self.manager.table(request.id).blocks
            self.manager.check_writable(request.id, n)
            for position, token in enumerate(request.tokens(request.computed, request.computed + n), request.computed):
                self.blocks[table[position // size]][position % size] = token, request.cache_salt
        for request, n in plan.feeds:  # every token that attention would read is where the table says
            table, end = self.manager.table(request.id).blocks, request.computed + n
            held = [cell for block in table for cell in self.blocks[block]]
            want = [(token, request.cache_salt) for token in request.tokens(0, end)]
            assert held[:end] == want, f"request {request.id} would attend to wrong tokens"
        for request, n in plan.feeds:
            self.manager.commit(request.id, request.tokens(request.computed, request.computed + n))

    @staticmethod
    def _next_token(request: Request) -> int:
        """A function of the tokens so far and of the completion's index; ends a completion now and then."""
        tokens = request.tokens(0, request.known)
        return (sum(tokens) * 7 + len(tokens) * 3 + request.index) % 23


def refusal(scheduler: Scheduler, prompt: int, new: int, n: int) -> bool:
    """Whether admission control must refuse a request, worked out anew."""
    whole = not isinstance(scheduler.batching, ChunkedPrefill)
    slots = scheduler.manager.pool.total * scheduler.manager.block_size
    return (
        prompt + new - 1 > slots or n > scheduler.max_num_seqs or (whole and prompt > scheduler.max_num_batched_tokens)
    )


def random_scheduler(random: Random) -> Scheduler:
    """Small pools, tight limits, any policies."""
    index = random.choice([None, HashIndex, RadixIndex])
    manager = BlockManager(random.randint(2, 12), random.randint(1, 4), index and index())
    seqs = random.randint(1, 6)
    return Scheduler(
        manager,
        batching=random.choice([StaticBatching, ContinuousBatching, ChunkedPrefill])(),
        order=random.choice([Fcfs(), Priority(ageing=random.choice([0.5, 4.0])), EarliestDeadline(5.0, 1.0)]),
        preemption=random.choice([Recompute(), Swap(), Swap(host_blocks=random.randint(0, 8))]),
        max_num_seqs=seqs,
        max_num_batched_tokens=seqs + random.randint(0, 8),
    )


def random_workload(seed: int) -> Simulation:
    """Run one random workload to its end; returns the simulation. Reproducible by its seed."""
    random = Random(seed)
    simulation = Simulation(random_scheduler(random))
    for _ in range(random.randint(2, 8)):
        for _ in range(random.choice([0, 0, 1, 2])):
            simulation.step()
        common = [1, 2, 3, 4, 5, 6, 7, 8][: random.randint(0, 8)]  # prompts share prefixes
        prompt = common + [random.randint(1, 9) for _ in range(random.randint(not common, 3))]
        new, n = random.randint(1, 10), random.choice([1, 1, 1, 2, 3])
        refused = refusal(simulation.scheduler, len(prompt), new, n)
        settings = dict(ttft=random.choice([None, 1.0, 20.0]), cache_salt=random.choice(["", "", "", "tenant"]))
        try:
            simulation.add(prompt, new, n, random.randint(-2, 2), **settings)
            assert not refused, "what can never fit was admitted"
        except RequestError:
            assert refused, "what fits was refused"
        if simulation.unfinished and random.random() < 0.15:
            simulation.abort(random.choice(simulation.unfinished))
    simulation.run()
    return simulation
