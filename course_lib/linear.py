"""Linear layers whose weights lie as the CPU's matrix product reads them.

A decode step reads every weight once, so a few more rows should cost nothing. PyTorch's product over a plain float32
weight takes twice as long for two rows as for one. oneDNN's, over a weight that was cut into blocks beforehand, takes
the same time for one row and for four, and little more for eight: batching pays as it does on a GPU.
torch.compile packs weights the same way when it freezes a model; packing needs no compiler.
"""

from __future__ import annotations

import platform
from functools import cache

import torch
import torch.nn.functional as F
from torch import Tensor, nn

PACKABLE = (torch.float32, torch.bfloat16)
PACK_FROM = 2**20  # bytes; a smaller weight stays in a core's cache, and calling oneDNN costs more than reading it
TYPICAL_ROWS = 64  # a hint for the block sizes; one packing serves all sizes of batch, measured from 1 to 512 rows
FEWEST_ROWS = 4  # the product takes up to a third longer for one row than for four: short loops wait for each sum


class PackedLinear(nn.Module):
    """y = x W^T + b, with W [out, in] in oneDNN's blocks. Build it with `pack`; `state_dict` has the plain weight."""

    def __init__(self, weight: Tensor, bias: Tensor | None):
        super().__init__()
        self.out_features, self.in_features = weight.shape
        self.bias = None if bias is None else nn.Parameter(bias, requires_grad=False)
        self._pack(weight)

    def forward(self, x: Tensor) -> Tensor:
        """x [T, in] -> [T, out]."""
        rows = len(x)
        if rows < FEWEST_ROWS:
            x = F.pad(x, (0, 0, 0, FEWEST_ROWS - rows))
        return torch.ops.mkldnn._linear_pointwise(x, self._packed, self.bias, "none", [], "")[:rows]

    def dense(self) -> Tensor:
        """A copy of the weight, [out, in]."""
        return self._packed.to_dense()

    def _pack(self, weight: Tensor) -> None:
        self._packed = torch.ops.mkldnn._reorder_linear_weight(weight.detach().contiguous(), TYPICAL_ROWS)

    def __getstate__(self):  # for copy and pickle: a packed tensor has no storage they could read
        return {name: value for name, value in self.__dict__.items() if name != "_packed"} | {"weight": self.dense()}

    def __setstate__(self, state):
        weight = state.pop("weight")
        super().__setstate__(state)
        self._pack(weight)

    def _save_to_state_dict(self, destination, prefix, keep_vars):
        super()._save_to_state_dict(destination, prefix, keep_vars)
        destination[prefix + "weight"] = self.dense()

    def _load_from_state_dict(self, state_dict, prefix, metadata, strict, missing, *rest):
        if (weight := state_dict.pop(prefix + "weight", None)) is None:
            missing.append(prefix + "weight")
        else:
            self._pack(weight)
        super()._load_from_state_dict(state_dict, prefix, metadata, strict, missing, *rest)


def pack(linear: nn.Linear) -> nn.Module:
    """The same layer, laid out for the CPU that this runs on.

    A small weight, or any where oneDNN's product cannot be had, becomes column-major if its output is the longer side:
    one row then streams whole columns, which measured 1.7 to 2 times the bandwidth of the row-major product.
    """
    weight = linear.weight
    if weight.nbytes >= PACK_FROM and weight.dtype in PACKABLE and packing_works(weight.dtype):
        return PackedLinear(weight, linear.bias)
    if linear.out_features >= linear.in_features:
        linear.weight.data = linear.weight.data.t().contiguous().t()
    return linear


@cache
def packing_works(dtype: torch.dtype) -> bool:
    """True where this machine and this PyTorch have the packed product and it gives the right answer.

    Its operators are not part of PyTorch's documented interface, so they are tried out before they are trusted.
    """
    if platform.machine().lower() not in ("x86_64", "amd64"):  # elsewhere its speed was not measured
        return False
    x, weight = torch.eye(3, 5, dtype=dtype), torch.arange(20, dtype=dtype).view(4, 5)
    try:
        return torch.equal(PackedLinear(weight, None)(x), F.linear(x, weight))
    except (AttributeError, RuntimeError):  # NotImplementedError is a RuntimeError
        return False
