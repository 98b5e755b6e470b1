"""The memory of a float KV cache: one row of keys and one of values per slot, in every layer."""

from __future__ import annotations

import torch
from torch import Tensor

from course_lib.config import ModelConfig
from course_lib.errors import RequestError


class SlotStore:
    """keys, values: each [L, slots, K, d]; as blocks of block_size slots where somebody reads them so.

    A token's KV heads lie side by side (vLLM's NHD), so writing a token is one contiguous copy and a flat slot number
    addresses it, whoever decides which token gets which slot. Raises RequestError where the memory cannot be reserved.
    """

    def __init__(
        self,
        config: ModelConfig,
        slots: int,
        block_size: int,
        dtype: torch.dtype,
        device: torch.device | str,
        shape: str,
    ):
        """shape: the size in the user's words, such as "4 x 128", for the error message."""
        self.block_size = block_size
        size = (config.layers, slots, config.kv_heads, config.head_dim)
        try:
            # Zeros, not empty: a padded read multiplies stale values by probability 0, and 0 * NaN is NaN.
            self.keys = torch.zeros(size, dtype=dtype, device=device)
            self.values = torch.zeros(size, dtype=dtype, device=device)
        except RuntimeError:  # torch.OutOfMemoryError on a GPU, a plain RuntimeError on the CPU
            gigabytes = slots * config.kv_bytes_per_token(dtype.itemsize) / 1e9
            raise RequestError(
                f"a KV cache for {shape} tokens needs {gigabytes:,.1f} GB, more than {device} can reserve; "
                "ask for fewer sequences or fewer tokens"
            ) from None

    def write(self, layer: int, keys: Tensor, values: Tensor, slots: Tensor) -> None:
        """Store keys and values, each [T, K, d], of one layer at `slots`, [T] int64."""
        self.keys[layer].index_copy_(0, slots, keys)
        self.values[layer].index_copy_(0, slots, values)

    def by_block(self, store: Tensor) -> Tensor:
        """A view [L, blocks, block_size, K, d] of keys or values."""
        return store.unflatten(1, (-1, self.block_size))

    @property
    def nbytes(self) -> int:
        """Bytes this cache has reserved."""
        return self.keys.nbytes + self.values.nbytes
