"""The protocol between the decoder and a backend."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

import torch
from torch import Tensor

from course_lib.batch import Batch
from course_lib.cache import KVCache
from course_lib.cache.store import KVFormat
from course_lib.config import ModelConfig
from course_lib.mla import LatentAttention
from course_lib.norm import RMSNorm
from course_lib.rope import Rope
from course_lib.sampling import Sampler


class Step(Protocol):
    """One forward pass: the inputs on the model's device, made once for all layers, and the operations on them.

    Letters: T new tokens of the batch, h hidden, H query heads, K KV heads, d head_dim, f FFN size.
    """

    token_ids: Tensor
    """[T] int64."""

    def add_rms_norm(self, x: Tensor, residual: Tensor, norm: RMSNorm) -> Tensor:
        """residual += x in place; returns the norm of the sum. All [T, h]."""
        ...

    def swiglu(self, gate_up: Tensor) -> Tensor:
        """silu(gate) * up (arXiv 2002.05202). gate_up [T, 2f], one beside the other; returns [T, f]."""
        ...

    def attention(
        self,
        qkv: Tensor,
        heads: int,
        layer: int,
        window: int | None,
        sinks: int,
        norms: tuple[RMSNorm, RMSNorm] | None,
    ) -> Tensor:
        """Rotate, store the keys and values in the cache, attend. qkv [T, H + 2K, d]; returns [T, H * d].

        window, sinks: of the layer, as in `attention.attend`. norms: of each head of q and of k, before the rotation
        (Qwen3). May overwrite qkv.
        """
        ...

    def latent_attention(self, query: Tensor, entry: Tensor, module: LatentAttention) -> Tensor:
        """Rotate the last p elements of query [T, H, a + p] and entry [T, r + p], store the entry, attend.

        Where `check` accepts latent attention. module: its `attend` is called. Returns [T, H * v].
        """
        ...


class Backend(Protocol):
    """Where operations run."""

    name: str
    """ "torch" or "triton", shown beside every result."""
    block_size: int
    """The rows of a contiguous cache begin at multiples of it."""
    any_order: bool
    """It reads keys in whatever order a cache holds them, by `KVCache.key_positions`; a ring cache needs that."""

    def check(self, config: ModelConfig, dtype: torch.dtype) -> None:
        """Raise ModelError where the backend cannot run such a model."""
        ...

    def check_blocks(self, block_size: int) -> None:
        """Raise CourseError where the backend cannot read a paged cache with such blocks."""
        ...

    def check_format(self, kv_format: KVFormat) -> None:
        """Raise RequestError where the backend cannot read a cache of that format."""
        ...

    def step(self, batch: Batch, cache: KVCache, rope: Rope, device: torch.device) -> Step:
        """Begin a forward pass. Raises RequestError where a row of the cache would overflow."""
        ...

    def draw(self, samplers: Sequence[Sampler], seen: Sequence[Sequence[int]], logits: Tensor) -> list[int]:
        """The next token of each sequence. seen: its tokens so far; logits: float32 [S, V]."""
        ...
