"""Times an operation and its peer in PyTorch on the same tensors."""

from __future__ import annotations

from course_kernels.bench.cases import form
from course_kernels.bench.clock import sets_needed, time_calls
from course_kernels.bench.inputs import Draw
from course_kernels.bench.measured import Measured


def measure(entry: Measured, draw: Draw) -> dict:
    """Raw samples of both, with what was counted. What the peer raises is its result: the kernel's stays."""
    kernel = form(entry.form, entry.operation)
    sets = [entry.arguments(draw) for _ in range(sets_needed(entry.work.bytes, draw.device))]
    timed = time_calls([lambda each=each: kernel(**each) for each in sets], draw.device)
    peer = None
    if entry.peer:
        peer = {"name": entry.peer.name}
        try:
            peer |= vars(time_calls([entry.peer.prepare(**each) for each in sets], draw.device))
        except Exception as error:  # whatever PyTorch lacks on this device
            peer["failed"] = f"{type(error).__name__}: {error}"
    return {"sets": len(sets), **vars(entry.work), **vars(timed), "peer": peer, "target": vars(entry.target)}
