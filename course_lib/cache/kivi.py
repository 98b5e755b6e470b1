"""KIVI (arXiv 2402.02750): keys quantised per channel, values per token, and the last tokens kept in float.

A few channels of the keys are many times larger than the rest, in every token. A scale per token would be theirs, and
leave the other channels a code or two; a scale per channel does not mix them. But that takes several tokens at once, so
tokens wait in a window of floats until they are `residual`, and are then quantised together: keys in groups of `group`
tokens of a channel, values in groups of `group` channels of a token. Values could go at once; the paper keeps the last
`residual` of them too, and here they wait with their keys, so that a token has one place.

A row of the cache is cut into blocks of `residual` tokens, which positions alone decide: all but the last one are full
and quantised, the last is float. So what is stored does not depend on the chunks in which it came, nor on the other
rows. A chunk is stored before it attends, as in all caches here: a query of a long prompt reads the prompt's full
blocks quantised, where the paper's prefill attends in float.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from course_lib.cache.affine import dequantize, quantize
from course_lib.cache.store import Gather, KVFormat, Space, Store
from course_lib.errors import RequestError


@dataclass(frozen=True, kw_only=True)
class Kivi(KVFormat):
    """bits: 2 or 4. group: tokens or channels with one scale; it divides residual, the tokens of the float window."""

    bits: int = 2
    group: int = 32
    residual: int = 128

    def __post_init__(self):
        if self.bits not in (2, 4) or self.group % (8 // self.bits) or self.residual % self.group:
            raise RequestError(
                f"KIVI with {self.bits} bits, groups of {self.group} and a window of {self.residual} is not possible; "
                "use 2 or 4 bits, groups of a multiple of 4, and a window that groups fill"
            )

    @property
    def name(self) -> str:
        return f"kivi{self.bits}"

    @property
    def block_size(self) -> int:
        return self.residual

    def bytes_per_element(self, head_dim: int, dtype: torch.dtype) -> float:
        """Of a quantised token."""
        metadata = 2 * torch.float16.itemsize
        return self.bits / 8 + (metadata / self.group + metadata / math.gcd(head_dim, self.group)) / 2

    def nbytes(self, space: Space) -> float:
        window = space.rows * self.residual * space.config.kv_bytes_per_token(space.dtype.itemsize)
        return super().nbytes(space) + window

    def store(self, space: Space) -> KiviStore:
        if space.rows is None or space.block_size != self.residual:
            raise RequestError(
                f"{self.name} keeps a window of float tokens for each row, which only a contiguous cache has; "
                "use int8 or fp8 here"
            )
        return KiviStore(space, self)


@dataclass(frozen=True)
class _Writes:
    """Where the tokens of a pass go. Tokens are numbered as in the batch, everything is int64 on the cache's device."""

    blocks: Tensor  # [F], those that become full
    rows: Tensor  # [F], whose they are
    full: Tensor  # tokens of full blocks: their numbers, which of the F, and their place in it
    places: tuple[Tensor, Tensor]
    open: Tensor  # tokens that stay in a window: their numbers, row and place
    windows: tuple[Tensor, Tensor]


class KiviStore(Store):
    """keys: uint8 [L, blocks, K, d, R * bits / 8]; values: uint8 [L, blocks, R, K, d * bits / 8]; R = residual.

    windows: [2, L, rows, R, K, d], the last block of each row in float.
    """

    def __init__(self, space: Space, kv_format: Kivi):
        config, self.format = space.config, kv_format
        layers, heads, d = config.layers, config.kv_heads, config.head_dim
        self.residual, bits, self.value_group = kv_format.residual, kv_format.bits, math.gcd(d, kv_format.group)
        blocks = space.blocks

        def zeros(*shape: int, dtype: torch.dtype) -> Tensor:
            return torch.zeros(shape, dtype=dtype, device=space.device)

        self.keys = zeros(layers, blocks, heads, d, self.residual * bits // 8, dtype=torch.uint8)
        self.values = zeros(layers, blocks, self.residual, heads, d * bits // 8, dtype=torch.uint8)
        key_groups, value_groups = self.residual // kv_format.group, d // self.value_group
        self.key_metadata = zeros(layers, blocks, heads, d, key_groups, 2, dtype=torch.float16)
        self.value_metadata = zeros(layers, blocks, self.residual, heads, value_groups, 2, dtype=torch.float16)
        self.tensors = (self.keys, self.values, self.key_metadata, self.value_metadata)
        self.windows = zeros(2, layers, space.rows, self.residual, heads, d, dtype=space.dtype)
        self.lengths = [0] * space.rows
        self.blocks_each = blocks // space.rows
        self._slots: Tensor | None = None
        self._writes: _Writes | None = None

    def write(self, layer: int, keys: Tensor, values: Tensor, slots: Tensor) -> None:
        if slots is not self._slots:  # the layers of a pass share them
            self._slots, self._writes = slots, self._plan(slots)
        to = self._writes
        if len(to.blocks):
            full = self.windows[:, layer].index_select(1, to.rows)  # what the row's last block held already
            for content, x in zip(full, (keys, values), strict=True):
                content[to.places] = x[to.full]
            self._quantize(layer, to.blocks, *full)
        for window, x in zip(self.windows[:, layer], (keys, values), strict=True):
            window[to.windows] = x[to.open]

    def read(self, layer: int, gather: Gather, rows: slice) -> tuple[Tensor, Tensor]:
        keys, values = self._dequantize(*(gather(each[layer]) for each in self.tensors))
        lengths = torch.tensor(self.lengths[rows])
        last = lengths // self.residual
        waiting = ((lengths % self.residual > 0) & (last < keys.shape[1])).nonzero().flatten()
        for out, window in zip((keys, values), self.windows[:, layer, rows], strict=True):
            out[waiting, last[waiting]] = window[waiting]
        return keys.flatten(1, 2), values.flatten(1, 2)

    def truncate(self, row: int, length: int) -> None:
        """A block that is cut in its middle goes back to the window, with the values that were read from it."""
        block = length // self.residual
        if length % self.residual and block < self.lengths[row] // self.residual:
            at = row * self.blocks_each + block
            for window, x in zip(self.windows, self._dequantize(*(each[:, at] for each in self.tensors)), strict=True):
                window[:, row] = x
        self.lengths[row], self._slots = length, None

    @property
    def nbytes(self) -> int:
        return super().nbytes + self.windows.nbytes

    def used_bytes(self, lengths: Sequence[int]) -> int:
        waiting = sum(length % self.residual for length in lengths)
        quantised = super().nbytes * (sum(lengths) - waiting) // (self.keys.shape[1] * self.residual)
        return quantised + self.windows[:, :, 0, 0].nbytes * waiting

    def _quantize(self, layer: int, blocks: Tensor, keys: Tensor, values: Tensor) -> None:
        """Store whole blocks, each [F, R, K, d]. A channel's tokens become the last axis, along which groups lie."""
        channels = keys.permute(0, 2, 3, 1)
        parts = (
            *zip((self.keys, self.key_metadata), quantize(channels, self.format.bits, self.format.group), strict=True),
            *zip((self.values, self.value_metadata), quantize(values, self.format.bits, self.value_group), strict=True),
        )
        for store, part in parts:
            store[layer].index_copy_(0, blocks, part)

    def _dequantize(
        self, keys: Tensor, values: Tensor, key_metadata: Tensor, value_metadata: Tensor
    ) -> tuple[Tensor, Tensor]:
        """Blocks of `tensors`, [..., *shape of one], to [..., R, K, d]."""
        channels = dequantize(keys, key_metadata, self.format.bits)
        keys, values = channels.movedim(-1, -3), dequantize(values, value_metadata, self.format.bits)
        return keys.to(self.windows.dtype), values.to(self.windows.dtype)

    def _plan(self, slots: Tensor) -> _Writes:
        """Sort a pass's tokens into blocks that they fill and windows; the rows' lengths are those after the pass."""
        block, place = slots.cpu() // self.residual, slots.cpu() % self.residual
        blocks, number = block.unique(return_inverse=True)
        ends = torch.zeros_like(blocks).scatter_reduce(0, number, place, "amax") + 1
        rows = blocks // self.blocks_each
        for row, at, end in zip(rows.tolist(), blocks.tolist(), ends.tolist(), strict=True):  # the last block wins
            self.lengths[row] = at % self.blocks_each * self.residual + end
        filled = ends == self.residual
        full, open_ = (chosen.nonzero().flatten() for chosen in (filled[number], ~filled[number]))
        which = (filled.cumsum(0) - 1)[number[full]]
        device = self.keys.device
        return _Writes(
            blocks=blocks[filled].to(device),
            rows=rows[filled].to(device),
            full=full.to(device),
            places=(which.to(device), place[full].to(device)),
            open=open_.to(device),
            windows=(rows[number[open_]].to(device), place[open_].to(device)),
        )
