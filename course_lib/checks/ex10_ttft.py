"""Exercise 10, seventh part: what would be served too late."""

from __future__ import annotations

import math
from random import Random

from course_lib.checks.core import Case, Mistake, Problem, Property
from course_lib.checks.ex01_counts import number, proportional


def predicted_ttft(running: list[int], waiting: list[int], prompt: int, budget: int, step_seconds: float) -> float:
    return _predicted(running, waiting, prompt, budget, step_seconds)


def _ahead(running: list[int], waiting: list[int], prompt: int) -> int:
    """Prompt tokens that are fed up to the last of this request."""
    return sum(left for left in running if left > 1) + sum(waiting) + prompt


def _share(running: list[int], budget: int) -> int:
    """Tokens of a step that the decodes leave to prompts."""
    return budget - running.count(1)


def _predicted(running, waiting, prompt, budget, step, *, ahead=_ahead, share=_share, whole=math.ceil) -> float:
    """Steps times seconds, with one part replaced by a wrong one."""
    return whole(ahead(running, waiting, prompt) / share(running, budget)) * step


def _each_alone(running, waiting, prompt, budget, step) -> float:
    prompts = [left for left in running if left > 1] + [*waiting, prompt]
    return sum(math.ceil(each / _share(running, budget)) for each in prompts) * step


def _ttft_case(rng: Random) -> Case:
    running = [1] * rng.randint(2, 20) + [rng.randint(2, 300) for _ in range(rng.randint(1, 3))]
    rng.shuffle(running)
    waiting = [rng.randint(20, 500) for _ in range(rng.randint(1, 8))]
    return Case("reference", (running, waiting, rng.randint(10, 900), rng.randint(64, 256), rng.uniform(0.01, 0.2)))


PREDICTED_TTFT = Problem(
    name="predicted_ttft",
    arguments=("running", "waiting", "prompt", "budget", "step_seconds"),
    reference=predicted_ttft,
    public=lambda rng: [
        # Two decodes take 2 of 12 tokens, 10 are left for prompts: 15 + 20 + 7 = 42 tokens take 5 steps.
        Case("worked example", ([1, 15, 1], [20], 7, 12, 0.5), number(2.5)),
        Case("edge case", ([], [], 7, 12, 0.5), number(0.5)),
        Case("edge case", ([], [], 24, 12, 0.5), number(1.0)),
        Case("edge case", ([1, 1], [], 20, 12, 0.5), number(1.0)),
        Case("edge case", ([1, 1, 1], [], 10, 12, 0.5), number(1.0)),
        Case("edge case", ([40], [], 5, 12, 0.5)),
        Case("edge case", ([], [13, 13, 13], 1, 12, 0.5)),
        Property(
            "steps of twice the time, twice the wait",
            (([1, 30], [90, 7], 33, 16, 0.25), ([1, 30], [90, 7], 33, 16, 0.5)),
            proportional(2),
        ),
        Case("reference", ([1] * 30 + [90], [120, 45, 300], 220, 64, 0.04)),
    ],
    hidden=lambda rng: [_ttft_case(rng) for _ in range(4)],
    mistakes=(
        Mistake(
            "running-ignored",
            "Those that run count too: their decodes take tokens of every step, and begun prompts are finished first.",
            lambda running, *a: _predicted([], *a),
        ),
        Mistake(
            "begun-prompts-ignored",
            "A running request with more than 1 token left is still in its prompt, and comes before those that wait.",
            lambda *a: _predicted(*a, ahead=lambda running, waiting, prompt: sum(waiting) + prompt),
        ),
        Mistake(
            "decodes-ignored",
            "Each decode takes one token of every step: prompts share budget minus the number of decodes.",
            lambda *a: _predicted(*a, share=lambda running, budget: budget),
        ),
        Mistake(
            "decodes-fed-once",
            "A decode takes a token of every step, not one token in all: it makes the share of the prompts smaller.",
            lambda *a: _predicted(
                *a, ahead=lambda r, w, prompt: sum(r) + sum(w) + prompt, share=lambda running, budget: budget
            ),
        ),
        Mistake(
            "decodes-counted-twice",
            "A decode is counted twice, once in the share and once as a prompt of one token: sum only what is above 1.",
            lambda *a: _predicted(*a, ahead=lambda r, w, prompt: sum(r) + sum(w) + prompt),
        ),
        Mistake(
            "every-running-decodes",
            "Only running requests with 1 token left decode; the others are prompts that share what the decodes leave.",
            lambda *a: _predicted(*a, share=lambda running, budget: budget - len(running)),
        ),
        Mistake(
            "queue-ignored",
            "Those that wait before it are fed before it.",
            lambda running, waiting, *a: _predicted(running, [], *a),
        ),
        Mistake(
            "own-prompt-left-out",
            "Its own prompt must be fed as well before its first token can be drawn.",
            lambda running, waiting, prompt, *a: _predicted(running, waiting, 0, *a),
        ),
        Mistake(
            "not-whole-steps",
            "A step that is used in part takes its whole time: round the number of steps up.",
            lambda *a: _predicted(*a, whole=lambda steps: steps),
        ),
        Mistake(
            "rounded-down",
            "The first token comes at the end of the last, partly used step: round up, not down.",
            lambda *a: _predicted(*a, whole=math.floor),
        ),
        Mistake(
            "one-prompt-a-step",
            "Prompts share a step: the next one starts in what the one before leaves. Round up once, at the end.",
            _each_alone,
        ),
        Mistake(
            "steps-for-seconds",
            "The result is a time: multiply the steps by step_seconds.",
            lambda running, waiting, prompt, budget, step: _predicted(running, waiting, prompt, budget, 1),
        ),
    ),
)
