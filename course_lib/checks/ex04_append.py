"""Exercise 04, third part: a chunk of new tokens attends to what a ring holds, and then goes into it.

Letters: R slots of the ring (its w and the sinks' s), K KV heads, d size of a head, t new tokens.
"""

from __future__ import annotations

from random import Random
from typing import Any

import torch
from torch import Tensor

from course_lib.checks.core import Case, Mistake, Outcome, Play, Problem, Property, members
from course_lib.checks.ex04_engine import ring_play
from course_lib.checks.ex04_ring import ring_keys, ring_slots

Result = tuple[Tensor, Tensor, Tensor, Tensor]


def ring_append(ring: Tensor, held: Tensor, new: Tensor, positions: Tensor, slots: Tensor) -> Result:
    return _append(ring, held, new, positions, slots)


def _joined(before: tuple[Tensor, Tensor], after: tuple[Tensor, Tensor], new: tuple[Tensor, Tensor]) -> tuple:
    return tuple(torch.cat(pair) for pair in zip(before, new, strict=True))


def _in_order(count: int) -> list[int]:
    return list(range(count))


def _append(ring, held, new, positions, slots, *, attend=_joined, order=_in_order, at=None, hold=True) -> Result:
    """`ring_append` with one part replaced by a wrong one.

    attend: from (keys, positions) of the ring before the write, of the ring after it, and of the new tokens. order: in
    which the new tokens are written. at: slots to write to. hold: whether `held` is kept up.
    """
    stored, stored_at, slots = ring.clone(), held.clone(), slots if at is None else at
    for i in order(len(new)):
        stored[slots[i]] = new[i]
        if hold:
            stored_at[slots[i]] = positions[i]
    return *attend((ring, held), (stored, stored_at), (new, positions)), stored, stored_at


def _cut_to_the_ring(before: tuple, after: tuple, new: tuple) -> tuple:
    return tuple(torch.cat(pair)[-len(pair[0]) :] for pair in zip(before, new, strict=True))


def _shifted(ring: Tensor, held: Tensor, new: Tensor, positions: Tensor, slots: Tensor) -> Result:
    keys, at = torch.cat((ring, new)), torch.cat((held, positions))
    return keys, at, keys[-len(ring) :], at[-len(ring) :]


def _without_empty(before: tuple, after: tuple, new: tuple) -> tuple:
    keys, at = _joined(before, after, new)
    return keys[at >= 0], at[at >= 0]


def filled(tokens: int, K: int, d: int, start: float = 1.0) -> Tensor:
    """[n, K, d] of numbers that are all different, so that every misplaced one shows."""
    return (start + torch.arange(tokens * K * d, dtype=torch.float32)).view(tokens, K, d)


def chunk(cached: int, new: int, window: int, sinks: int, K: int = 2, d: int = 3) -> tuple[Tensor, ...]:
    """A chunk of new tokens before a ring that has seen `cached` ones. An empty slot has zeros."""
    tokens, held = filled(cached + new, K, d), ring_keys(cached, window, sinks)
    ring = torch.where(held[:, None, None] >= 0, tokens[held], 0.0)
    positions = torch.arange(cached, cached + new)
    return ring, held, tokens[cached:], positions, ring_slots(positions, window, sinks)


def _same_ring(views: list[dict[str, Any]]) -> str | None:
    same = all(views[1][name].equal(views[2][name]) for name in ("the ring", "held"))
    return None if same else "they differ"


parts = members("the keys to attend to", "their positions", "the ring", "held")


def _column(*values: float) -> Tensor:
    return torch.tensor(values)[:, None, None]


def _public(rng: Random) -> list[Case | Property | Play]:
    three = chunk(cached=8, new=3, window=4, sinks=1)
    ring, held, new, positions, slots = three
    first = ring, held, new[:1], positions[:1], slots[:1]
    *_, ring_after, held_after = ring_append(*first)
    return [
        # w = 3, no sink: the tokens 3 and 4 replace 0 and 1 in the ring, but attend beside them.
        Case(
            "worked example",
            (_column(10, 11, 12), torch.tensor([0, 1, 2]), _column(13, 14), torch.tensor([3, 4]), torch.tensor([0, 1])),
            parts(
                Outcome((
                    _column(10, 11, 12, 13, 14), torch.tensor([0, 1, 2, 3, 4]),
                    _column(13, 14, 12), torch.tensor([3, 4, 2]),
                ))
            ),
        ),
        Case("edge case", chunk(cached=0, new=3, window=4, sinks=2)),  # empty slots
        Case("edge case", chunk(cached=9, new=1, window=4, sinks=1)),
        Case("edge case", chunk(cached=4, new=7, window=3, sinks=1)),  # several new tokens share a slot
        Property(
            "one token and then two leave the same ring as three at once",
            (first, (ring_after, held_after, new[1:], positions[1:], slots[1:]), three),
            _same_ring,
        ),
        Case("reference", chunk(cached=30, new=6, window=8, sinks=4)),
        ring_play([7, 1, 9, 1, 2, 12], 6, 2, ring_append),
    ]  # fmt: skip


def _hidden(rng: Random) -> list[Case | Play]:
    cases = [
        Case("reference", chunk(rng.randint(1, 40), new, rng.randint(3, 9), rng.randint(0, 3)))
        for new in (1, 4, rng.randint(10, 20))
    ]
    chunks = [rng.randint(1, 9) for _ in range(5)]
    return [*cases, ring_play(chunks, rng.randint(2, 7), rng.randint(0, 3), ring_append)]


RING_APPEND = Problem(
    name="ring_append",
    arguments=("ring", "held", "new", "positions", "slots"),
    reference=ring_append,
    public=_public,
    hidden=_hidden,
    view=parts,
    public_points=3,
    hidden_points=3,
    mistakes=(
        Mistake(
            "stored-before-attending",
            "The first new token still sees keys that the later ones replace: join ring and new before the write.",
            lambda *a: _append(*a, attend=lambda before, after, new: after),
        ),
        Mistake(
            "attends-twice",
            "The ring was written first and then joined with the new tokens: these count twice, and old keys are gone.",
            lambda *a: _append(*a, attend=lambda before, after, new: _joined(after, after, new)),
        ),
        Mistake(
            "cut-before-attending",
            "Do not cut to the ring's length before attending: the first of t new tokens sees w - 1 keys before it.",
            lambda *a: _append(*a, attend=_cut_to_the_ring),
        ),
        Mistake(
            "new-not-attended",
            "The new tokens attend to themselves and to one another: the keys are those of the ring and the new ones.",
            lambda *a: _append(*a, attend=lambda before, after, new: before),
        ),
        Mistake(
            "old-not-attended",
            "The new tokens see what the ring holds as well, not only one another.",
            lambda *a: _append(*a, attend=lambda before, after, new: new),
        ),
        Mistake(
            "new-first",
            "Return the ring's slots first and the new tokens behind them.",
            lambda *a: _append(*a, attend=lambda before, after, new: _joined(new, after, before)),
        ),
        Mistake(
            "empty-slots-dropped",
            "Leave empty slots in: the mask hides them by their position, -1, and the shape depends on t alone.",
            lambda *a: _append(*a, attend=_without_empty),
        ),
        Mistake(
            "slots-for-positions",
            "The mask needs where a key stands in the text, from `held` and `positions`, not the number of its slot.",
            lambda *a: _append(
                *a, attend=lambda *parts: (_joined(*parts)[0], torch.arange(len(parts[0][0]) + len(parts[2][0])))
            ),
        ),
        Mistake(
            "held-not-updated",
            "`held` says whose key lies in each slot: write the new positions there as well, or the mask is wrong.",
            lambda *a: _append(*a, hold=False),
        ),
        Mistake(
            "nothing-stored",
            "The ring did not change: write the new tokens into their slots, for the steps to come.",
            lambda *a: _append(*a, order=lambda count: []),
        ),
        Mistake(
            "first-stays",
            "Of several new tokens with one slot the last must stay: write them in order.",
            lambda *a: _append(*a, order=lambda count: list(range(count))[::-1]),
        ),
        Mistake(
            "last-token-only",
            "All new tokens go into the ring, not only the last one.",
            lambda *a: _append(*a, order=lambda count: [count - 1]),
        ),
        Mistake(
            "sinks-overwritten",
            "The slots are given: positions % len(ring) sends later tokens into the sinks' slots.",
            lambda *a: _append(*a, at=a[3] % len(a[0])),
        ),
        Mistake(
            "shifted",
            "A ring is not moved along: each new token replaces the one in its slot, and the sinks stay in theirs.",
            _shifted,
        ),
    ),
)
