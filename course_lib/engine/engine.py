"""The serving engine: requests come and go while it runs; each step is one ragged forward pass over a paged cache."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from itertools import count
from time import perf_counter

import torch
from torch import Tensor

from course_lib.batch import Batch
from course_lib.cache.block_manager import BlockManager
from course_lib.cache.formats import choose_format
from course_lib.cache.paged import PagedCache
from course_lib.cache.prefix import PrefixIndex
from course_lib.cache.store import KVFormat
from course_lib.engine.metrics import Metrics
from course_lib.engine.plan import CopyBlock, Plan, SwapIn, SwapOut
from course_lib.engine.request import Request
from course_lib.engine.scheduler import Scheduler
from course_lib.errors import CourseError, RequestError
from course_lib.llm import LLM, Prompt, request_output
from course_lib.model import Decoder
from course_lib.outputs import Logprobs, RequestOutput
from course_lib.sampling import SamplingParams
from course_lib.sequence import Sequence, draw


@dataclass(frozen=True)
class StepOutput:
    """What one completion got in a step. text: what became certain; "" while a stop string or a character is open.

    finish_reason, stop_reason: as in `CompletionOutput`, None while it goes on. logprobs: the token's, where asked for;
    they are never held back. text_offset: where its text begins, in characters; as the text may be cut before it, at a
    stop string, this can lie behind the end.
    """

    request_id: str
    index: int
    token_id: int
    text: str
    finish_reason: str | None
    stop_reason: str | int | None
    logprobs: Logprobs | None
    text_offset: int


class Engine:
    """Continuous batching around the model and tokenizer of `llm`.

    blocks, block_size: the KV cache, in blocks of so many tokens. kv_cache_dtype: how it stores keys and values, as in
    `LLM` (default: as there). index: prefix cache, `HashIndex()` or `RadixIndex()`, None for none. scheduler: called
    with the block manager and `settings`, those of `Scheduler`. cuda_graphs: replay decode steps
    (`graphs.DecodeGraphs`); by default where it can be done, on a GPU with the triton backend.
    Not thread-safe: calls come from one thread, or one at a time.
    Raises RequestError where the cache cannot be reserved or the settings contradict each other, or blocks cannot hold
    the format, KernelError where the backend cannot read blocks of that size.
    """

    def __init__(
        self,
        llm: LLM,
        *,
        blocks: int = 256,
        block_size: int = 16,
        kv_cache_dtype: str | KVFormat | None = None,
        index: PrefixIndex | None = None,
        scheduler: Callable[..., Scheduler] = Scheduler,
        cuda_graphs: bool | None = None,
        **settings,
    ):
        self.llm = llm
        kv_format = llm.kv_format if kv_cache_dtype is None else choose_format(kv_cache_dtype)
        llm.model.backend.check_blocks(block_size)
        llm.model.backend.check_format(kv_format)
        self.manager = BlockManager(blocks, block_size, index)
        self.scheduler = scheduler(self.manager, **settings)
        self.cache = PagedCache(llm.model.config, self.manager, llm.model.dtype, llm.model.device, kv_format)
        self.metrics = Metrics()
        self.steps = 0
        self._ids, self._groups = count(), count()
        self._unfinished: dict[str, list[Request]] = {}
        # What is swapped out of the cache, for each tensor of its store.
        self._host: dict[int, list[Tensor]] = {}
        self._run = self._recorded() if _recordable(llm.model, cuda_graphs) else llm.model.run

    def add_request(
        self,
        prompt: Prompt,
        params: SamplingParams | None = None,
        *,
        priority: int = 0,
        ttft: float | None = None,
        tpot: float | None = None,
        arrival_time: float | None = None,
        cache_salt: str = "",
    ) -> str:
        """Queue a prompt (text or token ids) and return its id.

        priority: lower comes first. ttft, tpot: objectives in seconds; what they do depends on the scheduler's order.
        arrival_time: on `time.perf_counter`'s clock, of a request that came before this call; default now.
        cache_salt: only requests of one salt share cached prefixes; otherwise a tenant could learn from its TTFT which
        prompts others have sent.
        Raises RequestError where it is not valid or can never fit.
        """
        [sequences] = self.llm.requests([prompt], params)
        if arrival_time is not None:
            for seq in sequences:
                seq.arrival = arrival_time
        leader = self._request(sequences, priority, ttft, tpot, cache_salt)
        self.scheduler.check(leader)
        return self._add(leader)

    def abort(self, request_id: str) -> bool:
        """Cancel a request; its blocks are free at once. False where it is unknown or has ended."""
        members = self._unfinished.pop(request_id, [])
        for request in members:
            request.seq.finish_reason = "abort"
            self.scheduler.remove(request)
            self._host.pop(request.id, None)
            self.metrics.event(perf_counter(), self.steps, "aborted", request)
            self.metrics.ended(request)
        return bool(members)

    @property
    def has_unfinished(self) -> bool:
        """True where `step` has something to do."""
        return bool(self._unfinished)

    def generate(
        self, prompts: Prompt | list[Prompt], params: SamplingParams | list[SamplingParams] | None = None
    ) -> list[RequestOutput]:
        """As `LLM.generate`: complete prompts, one output per prompt, in order.

        Raises RequestError before any work where a prompt cannot be served, or where the engine is serving others.
        """
        if self.has_unfinished:
            raise RequestError(
                "generate needs an idle engine, and requests are unfinished; call step until none is left"
            )
        sequences = self.llm.requests(prompts, params)
        leaders = [self._request(each) for each in sequences]
        for leader in leaders:
            self.scheduler.check(leader)
        ids = [self._add(leader) for leader in leaders]
        while self.has_unfinished:
            self.step()
        return [request_output(i, each) for i, each in zip(ids, sequences, strict=True)]

    def step(self) -> list[StepOutput]:
        """Schedule, run the model once, draw; one output per completion that got a token. Does nothing when idle."""
        if not self.has_unfinished:
            return []
        started = perf_counter()
        plan = self.scheduler.schedule(started)
        if not plan.feeds:
            raise CourseError("the scheduler fed no request although some are unfinished; it would never end")
        decodes, planned = plan.decodes, perf_counter()
        logits = self._forward(plan)
        ran = perf_counter()
        drawing = self.scheduler.computed(plan)
        forked = perf_counter()
        outputs = self._draw(drawing, logits)
        drawn = perf_counter()
        self.metrics.record_step(
            self.steps,
            started,
            plan,
            decodes,
            self.scheduler,
            scheduling_s=planned - started + forked - ran,
            forward_s=ran - planned,
            sampling_s=drawn - forked,
        )
        for request in self.scheduler.retire():
            self._forget(request)
        self.steps += 1
        return outputs

    def _request(self, sequences: list[Sequence], *settings) -> Request:
        """The request that is fed, its siblings attached, as yet unknown to the scheduler."""
        group = str(next(self._groups))
        leader, *siblings = [Request(next(self._ids), group, i, seq, *settings) for i, seq in enumerate(sequences)]
        leader.siblings = siblings
        return leader

    def _add(self, leader: Request) -> str:
        self.scheduler.add(leader)
        self._unfinished[leader.group] = [leader, *leader.siblings]
        for request in self._unfinished[leader.group]:
            self.metrics.event(request.seq.arrival, self.steps, "arrival", request)
        return leader.group

    def _forward(self, plan: Plan) -> Tensor:
        """Logits [len(plan.ready), V]."""
        for operation in plan.memory:
            self._perform(operation)
        # Rows in order of length: neighbours of similar length attend in one call with little padding.
        order = sorted(range(len(plan.feeds)), key=lambda i: (plan.feeds[i][1], plan.feeds[i][0].computed))
        feeds = [plan.feeds[i] for i in order]
        self.cache.bind(request.id for request, _ in feeds)
        tokens = [request.tokens(request.computed, request.computed + n) for request, n in feeds]
        computed = [request.computed for request, _ in feeds]
        batch = Batch.build(tokens, computed, range(len(tokens)))
        last = dict(zip(order, batch.last, strict=True))
        return self._run(batch, self.cache, logits_for=[last[i] for i in plan.ready])

    def _recorded(self) -> Callable[..., Tensor]:
        """`Decoder.run` with CUDA graphs in it."""
        from course_lib.engine.graphs import DecodeGraphs  # with it comes Triton, which not every system has

        graphs = DecodeGraphs(self.llm.model, self.cache, self.scheduler.max_num_seqs, self.llm.max_model_len)
        return graphs.run

    def _perform(self, operation: CopyBlock | SwapOut | SwapIn) -> None:
        match operation:
            case CopyBlock(source, target):
                self.cache.copy_blocks([(source, target)])
            case SwapOut(request, blocks):
                self._host[request] = [store[:, list(blocks)].cpu() for store in self.cache.store.tensors]
            case SwapIn(request, first, blocks):
                for store, kept in zip(self.cache.store.tensors, self._host.pop(request), strict=True):
                    store[:, list(blocks)] = kept[:, first : first + len(blocks)].to(store.device)

    def _draw(self, drawing: list[list[Request]], logits: Tensor) -> list[StepOutput]:
        """A token for each request; those of a group draw from one row of logits [len(drawing), V]."""
        requests = [request for group in drawing for request in group]
        if len(requests) > len(drawing):
            logits = logits.repeat_interleave(torch.tensor([len(group) for group in drawing], device=logits.device), 0)
        tokens, now = draw(self.llm.model.backend, [request.seq for request in requests], logits), perf_counter()
        return [self._advance(request, token, now) for request, token in zip(requests, tokens, strict=True)]

    def _advance(self, request: Request, token: int, now: float) -> StepOutput:
        seq = request.seq
        seq.append(token, now)
        self.metrics.event(now, self.steps, "token", request)
        return StepOutput(
            request_id=request.group,
            index=request.index,
            token_id=token,
            text=seq.take_text(),
            finish_reason=seq.finish_reason,
            stop_reason=seq.stop_reason,
            logprobs=None if seq.params.logprobs is None else seq.logprobs[-1],
            text_offset=seq.text_offset,
        )

    def _forget(self, request: Request) -> None:
        self.metrics.event(request.seq.token_times[-1], self.steps, "finished", request)
        self.metrics.ended(request)
        members = self._unfinished[request.group]
        members.remove(request)
        if not members:
            del self._unfinished[request.group]


def _recordable(model: Decoder, asked: bool | None) -> bool:
    """Whether decode steps are recorded as CUDA graphs. Raises RequestError where they are asked for and cannot be."""
    possible = model.device.type == "cuda" and model.backend.name == "triton"
    if asked and not possible:
        raise RequestError(
            f"CUDA graphs need a GPU and the triton backend, and the model is on {model.device} with the backend "
            f"{model.backend.name}; leave cuda_graphs out"
        )
    return possible if asked is None else asked
