"""The backend of an NVIDIA GPU: the Triton kernels of `course_kernels`. On a CPU they run in Triton's interpreter."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import torch
from torch import Tensor

from course_kernels.launch import FLOATS, INTERPRETED, check_block_size, check_head_dim
from course_kernels.triton.decode_attention import decode_attention
from course_kernels.triton.norm import LONGEST_ROW, add_rms_norm
from course_kernels.triton.prefill_attention import prefill_attention
from course_kernels.triton.rope_cache import rope_cache
from course_kernels.triton.sampling import sample
from course_kernels.triton.swiglu import swiglu
from course_lib.batch import Batch
from course_lib.cache import KVCache
from course_lib.cache.eight_bit import EightBit
from course_lib.cache.store import Float, KVFormat
from course_lib.config import ModelConfig
from course_lib.errors import ModelError, RequestError
from course_lib.norm import RMSNorm
from course_lib.rope import Rope
from course_lib.sampling import Sampler, draw_tokens


@dataclass
class TritonStep:
    """Implements `Step`. S sequences, of which the first `decodes` have one new token.

    token_ids, positions, slots: int64 [T]. block_tables: int32 [S, N]. context_lens: int32 [S], keys of each sequence,
    new ones included. cu_seqlens: int32 [S - decodes + 1], where the new tokens of each other sequence begin, counted
    from the first of them. Nothing else depends on the batch, so a CUDA graph can be captured over these tensors.
    """

    cache: KVCache
    rope: Rope
    token_ids: Tensor
    positions: Tensor
    slots: Tensor
    block_tables: Tensor
    context_lens: Tensor
    cu_seqlens: Tensor
    decodes: int

    @classmethod
    def of(cls, batch: Batch, cache: KVCache, rope: Rope, device: torch.device) -> TritonStep:
        """The step of a batch; in an order that puts decodes first, they get the kernel that is made for them."""
        slots, news = cache.slots(batch), batch.query_lens
        decodes = next((i for i, new in enumerate(news) if new > 1), len(news))
        contexts = [cached + new for cached, new in zip(batch.cached_lens, news, strict=True)]
        return cls(
            cache=cache,
            rope=rope,
            token_ids=batch.token_ids.to(device),
            positions=batch.positions.to(device),
            slots=slots.to(device),
            block_tables=cache.tables(batch).to(device),
            context_lens=torch.tensor(contexts, dtype=torch.int32).to(device),
            cu_seqlens=torch.tensor([0, *news[decodes:]], dtype=torch.int32).cumsum(0, dtype=torch.int32).to(device),
            decodes=decodes,
        )

    @cached_property
    def rotation(self) -> tuple[Tensor, Tensor]:
        """Computed with the first layer, so that a graph holds it too."""
        return self.rope.cos_sin(self.positions)

    def add_rms_norm(self, x: Tensor, residual: Tensor, norm: RMSNorm) -> Tensor:
        return add_rms_norm(x, residual, norm.weight, norm.eps)

    def swiglu(self, gate_up: Tensor) -> Tensor:
        return swiglu(gate_up)

    def attention(
        self,
        qkv: Tensor,
        heads: int,
        layer: int,
        window: int | None,
        sinks: int,
        norms: tuple[RMSNorm, RMSNorm] | None,
    ) -> Tensor:
        kv_heads = (qkv.shape[1] - heads) // 2
        q, k, v = qkv.split((heads, kv_heads, kv_heads), dim=1)
        keys, values, scales = self.cache.keys[layer], self.cache.values[layer], self.cache.store.scales(layer)
        weights = (norms[0].weight, norms[1].weight, norms[0].eps) if norms else ()
        q = rope_cache(q, k, v, *self.rotation, keys, values, self.slots, *weights, **scales)

        pages = [store.unflatten(0, (-1, self.cache.block_size)) for store in (keys, values)]
        n, tables, lengths, out = self.decodes, self.block_tables, self.context_lens, []
        if n:
            out.append(decode_attention(q[:n], *pages, tables[:n], lengths[:n], window=window, **scales))
        if n < len(lengths):
            rest = tables[n:], self.cu_seqlens, lengths[n:]
            out.append(prefill_attention(q[n:], *pages, *rest, window=window, **scales))
        return (out[0] if len(out) == 1 else torch.cat(out)).flatten(1)


class TritonBackend:
    """Implements `Backend`."""

    name, block_size, any_order = "triton", 16, False

    def check(self, config: ModelConfig, dtype: torch.dtype) -> None:
        if dtype not in FLOATS or (INTERPRETED and dtype == torch.bfloat16):
            kinds = "float32 or float16" if INTERPRETED else "float32, float16 or bfloat16"
            raise ModelError(f"the triton backend computes in {kinds} here and the model is {dtype}; use torch")
        if config.sinks:
            raise ModelError("the triton backend has no attention sinks; use torch")
        if config.hidden > LONGEST_ROW:
            raise ModelError(f"the triton backend takes a hidden size of up to {LONGEST_ROW}, not {config.hidden}")
        if config.mla:
            width = config.mla.entry
            raise ModelError(
                f"the triton backend has no kernel for latent attention, whose keys are {width} wide; use torch"
            )
        check_head_dim("the triton backend", config.head_dim)

    def check_blocks(self, block_size: int) -> None:
        check_block_size("the triton backend", block_size)

    def check_format(self, kv_format: KVFormat) -> None:
        if kv_format.before_rope:
            raise RequestError("the triton backend reads keys that are stored after RoPE; use the torch backend")
        if not isinstance(kv_format, Float | EightBit):
            raise RequestError(
                f"the triton backend reads a KV cache in auto, int8 or fp8, not {kv_format.name}; use the torch backend"
            )

    def step(self, batch: Batch, cache: KVCache, rope: Rope, device: torch.device) -> TritonStep:
        return TritonStep.of(batch, cache, rope, device)

    def draw(self, samplers: Sequence[Sampler], seen: Sequence[Sequence[int]], logits: Tensor) -> list[int]:
        """Requests that ask for no more than temperature and top-p are drawn by one kernel."""
        rows = [i for i, sampler in enumerate(samplers) if sampler.nucleus]
        if not rows:
            return draw_tokens(samplers, seen, logits)
        noise = torch.stack([samplers[i].noise(logits[i]) for i in rows])
        settings = torch.tensor([(samplers[i].params.temperature, samplers[i].params.top_p) for i in rows])
        drawn = sample(logits[rows], *settings.T.contiguous().to(logits.device), noise).tolist()
        rest = [i for i, sampler in enumerate(samplers) if not sampler.nucleus]
        others = draw_tokens([samplers[i] for i in rest], [seen[i] for i in rest], logits[rest])
        tokens = dict(zip((*rows, *rest), (*drawn, *others), strict=True))
        return [tokens[i] for i in range(len(samplers))]
