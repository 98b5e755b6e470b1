"""Which bytes a program of a kernel loads and stores: recorded while Triton's interpreter runs it.

`trace(rms_norm, x, weight, eps)` runs a launcher as usual and returns one `Access` per tile that a program loaded or
stored. Kernels need no change: the two methods through which the interpreter reads and writes memory are wrapped for
the time of the call. An address that belongs to no tensor of the launch is an error before it is touched, as with
NVIDIA's compute-sanitizer. Atomic operations are not recorded; the kernels of this package have none.

A process that compiles cannot interpret, so there the call goes to a child process.
"""

from __future__ import annotations

import atexit
import importlib
import os
import pickle
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache
from typing import Any

import numpy as np
import torch
from torch import Tensor

from course_lib.errors import CourseError


@dataclass(frozen=True, eq=False)
class Access:
    """One tile that one program loaded or stored; a tile that its mask leaves out entirely is no access.

    kernel: the function's name. program: its three indices in the grid. tensor: the kernel's argument without "_ptr"
    (the first one, where two share memory). elements int64 [n]: what was touched, as positions in the tensor read row
    by row, increasing, each once. masked: how many elements of the tile the mask left out.
    """

    kernel: str
    program: tuple[int, int, int]
    stores: bool
    tensor: str
    shape: tuple[int, ...]
    itemsize: int
    elements: np.ndarray
    masked: int

    @property
    def bytes(self) -> int:
        """Bytes that were touched. An element that the tile names several times counts once."""
        return len(self.elements) * self.itemsize


def trace(call: Callable[..., Any], *args: Any, **kwargs: Any) -> list[Access]:
    """Run call(*args, **kwargs) in the interpreter; what its kernels touched, program after program.

    Where this process compiles kernels, a child process runs the call on copies on the CPU, so `call` must be a
    function that can be imported (CourseError says so). Raises KernelError for bad arguments and for an address
    outside of every tensor.
    """
    from course_kernels.launch import INTERPRETED  # not above: figures use Access where there is no Triton

    if not INTERPRETED:
        return _trace_in_child(call, args, kwargs)
    from triton.runtime.errors import InterpreterError

    try:
        with _recording() as accesses:
            call(*args, **kwargs)
    except InterpreterError as error:
        cause: BaseException = error
        while isinstance(cause, InterpreterError) and cause.__cause__ is not None:
            cause = cause.__cause__
        raise cause from None
    return accesses


@contextmanager
def _recording() -> Iterator[list[Access]]:
    from triton.runtime.interpreter import GridExecutor, interpreter_builder

    accesses: list[Access] = []
    launch: dict[str, Any] = {}  # of the kernel that runs: its name and its tensors
    load, store = interpreter_builder.create_masked_load, interpreter_builder.create_masked_store
    host_copies = GridExecutor._init_args_hst

    def note_launch(self: GridExecutor, args: Any, kwargs: dict[str, Any]) -> Any:
        copies, named_copies = host_copies(self, args, kwargs)
        arguments = dict(zip(self.arg_names, copies, strict=False)) | named_copies
        launch["kernel"] = self.fn.__name__
        launch["tensors"] = {
            name.removesuffix("_ptr"): value for name, value in arguments.items() if isinstance(value, Tensor)
        }
        return copies, named_copies

    def note(addresses: np.ndarray, mask: np.ndarray, stores: bool) -> None:
        mask = mask.astype(bool)  # of two masks joined by &, the interpreter makes numbers
        touched = np.unique(addresses[mask]).astype(np.int64)
        if len(touched):
            tensor, elements = _find(touched, **launch, program=interpreter_builder.grid_idx, stores=stores)
            shape, itemsize = tuple(launch["tensors"][tensor].shape), launch["tensors"][tensor].itemsize
            program, masked = interpreter_builder.grid_idx, int(mask.size - mask.sum())
            accesses.append(Access(launch["kernel"], program, stores, tensor, shape, itemsize, elements, masked))

    def note_load(pointers: Any, mask: Any, *more: Any) -> Any:
        note(pointers.data, mask.data, stores=False)
        return load(pointers, mask, *more)

    def note_store(pointers: Any, value: Any, mask: Any, *more: Any) -> Any:
        note(pointers.data, mask.data, stores=True)
        return store(pointers, value, mask, *more)

    GridExecutor._init_args_hst = note_launch
    interpreter_builder.create_masked_load, interpreter_builder.create_masked_store = note_load, note_store
    try:
        yield accesses
    finally:
        GridExecutor._init_args_hst = host_copies
        interpreter_builder.create_masked_load, interpreter_builder.create_masked_store = load, store


def _find(
    addresses: np.ndarray, kernel: str, tensors: dict[str, Tensor], program: tuple[int, int, int], stores: bool
) -> tuple[str, np.ndarray]:
    """The tensor that holds all addresses, and the elements' positions in it. Raises KernelError if there is none."""
    from course_kernels.launch import KernelError

    best, most, stray = "", -1, addresses
    for name, tensor in tensors.items():
        elements, inside = _elements(addresses, tensor)
        if inside.all():
            return name, elements
        if inside.sum() > most:
            best, most, stray = name, inside.sum(), addresses[~inside]
    verb, where = ("stores", "to") if stores else ("loads", "from")
    raise KernelError(
        f"{kernel}: program {program} {verb} {len(stray)} elements {where} outside of its tensors, the first one "
        f"{stray[0] - tensors[best].data_ptr():,} bytes from the start of {best}; mask what hangs over the edge"
    )


def _elements(addresses: np.ndarray, tensor: Tensor) -> tuple[np.ndarray, np.ndarray]:
    """Position of each address in the flattened tensor, and whether it is one of its elements (rows may have gaps)."""
    rest = addresses - tensor.data_ptr()
    inside = (rest >= 0) & (rest % tensor.itemsize == 0) & (tensor.numel() > 0)
    rest //= tensor.itemsize
    position, places = np.zeros_like(rest), np.cumprod([1, *reversed(tensor.shape)])[-2::-1]
    for axis in sorted(range(tensor.dim()), key=tensor.stride, reverse=True):
        if stride := tensor.stride(axis):
            index = np.minimum(rest // stride, tensor.shape[axis] - 1)
            position += index * places[axis]
            rest -= index * stride
    return position, inside & (rest == 0)


def _trace_in_child(call: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> list[Access]:
    if call.__module__ == "__main__" or "<" in call.__qualname__:
        raise CourseError(
            f"{call.__qualname__} cannot be traced here: this process compiles kernels, and another one, which "
            "interprets, can only import it from a module"
        )
    args = tuple(_to_cpu(value) for value in args)
    kwargs = {name: _to_cpu(value) for name, value in kwargs.items()}
    child = _child()
    try:
        pickle.dump((call.__module__, call.__qualname__, args, kwargs), child.stdin)
        child.stdin.flush()
        answer = pickle.load(child.stdout)
    except (EOFError, BrokenPipeError):
        _child.cache_clear()
        raise CourseError(f"the process that traces {call.__qualname__} ended; its last words are on stderr") from None
    if isinstance(answer, Exception):
        raise answer
    return answer


def _to_cpu(value: Any) -> Any:
    return value.cpu() if isinstance(value, Tensor) else value


@cache
def _child() -> subprocess.Popen[bytes]:
    """A process that interprets; it serves all traces of this one and ends with it."""
    command = [sys.executable, "-c", f"from {__name__} import _answer; _answer()"]
    environment = os.environ | {"TRITON_INTERPRET": "1"}
    child = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, env=environment)

    @atexit.register
    def end() -> None:
        child.stdin.close()
        child.wait()

    return child


def _answer() -> None:
    """The child: pickled calls on stdin, for each its accesses or its error on stdout, until stdin closes."""
    torch.set_num_threads(1)
    answers, sys.stdout = sys.stdout.buffer, sys.stderr  # what a kernel prints is no answer
    while True:
        try:
            module, name, args, kwargs = pickle.load(sys.stdin.buffer)
        except EOFError:
            return
        try:
            answer: Any = trace(getattr(importlib.import_module(module), name), *args, **kwargs)
        except Exception as error:
            answer = error
        pickle.dump(answer, answers)
        answers.flush()
