"""What a KV cache stores, apart from who decides which token goes where: a format, and the memory that it lays out."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from course_lib.config import ModelConfig
from course_lib.errors import RequestError

Gather = Callable[[Tensor], Tensor]
"""One layer of a tensor, [blocks, ...], to [S, N, ...]: the first N blocks of S neighbouring rows of the cache."""


@dataclass(frozen=True)
class Space:
    """What a cache reserves: `blocks` blocks of `block_size` slots, a slot being the place of one token.

    rows: the blocks are dealt out to so many rows, as many to each, in order; None where any block may be anybody's.
    dtype: of the keys and values that are written and read.
    """

    config: ModelConfig
    blocks: int
    block_size: int
    rows: int | None
    dtype: torch.dtype
    device: torch.device | str

    @property
    def slots(self) -> int:
        return self.blocks * self.block_size


class Store(ABC):
    """Memory for keys and values. A flat slot number addresses a token, whoever decides which token gets which slot.

    keys, values: [L, slots, K, ...], as the format writes them. tensors: everything that belongs to a block, each
    [L, blocks, ...], so that blocks can be moved by who does not know what they hold.
    """

    keys: Tensor
    values: Tensor
    tensors: tuple[Tensor, ...]

    @abstractmethod
    def write(self, layer: int, keys: Tensor, values: Tensor, slots: Tensor) -> None:
        """Store keys and values, each [T, K, d], of one layer at `slots`, [T] int64."""

    @abstractmethod
    def read(self, layer: int, gather: Gather, rows: slice) -> tuple[Tensor, Tensor]:
        """Keys and values, each [S, N * block_size, K, d], of what `gather` finds for these rows of the cache.

        Finite also where nothing was written: a padded read multiplies it by probability 0, and 0 * NaN is NaN.
        Valid until the next write or read: it may be a view of the store or lie in memory that reads share.
        """

    def truncate(self, row: int, length: int) -> None:
        """A row of the cache forgets its tokens from position `length` on."""
        return  # nothing to do where tokens are stored independently of one another

    def scales(self, layer: int) -> dict[str, Tensor]:
        """What kernels take beside the keys and values of a layer: key_scales and value_scales, or nothing."""
        return {}

    @property
    def nbytes(self) -> int:
        """Bytes reserved."""
        return sum(tensor.nbytes for tensor in self.tensors)

    def used_bytes(self, lengths: Sequence[int]) -> int:
        """Bytes that hold sequences of these lengths."""
        return sum(tensor.nbytes for tensor in self.tensors) * sum(lengths) // self.keys.shape[1]


@dataclass(frozen=True, kw_only=True)
class KVFormat(ABC):
    """How keys and values are stored. name: as `kv_cache_dtype` has it.

    before_rope: keys are stored as they were before RoPE, and rotated by their positions whenever they are read. A
    channel is then the same thing in every token, where RoPE mixes it with another by an angle that depends on the
    position (KVQuant, arXiv 2401.18079, section 3.2). block_size: of a contiguous cache, where the format needs a size.
    """

    before_rope: bool = False
    name: ClassVar[str]

    @property
    def block_size(self) -> int | None:
        return None

    @property
    def label(self) -> str:
        """The name, and where the keys are stored before RoPE that too."""
        return f"{self.name}, keys before RoPE" if self.before_rope else self.name

    @abstractmethod
    def bytes_per_element(self, head_dim: int, dtype: torch.dtype) -> float:
        """Bytes per element of keys and values, scales included, on average. dtype: of the model."""

    def for_layers(self, layers: Sequence[int]) -> KVFormat:
        """The format of a store of these layers alone; another one where layers have constants of their own."""
        return self

    @abstractmethod
    def store(self, space: Space) -> Store:
        """Reserve the memory."""

    def reserve(self, space: Space, shape: str) -> Store:
        """As `store`; shape: the size in the user's words, such as "4 x 128", for the error message.

        Raises RequestError where the memory cannot be reserved, and for latent attention in another format than FLOAT.
        """
        if space.config.mla and self != FLOAT:
            raise RequestError(
                f"the KV cache format '{self.label}' is made of keys and values, and latent attention stores neither; "
                f"use '{FLOAT.name}'"
            )
        try:
            return self.store(space)
        except RuntimeError:  # torch.OutOfMemoryError on a GPU, a plain RuntimeError on the CPU
            raise RequestError(
                f"a KV cache for {shape} tokens needs {self.nbytes(space) / 1e9:,.1f} GB, more than {space.device} can "
                "reserve; ask for fewer sequences or fewer tokens"
            ) from None

    def nbytes(self, space: Space) -> float:
        """Bytes that `store` reserves, by `ModelConfig.kv_bytes_per_token`."""
        return space.slots * space.config.kv_bytes_per_token(self.bytes_per_element(space.config.head_dim, space.dtype))


@dataclass(frozen=True)
class Float(KVFormat):
    """As the model computes them."""

    name = "auto"

    def bytes_per_element(self, head_dim: int, dtype: torch.dtype) -> float:
        return dtype.itemsize

    def store(self, space: Space) -> Store:
        return LatentStore(space) if space.config.mla else FloatStore(space)


FLOAT = Float()


class FloatStore(Store):
    """keys, values: [L, slots, K, d]. A token's KV heads lie side by side (vLLM's NHD): a token is one copy."""

    def __init__(self, space: Space):
        size = (space.config.layers, space.slots, space.config.kv_heads, space.config.head_dim)
        self.keys, self.values = (torch.zeros(size, dtype=space.dtype, device=space.device) for _ in range(2))
        self.tensors = tuple(store.unflatten(1, (-1, space.block_size)) for store in (self.keys, self.values))

    def write(self, layer: int, keys: Tensor, values: Tensor, slots: Tensor) -> None:
        self.keys[layer].index_copy_(0, slots, keys)
        self.values[layer].index_copy_(0, slots, values)

    def read(self, layer: int, gather: Gather, rows: slice) -> tuple[Tensor, Tensor]:
        keys, values = (gather(store[layer]).flatten(1, 2) for store in self.tensors)
        return keys, values


class LatentStore(Store):
    """Of latent attention (MLA). keys: [L, slots, 1, r + p], a token's normalised latent and its rotated rope key.

    values: [L, slots, 1, r], the latents again: a view of keys, so nothing is stored twice.
    """

    def __init__(self, space: Space):
        heads, width, _ = space.config.kv_entry
        size = (space.config.layers, space.slots, heads, width)
        self.keys = torch.zeros(size, dtype=space.dtype, device=space.device)
        self.rank = space.config.mla.kv_lora_rank
        self.values = self.keys[..., : self.rank]
        self.tensors = (self.keys.unflatten(1, (-1, space.block_size)),)

    def write(self, layer: int, keys: Tensor, values: Tensor, slots: Tensor) -> None:
        """Store the keys, [T, 1, r + p]; the values are part of them."""
        self.keys[layer].index_copy_(0, slots, keys)

    def read(self, layer: int, gather: Gather, rows: slice) -> tuple[Tensor, Tensor]:
        keys = gather(self.tensors[0][layer]).flatten(1, 2)
        return keys, keys[..., : self.rank]
