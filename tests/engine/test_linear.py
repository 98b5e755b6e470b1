"""Packed linear layers: the same function as torch's, in every size of batch, copied, saved and loaded."""

from __future__ import annotations

import copy
import pickle
import weakref

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from course_lib import linear
from course_lib.linear import PACK_FROM, PackedLinear, pack, packing_works
from course_lib.model import Decoder
from tests.conftest import small_config

needs_packing = pytest.mark.skipif(not packing_works(torch.float32), reason="this CPU or PyTorch has no packed product")


WIDE = small_config(hidden=480, ffn=1280, qkv_bias=True)  # large enough for its wide layers to be packed


def layer(bias: bool = True, dtype: torch.dtype = torch.float32) -> nn.Linear:
    torch.manual_seed(0)
    return nn.Linear(480, 2560, bias=bias, dtype=dtype).requires_grad_(False)


@needs_packing
@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize("rows", [0, 1, 2, 3, 4, 5, 8, 65, 300])
def test_equals_the_plain_layer(rows, bias):
    plain = layer(bias)
    x = torch.randn(rows, 480)
    torch.testing.assert_close(pack(plain)(x), F.linear(x, plain.weight, plain.bias), atol=1e-5, rtol=1e-5)


@needs_packing
def test_takes_views():
    plain, x = layer(), torch.randn(6, 960)[:, ::2]
    torch.testing.assert_close(pack(plain)(x), F.linear(x, plain.weight, plain.bias), atol=1e-5, rtol=1e-5)


@pytest.mark.skipif(not packing_works(torch.bfloat16), reason="this CPU or PyTorch has no packed bfloat16 product")
def test_bfloat16():
    plain, x = layer(dtype=torch.bfloat16), torch.randn(5, 480, dtype=torch.bfloat16)
    got = pack(plain)(x)
    assert got.dtype == torch.bfloat16
    torch.testing.assert_close(got, F.linear(x, plain.weight, plain.bias), atol=2e-2, rtol=2e-2)


@needs_packing
def test_is_copied_pickled_and_saved_with_its_plain_weight():
    plain = layer()
    packed, x = pack(plain), torch.randn(3, 480)
    state = packed.state_dict()
    assert torch.equal(state["weight"], plain.weight) and torch.equal(state["bias"], plain.bias)
    for twin in (copy.deepcopy(packed), pickle.loads(pickle.dumps(packed))):
        assert torch.equal(twin(x), packed(x))
    packed.load_state_dict({"weight": 2 * plain.weight, "bias": plain.bias})
    torch.testing.assert_close(packed(x), F.linear(x, 2 * plain.weight, plain.bias), atol=1e-5, rtol=1e-5)
    with pytest.raises(RuntimeError, match="weight"):
        packed.load_state_dict({"bias": plain.bias})


@needs_packing
def test_the_plain_weight_is_not_kept():
    plain = layer()
    kept, packed = weakref.ref(plain.weight), pack(plain)
    del plain
    assert kept() is None and isinstance(packed, PackedLinear)


def test_without_the_packed_product_the_model_computes_the_same(monkeypatch):
    """The fall-back, on every machine: column-major where the output is the longer side."""
    ids = list(range(30))
    want = Decoder.random(WIDE, seed=3)(ids)
    monkeypatch.setattr(linear, "packing_works", lambda dtype: False)
    model = Decoder.random(WIDE, seed=3)
    assert model.blocks[0].ffn.gate_up.weight.stride() == (1, 2560)
    assert model.blocks[0].ffn.down.weight.is_contiguous()
    torch.testing.assert_close(model(ids), want, atol=1e-5, rtol=1e-5)


@needs_packing
def test_large_weights_are_packed_and_small_ones_are_not():
    blocks = Decoder.random(WIDE).blocks
    for layer in (blocks[0].ffn.gate_up, blocks[1].attention.qkv):
        assert isinstance(layer, PackedLinear) == (4 * layer.in_features * layer.out_features >= PACK_FROM)
    assert isinstance(blocks[0].ffn.gate_up, PackedLinear) and isinstance(blocks[1].attention.qkv, nn.Linear)


def missing(*args):
    raise NotImplementedError


def wrong(x, *args):
    return torch.zeros(len(x), 4)


@pytest.mark.parametrize("forward", [missing, wrong])
def test_an_operator_that_is_missing_or_wrong_is_not_used(monkeypatch, forward):
    monkeypatch.setattr(PackedLinear, "forward", lambda self, x: forward(x))
    packing_works.cache_clear()
    try:
        assert not packing_works(torch.float32)
    finally:
        packing_works.cache_clear()
