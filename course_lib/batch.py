"""What one forward pass computes: a flat, ragged batch of tokens, as serving engines lay it out.

No sequence is padded. Three sequences of 5, 1 and 1 new tokens make a batch of 7 rows of hidden states; which rows
belong together is said by `query_lens`. This is the layout of vLLM's model runner and of variable-length attention
kernels (`cu_seqlens`).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor


@dataclass(frozen=True)
class Batch:
    """T new tokens of S sequences.

    On the CPU, whatever the model's device: the cache and the scheduler read it, and a step moves what it needs.
    token_ids: [T] int64. positions: [T] int64, absolute position of each token in its sequence.
    rows: the cache row of each sequence. query_lens: new tokens of each sequence (sum T).
    cached_lens: tokens each sequence already has in the cache; its new tokens start at that position.
    """

    token_ids: Tensor
    positions: Tensor
    rows: tuple[int, ...]
    query_lens: tuple[int, ...]
    cached_lens: tuple[int, ...]

    @classmethod
    def build(cls, tokens: Sequence[Sequence[int]], cached: Sequence[int], rows: Sequence[int]) -> Batch:
        """One entry per sequence in `tokens` (its new tokens), `cached` (its length so far) and `rows`."""
        flat = [token for row in tokens for token in row]
        # A token's position is the number of tokens before it, so the first new token stands at `cached`.
        positions = [start + i for row, start in zip(tokens, cached, strict=True) for i in range(len(row))]
        return cls(
            token_ids=torch.tensor(flat, dtype=torch.long),
            positions=torch.tensor(positions, dtype=torch.long),
            rows=tuple(rows),
            query_lens=tuple(len(row) for row in tokens),
            cached_lens=tuple(cached),
        )

    def __len__(self) -> int:
        """T, the number of new tokens."""
        return self.token_ids.numel()

    @property
    def spans(self) -> list[tuple[int, int]]:
        """(start, end) of each sequence's tokens in the flat batch."""
        spans, start = [], 0
        for n in self.query_lens:
            spans.append((start, start + n))
            start += n
        return spans

    @property
    def last(self) -> list[int]:
        """Index of each sequence's last token in the flat batch: the row whose logits choose the next token."""
        return [end - 1 for _, end in self.spans]
