"""The wire between grader and submission: exact round trips, and no byte string that does more than fail."""

from __future__ import annotations

import json
import math
import socket

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from course_lib.config import Llama3Scaling
from course_lib.grading.channel import Channel, ChannelClosed
from course_lib.grading.codec import DTYPES, CodecError, Foreign, Remote, dump, load
from course_lib.mla_shape import MlaShape
from tests.conftest import small_config

plain = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(),
    lambda inner: st.lists(inner) | st.tuples(inner, inner) | st.dictionaries(st.text(), inner),
    max_leaves=20,
)


@given(plain)
@settings(max_examples=200, deadline=None)
def test_plain_values_survive(value):
    assert repr(load(dump(value))) == repr(value)  # repr tells True from 1, -0.0 from 0.0, and NaN equals itself


@pytest.mark.parametrize("name", DTYPES)
@pytest.mark.parametrize("shape", [(), (0,), (3,), (2, 0, 4), (2, 3)])
def test_tensors_survive(name, shape):
    tensor = (torch.rand(shape) * 4).to(DTYPES[name])
    back = load(dump([tensor, tensor.t() if tensor.dim() == 2 else tensor]))
    assert back[0].dtype == tensor.dtype and torch.equal(back[0], tensor)
    assert back[1].shape == (shape[::-1] if len(shape) == 2 else shape)


def test_one_element_with_a_stride_survives():
    """PyTorch calls it contiguous, and refuses to view it as bytes."""
    one = torch.arange(4, dtype=torch.int32)[::2][1:]
    assert one.stride() == (2,) and load(dump(one)).tolist() == [2]


def test_arrays_and_scalars_survive():
    array = np.arange(6, dtype=np.int32).reshape(2, 3)
    back = load(dump([array, np.float32(1.5), np.bool_(True)]))
    assert np.array_equal(back[0], array) and back[0].dtype == np.int32
    assert (type(back[1]), back[1], back[2]) == (np.float32, 1.5, True)


@pytest.mark.parametrize(
    "config",
    [
        small_config(rope_scaling=Llama3Scaling(8.0, 1.0, 4.0, 8192), eos_ids=(3, 4), windows=(6, None)),
        small_config(kv_heads=4, head_dim=12, mla=MlaShape(16, None, 8, 4, 10)),
    ],
)
def test_config_is_read_from_the_grader_only(config):
    assert load(dump(config), trusted=True) == config
    with pytest.raises(CodecError):
        load(dump(config))


@pytest.mark.parametrize("value", [object(), {1, 2}, 1j, b"x", {1: 2}, torch.rand(2).to_sparse(), np.array(["x"]), int])
def test_anything_else_is_foreign(value):
    assert type(load(dump(value))) is Foreign


def test_subclasses_are_foreign():
    class Number(int):
        pass

    class Items(list):
        pass

    assert load(dump([Number(1), Items(), Remote(2)])) == [Foreign("Number"), Foreign("Items"), Remote(2)]


def test_deep_and_long_values_are_cut():
    deep: list = []
    for _ in range(100):
        deep = [deep]
    assert "Foreign" in repr(load(dump(deep)))
    assert type(load(dump(10**500))) is Foreign


@given(st.binary(max_size=200))
@settings(max_examples=300, deadline=None)
def test_random_bytes_raise_only_codec_error(data):
    try:
        load(len(data).to_bytes(4, "big") + data)
        load(data)
    except CodecError:
        pass


JUNK = [
    {"tensor": ["float32", [1 << 40], [0, 4]]},
    {"tensor": ["float32", [-1, -1], [0, 4]]},
    {"tensor": ["float32", [0, 1 << 62, 1 << 62], [0, 0]]},
    {"tensor": ["float32", [1], [1 << 60, 4]]},
    {"tensor": ["float32", [True], [0, 4]]},
    {"tensor": ["qint8", [1], [0, 1]]},
    {"tensor": [["float32"], [1], [0, 4]]},
    {"tensor": ["float32"]},
    {"array": ["bfloat16", [1], [0, 2]]},
    {"int": "9" * 5000},
    {"int": 3},
    {"int": "0x10"},
    {"float": "__import__('os')"},
    {"list": 3},
    {"dict": [[1, 2, 3]]},
    {"dict": {"a": 1}},
    {"config": {"dict": []}},
    {"remote": "x"},
    {"pickle": "gASV"},
    {"int": "1", "float": "1"},
    [1, 2],
    3,
]


@pytest.mark.parametrize("tree", JUNK, ids=lambda tree: json.dumps(tree)[:50])
def test_malformed_values_are_refused(tree):
    text = json.dumps(tree).encode()
    with pytest.raises(CodecError):
        load(len(text).to_bytes(4, "big") + text + bytes(8))


def test_bool_bytes_other_than_one_are_true():
    text = json.dumps({"tensor": ["bool", [2], [0, 2]]}).encode()
    assert load(len(text).to_bytes(4, "big") + text + b"\x00\x07").tolist() == [False, True]


def test_channel_bounds_what_it_reads():
    ours, theirs = socket.socketpair()
    channel = Channel(ours, limit=1000)
    theirs.sendall((1 << 62).to_bytes(8, "big"))
    with pytest.raises(CodecError, match="over the limit"):
        channel.receive()
    theirs.close()
    with pytest.raises(ChannelClosed):
        channel.receive()
    channel.close()


def test_nan_and_infinity_survive():
    back = load(dump([math.nan, math.inf, torch.tensor([math.nan, -math.inf])]))
    assert math.isnan(back[0]) and back[1] == math.inf and back[2].isnan().tolist() == [True, False]
