"""What the scheduler decided for one step, as plain data."""

from __future__ import annotations

from dataclasses import dataclass, field

from course_lib.engine.request import Request


@dataclass(frozen=True)
class CopyBlock:
    """Copy-on-write: the content of block `source` goes to block `target`."""

    source: int
    target: int


@dataclass(frozen=True)
class SwapOut:
    """Copy a request's blocks to host memory; they may be overwritten afterwards."""

    request: int
    blocks: tuple[int, ...]


@dataclass(frozen=True)
class SwapIn:
    """Copy a request's host blocks from `first` on to `blocks`; those before it are still cached in the pool."""

    request: int
    first: int
    blocks: tuple[int, ...]


@dataclass
class Plan:
    """One step: perform `memory` in order, then feed the requests in one forward pass.

    feeds: (request, number of its next tokens), decodes first; tokens: their sum, the rows of the forward pass.
    memory: in order, for a block that one operation reads may be the one that the next writes.
    """

    feeds: list[tuple[Request, int]] = field(default_factory=list)
    tokens: int = 0
    memory: list[CopyBlock | SwapOut | SwapIn] = field(default_factory=list)
    admitted: list[Request] = field(default_factory=list)
    swapped_in: list[Request] = field(default_factory=list)
    preempted: list[Request] = field(default_factory=list)
    swapped_out: list[Request] = field(default_factory=list)

    def feed(self, request: Request, n: int) -> None:
        """Give the request's next n tokens to the forward pass."""
        self.feeds.append((request, n))
        self.tokens += n

    @property
    def decodes(self) -> int:
        """How many of `feeds` go on with an answer; valid until they are computed."""
        return sum(request.remaining == 1 and bool(request.seq.output) for request, _ in self.feeds)

    @property
    def ready(self) -> list[int]:
        """Indices into `feeds` of those that get a token, as none of theirs remains; valid until they are computed."""
        return [i for i, (request, n) in enumerate(self.feeds) if n == request.remaining]
