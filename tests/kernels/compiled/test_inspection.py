"""Reports on launches and on a learner's source: the child's work in this process, and the child itself."""

from __future__ import annotations

import pytest

from course_kernels.inspection import Request, _records, compiled
from course_lib.errors import CourseError

SOURCE = """
import torch, triton
import triton.language as tl

@triton.jit
def double(x_ptr, n, BLOCK: tl.constexpr):
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    x = tl.load(x_ptr + at, mask=at < n)
    tl.store(x_ptr + at, x + x, mask=at < n)

print("a program may print")
double[lambda meta: (triton.cdiv(4096, meta["BLOCK"]),)](torch.empty(4096, device="meta"), 4096, BLOCK=1024)
"""


def test_from_a_process_that_interprets(monkeypatch):
    monkeypatch.setenv("TRITON_INTERPRET", "1")
    four, eight, attention, combine, own = compiled(
        Request("prefill_attention", num_warps=4),
        Request("prefill_attention"),
        Request("decode_attention", dtype="bfloat16"),
        Request(source=SOURCE, target="gfx942", num_warps=2, constants={"BLOCK": 512}),
    )
    assert (four.warps, eight.warps) == (4, 8)
    assert four.registers == 255 and four.spilled > 0 == eight.spilled
    assert eight.constants["ROWS"] == 128 and eight.dots["wgmma"] and eight.loads[128]
    assert "wgmma" in eight.assembly and "HGMMA" in eight.sass
    assert attention.name == "_decode_attention" and "bf16" in attention.assembly
    assert combine.name == "_combine_splits" and combine.grid == (32 * 32,)
    assert (own.name, own.grid, own.warps, own.target) == ("double", (8,), 2, "gfx942")


@pytest.mark.parametrize(
    "request_, sentence",
    [
        (Request("no_such"), "there is no launch 'no_such'; there are rms_norm, "),
        (Request("swiglu", constants={"ROWS": 2}), "none of the kernels has a constexpr ROWS"),
        (
            Request(source=SOURCE.replace("x + x", "x + y")),
            "this does not compile for sm_90: CompilationError: NameError('y is not defined')",
        ),
        (
            Request(source=SOURCE, constants={"BLOCK": 1000}),
            "this does not compile for sm_90: ValueError: arange's range must be a power of 2",
        ),
        (Request(source="x ="), "this does not compile for sm_90: SyntaxError: invalid syntax (source_0.py, line 1)"),
    ],
    ids=lambda value: "" if isinstance(value, Request) else value[:30],
)
def test_what_does_not_compile_is_one_sentence(request_, sentence, tmp_path):
    assert _records([request_], tmp_path).startswith(sentence)


def test_a_child_that_fails_is_one_sentence():
    with pytest.raises(CourseError, match="there is no launch 'no_such'"):
        compiled(Request("no_such"))
    with pytest.raises(CourseError, match="the compiling process ended: it said nothing"):
        compiled(Request(source="import os; os._exit(3)"))


@pytest.mark.parametrize(
    "arguments, sentence",
    [
        ({}, "a request names either a launch or a source"),
        ({"launch": "swiglu", "source": SOURCE}, "a request names either a launch or a source"),
        ({"launch": "swiglu", "target": "sm_70"}, "there is no target sm_70; there are sm_80, sm_90, sm_100, gfx942"),
        ({"launch": "swiglu", "dtype": "int8"}, "the model's dtype is int8 and must be one of float16, bfloat16"),
    ],
)
def test_a_request_that_means_nothing(arguments, sentence):
    with pytest.raises(CourseError, match=sentence):
        Request(**arguments)
