"""prefill_attention and decode_attention against float64, over pages with NaN wherever they must not look."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from course_kernels.bench.paged import Paged, build
from course_kernels.launch import KernelError
from course_kernels.reference import decode_attention as decode_reference
from course_kernels.reference import prefill_attention as prefill_reference
from course_kernels.triton import decode_attention as decode_kernels
from course_kernels.triton import fp8
from course_kernels.triton import prefill_attention as prefill_kernels
from tests.kernels.values import DTYPES, assert_close, far_apart

INT8, FP8 = torch.int8, torch.float8_e4m3fn
# float32: products of d terms and up to 600 keys; float16: one rounding of the output, of p and of an 8-bit value.
UNITS = {torch.float32: 8, torch.float16: 2}


def check_prefill(batch: Paged, window: int | None = None) -> None:
    got = prefill_kernels.prefill_attention(*batch.prefill, window=window, **batch.scales)
    want = prefill_reference.prefill_attention(*batch.wide().prefill, window=window, **batch.scales)
    assert_close(got, want, UNITS[got.dtype])


def check_decode(batch: Paged, window: int | None = None) -> None:
    got = decode_kernels.decode_attention(*batch.decode, window=window, **batch.scales)
    want = decode_reference.decode_attention(*batch.wide().decode, window=window, **batch.scales)
    assert_close(got, want, UNITS[got.dtype])


@st.composite
def cases(draw, most_new: int):
    """(new tokens, keys) of some sequences, how heads and pages are laid out, and a window."""
    new = draw(st.lists(st.integers(0, most_new), min_size=1, max_size=4))
    lengths = [n + draw(st.integers(0, 90)) for n in new]
    kv_heads = draw(st.sampled_from([1, 2]))
    layout = {
        "kv_heads": kv_heads,
        "heads": kv_heads * draw(st.sampled_from([1, 2, 3, 4, 8])),
        "d": draw(st.sampled_from([16, 32, 64])),
        "block_size": draw(st.sampled_from([16, 32, 128])),
        "dtype": draw(st.sampled_from(DTYPES)),
        "cache": draw(st.sampled_from([None, INT8, FP8])),
        "window": draw(st.sampled_from([None, 1, 7, 64])),
    }
    return new, lengths, layout


@settings(max_examples=12, deadline=None, derandomize=True)
@given(case=cases(most_new=20))
def test_prefill_of_random_batches(case):
    new, lengths, layout = case
    check_prefill(build(new, lengths, **layout), layout["window"])


@settings(max_examples=12, deadline=None, derandomize=True)
@given(case=cases(most_new=1))
def test_decode_of_random_batches(case):
    """Sequences with no key at all are among them."""
    new, lengths, layout = case
    check_decode(build([1] * len(new), lengths, **layout), layout["window"])


@pytest.mark.parametrize("cache", [None, INT8, FP8])
@pytest.mark.parametrize("window", [None, 100])
def test_prefill_of_several_tiles(cache, window):
    """Chunks on a cached prefix, an empty one, a single token and a whole prompt; float16 has tiles of 128 rows."""
    new, lengths = [70, 0, 1, 150], [200, 30, 129, 150]
    check_prefill(build(new, lengths, d=32, dtype=torch.float16, cache=cache, window=window), window)


@pytest.mark.parametrize("group", [1, 2, 4, 8])
@pytest.mark.parametrize("dtype", DTYPES)
def test_grouped_heads(group, dtype):
    layout = {"heads": 2 * group, "kv_heads": 2, "dtype": dtype}
    check_prefill(build([9, 3], [40, 3], **layout))
    check_decode(build([1, 1], [40, 1], **layout))


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("window", [None, 300])
def test_decode_of_split_keys(monkeypatch, dtype, window):
    """Long and short sequences in one batch: most shares of the short ones have no key."""
    monkeypatch.setattr(decode_kernels, "TILES_EACH", 1)
    tile = decode_kernels._tile(dtype, dtype, 16)["TILE"]
    assert decode_kernels._splits(6, 608 // tile) >= 8
    check_decode(build([1] * 3, [600, 1, 0], dtype=dtype, window=window), window)


def test_the_number_of_splits_fills_a_gpu_and_no_more():
    assert decode_kernels._splits(programs=512, tiles=1000) == 1  # 64 sequences of 8 KV heads
    assert decode_kernels._splits(programs=8, tiles=1000) == 64
    assert decode_kernels._splits(programs=8, tiles=9) == 2
    assert decode_kernels._splits(programs=1, tiles=3) == 1


def test_a_decode_step_is_a_prefill_of_one_token_each():
    batch = build([1] * 3, [40, 16, 1])
    assert_close(
        prefill_kernels.prefill_attention(*batch.prefill), decode_kernels.decode_attention(*batch.decode).double(), 8
    )


def test_scores_that_overflow_float16_and_large_peaks_stay_finite():
    """q . k is about 3e5 here: the softmax is one key, and only float32 holds the score."""
    batch = build([3], [40], dtype=torch.float16, d=64)
    batch.query *= 256
    batch.keys *= 32
    check_prefill(batch)


def test_fp8_bits_are_converted_where_the_gpu_cannot(monkeypatch):
    """As on an A100; the interpreter converts otherwise. Subnormal numbers and both zeros are among the 254."""
    monkeypatch.setattr(fp8, "has_fp8", lambda: False)
    check_prefill(build([20, 1], [50, 33], cache=FP8, dtype=torch.float16))
    batch = build([1], [16], kv_heads=1, heads=1, cache=FP8)
    everything = torch.arange(256, dtype=torch.uint8).view(16, 16)[:, None].view(FP8)
    block = batch.block_tables[0, 0]
    batch.values[block] = everything.where(~everything.float().isnan(), torch.zeros(()))
    batch.scales["value_scales"][block] = 1
    check_decode(batch)


def test_offsets_beyond_2_31_elements():
    """14: block * stride wraps in int32."""
    batch = build([1, 1], [33, 20], dtype=torch.float16)
    batch.keys, batch.values = far_apart(batch.keys), far_apart(batch.values)
    check_decode(batch)
    check_prefill(batch)


def test_a_slice_of_a_fused_projection_needs_no_copy():
    batch = build([5], [40], heads=4, kv_heads=2)
    fused = torch.full((5, 8, 16), torch.nan)
    fused[:, :4] = batch.query
    batch.query = fused[:, :4]
    check_prefill(batch)


def test_no_tokens():
    batch = build([0, 0], [5, 0])
    assert prefill_kernels.prefill_attention(*batch.prefill).shape == (0, 4, 16)
    empty = build([], [])
    assert decode_kernels.decode_attention(*empty.decode).shape == (0, 4, 16)


def test_reference_by_hand():
    """Two keys with scores 0 and ln 3 weigh 1/4 and 3/4; the first query sees the first key only."""
    d, block_size = 16, 16
    keys, values = torch.zeros(1, block_size, 1, d), torch.zeros(1, block_size, 1, d)
    keys[0, 1, 0, 0] = d**0.5 * torch.log(torch.tensor(3.0))
    values[0, :2, 0, 0] = torch.tensor([4.0, 8.0])
    query = torch.zeros(2, 1, d)
    query[:, 0, 0] = 1
    table, lengths = torch.zeros(1, 1, dtype=torch.int32), torch.tensor([2], dtype=torch.int32)
    bounds = torch.tensor([0, 2], dtype=torch.int32)
    for dtype in (torch.float16, torch.float32, torch.float64):
        store = keys.to(dtype), values.to(dtype)
        got = prefill_reference.prefill_attention(query.to(dtype), *store, table, bounds, lengths)
        assert got.dtype == dtype
        torch.testing.assert_close(got[:, 0, 0], torch.tensor([4.0, 7.0], dtype=dtype), rtol=2e-3, atol=0)
        got = prefill_reference.prefill_attention(query.to(dtype), *store, table, bounds, lengths, window=1)
        torch.testing.assert_close(got[:, 0, 0], torch.tensor([4.0, 8.0], dtype=dtype))


def test_bad_input_is_one_sentence():
    batch = build([1, 1], [20, 5])
    query, keys, values, tables, lengths = batch.decode
    scale = torch.ones(len(keys), 2, 16)

    def fails(match, *arguments, **options):
        with pytest.raises(KernelError, match=match):
            decode_kernels.decode_attention(*arguments, **options)

    fails("query has 3 heads, which must be a multiple of the cache's 2", query[:, :3], keys, values, tables, lengths)
    fails("keys is float16 and must be float32", query, keys.half(), values, tables, lengths)
    fails(r"values has shape .* must be \[blocks, P, K, d\] with blocks = 4", query, keys, values[:3], tables, lengths)
    fails("block_tables is int64 and must be int32", query, keys, values, tables.long(), lengths)
    fails("block_size is 8 and must be", query, keys[:, :8], values[:, :8], tables, lengths)
    fails(
        "head_dim is 8 and must be",
        query[..., :8].contiguous(),
        *(s[..., :8].contiguous() for s in (keys, values)),
        tables,
        lengths,
    )
    fails(
        "blocks of keys lie 512 elements apart and those of values 1024",
        query,
        keys,
        values.repeat(2, 1, 1, 1)[::2],
        tables,
        lengths,
    )
    fails("window is 0 and must be at least 1", query, keys, values, tables, lengths, window=0)
    eight = keys.nan_to_num().to(INT8)
    fails("the cache has 8 bits and value_scales are missing", query, eight, eight, tables, lengths, key_scales=scale)
    sparse = scale.repeat(2, 1, 1)[::2]
    both = {"key_scales": scale, "value_scales": sparse}
    fails("key_scales and value_scales must be contiguous", query, eight, eight, tables, lengths, **both)
    fails("key_scales are given, which only", query, keys, values, tables, lengths, key_scales=scale)
    with pytest.raises(KernelError, match=r"cu_seqlens has shape \[2\] and must be \[3\]"):
        prefill_kernels.prefill_attention(query, keys, values, tables, batch.cu_seqlens[:2], lengths)
