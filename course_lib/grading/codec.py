"""Values on the wire between the grader and a submission: plain typed data, never pickle.

The child is hostile, so decoding builds only numbers, strings, lists, tensors and arrays, checks every size against
the bytes that really came, and calls nothing that the child names. A value of any other type arrives as `Foreign`: its
type's name, and no behaviour, so an object whose `__eq__` always answers True never meets a comparison.
"""

from __future__ import annotations

import dataclasses
import json
import math
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from course_lib.config import Llama3Scaling, ModelConfig
from course_lib.mla_shape import MlaShape

DTYPES = {str(t).removeprefix("torch."): t for t in (
    torch.bool, torch.uint8, torch.int8, torch.int16, torch.int32, torch.int64,
    torch.float16, torch.bfloat16, torch.float32, torch.float64,
)}  # fmt: skip
MAX_DEPTH = 12
MAX_BYTES = 8_000_000  # of one tensor
_NESTED = {"rope_scaling": Llama3Scaling, "mla": MlaShape}  # entries of a configuration that have a type of their own
MAX_DIGITS = 400  # of an integer; Python's own limit is 4,300


class CodecError(Exception):
    """The bytes are not a value this module writes."""


@dataclass(frozen=True)
class Foreign:
    """A value that has no place on the wire: only what its type called itself."""

    type_name: str


@dataclass(frozen=True)
class Remote:
    """A function that stays with the grader; the child gets a stand-in that calls back."""

    id: int


def dump(value: Any) -> bytes:
    """One value as bytes: 4 bytes length of the JSON tree, the tree, then the raw buffers of tensors and arrays."""
    buffers: list[bytes] = []
    tree = json.dumps(_encode(value, buffers, 0)).encode()
    return len(tree).to_bytes(4, "big") + tree + b"".join(buffers)


def load(data: bytes, trusted: bool = False) -> Any:
    """The value in `data`. Raises CodecError for anything else. A ModelConfig is read only from a trusted sender."""
    size = int.from_bytes(data[:4], "big")
    try:
        tree = json.loads(data[4 : 4 + size], object_hook=None if trusted else _refuse_config)
        return _decode(tree, memoryview(data)[4 + size :], 0)
    except CodecError:
        raise
    except (ValueError, TypeError, KeyError, RecursionError, OverflowError, RuntimeError) as error:
        raise CodecError(f"malformed value: {type(error).__name__}") from None


def _encode(value: Any, buffers: list[bytes], depth: int) -> Any:
    """JSON tree of `value`. Types are compared exactly: a subclass may behave in any way, so it is Foreign."""
    kind = type(value)
    if value is None or kind in (bool, str):
        return value
    if kind is int:
        return {"int": str(value)} if value.bit_length() < 3 * MAX_DIGITS else {"foreign": "int with too many digits"}
    if kind is float:
        return {"float": value.hex()}
    if depth < MAX_DEPTH:
        if kind in (list, tuple):
            return {kind.__name__: [_encode(item, buffers, depth + 1) for item in value]}
        if kind is dict and all(type(key) is str for key in value):
            return {"dict": [[key, _encode(item, buffers, depth + 1)] for key, item in value.items()]}
    if kind in (torch.Tensor, torch.nn.Parameter) and value.layout == torch.strided:
        tensor = value.detach()
        name = str(tensor.dtype).removeprefix("torch.")
        if tensor.nbytes > MAX_BYTES:  # an expanded view can claim any size without owning it
            return {"foreign": f"tensor of {tensor.nbytes:,} bytes"}
        if name in DTYPES:
            # A copy: one element with a stride of 2 counts as contiguous and cannot be viewed as bytes.
            packed = tensor.cpu().clone(memory_format=torch.contiguous_format)
            raw = packed.flatten().view(torch.uint8).numpy().tobytes()
            return {"tensor": [name, list(tensor.shape), _store(raw, buffers)]}
    if kind is np.ndarray and value.dtype.name in DTYPES:
        return {"array": [value.dtype.name, list(value.shape), _store(value.tobytes(), buffers)]}
    if isinstance(value, np.generic) and kind.__module__ == "numpy" and kind.__name__ in DTYPES:
        return {"scalar": [kind.__name__, _store(value.tobytes(), buffers)]}
    if kind is ModelConfig:
        fields = {field.name: getattr(value, field.name) for field in dataclasses.fields(value)}
        for name in _NESTED:
            fields[name] = fields[name] and dataclasses.asdict(fields[name])
        return {"config": _encode(fields, buffers, depth + 1)}
    if kind is Remote:
        return {"remote": value.id}
    return {"foreign": kind.__name__[:80]}


def _refuse_config(node: dict) -> dict:
    if "config" in node:
        raise CodecError("a configuration that the grader did not make")
    return node


def _store(raw: bytes, buffers: list[bytes]) -> list[int]:
    start = sum(map(len, buffers))
    buffers.append(raw)
    return [start, len(raw)]


def _decode(node: Any, data: memoryview, depth: int) -> Any:
    if node is None or type(node) in (bool, str):
        return node
    if type(node) is not dict or len(node) != 1 or depth > MAX_DEPTH:
        raise CodecError("malformed value")
    ((kind, body),) = node.items()
    match kind:
        case "int":
            if len(body) > MAX_DIGITS:
                raise CodecError("integer too long")
            return int(body)
        case "float":
            return float.fromhex(body)
        case "list" | "tuple":
            return {"list": list, "tuple": tuple}[kind](_decode(item, data, depth + 1) for item in body)
        case "dict":
            return {str(key): _decode(item, data, depth + 1) for key, item in body}
        case "tensor":
            return _tensor(*body, data)
        case "array":
            return _tensor(*body, data).numpy()
        case "scalar":
            name, where = body
            return _tensor(name, [1], where, data).numpy()[0]
        case "config":
            fields = _decode(body, data, depth + 1)
            nested = {name: fields[name] and kind(**fields[name]) for name, kind in _NESTED.items()}
            return ModelConfig(**(fields | nested))
        case "remote":
            return Remote(int(body))
        case "foreign":
            return Foreign("".join(c for c in str(body)[:80] if c.isprintable()))
    raise CodecError("malformed value")


def _tensor(name: str, shape: list[int], where: list[int], data: memoryview) -> torch.Tensor:
    """A tensor that owns a copy of its bytes. Every number comes from the child and is checked against the buffer."""
    dtype, (start, size) = DTYPES[name], where
    if any(type(n) is not int or n < 0 for n in [*shape, start, size]) or len(shape) > 8:
        raise CodecError("malformed tensor")
    if math.prod(shape) * dtype.itemsize != size or start + size > len(data):
        raise CodecError("tensor size and bytes disagree")
    if size == 0:
        return torch.empty(shape, dtype=dtype)
    raw = torch.frombuffer(bytearray(data[start : start + size]), dtype=torch.uint8)
    if dtype == torch.bool:
        return (raw != 0).reshape(shape)  # a bool byte other than 0 or 1 is undefined behaviour in torch
    return raw.view(dtype).reshape(shape)
