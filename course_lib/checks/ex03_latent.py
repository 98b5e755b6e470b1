"""Exercise 03, last part: decode attention over latents, with the matrices folded into query and output.

Multi-head latent attention (arXiv 2405.04434, section 2.1). Letters: H query heads, n cached tokens, r elements of a
latent, p of the rotated key, a of a query without its rotated part, v of a value.
"""

from __future__ import annotations

import math
from random import Random

import torch
from torch import Tensor

from course_lib.checks.compare import compare
from course_lib.checks.core import Case, Mistake, Play, Problem, Property
from course_lib.checks.ex03_engine import same_as_plain
from course_lib.checks.own_heads import AbsorbedAttention


def absorbed_attention(q_nope: Tensor, q_rope: Tensor, cache: Tensor, w_uk: Tensor, w_uv: Tensor) -> Tensor:
    """In the plain form: the keys and values of all heads are made of the latents, and then attended."""
    latents, rotated = cache.split((w_uk.shape[2], q_rope.shape[1]), dim=1)
    keys, values = latents @ w_uk.mT, latents @ w_uv.mT  # [H, n, a], [H, n, v]
    scores = (keys @ q_nope[:, :, None])[..., 0] + q_rope @ rotated.T
    weights = (scores / math.sqrt(q_nope.shape[1] + q_rope.shape[1])).softmax(-1)
    return (weights[:, None] @ values)[:, 0]


def _join(latent: Tensor, rope: Tensor) -> Tensor:
    return torch.cat((latent, rope), dim=1)


def _from_the_front(cache: Tensor, r: int) -> Tensor:
    return cache[:, :r]


def _absorbed(
    q_nope, q_rope, cache, w_uk, w_uv, *,
    query=lambda q_nope, w_uk: torch.einsum("ha,har->hr", q_nope, w_uk),
    output=lambda latent, w_uv: torch.einsum("hr,hvr->hv", latent, w_uv),
    join=_join,
    scale=lambda a, p, r: math.sqrt(a + p),
    softmax=lambda scores: scores.softmax(-1),
    value=_from_the_front,
) -> Tensor:  # fmt: skip
    """The absorbed form, with one of its parts replaced by a wrong one."""
    r = w_uk.shape[2]
    joined = join(query(q_nope, w_uk), q_rope)
    scores = joined @ cache.T / scale(q_nope.shape[1], q_rope.shape[1], r)
    return output(softmax(scores) @ value(cache, r), w_uv)


def _wrong(**parts) -> AbsorbedAttention:
    return lambda *args: _absorbed(*args, **parts)


def _rope_on_its_own(q_nope: Tensor, q_rope: Tensor, cache: Tensor, w_uk: Tensor, w_uv: Tensor) -> Tensor:
    """A softmax for each of the two parts of the score, and the mean of the weights."""
    r, root = w_uk.shape[2], math.sqrt(q_nope.shape[1] + q_rope.shape[1])
    parts = torch.einsum("ha,har->hr", q_nope, w_uk) @ cache[:, :r].T, q_rope @ cache[:, r:].T
    weights = sum((part / root).softmax(-1) for part in parts) / 2
    return torch.einsum("hr,hvr->hv", weights @ cache[:, :r], w_uv)


def _rope_first(q_nope: Tensor, q_rope: Tensor, cache: Tensor, w_uk: Tensor, w_uv: Tensor) -> Tensor:
    """Reads the entries as if the rotated key came before the latent."""
    return absorbed_attention(q_nope, q_rope, cache.roll(-q_rope.shape[1], dims=1), w_uk, w_uv)


def _first_matrices(q_nope: Tensor, q_rope: Tensor, cache: Tensor, w_uk: Tensor, w_uv: Tensor) -> Tensor:
    return absorbed_attention(q_nope, q_rope, cache, w_uk[:1].expand_as(w_uk), w_uv[:1].expand_as(w_uv))


def _random_step(rng: Random, H: int, n: int, a: int, p: int, r: int, v: int) -> tuple[Tensor, ...]:
    generator = torch.Generator().manual_seed(rng.getrandbits(62))
    shapes = (H, a), (H, p), (n, r + p), (H, a, r), (H, v, r)
    q_nope, q_rope, cache, w_uk, w_uv = (torch.randn(shape, generator=generator) for shape in shapes)
    return q_nope, 2 * q_rope, cache, w_uk, w_uv


def _turned(step: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
    """Latents in another basis, which the two matrices undo: M c for c, and W M^-1 for W, with an orthogonal M."""
    q_nope, q_rope, cache, w_uk, w_uv = step
    r = w_uk.shape[2]
    turn = torch.linalg.qr(torch.randn(r, r, dtype=torch.float64, generator=torch.Generator().manual_seed(3)))[0]
    turn = turn.to(cache)
    turned = torch.cat((cache[:, :r] @ turn.T, cache[:, r:]), dim=1)
    return q_nope, q_rope, turned, w_uk @ turn.T, w_uv @ turn.T


def _same(views: list[dict]) -> str | None:
    difference = compare(views[1], views[0])
    return difference and difference.text


def _play(seed: int) -> Play:
    return Play(
        "a random model with latent attention reads 8 tokens in the plain form, and 6 one by one with this function",
        lambda attention: same_as_plain(seed, attention),
    )


def _public(rng: Random) -> list[Case | Property | Play]:
    w_uv = torch.tensor([[[1.0, 10.0], [1.0, 0.0], [0.0, 1.0]]])
    entries = torch.tensor([[2.0, 6.0, 70.0, 80.0], [4.0, 2.0, 90.0, 60.0]])
    step = _random_step(rng, H=3, n=6, a=5, p=2, r=8, v=4)
    return [
        # A query of zeros weighs both tokens alike: the mean latent is 3, 4. W_UV makes 3 + 10 * 4, 3 and 4 of it.
        Case(
            "worked example",
            (torch.zeros(1, 4), torch.zeros(1, 2), entries, torch.ones(1, 4, 2), w_uv),
            {"the result": torch.tensor([[43.0, 3.0, 4.0]])},
        ),
        Case("edge case", _random_step(rng, H=3, n=1, a=5, p=2, r=8, v=4)),
        Case("edge case", _random_step(rng, H=2, n=5, a=4, p=4, r=4, v=4)),  # all alike: no error shows a wrong axis
        Case("edge case", _random_step(rng, H=1, n=7, a=6, p=2, r=4, v=3)),
        Case("reference", step),
        Property("latents in another basis, which W_UK and W_UV undo, change nothing", (step, _turned(step)), _same),
        Case("reference", _random_step(rng, H=8, n=40, a=16, p=8, r=32, v=12)),
        _play(0),
    ]


ABSORBED_ATTENTION = Problem(
    name="absorbed_attention",
    arguments=("q_nope", "q_rope", "cache", "w_uk", "w_uv"),
    reference=absorbed_attention,
    public=_public,
    hidden=lambda rng: [
        *(
            Case("reference", _random_step(rng, rng.randint(2, 6), rng.randint(2, 50), a, p, r, v))
            for a, p, r, v in ((8, 4, 24, 12), (6, 2, 10, 6), (5, 6, 5, 7))
        ),
        _play(rng.getrandbits(32)),
    ],
    public_points=4,
    hidden_points=4,
    mistakes=(
        Mistake(
            "scaled-by-nope-only",
            "The score is a sum over a + p products, of the plain form's query and key: divide by sqrt(a + p).",
            _wrong(scale=lambda a, p, r: math.sqrt(a)),
        ),
        Mistake(
            "scaled-by-latent",
            "Absorbing changes no score, so the scale is that of the plain form: sqrt(a + p), not sqrt(r + p).",
            _wrong(scale=lambda a, p, r: math.sqrt(r + p)),
        ),
        Mistake(
            "scaled-by-r",
            "Absorbing changes no score, so the scale is that of the plain form: sqrt(a + p), not sqrt(r).",
            _wrong(scale=lambda a, p, r: math.sqrt(r)),
        ),
        Mistake("no-scale", "Divide the scores by sqrt(a + p).", _wrong(scale=lambda a, p, r: 1)),
        Mistake("no-root", "Divide the scores by sqrt(a + p), not by a + p.", _wrong(scale=lambda a, p, r: a + p)),
        Mistake(
            "rotated-part-left-out",
            "The score has two parts: the latent's, and q_rope with the rotated key, the last p elements of an entry.",
            _wrong(join=lambda latent, rope: _join(latent, 0 * rope)),
        ),
        Mistake(
            "two-softmaxes",
            "The two parts of a score are added before one softmax.",
            _rope_on_its_own,
        ),
        Mistake(
            "rotated-key-first",
            "An entry holds the latent first, r elements, and then the rotated key, p elements.",
            _rope_first,
        ),
        Mistake(
            "value-from-the-end",
            "The value is made from the latent, the first r elements of an entry; the rotated key is no part of it.",
            _wrong(value=lambda cache, r: cache[:, -r:]),
        ),
        Mistake(
            "value-with-rotated-key",
            "The value is made from the first r elements of an entry: leave the rotated key out of the weighted sum.",
            _wrong(value=lambda cache, r: cache),
        ),
        Mistake(
            "w-uk-transposed",
            "q . (W_UK c) = (W_UK^T q) . c: sum over the a elements of the query, axis 1 of w_uk, and keep r.",
            _wrong(query=lambda q, w: torch.einsum("hr,har->ha", q, w)),
        ),
        Mistake(
            "w-uk-not-used",
            "The query has to be mapped to the latent's space first: W_UK^T q, r elements for each head.",
            _wrong(query=lambda q, w: q),
        ),
        Mistake(
            "w-uv-transposed",
            "W_UV maps r elements to v: sum over the last axis of w_uv.",
            _wrong(output=lambda latent, w: torch.einsum("hv,hvr->hr", latent, w)),
        ),
        Mistake(
            "w-uv-not-used",
            "The weighted sum of latents has r elements; W_UV makes the v elements of the head's output of it.",
            _wrong(output=lambda latent, w: latent),
        ),
        Mistake(
            "first-matrices-for-all",
            "Each head has its own W_UK and W_UV: w_uk[i] and w_uv[i].",
            _first_matrices,
        ),
        Mistake(
            "matrices-exchanged",
            "W_UK belongs to the query and W_UV to the output.",
            lambda q_nope, q_rope, cache, w_uk, w_uv: _absorbed(q_nope, q_rope, cache, w_uv, w_uk),
        ),
        Mistake(
            "softmax-over-heads-of-latents",
            "The weights of one head over its n tokens sum to 1: softmax over the last axis, not over the heads.",
            _wrong(softmax=lambda scores: scores.softmax(0)),
        ),
        Mistake(
            "heads-summed",
            "Each head has a result of its own: [H, v].",
            lambda *a: absorbed_attention(*a).sum(0),
        ),
    ),
)
