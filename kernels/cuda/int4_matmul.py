"""Weight-only int4 for one row of x, in CUDA C++: read int4_gemv.cu beside `_gemv` of triton/int4_matmul.py.

The same work, with what Triton decided written out: which lane loads which 16 bytes, how sums cross lanes (shuffles)
and warps (shared memory, a barrier). It also shows where the two differ. Here a lane gets its eight numbers of x in one
load and its four zeros from one word, because it knows where they lie; Triton loads each number by itself.
"""

from __future__ import annotations

from pathlib import Path

import torch
from torch import Tensor

from course_kernels.cuda import nvrtc
from course_kernels.launch import KernelError
from course_kernels.triton import split_k
from course_kernels.triton.int4_matmul import check_int4

SOURCE = Path(__file__).with_name("int4_gemv.cu").read_text(encoding="utf-8")
WARPS, COLUMNS, ROWS = 8, 32, 32  # as in the source


def options(dtype: torch.dtype, group: int) -> tuple[str, ...]:
    """The macros with which SOURCE is compiled for a dtype of x and a size of group."""
    return (f"-DGROUP={group}", *(("-DBFLOAT16",) if dtype == torch.bfloat16 else ()))


def int4_matmul(x: Tensor, qweight: Tensor, scales: Tensor, qzeros: Tensor) -> Tensor:
    """x times the dequantised weight, for one row of x.

    x [1, K] float16 or bfloat16; the rest, the result and the errors are those of `course_kernels.triton.int4_matmul`.
    """
    tokens, depth, columns, group = check_int4(x, qweight, scales, qzeros)
    if tokens != 1 or x.dtype == torch.float32:
        raise KernelError("int4_matmul: the CUDA C++ form takes one row of 16-bit numbers; use the Triton form")
    if not x.is_cuda:
        raise KernelError("int4_matmul: CUDA C++ has no interpreter; move the tensors to a GPU, or use the Triton form")
    if any(tensor.data_ptr() % 16 for tensor in (x, qweight, scales)):
        raise KernelError("int4_matmul: x and the weight must begin at multiples of 16 bytes; call .clone() on slices")
    blocks = -(-columns // COLUMNS)
    shares = split_k.splits(tokens, blocks, -(-depth // 8 // ROWS))
    partials = torch.empty(shares, 1, columns, dtype=torch.float32, device=x.device)
    with torch.cuda.device(x.device):
        nvrtc.launch(
            SOURCE, "int4_gemv", options(x.dtype, group), (blocks, shares), 32 * WARPS,
            (x, qweight, scales, qzeros, partials, depth, columns),
        )  # fmt: skip
        return split_k.sum_splits(partials, x.dtype)
