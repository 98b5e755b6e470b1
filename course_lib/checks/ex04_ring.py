"""Exercise 04, first part: where a token lies in a ring cache. Letters: p position of a token, w window, s sinks."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from course_lib.checks.compare import compare
from course_lib.checks.core import Case, Mistake, Problem, Property


def ring_slots(positions: Tensor, window: int, sinks: int) -> Tensor:
    return _slots(positions, window, sinks)


def _slots(positions: Tensor, window: int, sinks: int, first: int | None = None, size: int | None = None) -> Tensor:
    """`first` is the slot where the ring begins, `size` how long it is."""
    first, size = sinks if first is None else first, window if size is None else size
    return torch.where(positions < sinks, positions, first + (positions - sinks) % size)


def at(*positions: int) -> Tensor:
    return torch.tensor(positions, dtype=torch.int64)


def _one_round_later(views: list[dict[str, Any]]) -> str | None:
    difference = compare(views[1]["the result"], views[0]["the result"], "the slots")
    return difference and difference.text


def ring_keys(tokens: int, window: int, sinks: int) -> Tensor:
    """int64 [s + w]: position of the key in each slot of a ring after so many tokens, -1 where there is none."""
    held = torch.full((sinks + window,), -1)
    for position in range(tokens):
        held[int(ring_slots(torch.tensor(position), window, sinks))] = position
    return held


RING_SLOTS = Problem(
    name="ring_slots",
    arguments=("positions", "window", "sinks"),
    reference=ring_slots,
    public=lambda rng: [
        # 2 sinks, then a ring of 4 in the slots 2 to 5: position 2 opens it, 5 ends its first round, 6 begins the next.
        Case("worked example", (at(1, 2, 5, 6), 4, 2), {"the result": at(1, 2, 5, 2)}),
        Case("edge case", (at(0, 3, 4, 11), 4, 0)),
        Case("edge case", (at(0, 1, 2, 3), 5, 3)),
        Case("edge case", (at(9, 10, 11), 1, 2)),
        Property(
            "the token w further on takes the same slot",
            ((at(7, 8, 9), 3, 2), (at(10, 11, 12), 3, 2)),
            _one_round_later,
        ),
        Case("reference", (torch.arange(40), 7, 4)),
    ],
    hidden=lambda rng: [
        Case("reference", (torch.arange(rng.randint(30, 90)), rng.randint(3, 20), sinks))
        for sinks in (0, 1, rng.randint(2, 9))
    ],
    mistakes=(
        Mistake(
            "no-sinks",
            "The sinks keep the slots 0 to s - 1 for ever; p % w hands them to later tokens.",
            lambda p, w, s: p % w,
        ),
        Mistake(
            "sinks-in-the-ring",
            "A ring of s + w slots overwrites the sinks: they have slots of their own, and the ring beside them has w.",
            lambda p, w, s: p % (w + s),
        ),
        Mistake(
            "ring-over-the-sinks",
            "The ring begins behind the sinks, at slot s: here its first s tokens overwrite them.",
            lambda p, w, s: _slots(p, w, s, first=0),
        ),
        Mistake(
            "counted-from-zero",
            "The first token behind the sinks opens the ring: count from it, (p - s) % w, not p % w.",
            lambda p, w, s: torch.where(p < s, p, s + p % w),
        ),
        Mistake(
            "window-less-sinks",
            "The window has w slots beside those of the sinks: the ring's length is w, not w - s.",
            lambda p, w, s: _slots(p, w, s, size=w - s),
        ),
        Mistake(
            "ring-too-short",
            "The ring has w slots, not w - 1: an engine stores the token of a decode step first, and then it needs w.",
            lambda p, w, s: _slots(p, w, s, size=w - 1),
        ),
        Mistake(
            "ring-too-long",
            "The token at p replaces the one at p - w, which no later query sees: the ring's length is w, not w + 1.",
            lambda p, w, s: _slots(p, w, s, size=w + 1),
        ),
        Mistake(
            "sinks-not-told-apart",
            "A position below s is a sink, and its slot is p: the formula of the ring puts it at the ring's end.",
            lambda p, w, s: s + (p - s) % w,
        ),
        Mistake(
            "one-sink-too-few",
            "There are s sinks, at the positions 0 to s - 1: the last of them went into the ring.",
            lambda p, w, s: torch.where(p < s - 1, p, s + (p - s) % w),
        ),
        Mistake(
            "stuck-at-the-end",
            "Behind the last slot the ring begins again; here all later tokens share the last slot.",
            lambda p, w, s: p.clamp(max=s + w - 1),
        ),
        Mistake(
            "list-for-tensor",
            "The cache is indexed with a tensor of slots, int64 [t], not with a list.",
            lambda p, w, s: ring_slots(p, w, s).tolist(),
        ),
    ),
)
