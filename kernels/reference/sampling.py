"""One token per row: temperature, top-p (arXiv 1904.09751) and an exponential race."""

from __future__ import annotations

import torch
from torch import Tensor

from course_kernels.reference import widen

GREEDY_BELOW = 1e-5  # a temperature under this is greedy decoding, as in course_lib.sampling


def sample(logits: Tensor, temperatures: Tensor, top_ps: Tensor, noise: Tensor) -> Tensor:
    """Token ids, int64 [S].

    logits [S, V]; temperatures [S], 0 for greedy; top_ps [S], above 0; noise [S, V] from Exp(1), above 0. With
    p = softmax(logits / temperature), a token is kept when the tokens before it, by descending p, have a mass below
    top_p; so are those as probable as the last one kept. Drawn is argmax p / noise of the kept, distributed as p.
    """
    wide, greedy = widen(logits), temperatures < GREEDY_BELOW
    p = (wide / temperatures.masked_fill(greedy, 1)[:, None]).softmax(-1)
    ordered = p.sort(descending=True).values
    before = ordered.cumsum(-1) - ordered
    before[:, 0] = 0
    last = ordered.masked_fill(before >= top_ps[:, None], torch.inf).amin(-1, keepdim=True)
    drawn = (p / noise).masked_fill(p < last, -1).argmax(-1)
    return torch.where(greedy, wide.argmax(-1), drawn)
