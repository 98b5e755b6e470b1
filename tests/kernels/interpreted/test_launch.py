"""Every wrong argument gives one sentence, and every view that the engine makes passes."""

from __future__ import annotations

import pytest
import torch

from course_kernels.launch import FLOATS, KernelError, check, check_block_size, check_head_dim
from course_lib.errors import CourseError

X = torch.zeros(3, 4, 8)


def test_sizes_come_back_by_name():
    sizes = check("op", x=(X, "T H d", FLOATS), slots=(torch.zeros(3, dtype=torch.int64), "T", torch.int64))
    assert sizes == {"T": 3, "H": 4, "d": 8}


@pytest.mark.parametrize(
    "view",
    [X[:, 1:3], X[:, :, None], X[1:], X[::2], X[:0], X[:, :0], X.new_zeros(1, 8).expand(5, 8), X[0, 0], X[0, 0, :1]],
    ids=lambda view: str(list(view.shape)),
)
def test_rows_with_gaps_between_them_pass(view):
    check("op", x=(view, " ".join("TUVW"[: view.dim()]), FLOATS))


@pytest.mark.parametrize(
    "view", [X[..., :4], X.transpose(1, 2), X[0].t(), X[0, 0, ::2], X[:, ::2]], ids=lambda view: str(view.stride())
)
def test_other_strides_are_refused(view):
    with pytest.raises(KernelError, match="op: x has strides .* its rows must be contiguous; call .contiguous()"):
        check("op", x=(view, " ".join("TUV"[: view.dim()]), FLOATS))


@pytest.mark.parametrize(
    "spec, sentence",
    [
        ((X, "T H", FLOATS), r"op: y has shape \[3, 4, 8\] and must be \[T, H\]"),
        ((X[:2], "T H d", FLOATS), r"op: y has shape \[2, 4, 8\] and must be \[T, H, d\] with T = 3"),
        ((X, "T 2 d", FLOATS), r"op: y has shape \[3, 4, 8\] and must be \[T, 2, d\]"),
        ((X.double(), "T H d", FLOATS), "op: y is float64 and must be float32 or float16 or bfloat16"),
        ((X, "T H d", torch.int64), "op: y is float32 and must be int64"),
        ((X.bfloat16(), "T H d", FLOATS), "op: y is bfloat16, which Triton's interpreter computes wrongly"),
        ((X.to("meta"), "T H d", FLOATS), "op: y is on meta and x on cpu; move them to one device"),
    ],
)
def test_bad_argument_is_one_sentence(spec, sentence):
    with pytest.raises(KernelError, match=sentence) as caught:
        check("op", x=(X, "T H d", FLOATS), y=spec)
    assert isinstance(caught.value, CourseError)
    assert "\n" not in str(caught.value)


def test_sizes_that_are_no_tiles():
    for size in (16, 32, 64, 128, 256):
        check_head_dim("op", size)
        check_block_size("op", size)
    for size in (8, 80, 512):
        with pytest.raises(KernelError, match=f"op: head_dim is {size} and must be 16, 32, 64, 128 or 256"):
            check_head_dim("op", size)
    for size in (0, 1, 8, 24):
        with pytest.raises(KernelError, match=f"op: block_size is {size} and must be a power of two of at least 16"):
            check_block_size("op", size)
