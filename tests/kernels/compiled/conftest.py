"""The targets, and what must hold for every kernel on each of them."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor

from course_kernels.offline import TARGETS, Compiled, Target, compiling_for

CASES = [(target, torch.float16) for target in TARGETS.values()] + [(TARGETS["sm_90"], torch.bfloat16)]


class Gpu:
    """One case: a target that is not there, and the floating-point type of the model."""

    def __init__(self, target: Target, dtype: torch.dtype):
        self.target, self.dtype = target, dtype

    def empty(self, *shape: int, dtype: torch.dtype | None = None) -> Tensor:
        """A tensor without memory; in the model's dtype unless another is named."""
        return torch.empty(*shape, dtype=dtype or self.dtype, device="meta")

    def compile(self, launcher: Callable, *args, **kwargs) -> list[Compiled]:
        """Every kernel that the call launches, in order, each without spills and within the shared memory."""
        with compiling_for(self.target) as launches:
            launcher(*args, **kwargs)
        for launch in launches:
            assert launch.spilled == 0, f"{launch.name} spills {launch.spilled} bytes per thread"
            assert launch.shared <= self.target.shared_limit, f"{launch.name} asks for {launch.shared} bytes"
        return launches


@pytest.fixture(params=CASES, ids=lambda case: f"{case[0].name}-{str(case[1]).removeprefix('torch.')}")
def gpu(request) -> Gpu:
    return Gpu(*request.param)
