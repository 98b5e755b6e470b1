"""One completion while it is generated: its tokens, its text, why it stops and when each token came."""

from __future__ import annotations

from dataclasses import dataclass, field

from torch import Tensor

from course_lib.backend import Backend
from course_lib.outputs import Logprob, Logprobs, RequestMetrics
from course_lib.sampling import Sampler, SamplingParams, top_logprobs
from course_lib.tokenizer import TextStream


@dataclass
class Sequence:
    """limit: most tokens of prompt and completion together. arrival: seconds on `time.perf_counter`'s clock.

    logprobs: one entry per token where they are asked for. text_offset: where the last token's text begins in the text;
    for a token that adds to a begun character, where that character does.
    """

    prompt: str | None
    prompt_ids: list[int]
    params: SamplingParams
    sampler: Sampler
    text: TextStream
    eos_ids: tuple[int, ...]
    limit: int
    arrival: float
    row: int = -1
    output: list[int] = field(default_factory=list)
    token_times: list[float] = field(default_factory=list)
    finish_reason: str | None = None
    stop_reason: str | int | None = None
    logprobs: list[Logprobs] = field(default_factory=list)
    text_offset: int = 0
    _taken: int = 0  # characters already handed to a stream

    @property
    def max_new(self) -> int:
        """Tokens it may generate: as many as asked for, but never past the limit."""
        return min(self.params.max_tokens, self.limit - len(self.prompt_ids))

    @property
    def finished(self) -> bool:
        return self.finish_reason is not None

    @property
    def seen(self) -> list[int]:
        """Prompt and output so far, for the repetition penalty; empty where none is set."""
        return self.prompt_ids + self.output if self.params.repetition_penalty != 1 else []

    def note_logprobs(self, token: int, logits: Tensor) -> None:
        """Keep the log-probabilities of a drawn token, where they are asked for. logits: float32 [V]."""
        if self.params.logprobs is not None:
            name = self.text.tokenizer.token_text
            rows = top_logprobs(logits, token, self.params.logprobs)
            self.logprobs.append({i: Logprob(logprob, rank, name(i)) for i, logprob, rank in rows})

    def append(self, token: int, now: float) -> None:
        """Add a generated token and decide whether the completion ends with it."""
        self.output.append(token)
        self.token_times.append(now)
        self.text_offset = len(self.text.text)
        if token in self.eos_ids or token in self.params.stop_token_ids:
            self._finish("stop", token if token in self.params.stop_token_ids else None)
            return
        self.text.push(token)
        if found := self._find_stop():
            self.text.text = self.text.text[: found[0]]
            self._finish("stop", found[1], flush=False)
        elif len(self.output) == self.max_new:
            clamped = self.max_new < self.params.max_tokens
            self._finish("length", f"the context limit of {self.limit} tokens is reached" if clamped else None)

    def take_text(self) -> str:
        """Text that is certain and was not taken before. What may yet become a stop string is held back."""
        text = self.text.text
        end = len(text) if self.finished else len(text) - max((len(s) - 1 for s in self.params.stop), default=0)
        piece = text[self._taken : max(end, self._taken)]
        self._taken += len(piece)
        return piece

    @property
    def metrics(self) -> RequestMetrics:
        return RequestMetrics(self.arrival, tuple(self.token_times))

    def _find_stop(self) -> tuple[int, str] | None:
        """(position, stop string) of the first stop string in the text, which the last token has completed."""
        hits = []
        for stop in self.params.stop:
            start = max(0, self.text_offset - len(stop) + 1)
            if (at := self.text.text.find(stop, start)) >= 0:
                hits.append((at, stop))
        return min(hits, default=None)

    def _finish(self, reason: str, detail: str | int | None, flush: bool = True) -> None:
        if flush:
            self.text.flush()
        self.finish_reason, self.stop_reason = reason, detail


def draw(backend: Backend, sequences: list[Sequence], logits: Tensor) -> list[int]:
    """The next token of each sequence, which `append` then adds, with log-probabilities. logits: float32 [S, V]."""
    tokens = backend.draw([seq.sampler for seq in sequences], [seq.seen for seq in sequences], logits)
    for seq, token, row in zip(sequences, tokens, logits, strict=True):
        seq.note_logprobs(token, row)
    return tokens
