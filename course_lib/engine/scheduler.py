"""The scheduler: which requests are fed how many tokens in the next step. It touches no tensors.

A step: `schedule` -> the engine performs the plan and runs the model, which commits the tokens to the block manager ->
`computed` -> a token is drawn for each request it returns -> `retire`.

Why it cannot hang: running requests are served in order, and only those behind the one that needs room lose their
blocks. So the first of them advances in every step; alone it fits, for that was checked when it was added. When none
runs, the first of those that wait is admitted.
"""

from __future__ import annotations

from course_lib.cache.block_manager import BlockManager
from course_lib.engine.plan import CopyBlock, Plan, SwapIn
from course_lib.engine.policies import ChunkedPrefill, ContinuousBatching, Fcfs, Order, Preemption, Recompute
from course_lib.engine.request import Request, State
from course_lib.errors import RequestError


class Scheduler:
    """max_num_seqs: most running sequences. max_num_batched_tokens: the token budget, most tokens fed in one step.

    batching, order, preemption: see `policies`; by default ChunkedPrefill, Fcfs, Recompute.
    Raises RequestError where the limits contradict each other.
    """

    def __init__(
        self,
        manager: BlockManager,
        *,
        batching: ContinuousBatching | None = None,
        order: Order | None = None,
        preemption: Preemption | None = None,
        max_num_seqs: int = 64,
        max_num_batched_tokens: int = 512,
    ):
        if not 1 <= max_num_seqs <= max_num_batched_tokens:
            raise RequestError(
                f"max_num_seqs is {max_num_seqs} and max_num_batched_tokens {max_num_batched_tokens}; each running "
                "sequence needs a token of every step, so choose 1 <= max_num_seqs <= max_num_batched_tokens"
            )
        self.manager = manager
        self.batching = batching or ChunkedPrefill()
        self.order = order or Fcfs()
        self.preemption = preemption or Recompute()
        self.max_num_seqs = max_num_seqs
        self.max_num_batched_tokens = max_num_batched_tokens
        self.waiting: list[Request] = []  # swapped ones too
        self.running: list[Request] = []

    def check(self, request: Request) -> None:
        """Admission control: raise RequestError where the request can never be served, naming the limit."""
        if request.seats > self.max_num_seqs:
            raise RequestError(
                f"n is {request.seats} and max_num_seqs is {self.max_num_seqs}; ask for fewer completions or raise it"
            )
        prompt = len(request.seq.prompt_ids)
        self.batching.check(prompt, self.max_num_batched_tokens)
        self.manager.check_fits(prompt, request.seq.max_new)

    def add(self, request: Request) -> None:
        """Queue a request with its siblings. Raises RequestError as `check` does."""
        self.check(request)
        self.waiting.append(request)

    def remove(self, request: Request) -> None:
        """Forget a request, and the siblings that wait for its prompt; its blocks are free at once."""
        if request.state is State.RUNNING:
            self.manager.free(request.id)
            self.running.remove(request)
        elif request in self.waiting:  # a sibling that was not forked yet is in no list
            self.waiting.remove(request)
        for gone in (request, *request.siblings):
            gone.state = State.FINISHED
        request.siblings = []

    def schedule(self, now: float) -> Plan:
        """The next step. Every decode first, then prompts that are under way, then new requests, each in order."""
        plan = Plan()
        self.running.sort(key=self._key)
        running = list(self.running)
        for request in [r for r in running if r.remaining == 1] + [r for r in running if r.remaining > 1]:
            if request.state is not State.RUNNING:  # preempted a moment ago
                continue
            n = self._piece(request, plan)
            if n and self._make_room(request, n, plan):
                plan.feed(request, n)
        # Those that had to go would otherwise come back in the step that threw them out.
        if not (plan.preempted or plan.swapped_out) and self.batching.admits(self.running):
            self.batching.admitted(self._admit(plan, now))
        return plan

    def computed(self, plan: Plan) -> list[list[Request]]:
        """Count what the forward pass computed. One list per entry of `plan.ready`: who draws from its logits.

        That is the request and, the first time, its siblings, which are forked here: they share all blocks, until each
        writes its own first token.
        """
        drawing = []
        for request, n in plan.feeds:
            request.computed += n
            if request.remaining:
                continue
            siblings = [sibling for sibling in request.siblings if sibling.state is State.WAITING]  # not removed
            for sibling in siblings:
                self.manager.fork(request.id, sibling.id)
                sibling.computed, sibling.cached = request.computed, request.cached
                sibling.first_scheduled, sibling.state = request.first_scheduled, State.RUNNING
                self.running.append(sibling)
            drawing.append([request, *siblings])
            request.siblings = []
        return drawing

    def retire(self) -> list[Request]:
        """Free the blocks of the requests whose sequence is finished, and return them."""
        done = [request for request in self.running if request.seq.finished]
        for request in done:
            self.remove(request)
        return done

    def _key(self, request: Request) -> tuple[float, int]:
        return self.order.key(request), request.id

    def _piece(self, request: Request, plan: Plan) -> int:
        budget = self.max_num_batched_tokens
        return self.batching.piece(request, budget - plan.tokens, budget)

    def _make_room(self, request: Request, new: int, plan: Plan) -> bool:
        """Blocks for the next `new` tokens, taken where needed from the last in order; False where that is the request.

        Nobody who is in the plan already loses blocks: decodes come in order, and begun prompts have all theirs.
        """
        while (copies := self.manager.extend(request.id, new)) is None:
            victim = self.running.pop()
            victim.preemptions += 1
            self.preemption.evict(victim, self.manager, plan)
            self.waiting.append(victim)
            if victim is request:
                return False
        plan.memory.extend(CopyBlock(source, target) for source, target in copies)
        return True

    def _admit(self, plan: Plan, now: float) -> bool:
        """Let waiting requests join, in order, up to the first that does not fit: nobody overtakes it.

        Whether a prompt fits the token budget is judged before its prefix hit is known; what is fed is counted after.
        Returns True where some joined and only the budget stopped the next.
        """
        self.waiting.sort(key=self._key)
        seats, joined, out_of_budget = sum(request.seats for request in self.running), 0, False
        for request in self.waiting:
            seats += request.seats
            out_of_budget = seats <= self.max_num_seqs and not self._piece(request, plan)
            if seats > self.max_num_seqs or out_of_budget or not self._open(request, plan):
                break
            if request.first_scheduled is None:
                request.first_scheduled, request.cached = now, request.computed
            plan.feed(request, self._piece(request, plan))
            self.running.append(request)
            joined += 1
        del self.waiting[:joined]
        return joined > 0 and out_of_budget

    def _open(self, request: Request, plan: Plan) -> bool:
        """Give the request blocks for all its tokens, and those of a swapped one their content. False: no room now."""
        tokens = request.tokens(0, request.known)
        found = self.manager.allocate(request.id, tokens, request.cache_salt)
        if found is None:
            return False
        if request.state is State.SWAPPED:
            first, held = found // self.manager.block_size, self.manager.blocks_needed(request.computed)
            blocks = tuple(self.manager.table(request.id).blocks[first:held])
            plan.memory.append(SwapIn(request.id, first, blocks))
            plan.swapped_in.append(request)
            self.manager.commit(request.id, tokens[found : request.computed])
        else:
            plan.admitted.append(request)
        request.computed = max(request.computed, found)  # others may have computed more of it meanwhile
        request.state = State.RUNNING
        return True
