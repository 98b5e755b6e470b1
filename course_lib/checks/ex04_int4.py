"""Exercise 04, fifth part: 4 bits with a zero point, along either axis, two codes in a byte.

A group is the elements along one axis. x ~ (code - zero) * scale, codes 0 to 15. Letters: n elements of the last axis.
"""

from __future__ import annotations

from random import Random
from typing import Any

import torch
from torch import Tensor

from course_lib.checks.core import Case, Mistake, Outcome, Problem, Property, members

Result = tuple[Tensor, Tensor, Tensor]


def int4_quantize(x: Tensor, axis: int) -> Result:
    return _quantize(x, axis)


def _ends(x: Tensor, axis: Any) -> tuple[Tensor, Tensor]:
    return x.amin(axis, keepdim=True), x.amax(axis, keepdim=True)


def _guarded(scale: Tensor) -> Tensor:
    return torch.where(scale == 0, 1.0, scale)


def _zero(low: Tensor, scale: Tensor) -> Tensor:
    return -low / scale


def _codes(x: Tensor, scale: Tensor, zero: Tensor) -> Tensor:
    return (x / scale + zero).round()


def _pack(codes: Tensor) -> Tensor:
    first, second = codes.chunk(2, dim=-1)
    return first | second << 4


def _pack_neighbours(codes: Tensor) -> Tensor:
    return codes[..., ::2] | codes[..., 1::2] << 4


def _quantize(
    x, axis, *, over=lambda x, axis: axis, steps=15, guard=_guarded, zero=_zero, codes=_codes, pack=_pack
) -> Result:
    """`int4_quantize` with one part replaced by a wrong one. over: the axes that are reduced."""
    low, high = _ends(x, over(x, axis))
    scale = guard((high - low) / steps)
    point = zero(low, scale)
    stored = codes(x, scale, point).nan_to_num(0).clamp(0, 15).to(torch.uint8)
    return pack(stored), scale, point


def _other_axes(x: Tensor, axis: int) -> list[int]:
    return [i for i in range(x.dim()) if i != axis % x.dim()]


def _symmetric(x: Tensor, axis: int) -> Result:
    """Half of the codes for either sign, whatever the values' mean is."""
    scale = _guarded(x.abs().amax(axis, keepdim=True) / 7)
    zero = torch.full_like(scale, 8.0)
    return _pack(_codes(x, scale, zero).clamp(0, 15).to(torch.uint8)), scale, zero


def _squeezed(x: Tensor, axis: int) -> Result:
    packed, scale, zero = int4_quantize(x, axis)
    return packed, scale.squeeze(axis), zero.squeeze(axis)


def random_groups(rng: Random, axis: int, *shape: int) -> Tensor:
    """float32 [*shape] in groups along `axis`, so that no value lies near the middle between two codes.

    Each group has the codes 0 and 15, a scale of its own and a zero point anywhere, so that some groups lack 0.
    """
    generator = torch.Generator().manual_seed(rng.getrandbits(62))
    codes = torch.randint(0, 16, shape, generator=generator) + 0.8 * torch.rand(shape, generator=generator) - 0.4
    codes = codes.clamp(0, 15).movedim(axis, -1)
    first, second = rng.sample(range(shape[axis]), 2)
    codes[..., first], codes[..., second] = 0.0, 15.0
    scale, offset = (torch.rand(*codes.shape[:-1], 1, generator=generator) for _ in range(2))
    return ((codes + 35 * offset - 25) * (scale + 0.02) * 0.3).movedim(-1, axis).contiguous()


def byte_values(*values: int) -> Tensor:
    return torch.tensor(values, dtype=torch.uint8)


def _close(x: Tensor) -> Any:
    def holds(views: list[dict[str, Any]]) -> str | None:
        packed, scale, zero = (views[0][name] for name in ("the packed codes", "the scale", "the zero"))
        codes = torch.cat((packed & 15, packed >> 4), dim=-1)
        error = ((codes - zero) * scale - x).abs() / scale
        return None if error.max() <= 0.501 else f"one is off by {error.max():.3f} of it"

    return holds


parts = members("the packed codes", "the scale", "the zero")


def _quantize_public(rng: Random) -> list[Case | Property]:
    keys = random_groups(rng, 0, 8, 2, 6)
    return [
        # From -0.8 to 2.2 are 15 steps of 0.2, so 0 has the code 4; the others are 4 + x / 0.2: 0, 9 (1.06 is 5.3
        # steps), 15 and 3 (-0.26 is -1.3). The first half, 0 and 9, goes into the low bits: 0 + 16 * 15 and 9 + 16 * 3.
        Case(
            "worked example",
            (torch.tensor([-0.8, 1.06, 2.2, -0.26]), 0),
            parts(Outcome((byte_values(240, 57), torch.tensor([0.2]), torch.tensor([4.0])))),
        ),
        Case("edge case", (torch.tensor([[10.0, 11.0, 12.35, 13.0]]), -1)),  # a group that lacks 0
        Case("edge case", (torch.tensor([[2.5, 2.5], [0.0, 0.0], [-1.0, 3.0]]), -1)),  # groups of equal values
        Case("edge case", (random_groups(rng, -1, 3, 2, 8), -1)),  # per token
        Case("edge case", (keys, 0)),  # per channel
        Property("a value comes back to within half a scale", ((keys, 0),), _close(keys)),
        Case("reference", (random_groups(rng, -1, 2, 3, 1, 16), -1)),
        Case("reference", (random_groups(rng, 0, 5, 3, 4), 0)),
    ]


INT4_QUANTIZE = Problem(
    name="int4_quantize",
    arguments=("x", "axis"),
    reference=int4_quantize,
    public=_quantize_public,
    hidden=lambda rng: [
        Case("reference", (random_groups(rng, axis, rng.randint(2, 9), rng.randint(1, 3), 2 * rng.randint(1, 9)), axis))
        for axis in (0, -1, 0)
    ],
    view=parts,
    public_points=3,
    hidden_points=3,
    mistakes=(
        Mistake(
            "other-axes",
            "`axis` is the one whose elements share a scale: reduce it, and keep the others.",
            lambda x, axis: _quantize(x, axis, over=_other_axes),
        ),
        Mistake(
            "axis-ignored",
            "Keys are quantised per channel: with axis = 0 the tokens share a scale, not a token's channels.",
            lambda x, axis: _quantize(x, axis, over=lambda x, axis: -1),
        ),
        Mistake(
            "always-per-channel",
            "Values are quantised per token: with axis = -1 a token's channels share a scale, not the tokens.",
            lambda x, axis: _quantize(x, axis, over=lambda x, axis: 0),
        ),
        Mistake(
            "scale-per-tensor",
            "One scale for the whole tensor is that of its widest group: take minimum and maximum along `axis`.",
            lambda x, axis: _quantize(x, axis, over=lambda x, axis: list(range(x.dim()))),
        ),
        Mistake(
            "sixteen-steps",
            "Between 16 codes lie 15 steps: scale = (max - min) / 15.",
            lambda x, axis: _quantize(x, axis, steps=16),
        ),
        Mistake(
            "truncated",
            "A conversion to uint8 cuts the fraction off, which doubles the largest error: round() first.",
            lambda x, axis: _quantize(x, axis, codes=lambda x, scale, zero: (x / scale + zero).floor()),
        ),
        Mistake(
            "symmetric",
            "With a zero point the codes cover min to max; from -max |x| to max |x| much of the range stays empty.",
            _symmetric,
        ),
        Mistake(
            "low-for-zero",
            "zero is a code, -min / scale: it says which code stands for 0. The minimum itself is not one.",
            lambda x, axis: _quantize(
                x, axis, zero=lambda low, scale: low, codes=lambda x, scale, low: ((x - low) / scale).round()
            ),
        ),
        Mistake(
            "negative-of-low",
            "zero is -min / scale, in steps of the scale: the division is missing.",
            lambda x, axis: _quantize(
                x, axis, zero=lambda low, scale: -low, codes=lambda x, scale, zero: ((x + zero) / scale).round()
            ),
        ),
        Mistake(
            "zero-sign",
            "x = (code - zero) * scale is the minimum where the code is 0: zero = -min / scale, with the minus.",
            lambda x, axis: _quantize(
                x, axis, zero=lambda low, scale: low / scale, codes=lambda x, scale, zero: (x / scale - zero).round()
            ),
        ),
        Mistake(
            "zero-subtracted",
            "code = round(x / scale + zero): zero is added here, and subtracted when the code is read.",
            lambda x, axis: _quantize(x, axis, codes=lambda x, scale, zero: (x / scale - zero).round()),
        ),
        Mistake(
            "zero-left-out",
            "Without zero the codes begin at min / scale, which may be anything: add zero, so that they are 0 to 15.",
            lambda x, axis: _quantize(x, axis, codes=lambda x, scale, zero: (x / scale).round()),
        ),
        Mistake(
            "zero-rounded",
            "zero stays a float here: rounded, it moves a whole group by up to half a step.",
            lambda x, axis: _quantize(x, axis, zero=lambda low, scale: (-low / scale).round()),
        ),
        Mistake(
            "equal-values",
            "A group of equal values has max - min = 0, and a division by 0 follows: give it the scale 1.",
            lambda x, axis: _quantize(x, axis, guard=lambda scale: scale),
        ),
        Mistake(
            "nibbles-swapped",
            "The first half of the codes goes into the low 4 bits, the second half into the high ones.",
            lambda x, axis: _quantize(x, axis, pack=lambda codes: _pack(codes.roll(codes.shape[-1] // 2, -1))),
        ),
        Mistake(
            "neighbours-packed",
            "Byte j holds the codes j and j + n/2 of the last axis, not the neighbours 2j and 2j + 1.",
            lambda x, axis: _quantize(x, axis, pack=_pack_neighbours),
        ),
        Mistake(
            "not-shifted",
            "Both halves were put into the same 4 bits: shift the second one, << 4.",
            lambda x, axis: _quantize(x, axis, pack=lambda codes: codes.chunk(2, -1)[0] | codes.chunk(2, -1)[1]),
        ),
        Mistake(
            "not-packed",
            "A code has 4 bits and a byte 8: put two codes into each byte, or nothing is saved against int8.",
            lambda x, axis: _quantize(x, axis, pack=lambda codes: codes),
        ),
        Mistake(
            "axis-dropped",
            "Keep the reduced axis, with length 1 (keepdim=True): scale and zero must meet the groups they belong to.",
            _squeezed,
        ),
    ),
)
