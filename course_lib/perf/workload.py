"""Requests to measure a server with: when they arrive, how long they are, what is in them. All draws are seeded."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch

from course_lib.errors import CourseError
from course_lib.sampling import SamplingParams

SHAPES = ("log-normal", "uniform", "fixed")


@dataclass(frozen=True)
class Arrival:
    """A request that comes `time` seconds after the start, whatever the server does. The rest: `Engine.add_request`."""

    time: float
    prompt: list[int]
    params: SamplingParams
    priority: int = 0
    ttft: float | None = None
    tpot: float | None = None


def poisson_times(rate: float, count: int, generator: torch.Generator) -> list[float]:
    """Seconds after the start, increasing: a Poisson process of `rate` requests per second.

    Its gaps are exponential, independent, of mean 1 / rate, as of many users who do not know of each other. One seed
    gives the same pattern at any rate, only faster. Raises CourseError where rate is not above 0.
    """
    if rate <= 0:
        raise CourseError(f"the rate is {rate:g} requests/s; it must be above 0")
    gaps = torch.empty(count, dtype=torch.float64).exponential_(1.0, generator=generator)
    return (gaps.cumsum(0) / rate).tolist()


def log_normal_lengths(mean: float, sigma: float, count: int, limit: int, generator: torch.Generator) -> list[int]:
    """Lengths with the given mean before they are cut to 1 .. limit; sigma of the logarithm."""
    z = torch.randn(count, generator=generator, dtype=torch.float64)
    return (mean * torch.exp(sigma * z - sigma**2 / 2)).long().clamp(1, limit).tolist()


@dataclass(frozen=True)
class Lengths:
    """A distribution of lengths, in tokens.

    shape: "log-normal", where sigma is that of the logarithm; "uniform", 1 .. 2 * mean - 1; "fixed".
    Raises CourseError where a value is out of range.
    """

    mean: int
    shape: str = "log-normal"
    sigma: float = 1.0

    def __post_init__(self):
        if self.shape not in SHAPES:
            raise CourseError(f"lengths cannot be {self.shape!r}; choose one of {', '.join(SHAPES)}")
        if self.mean < 1 or self.sigma < 0:
            raise CourseError(
                f"lengths have the mean {self.mean} and sigma {self.sigma:g}; at least 1 and 0 are possible"
            )

    def draw(self, count: int, limit: int, generator: torch.Generator) -> list[int]:
        """Lengths, cut to 1 .. limit."""
        if self.shape == "log-normal":
            return log_normal_lengths(self.mean, self.sigma, count, limit, generator)
        low, high = (self.mean, self.mean) if self.shape == "fixed" else (1, 2 * self.mean - 1)
        return torch.randint(low, high + 1, (count,), generator=generator).clamp(1, limit).tolist()


def random_prompts(vocab: int, lengths: Sequence[int], generator: torch.Generator) -> list[list[int]]:
    """One prompt of random token ids in 0 .. vocab - 1 for each length (at least 1).

    No two of the first `vocab` prompts begin with the same token, so no prefix cache can serve one from another.
    """
    rounds = -(-len(lengths) // vocab)
    firsts = torch.cat([torch.randperm(vocab, generator=generator) for _ in range(rounds)] or [torch.empty(0)])
    return [
        [int(first), *torch.randint(vocab, (length - 1,), generator=generator).tolist()]
        for first, length in zip(firsts, lengths, strict=False)
    ]
