"""Attention over cached keys and values: one entry for prefill, decode and any mix of them.

Grouped-query attention (arXiv 2305.13245): query head i reads KV head i // (H / K). Softmax(q k^T / sqrt(d)) v, causal,
optionally within a sliding window (arXiv 2310.06825, section 2) and with attention sinks beside it (arXiv 2309.17453).
"""

from __future__ import annotations

from dataclasses import dataclass, field

import torch
import torch.nn.functional as F
from torch import Tensor

from course_lib.batch import Batch
from course_lib.cache import KVCache
from course_lib.errors import RequestError

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
    masks: dict[tuple[int | None, int], Tensor | None] = field(default_factory=dict)  # by window and sinks

    @property
    def length(self) -> int:
        """Tokens of the longest sequence of the segment, new ones included."""
        return max(self.cached) + self.new

    def reach(self, window: int | None, sinks: int = 0) -> int:
        """Most keys that a query of the segment sees."""
        return self.length if window is None else min(self.length, window + sinks)

    def plain_causal(self, window: int | None, sinks: int = 0) -> bool:
        """True where the triangle that starts at row 0 is the right mask: nothing cached, nothing out of the window."""
        return max(self.cached) == 0 and self.reach(window, sinks) == self.length

    def mask(self, cache: KVCache, layer: int, window: int | None, sinks: int, device: torch.device) -> Tensor | None:
        """`visible` for the keys that the cache reads in this layer.

        Built once per forward pass and kind of layer: layers of one window read keys of the same positions. Raises
        RequestError where the cache has dropped keys that a query sees.
        """
        kind = window, sinks
        if kind not in self.masks:
            positions = cache.key_positions(layer, self.first_row, len(self.cached), self.length)
            self.masks[kind] = self.visible(window, sinks, positions, device)
        return self.masks[kind]

    def visible(
        self, window: int | None, sinks: int, key_positions: Tensor | None, device: torch.device
    ) -> Tensor | None:
        """Bool [S, 1, t, n], True = may attend; None where every query sees every key.

        The query at position p sees keys p - window + 1 .. p, and keys 0 .. sinks - 1 of those before it. Positions
        count from the start of the sequence, so the first new token's row starts at `cached`, not at 0.
        key_positions: [S, n] as of `KVCache.key_positions`.
        """
        n = self.length if key_positions is None else key_positions.shape[1]
        reach = self.reach(window, sinks)
        if self.new == 1 and all(min(before + 1, reach) == n for before in self.cached):
            return None
        query = torch.tensor(self.cached, device=device)[:, None, None] + torch.arange(self.new, device=device)[:, None]
        key = torch.arange(n, device=device) if key_positions is None else key_positions.to(device)[:, None]
        seen = (key >= 0) & (key <= query)
        if window is not None:
            seen &= (key > query - window) | (key < sinks)
        if key_positions is not None and not torch.equal(seen.sum(-1), (query + 1).clamp(max=reach)[..., 0]):
            raise RequestError("the cache has dropped keys that this model sees; take one of the model's `new_cache`")
        return seen[:, None]


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


def attend(
    query: Tensor, layer: int, cache: KVCache, pieces: list[Segment], window: int | None, sinks: int = 0
) -> Tensor:
    """Attention of query [T, H, d] over what the cache holds for each sequence, new tokens included. Returns [T, H, d].

    window: of the layer, None = full attention. sinks: how many first tokens of a sequence stay visible outside it.
    By `torch.nn.functional.scaled_dot_product_attention`, which keeps its softmax in float32.
    """
    outputs = [_attend_segment(query, layer, cache, piece, window, sinks) for piece in pieces]
    return outputs[0] if len(outputs) == 1 else torch.cat(outputs)


def _attend_segment(
    query: Tensor, layer: int, cache: KVCache, piece: Segment, window: int | None, sinks: int
) -> Tensor:
    sequences, t = len(piece.cached), piece.new
    keys, values = cache.read(layer, piece.first_row, sequences, piece.length)
    keys, values = keys.transpose(1, 2), values.transpose(1, 2)  # [S, K, n, d]
    kv_heads = keys.shape[1]
    q = query[piece.start : piece.start + sequences * t].view(sequences, t, *query.shape[1:])  # [S, t, H, d]
    heads, d = q.shape[2:]
    if t == 1:
        # One query a sequence: the H / K heads that share a KV head become rows of one product, and no key is copied.
        q = q.view(sequences, kv_heads, heads // kv_heads, d)
        mask = piece.mask(cache, layer, window, sinks, q.device)
        return F.scaled_dot_product_attention(q, keys, values, attn_mask=mask).reshape(sequences, heads, d)
    q = q.transpose(1, 2)  # [S, H, t, d]
    if piece.plain_causal(window, sinks):
        out = F.scaled_dot_product_attention(q, keys, values, is_causal=True, enable_gqa=True)
    else:
        mask = piece.mask(cache, layer, window, sinks, q.device)
        out = F.scaled_dot_product_attention(q, keys, values, attn_mask=mask, enable_gqa=True)
    return out.transpose(1, 2).reshape(sequences * t, heads, d)
