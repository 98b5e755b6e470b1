"""What is checked: one `Case` per operation and variant. A new kernel is one more entry."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from importlib import import_module

import torch

from course_kernels.bench.inputs import Arguments, Draw
from course_kernels.bench.sizes import Sizes

INT8, FP8 = torch.int8, torch.float8_e4m3fn
KINDS = {" int8": INT8, " fp8": FP8}
CACHES = {"": None, " int8 cache": INT8, " fp8 cache": FP8}


def form(name: str, operation: str) -> Callable:
    """The operation in one of its forms: reference, triton or cuda. operation: file and function, "norm.rms_norm"."""
    file, function = operation.split(".")
    return getattr(import_module(f"course_kernels.{name}.{file}"), function)


@dataclass(frozen=True)
class Case:
    """An operation on random arguments.

    units: the error that is allowed in 16 bits, see `check.errors`. writes: the arguments that the operation writes,
    compared beside what it returns. form: where the kernel is; the reference has the same name and arguments.
    """

    operation: str
    variant: str
    arguments: Callable[[Draw], Arguments]
    units: float
    writes: tuple[str, ...] = ()
    form: str = "triton"

    @property
    def name(self) -> str:
        return self.operation.split(".")[1] + self.variant


def cases(s: Sizes) -> list[Case]:
    """Bounds, in units of twice one rounding:

    1    sums in float32, rounded once, at the end
    2    one more rounding on the way: of the sum x + residual, of a head before its rotation
    3    p and, from 8 bits, v rounded for the tensor cores, or each int4 weight, or sums of e4m3 products, of which
         Hopper's tensor cores keep about 14 bits (arXiv 2412.19437, section 3.3.2): errors that add up at random
    0    tokens, which are equal or not
    """
    h, f = s.layer.hidden, s.layer.ffn
    store = ("keys", "values")
    new, contexts = zip(*s.prefill_lens, strict=True)
    return [
        Case("norm.rms_norm", "", lambda draw: draw.rms_norm(s.rows, h), 1),
        Case("norm.rms_norm", " long rows", lambda draw: draw.rms_norm(3, 2 * h + 24), 1),
        Case("norm.add_rms_norm", "", lambda draw: draw.add_rms_norm(s.rows, h), 2, ("residual",)),
        Case("swiglu.swiglu", "", lambda draw: draw.swiglu(s.rows), 1),
        Case("rope_cache.rope_cache", "", lambda draw: draw.rope_cache(s.rows, padding=True), 2, store),
        Case("rope_cache.rope_cache", " norm", lambda draw: draw.rope_cache(s.rows, True, True), 2, store),
        *(
            Case(
                "rope_cache.rope_cache",
                f" norm{variant} cache",
                lambda draw, kind=kind: draw.rope_cache(s.rows, True, True, kind),
                2,
                (*store, "key_scales", "value_scales"),
            )
            for variant, kind in KINDS.items()
        ),
        *(
            Case(
                "quantize.quantize_per_token",
                variant,
                lambda draw, kind=kind: draw.quantize_per_token(s.rows, h, kind),
                1,
            )
            for variant, kind in KINDS.items()
        ),
        *(
            Case(
                "prefill_attention.prefill_attention",
                variant + (f" window {window}" if window else ""),
                lambda draw, cache=cache, window=window: draw.prefill_attention(new, contexts, cache, window),
                3,
            )
            for variant, cache in CACHES.items()
            for window in (None, s.window)
        ),
        *(
            Case(
                "decode_attention.decode_attention",
                variant + (f" window {window}" if window else ""),
                lambda draw, cache=cache, window=window: draw.decode_attention(s.decode_lens, cache, window),
                3,
            )
            for variant, cache in CACHES.items()
            for window in (None, s.window)
        ),
        Case(
            "decode_attention.decode_attention",
            f" batch {s.batch}",
            lambda draw: draw.decode_attention([s.context] * s.batch),
            3,
        ),
        Case("int4_matmul.int4_matmul", " 1 row", lambda draw: draw.int4_matmul(1, h, f), 1),
        Case("int4_matmul.int4_matmul", " 1 row CUDA C++", lambda draw: draw.int4_matmul(1, h, f), 1, form="cuda"),
        *(
            Case("int4_matmul.int4_matmul", f" {rows} rows", lambda draw, rows=rows: draw.int4_matmul(rows, h, f), 3)
            for rows in (s.gemm_rows // 16 + 1, s.gemm_rows)
        ),
        *(
            Case(
                "scaled_matmul.scaled_matmul",
                f"{kind_name} {rows} rows",
                lambda draw, rows=rows, kind=kind: draw.scaled_matmul(rows, h, f, kind),
                1 if kind == INT8 else 3,
            )
            for kind_name, kind in KINDS.items()
            for rows in (1, s.gemm_rows)
        ),
        Case("sampling.sample", "", lambda draw: draw.sample(s.batch), 0),
    ]
