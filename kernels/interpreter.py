"""Where there is no GPU, Triton's interpreter runs the kernels in NumPy: slowly, and from the same source."""

from __future__ import annotations

import os
import sys

import torch

from course_lib.errors import CourseError


def interpret(always: bool = False) -> bool:
    """Have Triton interpret kernels where torch sees no GPU, or `always`. Returns whether it does.

    Triton reads TRITON_INTERPRET when it is imported, so call this before any kernel is imported. A value that is set
    already stays. Raises CourseError where Triton is missing, or compiles and the interpreter is needed.
    """
    wanted = always or not torch.cuda.is_available()
    if wanted and "triton" not in sys.modules:
        os.environ.setdefault("TRITON_INTERPRET", "1")
    try:
        from course_kernels.launch import INTERPRETED
    except ModuleNotFoundError as error:
        raise CourseError(
            f"the package {error.name} is missing, so no kernel can run; Triton has builds for Linux only"
        ) from None
    if wanted and not INTERPRETED:
        raise CourseError(
            "Triton compiles kernels in this process and cannot interpret them; "
            "set TRITON_INTERPRET=1 before Python or the notebook's kernel starts"
        )
    return INTERPRETED
