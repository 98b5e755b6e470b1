"""The offline engine: `LLM(name).generate(prompts, SamplingParams(...))`, with vLLM's names for what comes back.

One static batch: every prompt is prefilled, then all decode together until the last is done. Finished sequences leave
the batch, but no new one takes their place before the call ends.
"""

from __future__ import annotations

import time
from collections.abc import Iterator

import torch
from tqdm import tqdm

from course_lib.batch import Batch
from course_lib.cache import KVCache
from course_lib.cache.formats import choose_format
from course_lib.cache.store import FLOAT, KVFormat
from course_lib.errors import RequestError
from course_lib.outputs import CompletionOutput, RequestOutput
from course_lib.sampling import Sampler, SamplingParams
from course_lib.sequence import Sequence, draw
from course_lib.tokenizer import Messages, Tokenizer
from course_lib.weights import default_model, load_model, load_tokenizer

Prompt = str | list[int]  # text, or token ids


class LLM:
    """A language model with its tokenizer, ready to generate.

    model: a name for `load_model` (default COURSE_MODEL, else `tiny`), which takes device, dtype and backend too.
    kv_cache_dtype: how keys and values are stored, a name of `cache.formats.FORMATS` or a format; "auto" is as the
    model computes them. max_model_len: most tokens of prompt and completion together (default: what the model was
    trained for). max_batch_tokens: most tokens of one forward pass; longer prompts are prefilled in chunks. seed: of
    requests that bring none.
    Raises ModelError where the model cannot be loaded, RequestError where max_model_len is out of range or the backend
    cannot read such a cache.
    """

    def __init__(
        self,
        model: str | None = None,
        *,
        device: str | None = None,
        dtype: torch.dtype | None = None,
        backend: str | None = None,
        kv_cache_dtype: str | KVFormat = "auto",
        max_model_len: int | None = None,
        max_batch_tokens: int = 2048,
        seed: int = 0,
    ):
        self.name = model or default_model()
        self.model = load_model(self.name, device, dtype, backend)
        self.tokenizer: Tokenizer = load_tokenizer(self.name)
        context = self.model.config.context
        if max_model_len is not None and not 1 <= max_model_len <= context:
            raise RequestError(f"max_model_len is {max_model_len}; {self.name} allows 1 to {context}")
        if max_batch_tokens < 1:
            raise RequestError(f"max_batch_tokens is {max_batch_tokens}; it must be at least 1")
        self.max_model_len = max_model_len or context
        self.max_batch_tokens = max_batch_tokens
        self.kv_format = choose_format(kv_cache_dtype)
        self.model.backend.check_format(self.kv_format)
        self._seeds = torch.Generator().manual_seed(seed)

    def __repr__(self) -> str:
        """What every result depends on, in one line."""
        model, dtype = self.model, str(self.model.dtype).removeprefix("torch.")
        size = f"{model.config.parameters() / 1e6:.1f} M parameters"
        cache = "" if self.kv_format == FLOAT else f", KV cache {self.kv_format.label}"
        return f"{self.name}: {size} in {dtype} on {model.device}, backend {model.backend.name}{cache}"

    def generate(
        self,
        prompts: Prompt | list[Prompt],
        sampling_params: SamplingParams | list[SamplingParams] | None = None,
        *,
        use_tqdm: bool = False,
    ) -> list[RequestOutput]:
        """Complete one or several prompts (texts or lists of token ids), one output per prompt, in order.

        sampling_params: one for all, or one per prompt. Raises RequestError before any work where a prompt is empty,
        too long or has ids outside the vocabulary.
        """
        requests = self.requests(prompts, sampling_params)
        sequences = [seq for request in requests for seq in request]
        with tqdm(total=sum(seq.max_new for seq in sequences), unit="tok", disable=not use_tqdm) as bar:
            for event in self._run(sequences):
                bar.update(len(event))
        return [request_output(str(i), request) for i, request in enumerate(requests)]

    def stream(self, prompt: Prompt, sampling_params: SamplingParams | None = None) -> Iterator[str]:
        """Complete one prompt and yield its text piece by piece; the pieces add up to what `generate` returns."""
        params = sampling_params or SamplingParams()
        if params.n != 1:
            raise RequestError(f"streaming yields one completion, but n is {params.n}; use generate for several")
        [[seq]] = self.requests([prompt], params)
        for _ in self._run([seq]):
            if piece := seq.take_text():
                yield piece

    def chat(self, messages: Messages, sampling_params: SamplingParams | None = None) -> RequestOutput:
        """Answer a conversation, `[{"role": "user", "content": "..."}, ...]`, by the model's chat template."""
        return self.generate([self._chat_ids(messages)], sampling_params)[0]

    def stream_chat(self, messages: Messages, sampling_params: SamplingParams | None = None) -> Iterator[str]:
        """As `chat`, yielding the text piece by piece."""
        return self.stream(self._chat_ids(messages), sampling_params)

    def _chat_ids(self, messages: Messages) -> list[int]:
        # The template writes the special tokens itself; encoding must not add them a second time.
        return self.tokenizer.encode(self.tokenizer.render_chat(messages), special=False)

    def requests(
        self, prompts: Prompt | list[Prompt], params: SamplingParams | list[SamplingParams] | None = None
    ) -> list[list[Sequence]]:
        """One list of n sequences per prompt, not yet computed. Raises RequestError as `generate` does."""
        prompts = _as_list(prompts)
        params = params or SamplingParams()
        each = [params] * len(prompts) if isinstance(params, SamplingParams) else list(params)
        if len(each) != len(prompts):
            raise RequestError(f"{len(each)} sampling parameters were given for {len(prompts)} prompts")
        arrival = time.perf_counter()
        return [self._request(prompt, one, arrival) for prompt, one in zip(prompts, each, strict=True)]

    def _request(self, prompt: Prompt, params: SamplingParams, arrival: float) -> list[Sequence]:
        ids = self.tokenizer.encode(prompt) if isinstance(prompt, str) else list(prompt)
        vocab = self.model.config.vocab
        if not ids:
            raise RequestError("the prompt is empty; give at least one token")
        if any(not 0 <= token < vocab for token in ids):
            raise RequestError(f"the prompt has token ids outside 0 .. {vocab - 1}, the model's vocabulary")
        if len(ids) >= self.max_model_len:
            raise RequestError(
                f"the prompt has {len(ids)} tokens and the limit for prompt and completion is {self.max_model_len}; "
                f"shorten it to at most {self.max_model_len - 1}"
            )
        seed = params.seed if params.seed is not None else int(torch.randint(2**62, (1,), generator=self._seeds))
        return [
            Sequence(
                prompt=prompt if isinstance(prompt, str) else None,
                prompt_ids=ids,
                params=params,
                sampler=Sampler(params, seed + i, self.model.device),
                text=self.tokenizer.stream(),
                eos_ids=() if params.ignore_eos else self.model.config.eos_ids,
                limit=self.max_model_len,
                arrival=arrival,
            )
            for i in range(params.n)
        ]

    def _run(self, sequences: list[Sequence]) -> Iterator[list[Sequence]]:
        """Prefill, then decode all together; after each step yields the sequences that got a token."""
        if not sequences:
            return
        capacity = max(len(seq.prompt_ids) + seq.max_new for seq in sequences)
        # The last token is never fed back, so no sequence needs its slot.
        cache = self.model.new_cache(len(sequences), capacity - 1, self.kv_format)
        for row, seq in enumerate(sequences):
            seq.row = row
        yield from self._prefill(sequences, cache)
        while running := [seq for seq in sequences if not seq.finished]:
            for chunk in _chunks(running, self.max_batch_tokens):
                self._step(chunk, [[seq.output[-1]] for seq in chunk], cache)
            yield running

    def _prefill(self, sequences: list[Sequence], cache: KVCache) -> Iterator[list[Sequence]]:
        """Feed the prompts in order, each forward pass filled up to max_batch_tokens; a long prompt spans several."""
        waiting = list(sequences)
        while waiting:
            budget, chosen, pieces = self.max_batch_tokens, [], []
            for seq in waiting:
                done = cache.lengths[seq.row]
                piece = seq.prompt_ids[done : done + budget]
                chosen.append(seq)
                pieces.append(piece)
                budget -= len(piece)
                if not budget:
                    break
            got = self._step(chosen, pieces, cache)
            waiting = [seq for seq in waiting if cache.lengths[seq.row] < len(seq.prompt_ids)]
            if got:
                yield got

    def _step(self, sequences: list[Sequence], tokens: list[list[int]], cache: KVCache) -> list[Sequence]:
        """One forward pass; returns the sequences whose known tokens are all in the cache and so got a new one."""
        cached = [cache.lengths[seq.row] for seq in sequences]
        batch = Batch.build(tokens, cached, [seq.row for seq in sequences])
        ready = [
            i for i, seq in enumerate(sequences) if cached[i] + len(tokens[i]) == len(seq.prompt_ids) + len(seq.output)
        ]
        logits = self.model.run(batch, cache, logits_for=[batch.last[i] for i in ready])
        got = [sequences[i] for i in ready]
        drawn = draw(self.model.backend, got, logits)
        now = time.perf_counter()  # after the draw: reading a token's id waits for a GPU to have computed it
        for seq, token in zip(got, drawn, strict=True):
            seq.append(token, now)
        return got


def _as_list(prompts: Prompt | list[Prompt]) -> list[Prompt]:
    single = isinstance(prompts, str) or (len(prompts) > 0 and isinstance(prompts[0], int))
    return [prompts] if single else list(prompts)


def _chunks(items: list[Sequence], size: int) -> Iterator[list[Sequence]]:
    for start in range(0, len(items), size):
        yield items[start : start + size]


def request_output(request_id: str, request: list[Sequence]) -> RequestOutput:
    """The answer to one prompt, from the n sequences that `LLM.requests` made of it."""
    return RequestOutput(
        request_id=request_id,
        prompt=request[0].prompt,
        prompt_token_ids=request[0].prompt_ids,
        outputs=[
            CompletionOutput(
                index=i,
                text=seq.text.text,
                token_ids=seq.output,
                finish_reason=seq.finish_reason,
                stop_reason=seq.stop_reason,
                metrics=seq.metrics,
                logprobs=None if seq.params.logprobs is None else seq.logprobs,
            )
            for i, seq in enumerate(request)
        ],
    )
