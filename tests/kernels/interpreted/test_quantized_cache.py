"""rope_cache into a cache of 8 bits: against the reference in float64, and read by the attention that it is for."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from course_kernels.launch import EIGHT_BIT, KernelError
from course_kernels.reference import decode_attention as attention_reference
from course_kernels.reference import rope_cache as reference
from course_kernels.triton.decode_attention import decode_attention
from course_kernels.triton.rope_cache import rope_cache
from tests.kernels.interpreted.test_quantize import assert_nearest
from tests.kernels.interpreted.test_rope_cache import EPS, angles
from tests.kernels.values import DTYPES, assert_close, far_apart, normal

INT8, FP8 = EIGHT_BIT
P = 16


class Case:
    """Arguments of rope_cache for a paged cache that is full of the byte 1, with NaN for scales.

    The slots are in no order, the second token is padding, and NaN itself, where there are several. Before the cache
    lies a block that is not its own, where slot -1 would be.
    """

    def __init__(self, tokens: int, heads: int, kv_heads: int, d: int, dtype: torch.dtype, kind: torch.dtype):
        generator = torch.Generator().manual_seed(tokens)
        qkv = normal(tokens, heads + 2 * kv_heads, d, dtype=dtype)
        blocks = tokens // P + 2
        self.slots = torch.randperm(blocks * P, generator=generator)[:tokens]
        if tokens > 1:
            self.slots[1], qkv[1] = -1, torch.nan
        self.qkv = qkv.split((heads, kv_heads, kv_heads), dim=1)
        self.angles = angles(torch.randint(0, 100_000, (tokens,), generator=generator), d)
        self.stores = [torch.ones((1 + blocks) * P, kv_heads, d, dtype=torch.uint8) for _ in range(2)]
        self.all_scales = [torch.full((1 + blocks, kv_heads, P), torch.nan) for _ in range(2)]
        self.keys, self.values = (store[P:].view(kind) for store in self.stores)
        self.scales = {"key_scales": self.all_scales[0][1:], "value_scales": self.all_scales[1][1:]}
        self.norms = ()

    def run(self) -> Tensor:
        return rope_cache(*self.qkv, *self.angles, self.keys, self.values, self.slots, *self.norms, **self.scales)

    def exact(self) -> tuple[Tensor, Tensor, Tensor]:
        """q, keys and values, the last two [N, K, d], in float64 and not rounded."""
        stores = [torch.full(self.keys.shape, torch.nan, dtype=torch.float64) for _ in range(2)]
        wide = [x.double() for x in (*self.qkv, *self.angles)]
        norms = [x.double() if isinstance(x, Tensor) else x for x in self.norms]
        return reference.rope_cache(*wide, *stores, self.slots, *norms), *stores

    def check(self) -> None:
        """Every stored row is the nearest to the exact one; no other byte and no other scale has changed."""
        got, (q, *stores) = self.run(), self.exact()
        written = self.slots[self.slots >= 0]
        assert_close(got[self.slots >= 0], q[self.slots >= 0], 4)
        for store, scales, exact in zip((self.keys, self.values), self.scales.values(), stores, strict=True):
            by_slot = scales.transpose(1, 2).flatten(0, 1)  # [N, K]
            if len(written):
                assert_nearest(store[written], by_slot[written], exact[written])
            others = torch.ones(len(store), dtype=torch.bool)
            others[written] = False
            assert (store.view(torch.uint8)[others] == 1).all() and by_slot[others].isnan().all()
        assert all((store[:P] == 1).all() for store in self.stores)
        assert all(scales[0].isnan().all() for scales in self.all_scales)


@settings(max_examples=12, deadline=None, derandomize=True)
@given(
    tokens=st.integers(0, 20),
    kv_heads=st.integers(1, 9),
    group=st.sampled_from((1, 2, 4)),
    d=st.sampled_from((16, 64, 128, 256)),
    dtype=st.sampled_from(DTYPES),
    kind=st.sampled_from(EIGHT_BIT),
    normed=st.booleans(),
)
def test_random_shapes(tokens, kv_heads, group, d, dtype, kind, normed):
    case = Case(tokens, group * kv_heads, kv_heads, d, dtype, kind)
    if normed:
        case.norms = (normal(d, dtype=dtype, seed=1), normal(d, dtype=dtype, seed=2), EPS)
    case.check()


@pytest.mark.parametrize("kind", EIGHT_BIT, ids=str)
def test_attention_reads_what_was_written(kind):
    """Two sequences over scattered blocks. Values of the second head are 100 times as large, and so is its error."""
    lengths, tables = torch.tensor([20, 5]).int(), torch.tensor([[3, 1], [2, 0]]).int()
    case = Case(25, 4, 2, 32, torch.float32, kind)
    case.qkv = tuple(normal(25, heads, 32, seed=seed) for seed, heads in enumerate((4, 2, 2)))
    case.qkv[2][:, 1] *= 100
    case.keys, case.values = (torch.zeros(4 * P, 2, 32, dtype=torch.uint8).view(kind) for _ in range(2))
    case.scales = {name: torch.full((4, 2, P), torch.nan) for name in case.scales}
    positions = [tables[s, n // P] * P + n % P for s, length in enumerate((20, 5)) for n in range(length)]
    case.slots = torch.tensor(positions).long()
    q = case.run()[[19, 24]]
    keys, values = (store.view(4, P, 2, 32) for store in (case.keys, case.values))
    got = decode_attention(q, keys, values, tables, lengths, **case.scales)

    exact_q, *stores = case.exact()
    exact = attention_reference.decode_attention(
        exact_q[[19, 24]], *(store.view(4, P, 2, 32) for store in stores), tables, lengths
    )
    off = (got.double() - exact).abs().amax((0, 2)).view(2, 2).amax(1) / torch.tensor([1, 100])
    assert (off < (0.02 if kind == INT8 else 0.1)).all() and (off > 1e-4).all()


@pytest.mark.parametrize("kind", EIGHT_BIT, ids=str)
def test_a_head_of_zeros(kind):
    """It reads back as zeros, with a scale that is no NaN, beside heads that are not zero."""
    case = Case(3, 2, 2, 16, torch.float16, kind)
    for x in case.qkv:
        x[0, 0] = 0
    case.check()
    slot = case.slots[0]
    for store, scales in zip((case.keys, case.values), case.scales.values(), strict=True):
        scale = scales[slot // P, :, slot % P]
        assert scale.isfinite().all()
        assert (store[slot, 0].float() * scale[0] == 0).all() and (store[slot, 1].float() != 0).any()


def test_slots_behind_2_to_the_31():
    case = Case(3, 2, 1, 16, torch.float16, INT8)
    case.slots = torch.tensor([2, -1, 0])
    case.keys, case.values = (far_apart(store[:16]) for store in (case.keys, case.values))
    case.scales = {name: scales[:1].contiguous() for name, scales in case.scales.items()}
    case.check()


def test_bad_input_is_one_sentence():
    case = Case(2, 4, 2, 16, torch.float32, INT8)
    scale = case.scales["key_scales"]

    def fails(sentence: str, keys: Tensor = case.keys, values: Tensor = case.values, **scales: Tensor) -> None:
        with pytest.raises(KernelError, match=sentence):
            rope_cache(*case.qkv, *case.angles, keys, values, case.slots, **scales)

    both = case.scales
    fails("rope_cache: the cache has 8 bits and value_scales are missing", key_scales=scale)
    fails(
        "rope_cache: key_scales are given, which only a cache of int8", case.keys.float(), case.values.float(), **both
    )
    fails("rope_cache: values is float8_e4m3fn and must be int8", values=case.values.to(FP8), **both)
    fails("key_scales has shape .* and must be .* with K = 2", key_scales=scale[:, :1].contiguous(), value_scales=scale)
    fails("keys have 32 slots and key_scales 1 blocks of 16; both must be of one cache", **{n: scale[:1] for n in both})
    sparse = scale.repeat(2, 1, 1)[::2]
    fails("key_scales and value_scales must be contiguous", key_scales=sparse, value_scales=scale)
