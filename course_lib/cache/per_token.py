"""Stores in which each head of each token is encoded by itself, when it is written."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from dataclasses import dataclass

import torch
from torch import Tensor

from course_lib.cache.affine import dequantize, quantize
from course_lib.cache.store import Gather, KVFormat, Space, Store

Parts = tuple[Tensor, ...]


class Codec(ABC):
    """Turns the d elements of a head into parts that are stored, and back."""

    constants: Parts = ()
    """What all tokens share."""

    @abstractmethod
    def shapes(self, head_dim: int) -> list[tuple[tuple[int, ...], torch.dtype]]:
        """Shape and dtype of each part of one head."""

    @abstractmethod
    def encode(self, layer: int, x: Tensor) -> Parts:
        """x: [..., K, d]; returns the parts, each [..., K, *shape]."""

    @abstractmethod
    def decode(self, layer: int, parts: Parts) -> Tensor:
        """float32 [..., K, d]."""

    def bytes_per_element(self, head_dim: int) -> float:
        return sum(math.prod(shape) * dtype.itemsize for shape, dtype in self.shapes(head_dim)) / head_dim


@dataclass(frozen=True)
class Affine(Codec):
    """`affine.quantize` over groups of `group` neighbouring channels, or of as many as divide both it and d."""

    bits: int
    group: int

    def shapes(self, head_dim: int) -> list[tuple[tuple[int, ...], torch.dtype]]:
        groups = head_dim // math.gcd(head_dim, self.group)
        return [((head_dim * self.bits // 8,), torch.uint8), ((groups, 2), torch.float16)]

    def encode(self, layer: int, x: Tensor) -> Parts:
        return quantize(x, self.bits, math.gcd(x.shape[-1], self.group))

    def decode(self, layer: int, parts: Parts) -> Tensor:
        return dequantize(*parts, self.bits)


class PerTokenStore(Store):
    """keys, values: the first part of each codec, [L, slots, K, ...]; the others lie beside them."""

    def __init__(self, space: Space, key_codec: Codec, value_codec: Codec):
        config = space.config
        self.codecs, self.dtype = (key_codec, value_codec), space.dtype
        outer = (config.layers, space.blocks, space.block_size, config.kv_heads)
        self._parts = [
            [torch.zeros(*outer, *shape, dtype=dtype, device=space.device) for shape, dtype in shapes]
            for shapes in (codec.shapes(config.head_dim) for codec in self.codecs)
        ]
        self.tensors = tuple(part for parts in self._parts for part in parts)
        self.keys, self.values = (parts[0].flatten(1, 2) for parts in self._parts)

    def write(self, layer: int, keys: Tensor, values: Tensor, slots: Tensor) -> None:
        for codec, parts, x in zip(self.codecs, self._parts, (keys, values), strict=True):
            for part, encoded in zip(parts, codec.encode(layer, x), strict=True):
                part[layer].flatten(0, 1).index_copy_(0, slots, encoded)

    def read(self, layer: int, gather: Gather, rows: slice) -> tuple[Tensor, Tensor]:
        keys, values = (
            codec.decode(layer, tuple(gather(part[layer]) for part in parts)).to(self.dtype).flatten(1, 2)
            for codec, parts in zip(self.codecs, self._parts, strict=True)
        )
        return keys, values

    @property
    def nbytes(self) -> int:
        return super().nbytes + sum(each.nbytes for codec in self.codecs for each in codec.constants)


@dataclass(frozen=True, kw_only=True)
class Int4(KVFormat):
    """4 bits, with a scale and a lowest value for each `group` channels of a head of a token."""

    group: int = 64
    name = "int4"

    @property
    def codec(self) -> Affine:
        return Affine(4, self.group)

    def bytes_per_element(self, head_dim: int, dtype: torch.dtype) -> float:
        return self.codec.bytes_per_element(head_dim)

    def store(self, space: Space) -> PerTokenStore:
        return PerTokenStore(space, self.codec, self.codec)
