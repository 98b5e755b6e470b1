"""Attention over cached keys and values: one entry for prefill, decode and any mix of them.

Grouped-query attention (arXiv 2305.13245): query head i reads KV head i // (H / K). Softmax(q k^T / sqrt(d)) v, causal,
optionally within a sliding window (arXiv 2310.06825, section 2).
"""

from __future__ import annotations

from dataclasses import dataclass, field

import torch
import torch.nn.functional as F
from torch import Tensor

from course_lib.batch import Batch
from course_lib.cache import KVCache

# Sequences attend in one call where the longest has at most 1.5 times the keys of the shortest and 32 more: all read as
# many keys as the longest, so a wider range would spend more on padding than a call of its own costs.
STRETCH, SLACK = 1.5, 32


@dataclass
class Segment:
    """Neighbouring sequences of a batch that attend in one call: as many new tokens, similar lengths, adjacent rows."""

    start: int  # first token in the flat batch
    new: int  # t, new tokens of each sequence
    first_row: int
    cached: list[int] = field(default_factory=list)  # tokens before the new ones, per sequence
    masks: dict[int | None, Tensor | None] = field(default_factory=dict)

    @property
    def length(self) -> int:
        """n, keys that the longest sequence of the segment attends to."""
        return max(self.cached) + self.new

    def plain_causal(self, window: int | None) -> bool:
        """True where the triangle that starts at row 0 is the right mask: nothing cached, nothing out of the window."""
        return max(self.cached) == 0 and (window is None or self.length <= window)

    def mask(self, window: int | None, device: torch.device) -> Tensor | None:
        """Bool [S, 1, t, n], True = may attend; None where every query sees every key.

        The query at position p sees keys p - window + 1 .. p. Positions count from the start of the sequence, so the
        first new token's row starts at `cached`, not at 0. Built once per forward pass and window, not once per layer.
        """
        if window not in self.masks:
            everything = self.new == 1 and min(self.cached) == max(self.cached)
            if everything and (window is None or self.length <= window):
                self.masks[window] = None
            else:
                first = torch.tensor(self.cached, device=device)[:, None, None]
                query = first + torch.arange(self.new, device=device)[None, :, None]
                key = torch.arange(self.length, device=device)[None, None, :]
                visible = key <= query
                if window is not None:
                    visible &= key > query - window
                self.masks[window] = visible[:, None]
        return self.masks[window]


def segments(batch: Batch) -> list[Segment]:
    """Cut a ragged batch into pieces that are nearly rectangular: decodes of similar length together, prompts alone.

    A batch whose rows are in order of length gives the fewest.
    """
    pieces: list[Segment] = []
    shortest = longest = 0  # cached tokens in the last piece
    for (start, _), row, new, cached in zip(batch.spans, batch.rows, batch.query_lens, batch.cached_lens, strict=True):
        last = pieces[-1] if pieces else None
        low, high = min(shortest, cached), max(longest, cached)
        adjacent = last and last.new == new and last.first_row + len(last.cached) == row
        if adjacent and high + new <= STRETCH * (low + new) + SLACK:
            last.cached.append(cached)
            shortest, longest = low, high
        else:
            pieces.append(Segment(start, new, row, [cached]))
            shortest = longest = cached
    return pieces


def attend(query: Tensor, layer: int, cache: KVCache, pieces: list[Segment], window: int | None) -> Tensor:
    """Attention of query [T, H, d] over what the cache holds for each sequence, new tokens included. Returns [T, H, d].

    By `torch.nn.functional.scaled_dot_product_attention`, which keeps its softmax in float32.
    """
    outputs = [_attend_segment(query, layer, cache, piece, window) for piece in pieces]
    return outputs[0] if len(outputs) == 1 else torch.cat(outputs)


def _attend_segment(query: Tensor, layer: int, cache: KVCache, piece: Segment, window: int | None) -> Tensor:
    sequences, t = len(piece.cached), piece.new
    keys, values = cache.read(layer, piece.first_row, sequences, piece.length)
    keys, values = keys.transpose(1, 2), values.transpose(1, 2)  # [S, K, n, d]
    kv_heads = keys.shape[1]
    q = query[piece.start : piece.start + sequences * t].view(sequences, t, *query.shape[1:])  # [S, t, H, d]
    heads, d = q.shape[2:]
    if t == 1:
        # One query a sequence: the H / K heads that share a KV head become rows of one product, and no key is copied.
        q = q.view(sequences, kv_heads, heads // kv_heads, d)
        out = F.scaled_dot_product_attention(q, keys, values, attn_mask=piece.mask(window, q.device))
        return out.reshape(sequences, heads, d)
    q = q.transpose(1, 2)  # [S, H, t, d]
    if piece.plain_causal(window):
        out = F.scaled_dot_product_attention(q, keys, values, is_causal=True, enable_gqa=True)
    else:
        mask = piece.mask(window, q.device)
        out = F.scaled_dot_product_attention(q, keys, values, attn_mask=mask, enable_gqa=True)
    return out.transpose(1, 2).reshape(sequences * t, heads, d)
