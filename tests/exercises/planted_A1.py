"""Wrong solutions of exercise A1, as Triton kernels. Where a process compiles, they cannot run and the tests say so.

A problem's kernel is in a file of its own, and right where WRONG names no mistake. Its launcher is planted with each.
"""

from __future__ import annotations

from importlib.util import find_spec

from course_kernels.interpreter import interpret


def interpreted() -> str | None:
    """Decide, before a kernel is imported, whether this process interprets; None if so, or why it cannot."""
    if find_spec("triton") is None:
        return "Triton has no build for this machine"
    return None if interpret() else "Triton compiles in this process; TRITON_INTERPRET=1 lets the kernels of A1 run"


SKIPPED = interpreted()
if SKIPPED is None:
    from tests.exercises import planted_A1_attention, planted_A1_gemv, planted_A1_norm  # noqa: F401
