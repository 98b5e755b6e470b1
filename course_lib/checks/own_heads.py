"""Put a learner's functions of exercise 03 into the engine: two kinds of decode attention, and merged KV heads."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from unittest import mock

import torch
from torch import Tensor

from course_lib import LLM, SamplingParams
from course_lib.attention import Segment, attend
from course_lib.backend import TorchBackend
from course_lib.cache import KVCache
from course_lib.errors import CourseError
from course_lib.mla import LatentAttention
from course_lib.model import Decoder
from course_lib.training.convert_heads import with_kv_heads

GroupedAttention = Callable[[Tensor, Tensor, Tensor, Tensor], Tensor]
MergeKvHeads = Callable[[Tensor, int, int, int], Tensor]
AbsorbedAttention = Callable[[Tensor, Tensor, Tensor, Tensor, Tensor], Tensor]


def grouped_backend(grouped_attention: GroupedAttention) -> TorchBackend:
    """The torch backend whose decode steps attend by the learner's function; a prompt's tokens attend as ever.

    For models without windows.
    """

    def attention(
        query: Tensor, layer: int, cache: KVCache, pieces: list[Segment], window: int | None, sinks: int
    ) -> Tensor:
        """The engine's entry, [T, H, d]."""
        return torch.cat([
            _decode(query, layer, cache, piece)
            if piece.new == 1
            else attend(query, layer, cache, [piece], window, sinks)
            for piece in pieces
        ])  # fmt: skip

    def _decode(query: Tensor, layer: int, cache: KVCache, piece: Segment) -> Tensor:
        """Sequences of one new token each: [S, H, d]."""
        sequences = len(piece.cached)
        keys, values = (x.transpose(1, 2) for x in cache.read(layer, piece.first_row, sequences, piece.length))
        query = query[piece.start : piece.start + sequences]
        out = grouped_attention(query, keys, values, torch.tensor(piece.cached, device=query.device) + 1)
        if type(out) is not Tensor or out.shape != query.shape or out.dtype != query.dtype:
            raise CourseError(f"the attention of a layer must be {query.dtype} of shape {list(query.shape)}")
        return out

    return TorchBackend(attention)


def generate(
    llm: LLM, prompts: list[list[int]], params: SamplingParams, attention: GroupedAttention
) -> list[list[int]]:
    """The new tokens of each prompt, decoded together through the learner's attention."""
    # Another backend for the call keeps the model free of exercise code.
    with mock.patch.object(llm.model, "backend", grouped_backend(attention)):
        return [output.outputs[0].token_ids for output in llm.generate(prompts, params)]


def merged(model: Decoder, merge_kv_heads: MergeKvHeads, kv_heads: int) -> Decoder:
    """A new decoder with `kv_heads` KV heads, each fused projection converted by the learner's function.

    Raises CourseError where one has not the shape or dtype of such a decoder.
    """
    old = model.config

    def merge(qkv: Tensor) -> Tensor:
        new = merge_kv_heads(qkv, old.heads, old.kv_heads, kv_heads)
        shape = ((old.heads + 2 * kv_heads) * old.head_dim, *qkv.shape[1:])
        if type(new) is not Tensor or new.shape != shape or new.dtype != qkv.dtype:
            raise CourseError(f"a projection with {kv_heads} KV heads must be {qkv.dtype} of shape {list(shape)}")
        return new

    return with_kv_heads(model, kv_heads, merge)


def latent_logits(model: Decoder, tokens: Sequence[int], prompt: int, absorbed_attention: AbsorbedAttention) -> Tensor:
    """Logits [t, V] of the tokens behind the prompt, each fed in a decode step, of a model with latent attention.

    Decode steps attend by the learner's function; the prompt attends as ever, in the plain form.
    """

    def absorbed(attention: LatentAttention, query: Tensor, entries: Tensor, mask: Tensor | None) -> Tensor:
        """The engine's entry for one sequence: query [1, 1, H, a + p], entries [1, n, r + p]. Returns [1, 1, H, v]."""
        shape, heads = attention.shape, attention.heads
        q_nope, q_rope = query[0, 0].split((shape.qk_nope_head_dim, shape.qk_rope_head_dim), dim=1)
        up = attention.kv_up.unflatten(0, (heads, -1)).split((shape.qk_nope_head_dim, shape.v_head_dim), dim=1)
        out = absorbed_attention(q_nope, q_rope, entries[0], *up)
        if type(out) is not Tensor or out.shape != (heads, shape.v_head_dim) or out.dtype != query.dtype:
            raise CourseError(f"the attention of a layer must be {query.dtype} of shape {[heads, shape.v_head_dim]}")
        return out[None, None]

    cache = model.new_cache(capacity=len(tokens))
    model.forward(tokens[:prompt], cache)
    # autospec: the stand-in gets the layer as its first argument, as a method does.
    with mock.patch.object(LatentAttention, "absorbed", autospec=True, side_effect=absorbed):
        return torch.cat([model.forward([token], cache) for token in tokens[prompt:]])
