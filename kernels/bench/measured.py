"""What is measured: one `Measured` per operation and shape. A new kernel is one more entry."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

import torch

from course_kernels.bench import peers
from course_kernels.bench.cases import CACHES, INT8, KINDS
from course_kernels.bench.inputs import Arguments, Draw
from course_kernels.bench.sizes import Sizes


@dataclass(frozen=True)
class Work:
    """What the operation must move and do, by the formulas of the kernel's docstring."""

    bytes: float
    flops: float
    counted: str
    """The formulas."""


@dataclass(frozen=True)
class Peer:
    """The same by PyTorch: a function of `peers`."""

    name: str
    prepare: Callable[..., peers.Call]


@dataclass(frozen=True)
class Target:
    """What a kernel is meant to reach on an H200: a share of its ceiling, a speed relative to PyTorch's."""

    share: float | None = None
    speed: float | None = None


@dataclass(frozen=True)
class Measured:
    """An operation at one shape. operation and form: as in `cases.Case`."""

    operation: str
    shape: str
    arguments: Callable[[Draw], Arguments]
    work: Work
    peer: Peer | None = None
    target: Target = field(default_factory=Target)
    variant: str = ""
    form: str = "triton"

    @property
    def name(self) -> str:
        return f"{self.operation.split('.')[1]}{self.variant}, {self.shape}"


def measured(s: Sizes) -> list[Measured]:
    """b: bytes of an element; the other letters as in `Sizes` and in the kernels' docstrings."""
    return [
        *(_rms_norm(s, width) for width in (s.layer.hidden, 2 * s.layer.hidden)),
        *_rows(s),
        *(_rope(s, variant, cache) for variant, cache in CACHES.items()),
        *(_quantize(s, variant, kind) for variant, kind in KINDS.items()),
        *(
            _decode(s, batch, keys, variant, cache)
            for batch, keys in ((s.batch, s.context), (1, s.long_context))
            for variant, cache in CACHES.items()
        ),
        *(_prefill(s, tokens) for tokens in s.prompts),
        *(_int4(s, 1, columns, form) for form in ("triton", "cuda") for columns in (s.layer.hidden, s.layer.ffn)),
        *(_int4(s, rows, s.layer.ffn, "triton") for rows in (s.batch, s.gemm_rows)),
        *(_scaled(s, rows, variant, kind) for rows in (s.batch, s.gemm_rows) for variant, kind in KINDS.items()),
    ]


def _rms_norm(s: Sizes, h: int) -> Measured:
    T, b = s.rows, s.dtypes[0].itemsize
    return Measured(
        "norm.rms_norm",
        f"{T} x {h}",
        lambda draw: draw.rms_norm(T, h),
        Work(2 * T * h * b, 4 * T * h, "2 T h b bytes, 4 T h FLOPs"),
        Peer("F.rms_norm", peers.rms_norm),
        Target(share=0.85),
    )


def _rows(s: Sizes) -> list[Measured]:
    """The other operations on rows."""
    c, T, b = s.layer, s.rows, s.dtypes[0].itemsize
    h, f, S, V = c.hidden, c.ffn, s.batch, c.vocab
    return [
        Measured(
            "norm.add_rms_norm",
            f"{T} x {h}",
            lambda draw: draw.add_rms_norm(T, h),
            Work(4 * T * h * b, 5 * T * h, "4 T h b bytes, 5 T h FLOPs"),
            Peer("add_, F.rms_norm", peers.add_rms_norm),
        ),
        Measured(
            "swiglu.swiglu",
            f"{T} x {f}",
            lambda draw: draw.swiglu(T),
            Work(3 * T * f * b, 5 * T * f, "3 T f b bytes, 5 T f FLOPs"),
            Peer("silu, *", peers.swiglu),
        ),
        Measured(
            "sampling.sample",
            f"{S} x {V}",
            lambda draw: draw.sample(S),
            Work(S * V * (4 + 4), 33 * 5 * S * V, "S V (b + 4) bytes of float32 logits, 33 passes of 5 S V FLOPs"),
            Peer("sort, cumsum, argmax", peers.sample),
        ),
    ]


def _rope(s: Sizes, variant: str, cache: torch.dtype | None) -> Measured:
    T, H, K, d, b = s.rows, s.layer.heads, s.layer.kv_heads, s.layer.head_dim, s.dtypes[0].itemsize
    moved, flops = 2 * T * (H + 2 * K) * d * b, 3 * T * (H + K) * d
    counted = "2 T (H + 2 K) d b bytes, 3 T (H + K) d FLOPs"
    if cache:
        moved, flops = moved - 2 * T * K * (d * (b - 1) - 4), flops + 6 * T * K * d
        counted = "2 T (H + 2 K) d b - 2 T K (d (b - 1) - 4) bytes, 3 T (H + K) d + 6 T K d FLOPs"
    return Measured(
        "rope_cache.rope_cache",
        f"{T} tokens, {H}/{K} heads of {d}",
        lambda draw: draw.rope_cache(T, cache=cache),
        Work(moved, flops, counted),
        variant=variant,
    )


def _quantize(s: Sizes, variant: str, kind: torch.dtype) -> Measured:
    T, K, b = s.rows, s.layer.hidden, s.dtypes[0].itemsize
    return Measured(
        "quantize.quantize_per_token",
        f"{T} x {K}",
        lambda draw: draw.quantize_per_token(T, K, kind),
        Work(T * K * (b + 1) + 4 * T, 3 * T * K, "T K (b + 1) + 4 T bytes, 3 T K FLOPs"),
        Peer("abs, amax, /, round", peers.quantize_per_token),
        variant=variant,
    )


def _decode(s: Sizes, S: int, n: int, variant: str, cache: torch.dtype | None) -> Measured:
    H, K, d, b = s.layer.heads, s.layer.kv_heads, s.layer.head_dim, s.dtypes[0].itemsize
    keys, scales = (2 * n * K * d * cache.itemsize, 8 * n * K) if cache else (2 * n * K * d * b, 0)
    counted = "S (2 n K d + 8 n K + 2 H d b)" if cache else "S (2 n K d b + 2 H d b)"
    return Measured(
        "decode_attention.decode_attention",
        f"batch {S} x {n} keys, {H}/{K} heads of {d}",
        lambda draw: draw.decode_attention([n] * S, cache),
        Work(S * (keys + scales + 2 * H * d * b), 4 * S * n * H * d, f"{counted} bytes, 4 S n H d FLOPs"),
        None if cache else Peer("SDPA, keys gathered before", peers.decode_attention),
        Target(share=0.8) if S == s.batch and not cache else Target(),
        variant,
    )


def _prefill(s: Sizes, n: int) -> Measured:
    H, K, d, b = s.layer.heads, s.layer.kv_heads, s.layer.head_dim, s.dtypes[0].itemsize
    return Measured(
        "prefill_attention.prefill_attention",
        f"{n} tokens, {H}/{K} heads of {d}",
        lambda draw: draw.prefill_attention([n], [n]),
        Work(
            2 * n * (H + K) * d * b,
            2 * H * d * n * (n + 1),
            "2 n (H + K) d b bytes, 4 H d n (n + 1) / 2 FLOPs",
        ),
        Peer("SDPA, keys gathered before", peers.prefill_attention),
        Target(share=0.6, speed=0.9),
    )


def _int4(s: Sizes, T: int, N: int, form: str) -> Measured:
    K, g, b = s.layer.hidden, s.group, s.dtypes[0].itemsize
    return Measured(
        "int4_matmul.int4_matmul",
        f"{T} x {K} x {N}, group {g}",
        lambda draw: draw.int4_matmul(T, K, N),
        Work(
            K * N * (0.5 + (b + 0.5) / g) + T * (K + N) * b,
            2 * T * K * N,
            "K N (1/2 + (b + 1/2) / g) + T (K + N) b bytes, 2 T K N FLOPs",
        ),
        Peer("F.linear, 16-bit", peers.int4_matmul),
        Target(share=0.7) if T == 1 and form == "triton" else Target(),
        " CUDA C++" if form == "cuda" else "",
        form,
    )


def _scaled(s: Sizes, T: int, variant: str, kind: torch.dtype) -> Measured:
    K, N, b = s.layer.hidden, s.layer.ffn, s.dtypes[0].itemsize
    return Measured(
        "scaled_matmul.scaled_matmul",
        f"{T} x {K} x {N}",
        lambda draw: draw.scaled_matmul(T, K, N, kind),
        Work(K * N + T * K + T * N * b, 2 * T * K * N, "K N + T K + T N b bytes, 2 T K N FLOPs"),
        Peer("_int_mm, no scales", peers.int8_matmul) if kind == INT8 else Peer("_scaled_mm", peers.fp8_matmul),
        variant=variant,
    )
