"""Exercise 04, sixth part: from packed 4-bit codes back to numbers. Letters as in `ex04_int4`."""

from __future__ import annotations

from random import Random

import torch
from torch import Tensor

from course_lib.checks.core import Case, Mistake, Problem
from course_lib.checks.ex04_int4 import byte_values, int4_quantize, random_groups


def int4_dequantize(packed: Tensor, scale: Tensor, zero: Tensor) -> Tensor:
    return _dequantize(packed, scale, zero)


def _unpack(packed: Tensor) -> Tensor:
    return torch.cat((packed & 15, packed >> 4), dim=-1)


def _value(code: Tensor, scale: Tensor, zero: Tensor) -> Tensor:
    return (code - zero) * scale


def _dequantize(packed, scale, zero, *, unpack=_unpack, value=_value) -> Tensor:
    """`int4_dequantize` with one part replaced by a wrong one."""
    return value(unpack(packed).float(), scale, zero)


def _random_packed(rng: Random, axis: int, *shape: int) -> tuple[Tensor, Tensor, Tensor]:
    return int4_quantize(random_groups(rng, axis, *shape), axis)


def _dequantize_public(rng: Random) -> list[Case]:
    return [
        # 240 is 0 in the low bits and 15 in the high ones, 57 is 9 and 3: codes 0, 9, 15, 3, of which 4 stands for 0.
        Case(
            "worked example",
            (byte_values(240, 57), torch.tensor([0.2]), torch.tensor([4.0])),
            {"the result": torch.tensor([-0.8, 1.0, 2.2, -0.2])},
        ),
        Case("edge case", (byte_values(128), torch.tensor([2.0]), torch.tensor([-3.5]))),  # the highest bit, no sign
        Case("edge case", _random_packed(rng, -1, 3, 2, 8)),
        Case("edge case", _random_packed(rng, 0, 4, 2, 6)),
        Case("reference", _random_packed(rng, -1, 2, 3, 1, 16)),
    ]


INT4_DEQUANTIZE = Problem(
    name="int4_dequantize",
    arguments=("packed", "scale", "zero"),
    reference=int4_dequantize,
    public=_dequantize_public,
    hidden=lambda rng: [
        Case("reference", _random_packed(rng, axis, rng.randint(2, 9), rng.randint(1, 3), 2 * rng.randint(1, 9)))
        for axis in (0, -1, 0)
    ],
    mistakes=(
        Mistake(
            "zero-added",
            "zero was added when the code was made, so subtract it now: (code - zero) * scale.",
            lambda *a: _dequantize(*a, value=lambda code, scale, zero: (code + zero) * scale),
        ),
        Mistake(
            "zero-unscaled",
            "zero is a code: subtract it before the multiplication, (code - zero) * scale.",
            lambda *a: _dequantize(*a, value=lambda code, scale, zero: code * scale - zero),
        ),
        Mistake(
            "zero-forgotten",
            "The code `zero` stands for 0, and lower codes for less: subtract zero.",
            lambda *a: _dequantize(*a, value=lambda code, scale, zero: code * scale),
        ),
        Mistake(
            "divided",
            "The code was x divided by the scale, so multiply by it now.",
            lambda *a: _dequantize(*a, value=lambda code, scale, zero: (code - zero) / scale),
        ),
        Mistake(
            "nibbles-swapped",
            "The low 4 bits hold the first half of the codes, the high ones the second half.",
            lambda *a: _dequantize(*a, unpack=lambda packed: torch.cat((packed >> 4, packed & 15), dim=-1)),
        ),
        Mistake(
            "neighbours-unpacked",
            "Byte j holds the codes j and j + n/2: join the two halves with torch.cat, do not interleave them.",
            lambda *a: _dequantize(*a, unpack=lambda packed: torch.stack((packed & 15, packed >> 4), -1).flatten(-2)),
        ),
        Mistake(
            "high-not-shifted",
            "The high 4 bits are 16 times the code: shift them down, >> 4.",
            lambda *a: _dequantize(*a, unpack=lambda packed: torch.cat((packed & 15, packed & 240), dim=-1)),
        ),
        Mistake(
            "low-not-masked",
            "The byte holds two codes: take the low 4 bits alone, & 15.",
            lambda *a: _dequantize(*a, unpack=lambda packed: torch.cat((packed, packed >> 4), dim=-1)),
        ),
        Mistake(
            "masked-with-16",
            "16 is the bit above the low four; the mask of 4 bits is 15.",
            lambda *a: _dequantize(*a, unpack=lambda packed: torch.cat((packed & 16, packed >> 4), dim=-1)),
        ),
        Mistake(
            "codes-signed",
            "The codes are 0 to 15, not -8 to 7: what lies below 0 is said by the zero point alone.",
            lambda *a: _dequantize(*a, value=lambda code, scale, zero: (code - 16 * (code > 7) - zero) * scale),
        ),
        Mistake(
            "eight-subtracted",
            "8 is the zero point of symmetric formats such as Q4_0; here each group has its own.",
            lambda *a: _dequantize(*a, value=lambda code, scale, zero: (code - 8) * scale),
        ),
        Mistake(
            "half-of-the-codes",
            "Each byte gives two values: the result's last axis is twice as long as that of `packed`.",
            lambda packed, scale, zero: _value((packed & 15).float(), scale, zero),
        ),
    ),
)
