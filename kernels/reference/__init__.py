"""Each operation in plain PyTorch, as its formula reads: what the kernels are tested against.

Arithmetic is in float32, or in float64 where the inputs are; a result is rounded to the inputs' dtype once, at the end.
"""

import torch
from torch import Tensor


def widen(x: Tensor) -> Tensor:
    """x in float32, or unchanged where it is float64."""
    return x.to(torch.promote_types(x.dtype, torch.float32))
