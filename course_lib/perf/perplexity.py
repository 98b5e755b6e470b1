"""Perplexity of a model on a text, through any KV cache: what a smaller cache costs in quality."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

from course_lib.batch import Batch
from course_lib.cache import KVCache
from course_lib.errors import RequestError
from course_lib.model import Decoder


@dataclass(frozen=True)
class Score:
    """nll: negative log-likelihood in nats of each scored token, float32 [windows, window - 1]."""

    nll: Tensor

    @property
    def tokens(self) -> int:
        return self.nll.numel()

    @property
    def perplexity(self) -> float:
        """exp of the mean over all scored tokens."""
        return math.exp(self.nll.mean())


def score(
    model: Decoder,
    tokens: Sequence[int],
    window: int = 512,
    chunk: int | None = None,
    new_cache: Callable[[int, int], KVCache] | None = None,
    together: int = 4,
) -> Score:
    """Score non-overlapping windows of the text; the first token of each is not scored, a shorter last one is dropped.

    chunk: tokens of one forward pass. A query reads every key through the cache, those of its own chunk too; a cache
    that keeps its newest tokens as they are needs chunks as short as in use, or the measurement would be of another
    thing. new_cache: called with rows and capacity, default the model's; together: windows of one batch.
    Raises RequestError where the text has no whole window.
    """
    count = len(tokens) // window
    if count == 0 or window < 2:
        raise RequestError(
            f"the text has {len(tokens)} tokens and a window {window}; it must hold a window of two or more"
        )
    texts = torch.tensor(list(tokens[: count * window])).view(count, window)
    make = new_cache or model.new_cache
    return Score(torch.cat([_score(model, rows, chunk or window, make) for rows in texts.split(together)]))


def _score(model: Decoder, texts: Tensor, chunk: int, new_cache: Callable[[int, int], KVCache]) -> Tensor:
    """nll [rows, window - 1] of texts [rows, window]."""
    rows, window = texts.shape
    cache, parts = new_cache(rows, window), []
    for start in range(0, window, chunk):
        piece = texts[:, start : start + chunk]
        batch = Batch.build(piece.tolist(), [start] * rows, range(rows))
        logits = model.run(batch, cache, logits_for=range(len(batch))).view(*piece.shape, -1)
        targets = texts[:, start + 1 : start + 1 + piece.shape[1]].to(logits.device)  # one fewer at the end
        logits = logits[:, : targets.shape[1]]
        parts.append(F.cross_entropy(logits.transpose(1, 2), targets, reduction="none").cpu())
    return torch.cat(parts, dim=1)
