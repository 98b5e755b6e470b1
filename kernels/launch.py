"""What launchers check before a kernel starts: one that reads past a tensor fails later, elsewhere or not at all."""

from __future__ import annotations

import math

import torch
import triton
from torch import Tensor

from course_lib.errors import CourseError


@triton.jit
def _nothing():
    pass


# Whether Triton interprets kernels, read off one: it is settled when a kernel is decorated and stays so.
INTERPRETED = not isinstance(_nothing, triton.JITFunction)
# Where a kernel can run. `offline.compiling_for` puts "meta" here: tensors with shapes and no memory.
DEVICES = {"cuda", "cpu"} if INTERPRETED else {"cuda"}
FLOATS = (torch.float32, torch.float16, torch.bfloat16)
EIGHT_BIT = (torch.int8, torch.float8_e4m3fn)


class KernelError(CourseError, ValueError):
    """A launcher was given what its kernel cannot work on; the message names the operation and the argument."""


Spec = tuple[Tensor, str, torch.dtype | tuple[torch.dtype, ...]]


def check(operation: str, **arguments: Spec) -> dict[str, int]:
    """Check tensors against one another. Returns the size of every named dimension.

    Each argument is (tensor, dimensions, dtype or dtypes). Dimensions are names or numbers, as in "T H d" or "N 2"; a
    name stands for one size wherever it occurs. All tensors lie on one device on which a kernel can run. Rows are
    contiguous: every stride but the first is that of a packed tensor, so slices such as the q part of a fused
    projection pass and a transposed matrix does not. Raises KernelError.
    """
    sizes: dict[str, int] = {}
    device = None
    for name, (tensor, dimensions, dtypes) in arguments.items():
        if device is None:
            _check_device(operation, name, tensor)
            first, device = name, tensor.device
        elif tensor.device != device:
            raise KernelError(
                f"{operation}: {name} is on {tensor.device} and {first} on {device}; move them to one device"
            )
        _check_dtype(operation, name, tensor, dtypes)
        _check_shape(operation, name, tensor, dimensions, sizes)
        if not tensor.is_contiguous():
            _check_rows(operation, name, tensor)
    return sizes


def check_head_dim(operation: str, head_dim: int) -> None:
    """Raise KernelError unless a head is a tile of its own: a power of two from 16 (a dot's least depth) to 256."""
    if head_dim not in (16, 32, 64, 128, 256):
        raise KernelError(
            f"{operation}: head_dim is {head_dim} and must be 16, 32, 64, 128 or 256; use the torch backend"
        )


def check_block_size(operation: str, block_size: int) -> None:
    """Raise KernelError unless a page of the cache can be a tile of a dot: a power of two, at least 16 tokens."""
    if block_size < 16 or block_size & (block_size - 1):
        raise KernelError(
            f"{operation}: block_size is {block_size} and must be a power of two of at least 16; "
            "build the cache with such blocks"
        )


def _check_device(operation: str, name: str, tensor: Tensor) -> None:
    kind = tensor.device.type
    if kind in DEVICES:
        return
    if kind == "cpu":
        raise KernelError(
            f"{operation}: {name} is on the CPU, where Triton only interprets kernels; "
            "move it to a GPU, or set TRITON_INTERPRET=1 before triton is imported"
        )
    raise KernelError(f"{operation}: {name} is on {kind}, and Triton kernels run on {' or '.join(sorted(DEVICES))}")


def _check_dtype(operation: str, name: str, tensor: Tensor, dtypes: torch.dtype | tuple[torch.dtype, ...]) -> None:
    got = tensor.dtype
    if got is not dtypes and (isinstance(dtypes, torch.dtype) or got not in dtypes):
        wanted = " or ".join(map(_short, (dtypes,) if isinstance(dtypes, torch.dtype) else dtypes))
        raise KernelError(f"{operation}: {name} is {_short(got)} and must be {wanted}")
    if INTERPRETED and got == torch.bfloat16:
        raise KernelError(
            f"{operation}: {name} is bfloat16, which Triton's interpreter computes wrongly; use float16 or float32"
        )


def _short(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")


def _check_shape(operation: str, name: str, tensor: Tensor, dimensions: str, sizes: dict[str, int]) -> None:
    names, got = dimensions.split(), tensor.shape
    known = ""
    if len(got) == len(names):
        for dimension, size in zip(names, got, strict=True):
            expected = int(dimension) if dimension.isdigit() else sizes.setdefault(dimension, size)
            if size != expected:
                known = "" if dimension.isdigit() else f" with {dimension} = {expected}"
                break
        else:
            return
    raise KernelError(f"{operation}: {name} has shape {list(got)} and must be [{', '.join(names)}]{known}")


def _check_rows(operation: str, name: str, tensor: Tensor) -> None:
    shape, strides = tensor.shape, tensor.stride()
    inner = range(1, len(shape)) if len(shape) > 1 else range(1)
    if any(shape[i] > 1 and strides[i] != math.prod(shape[i + 1 :]) for i in inner):
        raise KernelError(
            f"{operation}: {name} has strides {list(strides)} for shape {list(shape)} and its rows must be "
            "contiguous; call .contiguous()"
        )
