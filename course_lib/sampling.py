"""From logits to a token: greedy, temperature, top-k, top-p, min-p, repetition penalty, one seed per request."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from course_lib.errors import RequestError

GREEDY_BELOW = 1e-5  # a temperature under this is greedy decoding
MAX_LOGPROBS = 20  # OpenAI's limit, and vLLM's default one


@dataclass(frozen=True)
class SamplingParams:
    """How to continue one prompt. Names, meanings and defaults are vLLM's, so that code moves over unchanged.

    n: completions per prompt. temperature: 0 = greedy. top_k: 0 = all tokens. top_p: smallest set of most probable
    tokens that holds this mass. min_p: drop tokens under this share of the largest probability. repetition_penalty:
    above 1 discourages tokens of the prompt and the output (arXiv 1909.05858). seed: makes the request's draws
    repeatable, whatever else is in the batch; completion i of n uses seed + i. max_tokens: most new tokens.
    stop: strings that end the completion, not included in it. stop_token_ids: token ids that end it.
    ignore_eos: go on after the model's end token. logprobs: return the log-probability of each token, and of this many
    most probable ones, in the model's own distribution: before penalty, temperature and filters. None = do not.
    Raises RequestError where a value is out of range.
    """

    n: int = 1
    temperature: float = 1.0
    top_p: float = 1.0
    top_k: int = 0
    min_p: float = 0.0
    repetition_penalty: float = 1.0
    seed: int | None = None
    max_tokens: int = 16
    stop: str | Sequence[str] = ()
    stop_token_ids: Collection[int] = ()
    ignore_eos: bool = False
    logprobs: int | None = None

    def __post_init__(self):
        rules = [
            ("n", self.n >= 1, "at least 1"),
            ("temperature", self.temperature >= 0, "0 (greedy) or more"),
            ("top_p", 0 < self.top_p <= 1, "above 0 and at most 1"),
            ("top_k", self.top_k >= -1, "0 or -1 (all tokens) or a positive number"),
            ("min_p", 0 <= self.min_p <= 1, "between 0 and 1"),
            ("repetition_penalty", self.repetition_penalty > 0, "above 0 (1 = none)"),
            ("seed", self.seed is None or -(2**63) <= self.seed < 2**63, "a signed 64-bit number"),
            ("max_tokens", self.max_tokens >= 1, "at least 1"),
            ("logprobs", self.logprobs is None or 0 <= self.logprobs <= MAX_LOGPROBS, f"0 to {MAX_LOGPROBS}"),
        ]
        for name, ok, allowed in rules:
            if not ok:
                raise RequestError(f"{name} is {getattr(self, name)}; it must be {allowed}")
        object.__setattr__(self, "stop", (self.stop,) if isinstance(self.stop, str) else tuple(self.stop))
        object.__setattr__(self, "stop_token_ids", frozenset(self.stop_token_ids))  # asked for at each token
        if "" in self.stop:
            raise RequestError("a stop string is empty; leave it out or give at least one character")

    @property
    def greedy(self) -> bool:
        return self.temperature < GREEDY_BELOW


def penalise_repetition(logits: Tensor, seen: Tensor, penalty: float) -> Tensor:
    """Divide positive and multiply negative logits of the seen tokens by the penalty. logits [V], seen [any] ids."""
    values = logits[seen]
    return logits.index_copy(0, seen, torch.where(values > 0, values / penalty, values * penalty))


def keep_top_k(logits: Tensor, k: int) -> Tensor:
    """Set all but the k largest logits of the last axis to -inf; ties with the k-th are kept."""
    if k <= 0 or k >= logits.shape[-1]:
        return logits
    kth = logits.topk(k, dim=-1).values[..., -1:]
    return logits.masked_fill(logits < kth, -torch.inf)


def keep_top_p(logits: Tensor, p: float) -> Tensor:
    """Nucleus sampling (arXiv 1904.09751): keep the fewest most probable tokens whose mass reaches p.

    A token stays when the mass before it is under p, so the most probable one always stays.
    """
    if p >= 1:
        return logits
    ordered, order = logits.sort(dim=-1, descending=True)
    probabilities = ordered.softmax(dim=-1)
    before = probabilities.cumsum(dim=-1) - probabilities
    before[..., 0] = 0
    drop = torch.zeros_like(logits, dtype=torch.bool).scatter(-1, order, before >= p)
    return logits.masked_fill(drop, -torch.inf)


def keep_min_p(logits: Tensor, min_p: float) -> Tensor:
    """Keep tokens with at least min_p times the largest probability (arXiv 2407.01082)."""
    if min_p <= 0:
        return logits
    floor = logits.max(dim=-1, keepdim=True).values + torch.log(torch.tensor(min_p, device=logits.device))
    return logits.masked_fill(logits < floor, -torch.inf)


def probabilities(logits: Tensor, params: SamplingParams, seen: Sequence[int] = ()) -> Tensor:
    """The distribution a token is drawn from: float32 [V], from logits [V].

    Order as in vLLM: repetition penalty, temperature, min-p, top-k, top-p. A greedy request puts all mass on one token.
    """
    logits = _penalised(logits, params, seen)
    if params.greedy:
        return torch.zeros_like(logits).index_fill(0, logits.argmax(), 1.0)
    logits = keep_min_p(logits / params.temperature, params.min_p)
    return keep_top_p(keep_top_k(logits, params.top_k), params.top_p).softmax(dim=-1)


def _penalised(logits: Tensor, params: SamplingParams, seen: Sequence[int]) -> Tensor:
    if params.repetition_penalty == 1 or not seen:
        return logits
    unique = torch.tensor(sorted(set(seen)), dtype=torch.long, device=logits.device)
    return penalise_repetition(logits, unique, params.repetition_penalty)


def top_logprobs(logits: Tensor, token: int, k: int) -> list[tuple[int, float, int]]:
    """(token id, log-probability, rank from 1) of the drawn `token`, which comes first, and of the k most probable.

    logits: float32 [V]. Between equals the k are arbitrary; a `token` outside of them has the last rank of its equals.
    """
    logprobs = logits.log_softmax(dim=-1)
    values, ids = logprobs.topk(min(k, len(logprobs)))
    best = {i: (i, value, rank) for i, value, rank in zip(ids.tolist(), values.tolist(), range(1, k + 1), strict=False)}
    drawn = best.pop(token, None)
    if drawn is None:
        drawn = token, float(logprobs[token]), int((logprobs >= logprobs[token]).sum())
    return [drawn, *best.values()]


class Sampler:
    """Draws the tokens of one completion with a random stream of its own, so batch mates cannot change them."""

    def __init__(self, params: SamplingParams, seed: int, device: torch.device | str = "cpu"):
        self.params = params
        self._generator = torch.Generator(device).manual_seed(seed)

    @property
    def greedy(self) -> bool:
        """The most probable token is drawn, without a look at earlier ones."""
        return self.params.greedy and self.params.repetition_penalty == 1

    @property
    def nucleus(self) -> bool:
        """Temperature and top-p are all that shapes the distribution."""
        params = self.params
        return not params.greedy and params.top_k <= 0 and params.min_p <= 0 and params.repetition_penalty == 1

    def draw(self, logits: Tensor, seen: Sequence[int]) -> int:
        """The next token id. logits: float32 [V]; seen: ids of prompt and output so far."""
        if self.params.greedy:
            return int(_penalised(logits, self.params, seen).argmax())
        # Exponential race: argmax of p / e, e ~ Exp(1), is distributed as p; no sum that rounding could leave under 1.
        return int((probabilities(logits, self.params, seen) / self.noise(logits)).argmax())

    def noise(self, logits: Tensor) -> Tensor:
        """The e of the next draw, float32 of logits' shape [V]: the request's random stream moves on by as many."""
        return torch.empty_like(logits).exponential_(generator=self._generator).clamp_min_(1e-30)


def draw_tokens(samplers: Sequence[Sampler], seen: Sequence[Sequence[int]], logits: Tensor) -> list[int]:
    """The next token of each sequence. seen: its tokens so far; logits: float32 [S, V].

    Greedy ones are drawn together: on a GPU, each alone would be a launch and a wait.
    """
    greedy = [i for i, sampler in enumerate(samplers) if sampler.greedy]
    best = dict(zip(greedy, logits[greedy].argmax(-1).tolist(), strict=True)) if greedy else {}
    return [best[i] if i in best else samplers[i].draw(logits[i], seen[i]) for i in range(len(samplers))]
