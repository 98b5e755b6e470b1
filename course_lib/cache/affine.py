"""Numbers in 2 or 4 bits, in groups with a scale and a lowest value each: x ~ low + scale * code, code below 2^bits.

Asymmetric, as keys and values have means that are not 0, and 16 codes are too few to give half of them away. `low`
plays the part of a zero-point, but it is a number and not a code (KIVI, arXiv 2402.02750, section 3.1): so a group need
not contain 0. Scale and low are float16, which makes 4 bits in groups of 64 into 4.5.
"""

from __future__ import annotations

import torch
from torch import Tensor

# The least scale, float16's smallest normal number: a group of equal values needs a scale too.
SMALLEST, LARGEST = 2.0**-14, 65504.0


def quantize(x: Tensor, bits: int, group: int) -> tuple[Tensor, Tensor]:
    """Groups of `group` neighbours of the last axis. x: [..., n], finite; n a multiple of group, group of 8 / bits.

    Returns codes, uint8 [..., n * bits / 8], and float16 [..., n / group, 2]: scale and low of each group. A value is
    off by at most scale / 2, or by low's rounding, 2^-11 |low|, whichever is more. scale is (max - low) / (2^bits - 1),
    rounded up by at most 2^-9 of it, and at least 2^-14.
    """
    groups = x.float().unflatten(-1, (-1, group))
    low = groups.amin(-1).clamp(-LARGEST, LARGEST).half()
    scale = (groups.amax(-1) - low.float()) / (2**bits - 1)
    scale = (scale * (1 + 2.0**-10)).clamp(SMALLEST, LARGEST).half()  # up, or the largest value would have no code
    codes = ((groups - low.float()[..., None]) / scale.float()[..., None]).round().clamp(0, 2**bits - 1)
    return pack(codes.to(torch.uint8).flatten(-2), bits), torch.stack((scale, low), dim=-1)


def dequantize(codes: Tensor, metadata: Tensor, bits: int) -> Tensor:
    """What `quantize` stored, float32 [..., n]."""
    scale, low = metadata.float()[..., None].unbind(-2)  # [..., n / group, 1] each
    groups = unpack(codes, bits).unflatten(-1, (metadata.shape[-2], -1))
    return torch.addcmul(low, scale, groups.float()).flatten(-2)


def pack(codes: Tensor, bits: int) -> Tensor:
    """codes: uint8 [..., n] below 2^bits, to uint8 [..., n * bits / 8].

    Byte j has code j in its lowest bits; above it stand j + n * bits / 8 and so on, so that unpacking needs no shuffle.
    """
    per_byte = 8 // bits
    shifts = bits * torch.arange(per_byte, dtype=torch.uint8, device=codes.device)[:, None]
    return (codes.unflatten(-1, (per_byte, -1)) << shifts).sum(-2, dtype=torch.uint8)


def unpack(packed: Tensor, bits: int) -> Tensor:
    """The inverse of `pack`."""
    shifts = bits * torch.arange(8 // bits, dtype=torch.uint8, device=packed.device)[:, None]
    return ((packed[..., None, :] >> shifts) & (2**bits - 1)).flatten(-2)
