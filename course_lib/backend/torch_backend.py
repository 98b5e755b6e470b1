"""The backend that runs everywhere: PyTorch's own operations."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
import torch.nn.functional as F
from torch import Tensor

from course_lib.attention import Segment, attend, segments
from course_lib.backend.rotated import RotatedOnRead
from course_lib.batch import Batch
from course_lib.cache import KVCache
from course_lib.cache.store import KVFormat
from course_lib.config import ModelConfig
from course_lib.mla import LatentAttention
from course_lib.norm import RMSNorm
from course_lib.rope import Rope
from course_lib.sampling import Sampler, draw_tokens

Attend = Callable[[Tensor, int, KVCache, list[Segment], int | None, int], Tensor]  # as `attention.attend`


class TorchStep:
    """Implements `Step`. rotation: what `Rope.rotate` takes; pieces: the sequences that attend together."""

    def __init__(self, batch: Batch, cache: KVCache, rope: Rope, device: torch.device, attend: Attend):
        self.cache, self.attend = cache, attend
        self.slots = cache.slots(batch).to(device)
        self.token_ids = batch.token_ids.to(device)
        self.rotation = rope.tables(batch.positions.to(device))
        self.pieces = segments(batch)
        self.before_rope = cache.format.before_rope
        self.source = RotatedOnRead(cache, rope) if self.before_rope else cache

    def add_rms_norm(self, x: Tensor, residual: Tensor, norm: RMSNorm) -> Tensor:
        return norm(residual.add_(x))

    def swiglu(self, gate_up: Tensor) -> Tensor:
        gate, up = gate_up.chunk(2, dim=-1)
        return F.silu(gate).mul_(up)

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
        qk, v = qkv.split((heads + kv_heads, kv_heads), dim=1)
        if norms:
            parts = qk.split((heads, kv_heads), dim=1)
            qk = torch.cat([norm(part) for norm, part in zip(norms, parts, strict=True)], dim=1)
        # A key that is rotated before it is stored never needs its position again; others are rotated in each read.
        rotated = Rope.rotate(qk, self.rotation)
        q, k = rotated[:, :heads], (qk if self.before_rope else rotated)[:, heads:]
        self.cache.write(layer, k, v, self.slots)
        return self.attend(q, layer, self.source, self.pieces, window, sinks).flatten(1)

    def latent_attention(self, query: Tensor, entry: Tensor, module: LatentAttention) -> Tensor:
        query, entry = (self._rotate_last(x, module.shape.qk_rope_head_dim) for x in (query, entry[:, None]))
        self.cache.write(module.layer, entry, entry[..., : module.rank], self.slots)
        return module.attend(query, self.cache, self.pieces)

    def _rotate_last(self, x: Tensor, elements: int) -> Tensor:
        fixed, turned = x.tensor_split((x.shape[-1] - elements,), dim=-1)
        return torch.cat((fixed, Rope.rotate(turned, self.rotation)), dim=-1)


class TorchBackend:
    """Implements `Backend`. It runs every model on every device, with caches of any block size.

    attend: the attention entry, for lessons and tests that put another in its place.
    """

    name, block_size, any_order = "torch", 1, True

    def __init__(self, attend: Attend = attend):
        self.attend = attend

    def check(self, config: ModelConfig, dtype: torch.dtype) -> None: ...

    def check_blocks(self, block_size: int) -> None: ...

    def check_format(self, kv_format: KVFormat) -> None: ...

    def step(self, batch: Batch, cache: KVCache, rope: Rope, device: torch.device) -> TorchStep:
        return TorchStep(batch, cache, rope, device, self.attend)

    def draw(self, samplers: Sequence[Sampler], seen: Sequence[Sequence[int]], logits: Tensor) -> list[int]:
        return draw_tokens(samplers, seen, logits)
