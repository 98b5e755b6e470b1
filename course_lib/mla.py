"""Multi-head latent attention (MLA; DeepSeek-V2, arXiv 2405.04434, section 2.1). Letters and costs: `mla_shape`.

The cache is reached as by any attention: a token's entry of r + p elements is one key, and its first r elements are
the value.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from course_lib.attention import Segment
from course_lib.cache import KVCache
from course_lib.config import ModelConfig
from course_lib.mla_shape import Form
from course_lib.norm import RMSNorm

if TYPE_CHECKING:  # a backend calls this module
    from course_lib.backend import Step

LATENT_EPS = 1e-6  # of the latents' norms, in DeepSeek's code as in transformers whatever the config's rms_norm_eps


class LatentAttention(nn.Module):
    """Self-attention through one latent per token. Queries go through a latent too where the config has q_lora_rank.

    A query is [nope, rope]: its first a elements meet a key made of the latent, its last p, rotated, the key that all
    heads share. RoPE is half-split inside; DeepSeek's checkpoints have it interleaved, which their loader undoes.
    form: "plain" or "absorbed" for everything, for lessons and tests; None: for each segment of a batch the one that
    costs fewer FLOPs, which is plain for a prompt and absorbed for a decode step.
    """

    def __init__(self, config: ModelConfig, layer: int):
        super().__init__()
        self.layer, self.heads, self.shape = layer, config.heads, config.mla
        self.form: Form | None = None
        # (a + p)^-0.5 in both forms: what the absorbed one multiplies, r + p elements wide, gives the same scores.
        self.scale = config.mla.qk_head_dim**-0.5
        shape, queries = config.mla, config.heads * config.mla.qk_head_dim
        # One product for all that reads x: the query or its latent, the latent, the rope key.
        self.down_widths = (shape.q_lora_rank or queries, shape.kv_lora_rank, shape.qk_rope_head_dim)
        self.down = nn.Linear(config.hidden, sum(self.down_widths), bias=False)
        if shape.q_lora_rank:
            self.q_norm = RMSNorm(shape.q_lora_rank, LATENT_EPS)
            self.q_up = nn.Linear(shape.q_lora_rank, queries, bias=False)
        self.kv_norm = RMSNorm(shape.kv_lora_rank, LATENT_EPS)
        # [H * (a + v), r], each head's W_UK above its W_UV. No nn.Linear, as the absorbed form takes the two apart.
        self.kv_up = nn.Parameter(torch.empty(config.heads * (shape.qk_nope_head_dim + shape.v_head_dim), self.rank))
        self.out = nn.Linear(config.heads * shape.v_head_dim, config.hidden, bias=False)

    @property
    def rank(self) -> int:
        """r."""
        return self.shape.kv_lora_rank

    def forward(self, x: Tensor, step: Step) -> Tensor:
        query, latent, rope_key = self.down(x).split(self.down_widths, dim=-1)
        if self.shape.q_lora_rank:
            query = self.q_up(self.q_norm(query))
        # The latent is normalised before it is stored: what the cache holds is what W_UK and W_UV are applied to.
        entry = torch.cat((self.kv_norm(latent), rope_key), dim=-1)
        return self.out(step.latent_attention(query.unflatten(-1, (self.heads, -1)), entry, self))

    def attend(self, query: Tensor, cache: KVCache, pieces: list[Segment]) -> Tensor:
        """Attention of query [T, H, a + p], rotated, over what the cache holds for each sequence, new tokens included.

        Returns [T, H * v].
        """
        outputs = []
        for piece in pieces:
            sequences, t = len(piece.cached), piece.new
            entries = cache.read(self.layer, piece.first_row, sequences, piece.length)[0].squeeze(2)  # [S, n, r + p]
            q = query[piece.start : piece.start + sequences * t].unflatten(0, (sequences, t))
            mask = piece.mask(cache, self.layer, None, 0, query.device)
            form = self.form or self.shape.cheaper(t, max(piece.cached))
            attended = self.plain(q, entries, mask) if form == "plain" else self.absorbed(q, entries, mask)
            outputs.append(attended.flatten(2).flatten(0, 1))
        return outputs[0] if len(outputs) == 1 else torch.cat(outputs)

    def plain(self, query: Tensor, entries: Tensor, mask: Tensor | None) -> Tensor:
        """Multi-head attention over keys and values that are made of the entries for each head.

        query [S, t, H, a + p], entries [S, n, r + p], mask as of `Segment.mask`; returns [S, t, H, v].
        """
        made = F.linear(entries[..., : self.rank], self.kv_up).unflatten(-1, (self.heads, -1))
        nope, value = made.split((self.shape.qk_nope_head_dim, self.shape.v_head_dim), dim=-1)
        shared = entries[..., None, self.rank :].expand(-1, -1, self.heads, -1)
        q, k, v = (x.transpose(1, 2) for x in (query, torch.cat((nope, shared), dim=-1), value))  # [S, H, ...]
        return F.scaled_dot_product_attention(q, k, v, attn_mask=mask, scale=self.scale).transpose(1, 2)

    def absorbed(self, query: Tensor, entries: Tensor, mask: Tensor | None) -> Tensor:
        """Multi-query attention over the entries themselves: W_UK^T on the query, W_UV on the output.

        Arguments and result as of `plain`.
        """
        t, widths = query.shape[1], (self.shape.qk_nope_head_dim, self.shape.v_head_dim)
        w_uk, w_uv = self.kv_up.unflatten(0, (self.heads, -1)).split(widths, dim=1)  # [H, a, r], [H, v, r]
        nope, rope = query.split((self.shape.qk_nope_head_dim, self.shape.qk_rope_head_dim), dim=-1)
        query = torch.cat((torch.einsum("sthd,hdr->sthr", nope, w_uk), rope), dim=-1)  # [S, t, H, r + p]
        # All queries of all heads become rows of one product, and no key is copied.
        rows, keys = query.flatten(1, 2)[:, None], entries[:, None]
        mask = None if mask is None else mask.repeat_interleave(self.heads, dim=2)
        out = F.scaled_dot_product_attention(rows, keys, keys[..., : self.rank], attn_mask=mask, scale=self.scale)
        return torch.einsum("sthr,hdr->sthd", out[:, 0].unflatten(1, (t, -1)), w_uv)
