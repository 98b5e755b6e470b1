"""Every format of the KV cache against the numbers that were written: each within a bound that follows from the format.

A bound is computed here from the written numbers, in float64 and as the formula reads. Planted mistakes show that the
same check catches what is not within it.
"""

from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from course_lib.batch import Batch
from course_lib.cache import BlockManager, ContiguousCache, PagedCache, affine, eight_bit, kivi, per_token
from course_lib.cache.codebook import Codebook, fit_keys, nearest
from course_lib.cache.formats import FORMATS
from course_lib.cache.kivi import Kivi
from course_lib.cache.per_token import Int4
from course_lib.cache.store import FLOAT, KVFormat, Space
from course_lib.errors import RequestError
from tests.conftest import small_config

CONFIG = small_config()  # L = 2, K = 2, d = 16
INT8, FP8 = FORMATS["int8"], FORMATS["fp8"]
PER_TOKEN = [INT8, FP8, Int4(), Int4(group=4)]
KIVIS = [Kivi(bits=4, group=4, residual=8), Kivi(bits=2, group=8, residual=8)]


def normal(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed))


def keys_and_values(n: int, seed: int = 0) -> Tensor:
    """[2, L, n, K, d]: keys with a channel that is 20 times larger than the others, and a mean, as real ones have."""
    x = normal(2, 2, n, 2, 16, seed=seed)
    x[0, ..., 5] = 20 * x[0, ..., 5] + 30
    return x


def fill(cache, x: Tensor, row: int, cuts: list[int]) -> None:
    """Write x [2, L, n, K, d] to the end of a row in chunks."""
    start = 0
    for n in cuts:
        batch = Batch.build([[0] * n], [cache.lengths[row]], [row])
        slots = cache.slots(batch)
        for layer in range(2):
            cache.write(layer, *x[:, layer, start : start + n], slots)
        cache.commit(batch)
        start += n
    assert start == x.shape[2]


def contents(cache, row: int, length: int) -> Tensor:
    """[2, L, length, K, d]."""
    return torch.stack([torch.stack([x[0] for x in cache.read(layer, row, 1, length)]) for layer in range(2)], dim=1)


def stored(kv_format: KVFormat, x: Tensor) -> Tensor:
    cache = ContiguousCache(CONFIG, 2, x.shape[2] + 3, kv_format=kv_format)
    fill(cache, x, 1, [x.shape[2]])
    return contents(cache, 1, x.shape[2])


def half_step(x: Tensor, bits: int, group: int) -> Tensor:
    """Of the last axis, for affine codes: half of a step that may be 2^-9 longer, or low's rounding to float16."""
    groups = x.unflatten(-1, (-1, group))
    low, high = groups.amin(-1, keepdim=True), groups.amax(-1, keepdim=True)
    low_error = low.abs() * 2.0**-11
    step = ((high - low + low_error) / (2**bits - 1) * (1 + 2.0**-9)).clamp(min=2.0**-14)
    return torch.maximum(step / 2, low_error).expand_as(groups).flatten(-2)


def bound(kv_format: KVFormat, x: Tensor) -> Tensor:
    """Largest error of each number of x [2, L, n, K, d]."""
    x = x.double()
    peak = x.abs().amax(-1, keepdim=True)
    if kv_format == INT8:
        return (peak / 127 / 2).expand_as(x)
    if kv_format == FP8:
        return torch.maximum(x.abs() / 16, peak / 448 / 1024)
    if isinstance(kv_format, Int4):
        return half_step(x, 4, math.gcd(16, kv_format.group))
    full = x.shape[2] // kv_format.residual * kv_format.residual
    limit = torch.zeros_like(x)
    by_channel = x[0, :, :full].movedim(1, -1)  # groups lie along the tokens
    limit[0, :, :full] = half_step(by_channel, kv_format.bits, kv_format.group).movedim(-1, 1)
    limit[1, :, :full] = half_step(x[1, :, :full], kv_format.bits, math.gcd(16, kv_format.group))
    return limit


def assert_within_bound(kv_format: KVFormat, x: Tensor) -> None:
    error, limit = (stored(kv_format, x) - x).abs().double(), bound(kv_format, x)
    rounding = 2.0**-21 * x.abs().amax()  # of float32, in a few operations
    assert (error <= limit + rounding).all(), f"{kv_format.name}: {(error - limit).max():.3g} over the bound"


@pytest.mark.parametrize("kv_format", PER_TOKEN + KIVIS, ids=repr)
def test_what_is_read_is_within_half_a_step_of_what_was_written(kv_format):
    for seed in range(5):
        assert_within_bound(kv_format, keys_and_values(30, seed))
    assert torch.equal(stored(FLOAT, keys_and_values(30)), keys_and_values(30))


@pytest.mark.parametrize("kv_format", PER_TOKEN + KIVIS, ids=repr)
@pytest.mark.parametrize("size", [0.0, 1e-30, 1e-6, 1e4])
def test_rows_of_zeros_and_of_any_size(kv_format, size):
    """No scale is 0 or infinite; zeros come back as zeros, and so do those of another head."""
    x = size * normal(2, 2, 17, 2, 16)
    x[:, :, 3] = 0
    assert_within_bound(kv_format, x)
    got = stored(kv_format, x)
    assert got.isfinite().all()
    if kv_format in PER_TOKEN:
        assert (got[:, :, 3] == 0).all()


@pytest.mark.parametrize("kv_format", PER_TOKEN, ids=repr)
def test_an_outlier_spoils_no_other_token_and_no_other_head(kv_format):
    """Scales are per token and head: the neighbours' codes do not change by a bit."""
    x = normal(2, 2, 9, 2, 16)
    large = x.clone()
    large[:, :, 4, 1, 3] = 1000.0
    before, after = stored(kv_format, x), stored(kv_format, large)
    others = torch.ones(9, 2, dtype=torch.bool)
    others[4, 1] = False
    assert torch.equal(before[:, :, others], after[:, :, others])
    assert (after[:, :, 4, 1, 3] - 1000).abs().max() < 40  # half a step of e4m3 there is 32


def test_keys_per_channel_keep_what_a_scale_per_token_loses():
    """One channel is larger than all others: 4 bits per token leave those no code but a few, 4 bits per channel do."""
    x = keys_and_values(32)
    small = [channel for channel in range(16) if channel != 5]
    per_token, per_channel = (
        (stored(kv_format, x) - x)[0][..., small].square().mean().sqrt() for kv_format in (Int4(), KIVIS[0])
    )
    # The steps are (max - min) / 15 of a token, 30 or more over 15, against those of a channel, about 2.4 over 15.
    assert per_channel < per_token / 5


def scales(change):
    """`quantize_per_token` with other scales, [T, K]."""
    return lambda right: (
        lambda x, dtype: tuple(f(part) for f, part in zip((Tensor.clone, change), right(x, dtype), strict=True))
    )


def metadata(*factors: float):
    """`dequantize` with scale and lowest value multiplied by these."""
    return lambda right: lambda codes, both, bits: right(codes, both * torch.tensor(factors), bits)


def rounded(keys: bool, values: bool):
    """`KiviStore.write` of numbers that were quantised per token before."""

    def per_token(x: Tensor) -> Tensor:
        return affine.dequantize(*affine.quantize(x, 4, 16), 4)

    def plant(right):
        return lambda store, layer, k, v, slots: right(
            store, layer, per_token(k) if keys else k, per_token(v) if values else v, slots
        )

    return plant


def without_window(right):
    def read(store, layer, gather, rows):
        return tuple(x.flatten(1, 2) for x in store._dequantize(*(gather(each[layer]) for each in store.tensors)))

    return read


def halves_exchanged(right):
    return lambda packed, bits: right(packed, bits).unflatten(-1, (2, -1)).flip(-2).flatten(-2)


PLANTED = {  # format, what is replaced, by what
    "one scale for all tokens": (INT8, eight_bit, "quantize_per_token", scales(lambda s: s.mean(0).expand_as(s))),
    "the scale of the other head": (INT8, eight_bit, "quantize_per_token", scales(lambda s: s.flip(-1))),
    "e4m3 with the range of int8": (FP8, eight_bit, "quantize_per_token", scales(lambda s: s * 448 / 127)),
    "zero-point with the wrong sign": (Int4(), per_token, "dequantize", metadata(1, -1)),
    "no zero-point": (Int4(), per_token, "dequantize", metadata(1, 0)),
    "nibbles exchanged": (Int4(), affine, "unpack", halves_exchanged),
    "KIVI's keys per token": (KIVIS[0], kivi.KiviStore, "write", rounded(keys=True, values=False)),
    "KIVI's window is not read": (KIVIS[0], kivi.KiviStore, "read", without_window),
    "KIVI's window is quantised": (KIVIS[0], kivi.KiviStore, "write", rounded(keys=False, values=True)),
}


@pytest.mark.parametrize("name", PLANTED)
def test_planted_mistakes_are_over_the_bound(name, monkeypatch):
    kv_format, where, function, plant = PLANTED[name]
    monkeypatch.setattr(where, function, plant(getattr(where, function)))
    with pytest.raises(AssertionError, match="over the bound"):
        assert_within_bound(kv_format, keys_and_values(30))


def test_worked_by_hand():
    """int4 of 0 .. 15 / 2 from -1 on: step 1/2, low -1, codes 0 .. 15; byte j holds code j and above it code j + 8."""
    x = torch.arange(16) / 2 - 1
    codes, metadata = affine.quantize(x, 4, 16)
    assert affine.unpack(codes, 4).tolist() == list(range(16))
    assert codes.tolist() == [j + 16 * (j + 8) for j in range(8)]
    assert metadata[0, 1] == -1 and metadata[0, 0] == pytest.approx(0.5, rel=2**-9)
    two = torch.tensor([3, 0, 1, 2, 2, 1, 0, 3], dtype=torch.uint8)
    assert affine.pack(two, 2).tolist() == [3 + 4 * 1 + 16 * 2 + 64 * 0, 0 + 4 * 2 + 16 * 1 + 64 * 3]
    assert torch.equal(affine.unpack(affine.pack(two, 2), 2), two)


CODEBOOK = Codebook(keys=fit_keys(keys_and_values(200, seed=9)[0], torch.ones(2, 2, 16)))


def test_a_codebook_stores_the_nearest_of_its_values():
    x = keys_and_values(40)
    got, codec = stored(CODEBOOK, x), CODEBOOK.keys
    z, got_z = ((each - codec.middle[:, None]) / codec.reach[:, None] for each in (x[0], got[0]))
    distances = (z[..., None] - codec.values[:, None, None, None]).abs()
    torch.testing.assert_close((got_z - z).abs(), distances.amin(-1), atol=1e-5, rtol=0)
    assert ((got[1] - x[1]).abs() <= half_step(x[1].double(), 4, 16) + 1e-6).all()


def test_a_fitted_codebook_has_a_smaller_weighted_error_than_equal_steps():
    """On these keys, to which it was fitted; k-means only descends, but where it ends depends on where it starts."""
    keys, weights = normal(2, 300, 2, 16, seed=4) ** 3, torch.rand(2, 2, 16, generator=torch.Generator().manual_seed(5))
    codec = fit_keys(keys, weights)
    assert (codec.values.diff() >= 0).all()

    def cost(values: Tensor) -> Tensor:
        z = (keys - codec.middle[:, None]) / codec.reach[:, None]
        rounded = torch.stack([levels[nearest(layer, levels)] for layer, levels in zip(z, values, strict=True)])
        return (((rounded - z) * codec.reach[:, None]).square() * weights[:, None]).sum()

    uniform = torch.linspace(-1, 1, 16).expand(2, -1)
    assert cost(codec.values) < cost(uniform)
    for steps in range(5):
        less, more = (fit_keys(keys, weights, n).values for n in (steps, steps + 1))
        assert cost(more) <= cost(less) * (1 + 1e-5)


@given(cuts=st.lists(st.integers(1, 19), min_size=1, max_size=6), seed=st.integers(0, 9))
@settings(max_examples=30, deadline=None)
@pytest.mark.parametrize("kv_format", KIVIS, ids=repr)
def test_kivi_is_the_same_in_any_chunks_and_beside_any_row(kv_format, cuts, seed):
    """What is quantised depends on positions alone; the newest tokens, up to the last whole block, are float."""
    n = sum(cuts)
    x, other = keys_and_values(n, seed), keys_and_values(13, seed + 100)
    cache = ContiguousCache(CONFIG, 2, max(n, 13), kv_format=kv_format)
    fill(cache, other, 0, [13])
    fill(cache, x, 1, cuts)
    assert torch.equal(contents(cache, 1, n), stored(kv_format, x))
    full = n // 8 * 8
    assert torch.equal(contents(cache, 1, n)[:, :, full:], x[:, :, full:])
    both = torch.stack([torch.stack(cache.read(layer, 0, 2, n)) for layer in range(2)], dim=1)  # [2, L, rows, n, K, d]
    assert torch.equal(both[:, :, 1], contents(cache, 1, n))
    shared = min(n, 13)
    assert torch.equal(both[:, :, 0, :shared], stored(kv_format, other)[:, :, :shared])


@pytest.mark.parametrize("kv_format", KIVIS, ids=repr)
def test_kivi_rows_that_grow_together(kv_format):
    """One pass for rows of different lengths: one fills its block, one opens a new one, one stays within."""
    cache = ContiguousCache(CONFIG, 3, 40, kv_format=kv_format)
    starts, news = [7, 16, 3], [1, 1, 1]
    x = [keys_and_values(start + 17, seed) for seed, start in enumerate(starts)]
    for row, start in enumerate(starts):
        fill(cache, x[row][:, :, :start], row, [start])
    held = list(starts)
    for news in ([1, 1, 1], [1, 2, 9], [15, 1, 1]):
        batch = Batch.build([[0] * n for n in news], held, range(3))
        slots = cache.slots(batch)
        for layer in range(2):
            new = torch.cat([x[r][:, layer, held[r] : held[r] + n] for r, n in enumerate(news)], dim=1)
            cache.write(layer, *new, slots)
        cache.commit(batch)
        held = [h + n for h, n in zip(held, news, strict=True)]
        for row, n in enumerate(held):
            assert torch.equal(contents(cache, row, n), stored(kv_format, x[row][:, :, :n]))


@pytest.mark.parametrize("kv_format", KIVIS, ids=repr)
@pytest.mark.parametrize("cut", [0, 3, 8, 11, 16, 18, 21])
def test_kivi_truncate(kv_format, cut):
    """What is left reads as before the cut; what follows is stored as ever, the cut block once more when it is full.

    A block that is quantised twice is off by half a step of each time; the second step is that of what was read.
    """
    x, other = keys_and_values(21), keys_and_values(20, seed=5)
    cache = ContiguousCache(CONFIG, 2, 41, kv_format=kv_format)
    fill(cache, x, 1, [21])
    before = contents(cache, 1, 21)
    cache.truncate(1, cut)
    assert torch.equal(contents(cache, 1, cut), before[:, :, :cut]) or cut == 0
    fill(cache, other, 1, [1] * 20)
    now = torch.cat((before[:, :, :cut], other), dim=2)  # as if what was read had been written
    error = (contents(cache, 1, cut + 20) - now).abs().double()
    assert (error <= bound(kv_format, now) + 1e-5).all()
    kept = cut // 8 * 8
    assert torch.equal(contents(cache, 1, cut + 20)[:, :, :kept], before[:, :, :kept])


def test_kivi_after_a_cut_the_same_slots_are_written_anew():
    """Where tokens go is worked out once for the layers of a pass, and again for the pass after a cut."""
    x = keys_and_values(12)
    cache = ContiguousCache(CONFIG, 1, 12, kv_format=KIVIS[0])
    fill(cache, x[:, :, :8], 0, [8])
    slots = cache.slots(Batch.build([[0] * 4], [8], [0]))
    for sign in (-1, 1):
        cache.truncate(0, 8)
        for layer in range(2):
            cache.write(layer, *(sign * x[:, layer, 8:]), slots)
        cache.lengths[0] = 12
    assert torch.equal(contents(cache, 0, 12), stored(KIVIS[0], x))


@pytest.mark.parametrize("kv_format", [FLOAT, *PER_TOKEN, *KIVIS, CODEBOOK], ids=lambda f: f.name)
def test_bytes_are_those_of_the_formula(kv_format):
    """`ModelConfig.kv_bytes_per_token` with the format's bytes per element; beside it a window of floats, constants."""
    cache = ContiguousCache(CONFIG, 3, 20, dtype=torch.float16, kv_format=kv_format)
    space = Space(CONFIG, 3 * cache.stride // cache.block_size, cache.block_size, 3, torch.float16, "cpu")
    assert cache.nbytes == kv_format.nbytes(space)
    per_token = CONFIG.kv_bytes_per_token(kv_format.bytes_per_element(16, torch.float16))
    cache.lengths = [16, 0, 8]  # whole blocks of KIVI
    assert cache.used_bytes == 24 * per_token
    if isinstance(kv_format, Kivi):
        assert cache.nbytes == 3 * 24 * per_token + 3 * 8 * CONFIG.kv_bytes_per_token(2)
        cache.lengths = [17, 0, 0]
        assert cache.used_bytes == 16 * per_token + CONFIG.kv_bytes_per_token(2)


def test_bits_per_element():
    """Published shapes: d = 128 with the scales counted. llama.cpp's q8_0 has 8.5, its q4_0 4.5."""
    bits = {name: 8 * kv_format.bytes_per_element(128, torch.bfloat16) for name, kv_format in FORMATS.items()}
    assert bits == {"auto": 16, "int8": 8.25, "fp8": 8.25, "int4": 4.5, "kivi4": 5, "kivi2": 3}
    # Llama 3.1 8B: 32 layers, 8 KV heads of 128.
    llama = small_config(layers=32, heads=32, kv_heads=8, head_dim=128)
    assert llama.kv_bytes_per_token(FORMATS["int4"].bytes_per_element(128, torch.bfloat16)) == 36_864


@pytest.mark.parametrize("kv_format", [INT8, FP8, Int4()], ids=lambda f: f.name)
def test_blocks_move_with_all_that_belongs_to_them(kv_format):
    """A copied block reads as its source: codes and scales alike, wherever the blocks lie."""
    manager = BlockManager(6, 4)
    cache = PagedCache(CONFIG, manager, kv_format=kv_format)
    manager.allocate(0, [0] * 4)
    manager.allocate(1, [0] * 4)
    cache.bind([0, 1])
    x = keys_and_values(4)
    batch = Batch.build([[0] * 4], [0], [0])
    for layer in range(2):
        cache.write(layer, *x[:, layer], cache.slots(batch))
    cache.copy_blocks([(manager.table(0).blocks[0], manager.table(1).blocks[0])])
    assert torch.equal(contents(cache, 1, 4), contents(cache, 0, 4))
    assert torch.equal(contents(cache, 0, 4), stored(kv_format, x))


def test_what_a_kernel_reads():
    """int8 or e4m3 codes [L, slots, K, d] and float32 scales [blocks, K, block_size]; x ~ code * scale."""
    for kind, dtype in ((INT8, torch.int8), (FP8, torch.float8_e4m3fn)):
        cache = ContiguousCache(CONFIG, 2, 9, block_size=4, kv_format=kind)
        x = keys_and_values(9)
        fill(cache, x, 1, [9])
        assert cache.keys.dtype == cache.values.dtype == dtype and cache.keys.shape == (2, 24, 2, 16)
        scales = cache.store.scales(1)
        assert {name: tuple(each.shape) for name, each in scales.items()} == {
            "key_scales": (6, 2, 4),
            "value_scales": (6, 2, 4),
        }
        assert scales["key_scales"].is_contiguous() and scales["key_scales"].dtype == torch.float32
        for codes, scale, want in zip(
            (cache.keys, cache.values), scales.values(), contents(cache, 1, 9)[:, 1], strict=True
        ):
            for position in (0, 5, 8):
                slot = 12 + position
                got = codes[1, slot].float() * scale[slot // 4, :, slot % 4, None]
                torch.testing.assert_close(got, want[position])


def test_unsupported_formats_are_one_sentence():
    with pytest.raises(
        RequestError, match="kivi2 keeps a window of float tokens for each row, which only a contiguous"
    ):
        PagedCache(CONFIG, BlockManager(4, 4), kv_format=FORMATS["kivi2"])
    with pytest.raises(
        RequestError, match="KIVI with 3 bits, groups of 32 and a window of 128 is not possible; use 2 or"
    ):
        Kivi(bits=3)
    with pytest.raises(RequestError, match="a KV cache for 1000 x 1000000000 tokens needs 160,000.0 GB, more than cpu"):
        ContiguousCache(CONFIG, rows=1000, capacity=10**9, kv_format=INT8)
