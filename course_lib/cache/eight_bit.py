"""Keys and values in 8 bits, each KV head of each token with a scale of its own: x ~ code * scale.

Int8: scale = max |x| / 127 and code = round(x / scale), so a value is off by at most scale / 2. fp8: scale = max |x| /
448 and code is the nearest e4m3 number (arXiv 2209.05433), off by at most |x| / 16, or scale / 1024 near 0. The scale
is per token because a token is written once, when nothing is known of those to come; and an outlier then spoils the
precision of no other token. vLLM's names are int8_per_token_head and fp8_per_token_head (vllm-project/vllm, pull
request 38378); its plain "fp8" has one scale for a whole layer.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from course_kernels.reference.quantize import quantize_per_token
from course_lib.cache.store import Gather, KVFormat, Space, Store


@dataclass(frozen=True, kw_only=True)
class EightBit(KVFormat):
    """The codes are of `dtype`: int8 or float8_e4m3fn."""

    dtype: torch.dtype

    @property
    def name(self) -> str:
        return "int8" if self.dtype == torch.int8 else "fp8"

    def bytes_per_element(self, head_dim: int, dtype: torch.dtype) -> float:
        return 1 + torch.float32.itemsize / head_dim

    def store(self, space: Space) -> EightBitStore:
        return EightBitStore(space, self.dtype)


class EightBitStore(Store):
    """keys, values: codes [L, slots, K, d]. Scales float32 [L, blocks, K, block_size], as the kernels read them.

    A program of a kernel works on one head, whose scales are neighbours so.
    """

    def __init__(self, space: Space, dtype: torch.dtype):
        config = space.config
        codes = (2, config.layers, space.blocks, space.block_size, config.kv_heads, config.head_dim)
        scales = (2, config.layers, space.blocks, config.kv_heads, space.block_size)
        # Bytes, as PyTorch moves those everywhere and e4m3 numbers not.
        self._codes = torch.zeros(codes, dtype=torch.uint8, device=space.device)
        self._scales = torch.zeros(scales, dtype=torch.float32, device=space.device)
        self.dtype, self.float_dtype, self.block_size = dtype, space.dtype, space.block_size
        self.keys, self.values = self._codes.view(dtype).flatten(2, 3)
        self.tensors = (*self._codes, *self._scales)
        self._rooms = [torch.empty(0), torch.empty(0)]  # what the last read of keys and of values was decoded into

    def write(self, layer: int, keys: Tensor, values: Tensor, slots: Tensor) -> None:
        block, offset = slots // self.block_size, slots % self.block_size
        for i, x in enumerate((keys, values)):
            codes, scales = quantize_per_token(x, self.dtype)
            self._codes[i, layer].flatten(0, 1).index_copy_(0, slots, codes.view(torch.uint8))
            self._scales[i, layer].transpose(1, 2)[block, offset] = scales.float()

    def read(self, layer: int, gather: Gather, rows: slice) -> tuple[Tensor, Tensor]:
        return self._read(0, layer, gather), self._read(1, layer, gather)

    def _read(self, i: int, layer: int, gather: Gather) -> Tensor:
        """Valid until the next read: new memory for each, taken from the system page by page, costs ten times more."""
        codes = gather(self._codes[i, layer]).view(self.dtype)  # [S, N, block_size, K, d]
        scales = gather(self._scales[i, layer]).transpose(-1, -2)[..., None]
        if self._rooms[i].numel() < codes.numel():
            with torch.inference_mode(False):  # or it could only be written in that mode
                self._rooms[i] = torch.empty(codes.numel(), dtype=self.float_dtype, device=codes.device)
        out = self._rooms[i][: codes.numel()].view(codes.shape)
        return out.copy_(codes).mul_(scales).flatten(1, 2)

    def scales(self, layer: int) -> dict[str, Tensor]:
        key_scales, value_scales = self._scales[:, layer]
        return {"key_scales": key_scales, "value_scales": value_scales}
