"""Fake quantisation: numbers quantised and at once dequantised, to see what a scheme costs before it has a store.

Groups of `group` numbers share a scale and a lowest value, as in `cache.affine`. `per_token` forms them of neighbouring
channels of a token, `per_channel` of neighbouring tokens of a channel.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

import torch
from torch import Tensor

from course_kernels.reference.quantize import quantize_per_token
from course_lib.cache.affine import dequantize, quantize
from course_lib.cache.store import FloatStore, Gather, KVFormat, Space
from course_lib.perf.kv_record import KVRecord

Scheme = Callable[[Tensor], Tensor]
"""Keys or values [..., n, K, d] to what is left of them."""


def per_token(x: Tensor, bits: int, group: int = 32) -> Tensor:
    """x: [..., n, K, d]. bits: 2 or 4. Groups have as many channels as divide both `group` and d."""
    return dequantize(*quantize(x, bits, math.gcd(x.shape[-1], group)), bits).to(x.dtype)


def per_channel(x: Tensor, bits: int, group: int = 32) -> Tensor:
    """x: [..., n, K, d]. The last n % group tokens stay as they are: their group is not complete."""
    full = x.shape[-3] // group * group
    done = x[..., :full, :, :].movedim(-3, -1)
    done = dequantize(*quantize(done, bits, group), bits).movedim(-1, -3).to(x.dtype) if full else x[..., :0, :, :]
    return torch.cat((done, x[..., full:, :, :]), dim=-3)


def eight_bit(x: Tensor, dtype: torch.dtype) -> Tensor:
    """x: [n, K, d]. dtype: int8 or float8_e4m3fn, with a scale for each head of each token."""
    codes, scales = quantize_per_token(x, dtype)
    return codes.float() * scales[..., None]


SCHEMES: dict[str, Scheme] = {
    "int8, per token": partial(eight_bit, dtype=torch.int8),
    "fp8, per token": partial(eight_bit, dtype=torch.float8_e4m3fn),
    "4 bits, per token": partial(per_token, bits=4),
    "4 bits, per channel": partial(per_channel, bits=4),
    "2 bits, per token": partial(per_token, bits=2),
    "2 bits, per channel": partial(per_channel, bits=2),
}


def output_error(head: KVRecord, scheme: Scheme, what: str, before_rope: bool = False) -> float:
    """Change of the attention output of one head when its `what`, "keys" or "values", went through the scheme.

    |o' - o| / |o| over all queries and channels. before_rope: the scheme works on keys as they are before RoPE.
    """
    [layer] = head.layers
    values = head.values[0, :, 0]
    exact = head.probabilities(layer) @ values
    if what == "values":
        got = head.probabilities(layer) @ scheme(head.values[0])[:, 0]
    else:
        keys = head.rotate(scheme(head.raw_keys[0])) if before_rope else scheme(head.keys[0])
        got = head.probabilities(layer, keys) @ values
    return float((got - exact).norm() / exact.norm())


@dataclass(frozen=True, kw_only=True)
class FakeQuantized(KVFormat):
    """A float cache whose keys and values go through a scheme whenever they are read; None leaves them as they are.

    It costs the error of the scheme and saves no byte. For sequences that are scored together, of equal length.
    """

    keys: Scheme | None = None
    values: Scheme | None = None
    name = "fake"

    def bytes_per_element(self, head_dim: int, dtype: torch.dtype) -> float:
        return dtype.itemsize

    def store(self, space: Space) -> FakeQuantizedStore:
        return FakeQuantizedStore(space, self)


class FakeQuantizedStore(FloatStore):
    def __init__(self, space: Space, kv_format: FakeQuantized):
        super().__init__(space)
        self.schemes = kv_format.keys, kv_format.values

    def read(self, layer: int, gather: Gather, rows: slice) -> tuple[Tensor, Tensor]:
        parts = super().read(layer, gather, rows)
        keys, values = (scheme(x) if scheme else x for scheme, x in zip(self.schemes, parts, strict=True))
        return keys, values
