"""Wrong solutions of exercise 04: int8 and 4-bit codes."""

from __future__ import annotations

import torch

from tests.exercises.planting import planted

# --- int8_quantize ---


def _nonzero(scale):
    return scale.masked_fill(scale == 0, 1.0)


def _int8(x, scale):
    return (x / scale.unsqueeze(-1)).round().to(torch.int8), scale


@planted("int8_quantize", "no-abs")
def signed_maximum(x):
    return _int8(x, _nonzero(x.max(dim=-1).values / 127))


@planted("int8_quantize", "span-for-magnitude")
def half_the_span(x):
    scale = _nonzero((x.amax(-1) - x.amin(-1)) / 2 / 127)
    return (x / scale[..., None]).round().clamp(-128, 127).to(torch.int8), scale


@planted("int8_quantize", "divided-by-128")
def two_to_the_seventh(x):
    scale = _nonzero(x.abs().amax(-1) / 2**7)
    codes = (x / scale[..., None]).round().to(torch.int16)
    return codes.to(torch.int8), scale


@planted("int8_quantize", "clamped-from-128")
def clamps_the_largest(x):
    scale = _nonzero(x.abs().amax(-1) / 128)
    return (x / scale[..., None]).round().clamp(-128, 127).to(torch.int8), scale


@planted("int8_quantize", "divided-by-255")
def unsigned_range(x):
    scale = _nonzero(x.abs().amax(-1) / 255)
    return (x / scale[..., None]).round().clamp(-128, 127).to(torch.int8), scale


@planted("int8_quantize", "truncated")
def casts(x):
    scale = _nonzero(x.abs().amax(-1) / 127)
    return (x / scale[..., None]).to(torch.int8), scale


@planted("int8_quantize", "floored")
def floors(x):
    scale = _nonzero(x.abs().amax(-1) / 127)
    return torch.floor(x / scale[..., None]).to(torch.int8), scale


@planted("int8_quantize", "zero-row")
def divides_by_zero(x):
    return _int8(x, x.abs().amax(-1) / 127)


@planted("int8_quantize", "scale-inverted")
def codes_per_unit(x):
    inverse = 127 / _nonzero(x.abs().amax(-1))
    scale = _nonzero(x.abs().amax(-1) / 127)
    return _int8(x, scale)[0], inverse


@planted("int8_quantize", "scale-per-tensor")
def one_scale_for_all(x):
    scale = (x.abs().max() / 127).expand(x.shape[:-1])
    return _int8(x, scale)


@planted("int8_quantize", "one-number-for-all")
def one_scalar(x):
    scale = x.abs().max() / 127
    return (x / scale).round().to(torch.int8), scale


@planted("int8_quantize", "scale-per-token")
def heads_together(x):
    scale = _nonzero(x.abs().amax(-1).amax(-1, keepdim=True) / 127)
    return _int8(x, scale.expand(x.shape[:-1]))


@planted("int8_quantize", "axis-kept")
def keeps_the_axis(x):
    scale = _nonzero(x.abs().amax(-1, keepdim=True) / 127)
    return (x / scale).round().to(torch.int8), scale


@planted("int8_quantize", "codes-stay-float")
def never_casts(x):
    scale = _nonzero(x.abs().amax(-1) / 127)
    return (x / scale[..., None]).round(), scale


# --- int4_quantize ---


def _pack(codes):
    half = codes.shape[-1] // 2
    codes = codes.to(torch.uint8)
    return codes[..., :half] + 16 * codes[..., half:]


def _range(x, axis):
    low, high = x.amin(axis, keepdim=True), x.amax(axis, keepdim=True)
    return low, _nonzero((high - low) / 15)


@planted("int4_quantize", "other-axes")
def reduces_the_others(x, axis):
    others = [i for i in range(x.ndim) if i != axis % x.ndim]
    low, scale = _range(x, others)
    return _pack(((x - low) / scale).round()), scale, -low / scale


@planted("int4_quantize", "axis-ignored")
def per_token_always(x, axis):
    low, scale = _range(x, -1)
    return _pack(((x - low) / scale).round()), scale, -low / scale


@planted("int4_quantize", "always-per-channel")
def per_channel_always(x, axis):
    low, scale = _range(x, 0)
    return _pack(((x - low) / scale).round()), scale, -low / scale


@planted("int4_quantize", "scale-per-tensor")
def one_range(x, axis):
    low, scale = _range(x, tuple(range(x.ndim)))
    return _pack(((x - low) / scale).round()), scale, -low / scale


@planted("int4_quantize", "sixteen-steps")
def two_to_the_fourth(x, axis):
    low, high = x.amin(axis, keepdim=True), x.amax(axis, keepdim=True)
    scale = _nonzero((high - low) / 2**4)
    return _pack(((x - low) / scale).round().clamp(max=15)), scale, -low / scale


@planted("int4_quantize", "truncated")
def casts_to_uint8(x, axis):
    low, scale = _range(x, axis)
    zero = -low / scale
    return _pack(x / scale + zero), scale, zero


@planted("int4_quantize", "symmetric")
def around_eight(x, axis):
    scale = _nonzero(x.abs().amax(axis, keepdim=True) / 7)
    return _pack((x / scale).round() + 8), scale, torch.full_like(scale, 8)


@planted("int4_quantize", "low-for-zero")
def the_minimum(x, axis):
    low, scale = _range(x, axis)
    return _pack(((x - low) / scale).round()), scale, low


@planted("int4_quantize", "negative-of-low")
def forgets_the_division(x, axis):
    low, scale = _range(x, axis)
    return _pack(((x - low) / scale).round()), scale, -low


@planted("int4_quantize", "zero-sign")
def plus_sign(x, axis):
    low, scale = _range(x, axis)
    return _pack(((x - low) / scale).round()), scale, low / scale


@planted("int4_quantize", "zero-subtracted")
def subtracts_zero(x, axis):
    low, scale = _range(x, axis)
    zero = -low / scale
    return _pack((x / scale - zero).round().clamp(0, 15)), scale, zero


@planted("int4_quantize", "zero-rounded")
def integer_zero(x, axis):
    low, scale = _range(x, axis)
    zero = torch.round(-low / scale)
    return _pack((x / scale + zero).round().clamp(0, 15)), scale, zero


@planted("int4_quantize", "equal-values")
def divides_by_nothing(x, axis):
    low, high = x.amin(axis, keepdim=True), x.amax(axis, keepdim=True)
    scale = (high - low) / 15
    zero = -low / scale
    return _pack((x / scale + zero).round().nan_to_num(0)), scale, zero


@planted("int4_quantize", "nibbles-swapped")
def high_first(x, axis):
    low, scale = _range(x, axis)
    first, second = ((x - low) / scale).round().to(torch.uint8).chunk(2, -1)
    return first << 4 | second, scale, -low / scale


@planted("int4_quantize", "neighbours-packed")
def pairs(x, axis):
    low, scale = _range(x, axis)
    codes = ((x - low) / scale).round().to(torch.uint8).unflatten(-1, (-1, 2))
    return codes[..., 0] | codes[..., 1] << 4, scale, -low / scale


@planted("int4_quantize", "not-packed")
def a_byte_each(x, axis):
    low, scale = _range(x, axis)
    return ((x - low) / scale).round().to(torch.uint8), scale, -low / scale


@planted("int4_quantize", "axis-dropped")
def without_keepdim(x, axis):
    low, scale = _range(x, axis)
    return _pack(((x - low) / scale).round()), scale.squeeze(axis), (-low / scale).squeeze(axis)


# --- int4_dequantize ---


def _unpacked(packed):
    return torch.cat([packed & 0x0F, packed >> 4], dim=-1).float()


@planted("int4_dequantize", "zero-added")
def adds_zero(packed, scale, zero):
    return scale * (_unpacked(packed) + zero)


@planted("int4_dequantize", "zero-unscaled")
def subtracts_after_scaling(packed, scale, zero):
    return _unpacked(packed) * scale - zero


@planted("int4_dequantize", "zero-forgotten")
def symmetric_reading(packed, scale, zero):
    return _unpacked(packed) * scale


@planted("int4_dequantize", "divided")
def divides_again(packed, scale, zero):
    return (_unpacked(packed) - zero) / scale


@planted("int4_dequantize", "nibbles-swapped")
def reads_high_first(packed, scale, zero):
    return (torch.cat([packed >> 4, packed & 0x0F], dim=-1) - zero) * scale


@planted("int4_dequantize", "neighbours-unpacked")
def interleaves(packed, scale, zero):
    codes = torch.empty(*packed.shape[:-1], 2 * packed.shape[-1])
    codes[..., ::2], codes[..., 1::2] = packed & 15, packed >> 4
    return (codes - zero) * scale


@planted("int4_dequantize", "high-not-shifted")
def forgets_the_shift(packed, scale, zero):
    return (torch.cat([packed & 0x0F, packed & 0xF0], dim=-1) - zero) * scale


@planted("int4_dequantize", "low-not-masked")
def forgets_the_mask(packed, scale, zero):
    return (torch.cat([packed, packed // 16], dim=-1) - zero) * scale


@planted("int4_dequantize", "codes-signed")
def two_complement(packed, scale, zero):
    codes = _unpacked(packed)
    return (torch.where(codes >= 8, codes - 16, codes) - zero) * scale


@planted("int4_dequantize", "eight-subtracted")
def excess_eight(packed, scale, zero):
    return (_unpacked(packed) - 8) * scale


@planted("int4_dequantize", "half-of-the-codes")
def low_half(packed, scale, zero):
    return ((packed % 16) - zero) * scale
