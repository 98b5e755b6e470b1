"""rope_cache against float64, on the layouts that the engine has: slices of a fused projection, scattered slots."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from course_kernels.launch import KernelError
from course_kernels.reference import rope_cache as reference
from course_kernels.triton import rope_cache as kernels
from course_lib.model import Rope
from tests.conftest import small_config
from tests.kernels.values import DTYPES, assert_close, far_apart, normal

EPS = 1e-6


def angles(positions: torch.Tensor, d: int) -> tuple[torch.Tensor, torch.Tensor]:
    """cos and sin, float32 [T, d/2], as views of the engine's tables: its sines are negated in the first half."""
    cos, sin = Rope(small_config(head_dim=d)).tables(positions)
    return cos[:, 0, : d // 2], sin[:, 0, d // 2 :]


def case(tokens: int, heads: int, kv_heads: int, d: int, dtype: torch.dtype, seed: int = 0):
    """Arguments of rope_cache: q, k and v from one projection, a store full of NaN, slots in no order, one token of
    padding that is NaN itself where there are several tokens."""
    qkv = normal(tokens, heads + 2 * kv_heads, d, dtype=dtype, seed=seed)
    positions = torch.randint(0, 100_000, (tokens,), generator=torch.Generator().manual_seed(seed))
    slots = torch.randperm(2 * tokens, generator=torch.Generator().manual_seed(seed))[:tokens]
    if tokens > 1:
        slots[1], qkv[1] = -1, torch.nan
    q, k, v = qkv.split((heads, kv_heads, kv_heads), dim=1)
    keys = torch.full((2 * tokens, kv_heads, d), torch.nan, dtype=dtype)
    return [q, k, v, *angles(positions, d), keys, keys.clone(), slots]


def doubled(arguments: list[torch.Tensor]) -> list[torch.Tensor]:
    return [x.double() if x.is_floating_point() else x for x in arguments]


def assert_same(arguments: list[torch.Tensor], norms: tuple = (), units: float = 4) -> None:
    """Kernel and reference return the same q and leave the same store, NaN in all slots that are not named."""
    wanted = doubled(arguments)
    q = reference.rope_cache(*wanted, *(x.double() if isinstance(x, torch.Tensor) else x for x in norms))
    got = kernels.rope_cache(*arguments, *norms)
    real = arguments[-1] >= 0
    assert got.is_contiguous()
    assert_close(got[real], q[real], units)
    for store, want in zip(arguments[5:7], wanted[5:7], strict=True):
        assert torch.equal(store.isnan(), want.isnan())
        assert_close(store.nan_to_num(), want.nan_to_num(), units)


@settings(max_examples=12, deadline=None, derandomize=True)
@given(
    tokens=st.integers(0, 9),
    kv_heads=st.integers(1, 9),
    group=st.sampled_from((1, 2, 4, 8)),
    d=st.sampled_from((16, 32, 64, 128, 256)),
    dtype=st.sampled_from(DTYPES),
    normed=st.booleans(),
)
def test_random_shapes(tokens, kv_heads, group, d, dtype, normed):
    norms = (normal(d, dtype=dtype, seed=1), normal(d, dtype=dtype, seed=2), EPS) if normed else ()
    assert_same(case(tokens, group * kv_heads, kv_heads, d, dtype), norms)


def test_values_are_copied_bit_by_bit():
    arguments = case(5, 4, 2, 16, torch.float16)
    kernels.rope_cache(*arguments)
    v, values, slots = arguments[2], arguments[6], arguments[7]
    real = slots >= 0
    assert torch.equal(values[slots[real]], v[real])


def test_one_layer_of_a_larger_store():
    """The store of layer 1 of 3; the others stay as they are."""
    arguments = case(3, 2, 2, 16, torch.float32)
    store = torch.full((2, 3, *arguments[5].shape), torch.nan)
    arguments[5:7] = store[:, 1]
    assert_same(arguments)
    assert store[:, 0].isnan().all() and store[:, 2].isnan().all()


def test_slots_behind_2_to_the_31():
    arguments = case(3, 2, 1, 16, torch.float16)
    *rows, slots = (x[:3] for x in arguments)
    slots.copy_(torch.tensor([2, -1, 0]))
    for i in (0, 1, 2, 5, 6):  # q, k, v, keys, values
        rows[i] = far_apart(rows[i])
    assert_same([*rows, slots])


def test_rotation_is_the_model_s():
    q, k, v, cos, sin, keys, values, slots = case(1, 4, 2, 32, torch.float32)
    tables = (torch.cat((cos, cos), -1)[:, None], torch.cat((-sin, sin), -1)[:, None])
    torch.testing.assert_close(reference.rotate(q, cos, sin), Rope.rotate(q, tables))
    torch.testing.assert_close(kernels.rope_cache(q, k, v, cos, sin, keys, values, slots), Rope.rotate(q, tables))


def test_bad_input_is_one_sentence():
    arguments = case(2, 4, 2, 16, torch.float32)
    weight = normal(16)
    with pytest.raises(KernelError, match="only one of q_weight and k_weight is given; give both or neither"):
        kernels.rope_cache(*arguments, weight)
    with pytest.raises(KernelError, match="rope_cache: slots is int32 and must be int64"):
        kernels.rope_cache(*arguments[:7], arguments[7].int())
    q, k, v, cos, sin, keys, values, slots = arguments
    with pytest.raises(KernelError, match="cos and sin have 16 angles per token and must have d/2 = 8"):
        kernels.rope_cache(q, k, v, torch.cat((cos, cos), -1), torch.cat((sin, sin), -1), keys, values, slots)
    with pytest.raises(KernelError, match=r"values has shape \[4, 1, 16\] and must be \[N, K, d\] with K = 2"):
        kernels.rope_cache(q, k, v, cos, sin, keys, values[:, :1], slots)
    with pytest.raises(KernelError, match="head_dim is 8 and must be 16, 32, 64, 128 or 256"):
        kernels.rope_cache(*case(2, 4, 2, 8, torch.float32))
