"""Compare what a function gave with what it should give, and say the first difference in one line.

The order is the order in which a person would look: type, shape, dtype, value.
"""

from __future__ import annotations

import sys
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from course_lib.grading.codec import Foreign

# (relative, absolute) by dtype, with room for another order of summation. float32: ten times what five ways of writing
# attention (einsum, scaled_dot_product_attention, float64, ...) differ by on the inputs of exercise 02.
TOLERANCE = {
    torch.float64: (1e-9, 1e-12),
    torch.float32: (1e-4, 1e-5),
    torch.float16: (2e-3, 1e-3),
    torch.bfloat16: (2e-2, 1e-2),
}
NUMBER_TOLERANCE = 1e-9  # relative, of Python numbers
MAX_NUMBER = sys.float_info.max


@dataclass(frozen=True)
class Difference:
    """The first place where two values differ. `stage`: "type", "shape", "dtype" or "value"."""

    stage: str
    text: str


def compare(got: Any, want: Any, name: str = "the result") -> Difference | None:
    """The first difference between `got` and `want`, or None. `name` says in the text what is compared.

    A NumPy scalar or an integral float counts as the number it is; a list and a tuple are different types.
    """
    got = got.item() if isinstance(got, np.generic) else got
    match want:
        case bool() | str() | None:
            if type(got) is not type(want):
                return _type(got, want, name)
            return None if got == want else Difference("value", f"{name}: got {repr(got)[:80]}, want {want!r}")
        case int() | float():
            return _compare_number(got, want, name)
        case Tensor():
            return _compare_tensor(got, want, name)
        case list() | tuple():
            if type(got) is not type(want):
                return _type(got, want, name)
            for i, (g, w) in enumerate(zip(got, want, strict=False)):
                if difference := compare(g, w, f"{name}[{i}]"):
                    return difference
            if len(got) != len(want):
                return Difference("shape", f"{name}: got {len(got)} items, want {len(want)}")
            return None
        case dict():
            return next((d for key in want if (d := compare(got[key], want[key], key))), None)
    raise TypeError(f"no comparison is defined for {type(want).__name__}")


def _compare_number(got: Any, want: float, name: str) -> Difference | None:
    if type(got) not in (int, float):
        return _type(got, want, name)
    got = min(max(got, -MAX_NUMBER), MAX_NUMBER)  # a longer integer fits no float
    if got == want or abs(got - want) <= NUMBER_TOLERANCE * abs(want):
        return None
    ratio = f" ({got / want:.4g} times as much)" if abs(want) >= 100 else ""
    return Difference("value", f"{name}: got {_number(got)}, want {_number(want)}{ratio}")


def _compare_tensor(got: Any, want: Tensor, name: str) -> Difference | None:
    if type(got) not in (Tensor, torch.nn.Parameter):
        return _type(got, want, name)
    if got.shape != want.shape:
        return Difference("shape", f"{name}: got shape {list(got.shape)}, want {list(want.shape)}")
    if got.dtype != want.dtype:
        return Difference("dtype", f"{name}: got dtype {_dtype(got)}, want {_dtype(want)}")
    got, want = got.detach().cpu(), want.cpu()
    if want.dtype in TOLERANCE:
        relative, absolute = TOLERANCE[want.dtype]
        wrong = ~torch.isclose(got.double(), want.double(), rtol=relative, atol=absolute, equal_nan=True)
    else:
        wrong = got != want
    if not wrong.any():
        return None
    index = wrong.nonzero()[0].tolist()
    where = f"{name} at index {index}" if index else name
    here = tuple(index)
    share = f"; {int(wrong.sum())} of {wrong.numel()} elements differ" if wrong.numel() > 1 else ""
    return Difference("value", f"{where}: got {_number(got[here].item())}, want {_number(want[here].item())}{share}")


def _type(got: Any, want: Any, name: str) -> Difference:
    return Difference("type", f"{name}: got {_kind(got)}, want {_kind(want)}")


def _kind(value: Any) -> str:
    """What a value is, in the words of an error message."""
    if type(value) is Foreign:
        return f"an object of type {value.type_name}"
    if value is None:
        return "None"
    if type(value) in (Tensor, torch.nn.Parameter):
        return f"a tensor of {_dtype(value)}"
    names = {int: "a number", float: "a number", bool: "a bool", str: "a str", list: "a list", tuple: "a tuple"}
    return names.get(type(value), f"an object of type {type(value).__name__}")


def _dtype(tensor: Tensor) -> str:
    return str(tensor.dtype).removeprefix("torch.")


def _number(value: Any) -> str:
    """A number with all its digits when they can matter, thousands separated."""
    if type(value) is bool:
        return str(value)
    return f"{int(value):,}" if abs(value) < 1e15 and value == int(value) else f"{value:.6g}"
