"""Exercise 04, fourth part: 8 bits, symmetric, with a scale for each head of each token.

Letters: t tokens, K KV heads, d size of a head.
"""

from __future__ import annotations

from random import Random
from typing import Any

import torch
from torch import Tensor

from course_lib.checks.core import Case, Mistake, Outcome, Play, Problem, Property, members
from course_lib.checks.ex04_engine import int8_play

Result = tuple[Tensor, Tensor]


def int8_quantize(x: Tensor) -> Result:
    return _quantize(x)


def _largest(x: Tensor) -> Tensor:
    return x.abs().amax(dim=-1)


def _guarded(scale: Tensor) -> Tensor:
    return torch.where(scale == 0, 1.0, scale)


def _quantize(x, *, largest=_largest, steps=127, guard=_guarded, whole=torch.round, fit=lambda codes: codes) -> Result:
    """`int8_quantize` with one part replaced by a wrong one. fit: brings rounded codes into the range."""
    scale = guard(largest(x) / steps)
    codes = fit(whole(x / scale[..., None])).to(torch.int32).to(torch.int8)  # what is over 127 wraps everywhere alike
    return codes, scale


def _span(x: Tensor) -> Tensor:
    return (x.amax(-1) - x.amin(-1)) / 2


def _largest_of_token(x: Tensor) -> Tensor:
    return x.abs().amax(dim=(-2, -1), keepdim=True)[..., 0].expand(x.shape[:-1])


def _whole_tensor(x: Tensor) -> Result:
    return _quantize(x, largest=lambda x: x.abs().max().expand(x.shape[:-1]))


def _per_channel(x: Tensor) -> Result:
    scale = _guarded(x.abs().flatten(0, -2).amax(0) / 127)
    return (x / scale).round().to(torch.int8), scale


def _unguarded(x: Tensor) -> Result:
    scale = _largest(x) / 127
    return (x / scale[..., None]).nan_to_num(0).round().to(torch.int8), scale


def random_rows(rng: Random, *shape: int) -> Tensor:
    """float32 [*shape, d], so that no value lies near the middle between two codes, where roundings may differ.

    Each row has a scale of its own, and one of its values is the largest code, of either sign.
    """
    generator = torch.Generator().manual_seed(rng.getrandbits(62))
    codes = torch.randint(-126, 127, shape, generator=generator).float()
    codes += torch.rand(shape, generator=generator) * 0.8 - 0.4
    codes[..., rng.randrange(shape[-1])] = rng.choice((-127.0, 127.0))
    return codes * torch.rand(*shape[:-1], 1, generator=generator).add(0.01).mul(0.05)


def _close(x: Tensor) -> Any:
    def holds(views: list[dict[str, Any]]) -> str | None:
        codes, scale = views[0]["the codes"], views[0]["the scale"]
        error = (codes.float() * scale[..., None] - x).abs() / scale[..., None]
        return None if error.max() <= 0.501 else f"one is off by {error.max():.3f} of it"

    return holds


codes_and_scale = members("the codes", "the scale")


def _public(rng: Random) -> list[Case | Property | Play]:
    x = random_rows(rng, 4, 2, 8)
    return [
        # The largest magnitude is 4, so a step is 4 / 127: 1 is 31.75 steps and 2.5 is 79.375.
        Case(
            "worked example",
            (torch.tensor([[1.0, -4.0, 2.5]]),),
            codes_and_scale(Outcome((torch.tensor([[32, -127, 79]], dtype=torch.int8), torch.tensor([4 / 127])))),
        ),
        Case("edge case", (torch.tensor([[-3.0, -1.0, -2.6]]),)),  # no positive value
        Case("edge case", (torch.tensor([[0.0, 0.0], [2.0, -1.4]]),)),  # a row of zeros
        Case("edge case", (torch.tensor([[[1.0, 0.3]], [[100.0, -7.0]]]),)),  # a row beside it that is much larger
        Case("edge case", (random_rows(rng, 1, 1, 16),)),
        Case("reference", (random_rows(rng, 3, 2, 16),)),
        Property("codes * scale is within half a scale of each value", ((x,),), _close(x)),
        int8_play(30, 12, int8_quantize),
    ]


INT8_QUANTIZE = Problem(
    name="int8_quantize",
    arguments=("x",),
    reference=int8_quantize,
    public=_public,
    hidden=lambda rng: [
        Case("reference", (random_rows(rng, rng.randint(1, 9), K, 2 * rng.randint(4, 16)),)) for K in (1, 2, 5)
    ],
    view=codes_and_scale,
    mistakes=(
        Mistake(
            "no-abs",
            "The largest magnitude may be that of a negative value: take abs() before the maximum.",
            lambda x: _quantize(x, largest=lambda x: x.amax(-1)),
        ),
        Mistake(
            "span-for-magnitude",
            "(max - min) / 2 is the range of codes with a zero point. Without one, 127 steps must reach max |x|.",
            lambda x: _quantize(x, largest=_span, fit=lambda codes: codes.clamp(-128, 127)),
        ),
        Mistake(
            "divided-by-128",
            "With a scale of max |x| / 128 the largest value gets the code 128, which int8 turns into -128: use 127.",
            lambda x: _quantize(x, steps=128),
        ),
        Mistake(
            "clamped-from-128",
            "The scale is max |x| / 127: with 128 the largest positive value has no code of its own and is clamped.",
            lambda x: _quantize(x, steps=128, fit=lambda codes: codes.clamp(-128, 127)),
        ),
        Mistake(
            "divided-by-255",
            "Codes run from -127 to 127, so max |x| is 127 steps, not 255.",
            lambda x: _quantize(x, steps=255, fit=lambda codes: codes.clamp(-128, 127)),
        ),
        Mistake(
            "truncated",
            "A conversion to int8 cuts the fraction off, which doubles the largest error: round() first.",
            lambda x: _quantize(x, whole=torch.trunc),
        ),
        Mistake(
            "floored",
            "floor() moves every value down, by up to a whole step: use round().",
            lambda x: _quantize(x, whole=torch.floor),
        ),
        Mistake(
            "zero-row",
            "A row of zeros has the scale 0, and 0 / 0 is NaN: give it the scale 1.",
            _unguarded,
        ),
        Mistake(
            "scale-inverted",
            "Return the scale that a code is multiplied by, max |x| / 127, not its inverse.",
            lambda x: (int8_quantize(x)[0], 127 / _guarded(_largest(x))),
        ),
        Mistake(
            "magnitude-for-scale",
            "The scale is one step, max |x| / 127; here it is the whole range.",
            lambda x: (int8_quantize(x)[0], _guarded(_largest(x))),
        ),
        Mistake(
            "scale-per-tensor",
            "Each head of each token has a scale of its own; one for the whole tensor is the largest one's.",
            _whole_tensor,
        ),
        Mistake(
            "one-number-for-all",
            "There is a scale for each head of each token: take the maximum over the last axis only.",
            lambda x: tuple(part if i == 0 else part.flatten()[0] for i, part in enumerate(_whole_tensor(x))),
        ),
        Mistake(
            "scale-per-channel",
            "The maximum was taken over the tokens; here each head of a token has a scale: reduce the last axis.",
            _per_channel,
        ),
        Mistake(
            "scale-per-token",
            "The heads of a token have a scale each: the maximum is over the last axis only.",
            lambda x: _quantize(x, largest=_largest_of_token),
        ),
        Mistake(
            "axis-kept",
            "The scale's shape is that of x without its last axis, [...]: leave keepdim to the division.",
            lambda x: (int8_quantize(x)[0], int8_quantize(x)[1][..., None]),
        ),
        Mistake(
            "codes-stay-float",
            "The codes take one byte each: convert them to torch.int8.",
            lambda x: (int8_quantize(x)[0].float(), int8_quantize(x)[1]),
        ),
    ),
)
