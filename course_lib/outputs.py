"""What the engine returns, with vLLM's field names."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class RequestMetrics:
    """Times of one completion, in seconds on `time.perf_counter`'s clock."""

    arrival: float
    token_times: tuple[float, ...]  # when each output token was known

    @property
    def ttft(self) -> float:
        """Time to first token: from arrival, queueing and prefill included."""
        return self.token_times[0] - self.arrival

    @property
    def tpot(self) -> float | None:
        """Time per output token after the first, the mean; None where there was only one token."""
        steps = len(self.token_times) - 1
        return (self.token_times[-1] - self.token_times[0]) / steps if steps else None

    @property
    def itl(self) -> list[float]:
        """Inter-token latencies: the gaps whose mean is TPOT."""
        return [b - a for a, b in zip(self.token_times, self.token_times[1:], strict=False)]

    @property
    def latency(self) -> float:
        """From arrival to the last token."""
        return self.token_times[-1] - self.arrival


@dataclass(frozen=True)
class Logprob:
    """One token at one position. logprob: natural logarithm of its probability under the model. rank: 1 = the most
    probable. decoded_token: its text alone; bytes that are not a whole character are escaped, as in OpenAI's API."""

    logprob: float
    rank: int
    decoded_token: str


Logprobs = dict[int, Logprob]
"""By token id, at one position: the drawn token first, then the most probable ones that were asked for."""


@dataclass(frozen=True)
class CompletionOutput:
    """One completion. finish_reason: 'stop' (end token or stop string) or 'length'.

    stop_reason: the stop string or token id that ended it, or, where the model's limit cut max_tokens short, a sentence
    that says so; else None. token_ids include the token that ended it, text does not. logprobs: one entry per token id;
    None where `SamplingParams.logprobs` is.
    """

    index: int
    text: str
    token_ids: list[int]
    finish_reason: str
    stop_reason: str | int | None
    metrics: RequestMetrics
    logprobs: list[Logprobs] | None = None


@dataclass(frozen=True)
class RequestOutput:
    """The answer to one prompt; `outputs` holds n completions."""

    request_id: str
    prompt: str | None
    prompt_token_ids: list[int]
    outputs: list[CompletionOutput]

    @property
    def metrics(self) -> RequestMetrics:
        """Times of the first completion."""
        return self.outputs[0].metrics
