"""`@memcheck` above `@triton.jit`: in the interpreter, an address outside of the kernel's tensors is an error.

Unchecked, such an address is read all the same, whatever lies there, or ends the process. On a GPU, NVIDIA's
compute-sanitizer asks the same question of a compiled kernel.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from triton.runtime.jit import KernelInterface

from course_kernels.launch import INTERPRETED
from course_kernels.trace import trace


class _Checked(KernelInterface):
    def __init__(self, kernel: KernelInterface):
        self._kernel = kernel

    def run(self, *args: Any, **launch: Any) -> None:
        with np.errstate(all="ignore"):  # a GPU does not warn of an overflow either
            trace(self._kernel.run, *args, **launch)


def memcheck(kernel: KernelInterface) -> KernelInterface:
    """The kernel, launched as before. Interpreted, a launch raises KernelError before it touches what is not its own.

    What the kernel's own code raises arrives as it was raised, not as Triton's InterpreterError.
    """
    return _Checked(kernel) if INTERPRETED else kernel
