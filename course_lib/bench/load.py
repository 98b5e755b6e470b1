"""Two ways to load a server. They answer different questions, and only the open loop can overload.

Open loop: requests come at their times, as from many users who do not know of each other. A generator that waits for
an answer before it sends the next request spares a slow server exactly the requests that would have suffered
("coordinated omission", Gil Tene); this one never waits, and each latency counts from when its request was due.
Closed loop: a fixed number of users, each of whom asks again when answered.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from time import perf_counter

import torch

from course_lib import SamplingParams
from course_lib.errors import CourseError
from course_lib.perf.service import Sample
from course_lib.perf.workload import Arrival, Lengths, poisson_times, random_prompts

VOCAB = 2000  # prompts are of token ids below this, which every model in use has
Send = Callable[[Arrival, float], Awaitable[Sample]]  # the request, and when it was due on `perf_counter`'s clock


@dataclass(frozen=True)
class Level:
    """One load: `rate` requests per second, open loop, or `concurrency` users, closed loop.

    Raises CourseError where it is not above 0.
    """

    rate: float | None = None
    concurrency: int | None = None

    def __post_init__(self):
        if (self.rate or self.concurrency or 0) <= 0:
            raise CourseError(f"a load of {self} is not possible; it must be above 0")

    def __str__(self) -> str:
        if self.rate is None:
            return "1 user" if self.concurrency == 1 else f"{self.concurrency} users"
        return f"{self.rate:g} req/s"


@dataclass(frozen=True)
class Load:
    """What is sent at each level. The levels differ in their load only: requests have the same lengths and, open loop,
    arrive in the same pattern. Their prompts are new at each level, so no prefix cache serves one from another.

    prompt, output: lengths, cut to `longest` and to what the model can hold. shared_prefix: tokens that all prompts
    begin with, on top of their length. warmup: requests before the first level, which are not counted.
    Raises CourseError where a number is out of range.
    """

    requests: int = 64
    prompt: Lengths = Lengths(128)
    output: Lengths = Lengths(64)
    longest: int = 512
    shared_prefix: int = 0
    warmup: int = 4
    seed: int = 0

    def __post_init__(self):
        for name, least in [("requests", 1), ("longest", 1), ("shared_prefix", 0), ("warmup", 1)]:
            if getattr(self, name) < least:
                raise CourseError(f"{name} is {getattr(self, name)}; it must be at least {least}")

    def arrivals(self, levels: Sequence[Level], limit: int | None) -> list[list[Arrival]]:
        """The warm-up's, then each level's. limit: most tokens of prompt and completion, None where not known.

        Raises CourseError where the shared prefix leaves no room.
        """
        longest = self.longest if limit is None else min(self.longest, (limit - self.shared_prefix) // 2)
        if longest < 1:
            raise CourseError(
                f"shared_prefix is {self.shared_prefix} and the model holds {limit} tokens of prompt and completion; "
                f"choose at most {limit - 2}"
            )
        generator = torch.Generator().manual_seed(self.seed)
        lengths = self.prompt.draw(self.requests, longest, generator)
        outputs = self.output.draw(self.requests, longest, generator)
        times = poisson_times(1.0, self.requests, generator)
        prefix = torch.randint(VOCAB, (self.shared_prefix,), generator=generator).tolist()
        # Which of the requests above are sent, and how much faster than one a second they come.
        parts = [([i % self.requests for i in range(self.warmup)], 1.0)]
        parts += [(list(range(self.requests)), level.rate or 1.0) for level in levels]
        prompts = iter(random_prompts(VOCAB, [lengths[i] for chosen, _ in parts for i in chosen], generator))
        params = [SamplingParams(temperature=0, max_tokens=n, ignore_eos=True) for n in outputs]
        return [[Arrival(times[i] / rate, prefix + next(prompts), params[i]) for i in chosen] for chosen, rate in parts]


async def open_loop(arrivals: Sequence[Arrival], send: Send) -> tuple[list[Sample], list[float]]:
    """Send each request at its time. Returns the samples, and by how many seconds each was sent late, in order."""
    start, lags = perf_counter(), []

    async def one(arrival: Arrival) -> Sample:
        due = start + arrival.time
        lags.append(perf_counter() - due)
        return await send(arrival, due)

    async with asyncio.TaskGroup() as group:
        tasks = []
        for arrival in arrivals:
            await asyncio.sleep(max(0.0, start + arrival.time - perf_counter()))
            tasks.append(group.create_task(one(arrival)))
    return [task.result() for task in tasks], lags


async def closed_loop(arrivals: Sequence[Arrival], send: Send, concurrency: int) -> list[Sample]:
    """Keep `concurrency` requests under way until all are sent, whatever their times. Samples in order of their end."""
    waiting, samples = iter(arrivals), []

    async def user() -> None:
        for arrival in waiting:
            samples.append(await send(arrival, perf_counter()))

    async with asyncio.TaskGroup() as group:
        for _ in range(concurrency):
            group.create_task(user())
    return samples
