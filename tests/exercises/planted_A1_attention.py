"""Wrong solutions of exercise A1: attention with an online softmax."""

from __future__ import annotations

from functools import partial

import torch
import triton
import triton.language as tl

from course_kernels.memcheck import memcheck
from tests.exercises.planting import planted


@memcheck
@triton.jit
def _kernel(
    query_ptr, keys_ptr, values_ptr, starts_ptr, ends_ptr, out_ptr, stride, scale,
    D: tl.constexpr, TILE: tl.constexpr, WRONG: tl.constexpr,
):  # fmt: skip
    sequence = tl.program_id(0)
    element = tl.arange(0, D)
    query = tl.load(query_ptr + sequence * D + element).to(tl.float32)
    start, end = tl.load(starts_ptr + sequence), tl.load(ends_ptr + sequence)
    peak = 0.0 if WRONG in ("peak from 0", "no peak") else float("-inf")
    total = 0.0
    out = tl.zeros([D], tl.float32)
    parts = 0
    first = 0 if WRONG in ("start ignored", "empty tile") else start // TILE * TILE
    last = end // TILE * TILE if WRONG == "last tile dropped" else end
    for tile in range(first, last, TILE):
        position = tile + tl.arange(0, TILE)
        before = position <= end if WRONG == "end included" else position < end
        seen = before if WRONG == "start ignored" else before & (position >= start)
        inside = position >= 0
        row = (0 if WRONG == "sequence 0" else sequence * stride) + position[:, None] * D + element[None, :]
        keys_seen = inside if WRONG in ("keys not masked", "nothing masked") else seen
        values_seen = inside if WRONG in ("values not masked", "nothing masked") else seen
        key = tl.load(keys_ptr + row, mask=keys_seen[:, None], other=0.0).to(tl.float32)
        score = tl.sum(query[None, :] * key, axis=1) * (1.0 if WRONG == "no scale" else scale)
        if WRONG != "hidden score 0":
            score = tl.where(seen, score, float("-inf"))
        new_peak = tl.maximum(peak, tl.max(score, axis=0))
        if WRONG == "no peak":
            new_peak = peak
        if WRONG == "peak of the tile":
            new_peak = tl.max(score, axis=0)
        base = tl.where(new_peak == float("-inf"), 0.0, new_peak)
        if WRONG in ("empty tile", "no key"):
            base = new_peak
        shrink = tl.exp(peak - base)
        weight = tl.exp2(score - base) if WRONG == "exp2" else tl.exp(score - base)
        if WRONG == "exp2":
            shrink = tl.exp2(peak - base)
        if WRONG == "wrong way":
            shrink = tl.exp(base - peak)
        value = tl.load(values_ptr + row, mask=values_seen[:, None], other=0.0)
        new_total = tl.sum(weight, axis=0)
        new_out = tl.sum(weight[:, None] * value.to(tl.float32), axis=0)
        if WRONG == "sum of a tile in 16 bits":
            new_out = tl.sum(weight.to(value.dtype)[:, None] * value, axis=0)
        if WRONG == "tiles on their own":
            total = 1.0
            out = out + new_out / new_total
            parts = parts + 1
            new_peak = float("-inf")
        elif WRONG == "too late":
            total = (total + new_total) * shrink
            out = (out + new_out) * shrink
        else:
            total = total * (1.0 if WRONG in ("total", "nothing rescaled") else shrink) + new_total
            out = out * (1.0 if WRONG in ("out", "nothing rescaled") else shrink) + new_out
        if WRONG == "out in 16 bits":
            out = out.to(out_ptr.dtype.element_ty)
        peak = new_peak
    if WRONG == "tiles on their own":
        total = parts.to(tl.float32)
    if WRONG not in ("no key", "divided by 0"):
        total = tl.where(total > 0, total, 1.0)
    if WRONG != "not divided":
        out = out / total
    tl.store(out_ptr + sequence * D + element, out)


def launch(query, keys, values, starts, ends, tile, wrong):
    """The launcher of the exercise."""
    S, d = query.shape
    out = torch.full_like(query, torch.nan)
    _kernel[(S,)](query, keys, values, starts, ends, out, keys.stride(0), d**-0.5, D=d, TILE=tile, WRONG=wrong)
    return out


for _hint, _wrongs in {
    "peak-not-subtracted": ("no peak",),
    "nothing-rescaled": ("nothing rescaled",),
    "total-not-rescaled": ("total",),
    "out-not-rescaled": ("out",),
    "rescaled-the-wrong-way": ("wrong way",),
    "rescaled-too-late": ("too late",),
    "peak-of-the-tile": ("peak of the tile",),
    "peak-from-zero": ("peak from 0",),
    "scale-left-out": ("no scale",),
    "not-divided": ("not divided",),
    "tiles-on-their-own": ("tiles on their own",),
    "powers-of-two": ("exp2",),
    "hidden-score-zero": ("hidden score 0",),
    "one-key-too-many": ("end included",),
    "last-tile-dropped": ("last tile dropped",),
    "first-sequence-only": ("sequence 0",),
    "start-ignored": ("start ignored",),
    "empty-tile": ("empty tile",),
    "values-not-masked": ("values not masked", "nothing masked"),
    "past-the-end": ("keys not masked",),
    "no-key": ("no key", "divided by 0"),
    "sum-in-16-bits": ("out in 16 bits", "sum of a tile in 16 bits"),
}.items():
    for _wrong in _wrongs:
        planted("online_attention", _hint)(partial(launch, wrong=_wrong))
