"""Which backend a model gets."""

from __future__ import annotations

import os

import torch

from course_lib.backend.base import Backend
from course_lib.backend.torch_backend import TorchBackend
from course_lib.config import ModelConfig
from course_lib.errors import CourseError, ModelError

# Triton settles when it is imported whether it interprets kernels or compiles them, and torch imports it unasked.
if not torch.cuda.is_available():
    os.environ.setdefault("TRITON_INTERPRET", "1")


def choose_backend(name: str | None, config: ModelConfig, dtype: torch.dtype, device: torch.device) -> Backend:
    """name: "torch" or "triton"; default COURSE_BACKEND, else triton on a GPU where it can run the model, else torch.

    Named for a CPU, triton runs in its interpreter, which is very slow: it is for reading and testing kernels.
    Raises ModelError for another name, and CourseError where the named backend cannot run the model.
    """
    name = name or os.environ.get("COURSE_BACKEND") or None
    if name not in (None, "torch", "triton"):
        raise ModelError(f"there is no backend '{name}'; use torch or triton")
    if name == "torch" or (name is None and device.type != "cuda"):
        return TorchBackend()
    try:
        backend = _triton(interpret=device.type == "cpu")
        backend.check(config, dtype)
    except CourseError:
        if name is None:
            return TorchBackend()
        raise
    return backend


def _triton(interpret: bool) -> Backend:
    # Imported here: Triton is missing on some systems, takes a second, and reads TRITON_INTERPRET when it comes.
    from course_kernels.interpreter import interpret as prepare

    prepare(always=interpret)
    from course_lib.backend.triton_backend import TritonBackend

    return TritonBackend()
