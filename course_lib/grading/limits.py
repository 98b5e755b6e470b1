"""What a submission may use. The child sets what the operating system enforces; the grader watches the rest."""

from __future__ import annotations

import dataclasses
import sys
from dataclasses import dataclass

MiB = 2**20


@dataclass(frozen=True)
class Limits:
    """Limits of one child process. Seconds are wall-clock unless they say CPU; sizes are bytes."""

    call_seconds: float = 10.0  # one call of a learner's function
    cells_seconds: float = 30.0  # all cells of the notebook
    cpu_seconds: int = 180  # the child's whole life
    memory_bytes: int = 2048 * MiB  # on top of what the interpreter and torch already hold
    output_bytes: int = 1 * MiB  # printed by one cell or call, and the size of any file written
    message_bytes: int = 4 * MiB  # one message from the child, and all calls back during one call
    callbacks: int = 10_000  # calls of a function the grader passed in, in one call

    def as_dict(self) -> dict[str, float]:
        return dataclasses.asdict(self)

    @classmethod
    def from_dict(cls, fields: dict[str, float]) -> Limits:
        return cls(**fields)


def set_resource_limits(limits: Limits) -> dict[str, str]:
    """Set the limits of this process; returns, for the report, what is enforced and by what."""
    if sys.platform == "win32":
        return {
            "cpu": "the grader's clock only: Windows has no CPU-time limit per process here",
            "memory": "watched by the grader",
            "output": "watched by the grader",
        }
    import resource

    def lower(kind: int, value: int, spare: int = 0) -> None:
        hard = resource.getrlimit(kind)[1]
        most = value + spare if hard == resource.RLIM_INFINITY else min(value + spare, hard)
        resource.setrlimit(kind, (min(value, most), most))

    lower(resource.RLIMIT_CPU, int(limits.cpu_seconds), spare=5)  # SIGXCPU first, which says what it was
    lower(resource.RLIMIT_FSIZE, int(limits.output_bytes))
    lower(resource.RLIMIT_CORE, 0)
    lower(resource.RLIMIT_NOFILE, 128)
    report = {"cpu": "RLIMIT_CPU", "output": "RLIMIT_FSIZE", "memory": "watched by the grader"}
    if sys.platform == "linux":
        # torch reserves much address space at import, so the limit counts from what is mapped now.
        with open("/proc/self/statm") as statm:
            mapped = int(statm.read().split()[0]) * resource.getpagesize()
        lower(resource.RLIMIT_AS, mapped + int(limits.memory_bytes))
        report["memory"] = "RLIMIT_AS, and watched by the grader"
    return report
