"""What is measured: one `Measured` per operation and shape. A new kernel is one more entry."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

from course_kernels.bench import peers
from course_kernels.bench.cases import FP8, INT8, form
from course_kernels.bench.clock import Timed, sets_needed, time_calls
from course_kernels.bench.inputs import Arguments, Draw
from course_kernels.bench.sizes import Sizes


@dataclass(frozen=True)
class Target:
    """What a kernel is meant to reach on an H200: a share of its ceiling, a speed relative to PyTorch's."""

    share: float | None = None
    speed: float | None = None


@dataclass(frozen=True)
class Measured:
    """An operation at one shape.

    counted: the formula, as in the kernel's docstring, that `bytes` and `flops` are from. peer: the same by PyTorch, of
    `peers`, and in words.
    """

    operation: str
    variant: str
    shape: str
    counted: str
    bytes: float
    flops: float
    arguments: Callable[[Draw], Arguments]
    peer: tuple[str, Callable] | None = None
    target: Target = field(default_factory=Target)
    form: str = "triton"

    @property
    def name(self) -> str:
        return f"{self.operation.split('.')[1]}{self.variant}, {self.shape}"


def measured(s: Sizes) -> list[Measured]:
    """b bytes an element; the rest as in `Sizes`."""
    c, b, T = s.layer, s.dtypes[0].itemsize, s.rows
    h, f, d, H, K = c.hidden, c.ffn, c.head_dim, c.heads, c.kv_heads
    found = [
        Measured(
            "norm.rms_norm", "", f"{T} x {width}", "2 T h b bytes, 4 T h FLOPs", 2 * T * width * b, 4 * T * width,
            lambda draw, width=width: draw.rms_norm(T, width), ("F.rms_norm", peers.rms_norm), Target(share=0.85),
        )
        for width in (h, 2 * h)
    ]  # fmt: skip
    found += [
        Measured(
            "norm.add_rms_norm", "", f"{T} x {h}", "4 T h b bytes, 5 T h FLOPs", 4 * T * h * b, 5 * T * h,
            lambda draw: draw.add_rms_norm(T, h), ("add_, F.rms_norm", peers.add_rms_norm),
        ),
        Measured(
            "swiglu.swiglu", "", f"{T} x {f}", "3 T f b bytes, 5 T f FLOPs", 3 * T * f * b, 5 * T * f,
            lambda draw: draw.swiglu(T), ("silu, *", peers.swiglu),
        ),
        Measured(
            "rope_cache.rope_cache", "", f"{T} tokens, {H}/{K} heads of {d}",
            "2 T (H + 2 K) d b bytes, 3 T (H + K) d FLOPs", 2 * T * (H + 2 * K) * d * b, 3 * T * (H + K) * d,
            lambda draw: draw.rope_cache(T),
        ),
        Measured(
            "sampling.sample", "", f"{s.batch} x {c.vocab}", "S V (4 + 4) bytes, 33 passes of 5 S V FLOPs",
            8 * s.batch * c.vocab, 33 * 5 * s.batch * c.vocab,
            lambda draw: draw.sample(s.batch), ("sort, cumsum, argmax", peers.sample),
        ),
    ]  # fmt: skip
    return found + _attention(s) + _matmuls(s)


def _attention(s: Sizes) -> list[Measured]:
    c, b = s.layer, s.dtypes[0].itemsize
    d, H, K = c.head_dim, c.heads, c.kv_heads
    heads, sdpa = f"{H}/{K} heads of {d}", "SDPA on gathered keys"
    found = []
    for batch, n in ((s.batch, s.context), (1, s.long_context)):
        for variant, cache in (("", None), (" int8 cache", INT8), (" fp8 cache", FP8)):
            size, scales = (1, 8) if cache else (b, 0)
            found.append(
                Measured(
                    "decode_attention.decode_attention", variant, f"batch {batch} x {n} keys, {heads}",
                    "S (2 n K d b + 2 H d b) bytes, " + "8 S n K of scales, " * bool(cache) + "4 S n H d FLOPs",
                    batch * (n * K * (2 * d * size + scales) + 2 * H * d * b), 4 * batch * n * H * d,
                    lambda draw, batch=batch, n=n, cache=cache: draw.decode_attention([n] * batch, cache),
                    None if cache else (sdpa, peers.decode_attention),
                    Target(share=0.8) if batch == s.batch and not cache else Target(),
                )
            )  # fmt: skip
    for n in s.prompts:
        found.append(
            Measured(
                "prefill_attention.prefill_attention", "", f"{n} tokens, {heads}",
                "2 n (H + K) d b bytes, 4 H d n (n + 1) / 2 FLOPs", 2 * n * (H + K) * d * b, 2 * H * d * n * (n + 1),
                lambda draw, n=n: draw.prefill_attention([n], [n]), (sdpa, peers.prefill_attention),
                Target(share=0.6, speed=0.9),
            )
        )  # fmt: skip
    return found


def _matmuls(s: Sizes) -> list[Measured]:
    b, g, h, f = s.dtypes[0].itemsize, s.group, s.layer.hidden, s.layer.ffn
    found = []
    for form_name, rows, N in (
        ("triton", 1, h), ("triton", 1, f), ("cuda", 1, h), ("cuda", 1, f), ("triton", s.batch, f),
        ("triton", s.gemm_rows, f),
    ):  # fmt: skip
        found.append(
            Measured(
                "int4_matmul.int4_matmul", " CUDA C++" * (form_name == "cuda"), f"{rows} x {h} x {N}, group {g}",
                "K N (1/2 + (b + 1/2) / g) + T (K + N) b bytes, 2 T K N FLOPs",
                h * N * (0.5 + (b + 0.5) / g) + rows * (h + N) * b, 2 * rows * h * N,
                lambda draw, rows=rows, N=N: draw.int4_matmul(rows, h, N), ("F.linear, 16-bit", peers.int4_matmul),
                Target(share=0.7) if rows == 1 and form_name == "triton" else Target(), form_name,
            )
        )  # fmt: skip
    for rows in (s.batch, s.gemm_rows):
        for variant, kind, peer in (
            (" int8", INT8, ("torch._int_mm, no scales", peers.int8_matmul)),
            (" fp8", FP8, ("torch._scaled_mm", peers.fp8_matmul)),
        ):
            found.append(
                Measured(
                    "scaled_matmul.scaled_matmul", variant, f"{rows} x {h} x {f}",
                    "K N + T K + T N b bytes, 2 T K N FLOPs", h * f + rows * h + rows * f * b, 2 * rows * h * f,
                    lambda draw, rows=rows, kind=kind: draw.scaled_matmul(rows, h, f, kind), peer,
                )
            )  # fmt: skip
    return found


def measure(entry: Measured, draw: Draw) -> dict:
    """Raw samples of the kernel and of its peer. What the peer raises is its result: the kernel's stays."""
    kernel = form(entry.form, entry.operation)
    sets = [entry.arguments(draw) for _ in range(sets_needed(entry.bytes, draw.device))]
    timed = time_calls([lambda each=each: kernel(**each) for each in sets], draw.device)
    result = {
        "shape": entry.shape, "counted": entry.counted, "bytes": entry.bytes, "flops": entry.flops, "sets": len(sets),
        "target": vars(entry.target), **vars(timed), "peer": None,
    }  # fmt: skip
    if entry.peer:
        name, prepare = entry.peer
        try:
            peer: Timed | dict = vars(time_calls([prepare(**each) for each in sets], draw.device))
        except Exception as error:  # whatever PyTorch lacks on this device
            peer = {"failed": f"{type(error).__name__}: {error}"}
        result["peer"] = {"name": name} | peer
    return result
