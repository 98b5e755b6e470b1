"""Put a learner's kernels of exercise A1 in the place of the engine's norms and of its attention in decode steps."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from course_lib.attention import Segment, attend
from course_lib.backend import TorchBackend
from course_lib.backend.torch_backend import TorchStep
from course_lib.batch import Batch
from course_lib.cache import KVCache
from course_lib.norm import RMSNorm
from course_lib.rope import Rope

TILE = 16

AddRMSNorm = Callable[[Tensor, Tensor, Tensor, float], Tensor]
OnlineAttention = Callable[[Tensor, Tensor, Tensor, Tensor, Tensor, int], Tensor]


class OwnKernels(TorchBackend):
    """Implements `Backend`: PyTorch, but for two functions of exercise A1.

    The model is on the CPU, not in bfloat16, and has no attention sinks.
    """

    name, any_order = "torch with own kernels", False

    def __init__(self, add_rms_norm: AddRMSNorm, online_attention: OnlineAttention):
        super().__init__(self._attend)
        self._add_rms_norm, self._online_attention = add_rms_norm, online_attention

    def step(self, batch: Batch, cache: KVCache, rope: Rope, device: torch.device) -> TorchStep:
        return _OwnStep(self._add_rms_norm, batch, cache, rope, device, self.attend)

    def _attend(
        self, query: Tensor, layer: int, cache: KVCache, pieces: list[Segment], window: int | None, sinks: int
    ) -> Tensor:
        """As `attention.attend`; a prompt's tokens attend as there."""
        return torch.cat([
            self._decode(query, layer, cache, piece, window)
            if piece.new == 1
            else attend(query, layer, cache, [piece], window, sinks)
            for piece in pieces
        ])  # fmt: skip

    def _decode(self, query: Tensor, layer: int, cache: KVCache, piece: Segment, window: int | None) -> Tensor:
        """Each query head of each sequence is a sequence of its own to the kernel. Returns [S, H, d]."""
        sequences = len(piece.cached)
        query = query[piece.start : piece.start + sequences]
        _, heads, d = query.shape
        rows = []
        for store in cache.read(layer, piece.first_row, sequences, piece.length):
            store = store.transpose(1, 2)  # [S, K, n, d]
            rows.append(store.repeat_interleave(heads // store.shape[1], dim=1).flatten(0, 1))
        ends = (torch.tensor(piece.cached, dtype=torch.int32) + 1).repeat_interleave(heads)
        starts = torch.zeros_like(ends) if window is None else (ends - window).clamp(min=0)
        return self._online_attention(query.reshape(-1, d), *rows, starts, ends, TILE).view_as(query)


class _OwnStep(TorchStep):
    def __init__(self, add_rms_norm: AddRMSNorm, *step):
        super().__init__(*step)
        self._add_rms_norm = add_rms_norm

    def add_rms_norm(self, x: Tensor, residual: Tensor, norm: RMSNorm) -> Tensor:
        return self._add_rms_norm(x, residual, norm.weight, norm.eps)
