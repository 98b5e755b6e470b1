"""Random arguments for every operation, by the names that its reference, Triton and CUDA forms share."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from course_kernels.bench.paged import build
from course_kernels.bench.sizes import Sizes
from course_kernels.reference.quantize import quantize_per_token

EPS = 1e-6
BLOCK_SIZE = 16
Arguments = dict[str, Any]


class Draw:
    """Arguments in one dtype on one device, a fresh set at each call; drawn again from the same seed they are equal."""

    def __init__(self, sizes: Sizes, dtype: torch.dtype, device: str, seed: int):
        self.layer, self.group, self.dtype, self.device = sizes.layer, sizes.group, dtype, device
        self._generator = torch.Generator(device).manual_seed(seed)

    def normal(self, *shape: int, dtype: torch.dtype | None = None) -> Tensor:
        return torch.randn(*shape, generator=self._generator, device=self.device).to(dtype or self.dtype)

    def uniform(self, *shape: int) -> Tensor:
        return torch.rand(*shape, generator=self._generator, device=self.device)

    def integers(self, low: int, high: int, *shape: int, dtype: torch.dtype = torch.int64) -> Tensor:
        """low .. high - 1."""
        return torch.randint(low, high, shape, generator=self._generator, device=self.device, dtype=dtype)

    def rms_norm(self, rows: int, h: int) -> Arguments:
        return {"x": self.normal(rows, h), "weight": self.normal(h), "eps": EPS}

    def add_rms_norm(self, rows: int, h: int) -> Arguments:
        return self.rms_norm(rows, h) | {"residual": self.normal(rows, h)}

    def swiglu(self, rows: int) -> Arguments:
        return {"gate_up": self.normal(rows, 2 * self.layer.ffn)}

    def rope_cache(
        self, tokens: int, normed: bool = False, padding: bool = False, cache: torch.dtype | None = None
    ) -> Arguments:
        """q, k and v are slices of one projection; the store has more than twice as many slots as tokens.

        padding: the second token is one, all NaN, whose slot is -1. Nothing else is NaN but what the store holds.
        """
        heads, kv_heads, d = self.layer.heads, self.layer.kv_heads, self.layer.head_dim
        blocks = 2 * tokens // BLOCK_SIZE + 1
        qkv = self.normal(tokens, heads + 2 * kv_heads, d)
        slots = torch.randperm(blocks * BLOCK_SIZE, generator=self._generator, device=self.device)[:tokens]
        if padding:
            qkv[1], slots[1] = torch.nan, -1
        angles = 1e5 * self.uniform(tokens, d // 2)
        q, k, v = qkv.split((heads, kv_heads, kv_heads), dim=1)
        arguments = {"q": q, "k": k, "v": v, "cos": angles.cos(), "sin": angles.sin(), "slots": slots}
        for side in ("key", "value"):
            arguments[f"{side}s"] = self._poison(blocks * BLOCK_SIZE, kv_heads, d, dtype=cache or self.dtype)
            if cache:
                arguments[f"{side}_scales"] = self._poison(blocks, kv_heads, BLOCK_SIZE, dtype=torch.float32)
        if normed:
            arguments |= {"q_weight": self.normal(d), "k_weight": self.normal(d), "eps": EPS}
        return arguments

    def _poison(self, *shape: int, dtype: torch.dtype) -> Tensor:
        return torch.full(shape, 99 if dtype == torch.int8 else torch.nan, dtype=dtype, device=self.device)

    def quantize_per_token(self, rows: int, depth: int, kind: torch.dtype) -> Arguments:
        return {"x": self.normal(rows, depth), "dtype": kind}

    def decode_attention(
        self, contexts: Sequence[int], cache: torch.dtype | None = None, window: int | None = None
    ) -> Arguments:
        arguments = self.prefill_attention([1] * len(contexts), contexts, cache, window)
        del arguments["cu_seqlens"]
        return arguments

    def prefill_attention(
        self,
        new: Sequence[int],
        contexts: Sequence[int],
        cache: torch.dtype | None = None,
        window: int | None = None,
    ) -> Arguments:
        seed = int(self.integers(0, 2**31, 1))
        paged = build(
            new, contexts, heads=self.layer.heads, kv_heads=self.layer.kv_heads, d=self.layer.head_dim,
            block_size=BLOCK_SIZE, dtype=self.dtype, cache=cache, window=window, seed=seed, device=self.device,
        )  # fmt: skip
        arguments = vars(paged) | paged.scales | {"window": window}
        del arguments["scales"]
        return arguments

    def int4_matmul(self, rows: int, depth: int, columns: int) -> Arguments:
        """Any word is a valid weight. Scales keep the output about as large as x."""
        groups = depth // self.group
        scales = (0.5 + self.uniform(groups, columns)) / (6 * depth**0.5)
        return {
            "x": self.normal(rows, depth),
            "qweight": self.integers(-(2**31), 2**31, depth // 8, columns, dtype=torch.int32),
            "scales": scales.to(self.dtype),
            "qzeros": self.integers(-(2**31), 2**31, groups, columns // 8, dtype=torch.int32),
        }

    def scaled_matmul(self, rows: int, depth: int, columns: int, kind: torch.dtype) -> Arguments:
        x, x_scales = quantize_per_token(self.normal(rows, depth), kind)
        weight, weight_scales = quantize_per_token(self.normal(columns, depth) / depth**0.5, kind)
        return {
            "x": x, "weight": weight, "x_scales": x_scales, "weight_scales": weight_scales, "dtype": self.dtype,
        }  # fmt: skip

    def sample(self, rows: int) -> Arguments:
        """Logits are float32, as the engine's are; every fourth row is greedy."""
        vocab = self.layer.vocab
        temperatures = 0.5 + self.uniform(rows)
        temperatures[::4] = 0
        noise = torch.empty(rows, vocab, device=self.device).exponential_(generator=self._generator)
        return {
            "logits": 3 * self.normal(rows, vocab, dtype=torch.float32),
            "temperatures": temperatures,
            "top_ps": 0.5 + self.uniform(rows) / 2,
            "noise": noise.clamp_(min=1e-30),
        }
