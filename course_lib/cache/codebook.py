"""Non-uniform keys: 16 values fitted to the keys' distribution in the place of 16 equal steps (KVQuant, 2401.18079).

A key's element x of channel c is stored as the nearest of the layer's 16 values to z = (x - middle_c) / reach_c, where
a channel's middle and reach take its range in the calibration text to -1 .. 1. Both are fixed beforehand, so nothing is
stored per token but the codes, and what lies outside the range is cut to its end. Values are stored as in int4.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace

import torch
from torch import Tensor

from course_lib.cache.affine import pack, unpack
from course_lib.cache.per_token import Affine, Codec, Parts, PerTokenStore
from course_lib.cache.store import KVFormat, Space

BITS = 4


@dataclass(frozen=True)
class KeyCodec(Codec):
    """middle, reach: float32 [L, K, d]. values: float32 [L, 16], increasing."""

    middle: Tensor
    reach: Tensor
    values: Tensor

    @property
    def constants(self) -> Parts:
        return self.middle, self.reach, self.values

    def shapes(self, head_dim: int) -> list[tuple[tuple[int, ...], torch.dtype]]:
        return [((head_dim * BITS // 8,), torch.uint8)]

    def encode(self, layer: int, x: Tensor) -> Parts:
        z = (x.float() - self.middle[layer]) / self.reach[layer]
        return (pack(nearest(z, self.values[layer]).to(torch.uint8), BITS),)

    def decode(self, layer: int, parts: Parts) -> Tensor:
        z = self.values[layer][unpack(parts[0], BITS).long()]
        return torch.addcmul(self.middle[layer], self.reach[layer], z)

    def to(self, device: torch.device | str) -> KeyCodec:
        return KeyCodec(*(each.to(device) for each in self.constants))


@dataclass(frozen=True, kw_only=True, eq=False)
class Codebook(KVFormat):
    """4-bit keys by a codebook, 4-bit values as in `Int4`. Made for one model, by `calibration.fit_codebook`."""

    keys: KeyCodec = field(repr=False)
    group: int = 64
    name = "nuq4"

    @property
    def value_codec(self) -> Affine:
        return Affine(BITS, self.group)

    def bytes_per_element(self, head_dim: int, dtype: torch.dtype) -> float:
        return (self.keys.bytes_per_element(head_dim) + self.value_codec.bytes_per_element(head_dim)) / 2

    def nbytes(self, space: Space) -> float:
        return super().nbytes(space) + sum(each.nbytes for each in self.keys.constants)

    def for_layers(self, layers: Sequence[int]) -> Codebook:
        return replace(self, keys=KeyCodec(*(each[list(layers)] for each in self.keys.constants)))

    def store(self, space: Space) -> PerTokenStore:
        return PerTokenStore(space, self.keys.to(space.device), self.value_codec)


def fit_keys(keys: Tensor, weights: Tensor, steps: int = 30) -> KeyCodec:
    """Fit the codec to calibration keys, [L, n, K, d].

    weights: [L, K, d], how much a squared error of a channel costs. By k-means in one dimension over the z of all
    channels of a layer, where a channel's error counts weight * reach^2, as in KVQuant, section 3.3, which takes the
    weights from gradients. Each of `steps` steps lowers the weighted error or leaves it.
    """
    keys = keys.float()
    low, high = keys.amin(1), keys.amax(1)
    middle, reach = (low + high) / 2, ((high - low) / 2).clamp(min=torch.finfo(torch.float32).tiny)
    z = ((keys - middle[:, None]) / reach[:, None]).flatten(1)  # [L, n * K * d]
    cost = (weights * reach.square())[:, None].expand_as(keys).flatten(1)
    values = torch.stack([_k_means(*layer, steps) for layer in zip(z, cost, strict=True)])
    return KeyCodec(middle, reach, values)


def nearest(z: Tensor, values: Tensor) -> Tensor:
    """Which of the increasing `values`, [16], is nearest to each z; int64, of z's shape."""
    return torch.bucketize(z, (values[1:] + values[:-1]) / 2)


def _k_means(z: Tensor, cost: Tensor, steps: int) -> Tensor:
    """Lloyd's algorithm over z [m] with costs [m]; the increasing centres, [16].

    From two starts, of which the better end is taken: equal shares of the cost, which leave a long tail to one centre,
    and equal steps, which it then cannot be worse than.
    """
    order = z.argsort()
    shares = cost[order].cumsum(0) / cost.sum()
    ends = torch.searchsorted(shares, (torch.arange(2**BITS, device=z.device) + 0.5) / 2**BITS)
    starts = z[order][ends.clamp(max=len(z) - 1)], torch.linspace(-1, 1, 2**BITS, device=z.device)
    found = [_descend(z, cost, centres, steps) for centres in starts]
    return min(found, key=lambda centres: float((cost * (centres[nearest(z, centres)] - z).square()).sum()))


def _descend(z: Tensor, cost: Tensor, centres: Tensor, steps: int) -> Tensor:
    """The centres after so many steps of Lloyd's algorithm."""
    for _ in range(steps):
        which = nearest(z, centres)
        total, weighted = (torch.zeros_like(centres).scatter_add_(0, which, x) for x in (cost, cost * z))
        centres = torch.where(total > 0, weighted / total, centres).sort().values
    return centres
