"""Exercise 02, fourth part: the loop that prefills once and then feeds one token at a time."""

from __future__ import annotations

from collections.abc import Callable
from random import Random
from typing import Any

import torch
from torch import Tensor

from course_lib.checks.core import Case, Mistake, Outcome, Problem

Result = tuple[list[int], str]
Step = Callable[[list[int], int], Tensor]


class ScriptedStep:
    """Stands in for a model with a cache: logits [t, V] whose arg-max is `rule(token, position)`.

    It refuses positions past the context, as a real position table or cache would.
    """

    __name__ = "step"
    vocab = 100

    def __init__(self, context: int, rule: Callable[[int, int], int]):
        self.context, self.rule = context, rule

    def __call__(self, tokens: list[int], start: int) -> Tensor:
        if not 0 <= start <= self.context - len(tokens):
            raise IndexError(f"position {start + len(tokens) - 1} is outside the context of {self.context} tokens")
        logits = torch.zeros(len(tokens), self.vocab)
        for i, token in enumerate(tokens):
            logits[i, self.rule(token, start + i) % self.vocab] = 1.0
        return logits


def counting(context: int) -> ScriptedStep:
    """The next token is the last one plus 1."""
    return ScriptedStep(context, lambda token, position: token + 1)


def scrambled(context: int, seed: int) -> ScriptedStep:
    """The next token depends on the token and on its position."""
    return ScriptedStep(context, lambda token, position: 31 * token + 17 * position + seed)


def decode_loop(step: Step, prompt: list[int], max_new_tokens: int, context: int, eos_id: int) -> Result:
    return _loop(step, prompt, max_new_tokens, context, eos_id)


def _feed(prompt: list[int], tokens: list[int]) -> tuple[list[int], int]:
    """What a step is fed, and its first position: the prompt once, then only the newest token."""
    return ([tokens[-1]], len(prompt) + len(tokens) - 1) if tokens else (prompt, 0)


def _loop(step, prompt, max_new, context, eos, *, feed=_feed, row=-1, cut=0, said="context", until_eos=True) -> Result:
    """The loop, with one part replaced by a wrong one. cut: tokens that the clamp takes off too many."""
    room = context - len(prompt) - cut
    limit, reason = (room, said) if room < max_new else (max_new, "length")
    tokens: list[int] = []
    while len(tokens) < limit:
        logits = step(*feed(prompt, tokens))
        tokens.append(int(logits[row].argmax()))
        if tokens[-1] == eos and until_eos:
            return tokens, "stop"
    return tokens, reason


def _fed_at(place: Callable[[list[int], list[int]], int]):
    """`_feed` that gives a new token the position place(prompt, tokens)."""
    return lambda prompt, tokens: ([tokens[-1]], place(prompt, tokens)) if tokens else (prompt, 0)


def _offset_from_prompt(prompt: list[int], tokens: list[int]) -> tuple[list[int], int]:
    return ([tokens[-1]], 2 * len(prompt) + len(tokens) - 1) if tokens else (prompt, len(prompt))


def _with_one_more_step(step, prompt, max_new, context, eos) -> Result:
    tokens, reason = _loop(step, prompt, max_new, context, eos)
    step(*_feed(prompt, tokens))
    return tokens, reason


def _prefill_wasted(step, prompt, max_new, context, eos) -> Result:
    step(prompt, 0)
    return _loop(step, prompt, max_new, context, eos, feed=lambda p, t: ([(p + t)[-1]], len(p) + len(t) - 1))


def tokens_and_calls(outcome: Outcome) -> dict[str, Any]:
    return {"the result": outcome.value, "the calls of step": list(outcome.calls)}


def _public(rng: Random) -> list[Case]:
    return [
        # From 6 the counting model goes to 7, 8, 9; the last token, 9, needs no step any more.
        Case(
            "worked example",
            (counting(100), [5, 6], 3, 100, 99),
            {"the result": ([7, 8, 9], "length"), "the calls of step": [[[5, 6], 0], [[7], 2], [[8], 3]]},
        ),
        Case("edge case", (counting(100), [5, 6], 9, 100, 8)),  # the end token stops it, and belongs to the result
        Case("edge case", (counting(10), [1, 2, 3, 4, 5], 10, 10, 99)),  # the context has room for 5 of the 10
        Case("edge case", (counting(10), [1, 2, 3, 4, 5], 5, 10, 99)),  # fits exactly: nothing was cut
        Case("edge case", (counting(10), [1, 2, 3, 4, 5], 10, 10, 10)),  # end token on the last free place
        Case("edge case", (counting(5), [1, 2, 3, 4, 5], 4, 5, 99)),  # no room at all: no step
        Case("edge case", (counting(100), [5], 1, 100, 99)),
        Case("reference", (scrambled(60, 3), [40, 2, 77], 25, 60, 100)),
    ]


def _hidden(rng: Random) -> list[Case]:
    seed, context = rng.randrange(100), rng.randint(30, 60)
    prompt = [rng.randrange(100) for _ in range(rng.randint(2, 9))]
    return [
        Case("reference", (scrambled(context, seed), prompt, 15, context, 100)),
        Case("reference", (scrambled(context, seed), prompt, 90, context, 100)),
        Case("reference", (counting(context), [3, 4], 20, context, rng.randint(6, 20))),
        Case("edge case", (counting(context), [3, 4], 0, context, 99)),
    ]


DECODE_LOOP = Problem(
    name="decode_loop",
    arguments=("step", "prompt", "max_new_tokens", "context", "eos_id"),
    reference=decode_loop,
    public=_public,
    hidden=_hidden,
    view=tokens_and_calls,
    public_points=4,
    hidden_points=4,
    mistakes=(
        Mistake(
            "everything-fed-again",
            "After the prefill the cache holds the earlier tokens: feed only the newest one, not the whole sequence.",
            lambda *a: _loop(*a, feed=lambda prompt, tokens: ([*prompt, *tokens], 0)),
        ),
        Mistake(
            "position-is-length",
            "The token being fed is the last of the sequence, so its position is len - 1, not len.",
            lambda *a: _loop(*a, feed=_fed_at(lambda prompt, tokens: len(prompt) + len(tokens))),
        ),
        Mistake(
            "offset-not-advanced",
            "Every step was given the same position; it grows by one with each token fed.",
            lambda *a: _loop(*a, feed=_fed_at(lambda prompt, tokens: len(prompt))),
        ),
        Mistake(
            "position-counts-new-tokens",
            "Positions count from the start of the prompt, not from the first generated token.",
            lambda *a: _loop(*a, feed=_fed_at(lambda prompt, tokens: len(tokens) - 1)),
        ),
        Mistake(
            "prefill-not-at-zero",
            "The prefill starts at position 0; the offset advances by the tokens fed, after they are fed.",
            lambda *a: _loop(*a, feed=_offset_from_prompt),
        ),
        Mistake(
            "no-clamp",
            "The sequence ran past the context: prompt and new tokens must fit, so stop after context - len(prompt).",
            lambda step, prompt, max_new, context, eos: _loop(step, prompt, max_new, 1 << 30, eos),
        ),
        Mistake(
            "clamp-unsaid",
            'When the context cuts the answer short, say so: the reason is "context", not "length".',
            lambda *a: _loop(*a, said="length"),
        ),
        Mistake(
            "clamped-one-early",
            "One more token fits: a context of 10 has room for 5 tokens behind a prompt of 5.",
            lambda *a: _loop(*a, cut=1),
        ),
        Mistake(
            "eos-ignored",
            'Stop as soon as eos_id is generated, with the reason "stop".',
            lambda *a: _loop(*a, until_eos=False),
        ),
        Mistake(
            "eos-dropped",
            "The end token belongs to the result, as in vLLM's token_ids.",
            lambda *a: _without_eos(_loop(*a)),
        ),
        Mistake(
            "prompt-in-result",
            "Return the new tokens only, without the prompt.",
            lambda *a: _with_prompt(a[1], *_loop(*a)),
        ),
        Mistake(
            "first-row",
            "step returns one row of logits for each token fed; the next token comes from the last row.",
            lambda *a: _loop(*a, row=0),
        ),
        Mistake(
            "one-step-too-many",
            "The last token is never fed: nothing is generated after it, so its step is wasted.",
            _with_one_more_step,
        ),
        Mistake(
            "prefill-wasted",
            "The prefill's last row of logits already gives the first new token; do not feed the prompt's end again.",
            _prefill_wasted,
        ),
        Mistake(
            "tokens-without-reason",
            "Return two things: the list of new tokens, and why the loop stopped.",
            lambda *a: _loop(*a)[0],
        ),
    ),
)


def _without_eos(result: Result) -> Result:
    tokens, reason = result
    return (tokens[:-1], reason) if reason == "stop" else result


def _with_prompt(prompt: list[int], tokens: list[int], reason: str) -> Result:
    return prompt + tokens, reason
