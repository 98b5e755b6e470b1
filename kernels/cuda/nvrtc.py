"""CUDA C++ compiled and loaded when it is first called; nothing is built when the course is installed.

NVRTC, NVIDIA's run-time compiler, is a library without a driver or a GPU behind it: it compiles on any Linux machine.
"""

from __future__ import annotations

import ctypes
from dataclasses import dataclass
from functools import cache

import torch
from torch import Tensor

from course_kernels.launch import KernelError

try:
    from cuda.bindings import driver, nvrtc
except ImportError:  # a machine without an NVIDIA GPU need not have it
    driver = nvrtc = None


@dataclass(frozen=True)
class Compiled:
    """Assembly for a family of GPUs, to read, and machine code for one of them, to run."""

    ptx: str
    cubin: bytes


def version() -> str:
    """NVRTC's version, such as "12.9". Raises KernelError where it is not installed."""
    _check_installed()
    status, *numbers = nvrtc.nvrtcVersion()
    return ".".join(map(str, numbers))


def _check_installed() -> None:
    if nvrtc is None:
        raise KernelError("CUDA C++ needs NVRTC: pip install cuda-bindings nvidia-cuda-nvrtc-cu12")


@cache
def compile_cuda(source: str, architecture: str, *options: str) -> Compiled:
    """Compile CUDA C++ for an architecture such as "sm_90".

    Raises KernelError with the compiler's words where it refuses, and where NVRTC is not installed.
    """
    _check_installed()
    program = _ok(nvrtc.nvrtcCreateProgram(source.encode(), b"kernel.cu", 0, None, None))
    flags = [option.encode() for option in (f"--gpu-architecture={architecture}", "--std=c++17", *options)]
    [status] = nvrtc.nvrtcCompileProgram(program, len(flags), flags)
    if status:
        log = _read(program, nvrtc.nvrtcGetProgramLogSize, nvrtc.nvrtcGetProgramLog).decode().strip("\0\n")
        raise KernelError(f"NVRTC does not compile this for {architecture}: {log}")
    ptx = _read(program, nvrtc.nvrtcGetPTXSize, nvrtc.nvrtcGetPTX).decode()
    cubin = _read(program, nvrtc.nvrtcGetCUBINSize, nvrtc.nvrtcGetCUBIN)
    _ok(nvrtc.nvrtcDestroyProgram(program))
    return Compiled(ptx.rstrip("\0"), cubin)


def launch(
    source: str,
    name: str,
    options: tuple[str, ...],
    grid: tuple[int, int],
    threads: int,
    arguments: tuple[Tensor | int, ...],
) -> None:
    """Start kernel `name` of the source on the current device and stream. Integers are passed as int."""
    function = _load(source, name, options, torch.cuda.current_device())
    values = tuple(a.data_ptr() if isinstance(a, Tensor) else a for a in arguments)
    types = tuple(ctypes.c_void_p if isinstance(a, Tensor) else ctypes.c_int for a in arguments)
    stream = torch.cuda.current_stream().cuda_stream
    _ok(driver.cuLaunchKernel(function, *grid, 1, threads, 1, 1, 0, stream, (values, types), 0))


@cache
def _load(source: str, name: str, options: tuple[str, ...], device: int):
    major, minor = torch.cuda.get_device_capability(device)
    module = _ok(driver.cuModuleLoadData(compile_cuda(source, f"sm_{major}{minor}", *options).cubin))
    return _ok(driver.cuModuleGetFunction(module, name.encode()))


def _read(program, size, content) -> bytes:
    buffer = b" " * _ok(size(program))
    _ok(content(program, buffer))  # cuda-bindings writes into the bytes object
    return buffer


def _ok(result: tuple):
    """What a call of cuda-bindings returns beside its status. Raises KernelError where the status is not success."""
    status, *values = result
    if status:
        raise KernelError(f"the CUDA driver or compiler reports {status.name}")
    return values[0] if values else None
