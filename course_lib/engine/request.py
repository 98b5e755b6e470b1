"""The serving view of one completion: what the scheduler knows of it beside its tokens."""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import Enum

from course_lib.sequence import Sequence


class State(Enum):
    WAITING = "waiting"  # holds no blocks
    RUNNING = "running"  # holds blocks, is fed
    SWAPPED = "swapped"  # waits; its blocks lie in host memory
    FINISHED = "finished"


@dataclass(eq=False)
class Request:
    """One completion in the engine. A prompt with n > 1 is fed once: its n - 1 siblings are forked when it is computed.

    id: names its block table. group: what `Engine.add_request` returned, shared by the n completions of a prompt.
    priority: lower comes first, as in vLLM. ttft, tpot: objectives in seconds, None where it has none.
    cache_salt: only requests with the same one share blocks through the prefix cache.
    computed: tokens whose keys and values exist, in the pool or, when swapped out, on the host.
    cached: prompt tokens that the prefix cache held when the request was first admitted.
    first_scheduled: on the clock of `seq.arrival`. siblings: completions that wait for this one's prompt.
    """

    id: int
    group: str
    index: int
    seq: Sequence
    priority: int = 0
    ttft: float | None = None
    tpot: float | None = None
    cache_salt: str = ""
    state: State = State.WAITING
    computed: int = 0
    cached: int = 0
    preemptions: int = 0
    first_scheduled: float | None = None
    siblings: list[Request] = field(default_factory=list)

    @property
    def known(self) -> int:
        """Tokens of prompt and output so far."""
        return len(self.seq.prompt_ids) + len(self.seq.output)

    @property
    def remaining(self) -> int:
        """Known tokens that are not computed: 1 while decoding; when they are fed, the next token can be drawn."""
        return self.known - self.computed

    @property
    def seats(self) -> int:
        """Running sequences that this one is or will become."""
        return 1 + len(self.siblings)

    def tokens(self, start: int, end: int) -> list[int]:
        """Known tokens at positions start .. end - 1. O(end - start)."""
        prompt = len(self.seq.prompt_ids)
        return self.seq.prompt_ids[start:end] + self.seq.output[max(0, start - prompt) : max(0, end - prompt)]
