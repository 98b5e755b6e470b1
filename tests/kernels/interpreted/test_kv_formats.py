"""The triton backend over caches of 8 bits: what its kernels store and read, in contiguous rows, blocks, fixed steps.

A number between two codes may get either, as the backends round differently before. So what the kernels stored is read
by the torch backend, which then has to give the same logits; and what both stored of the same numbers is compared.
"""

from __future__ import annotations

import copy

import pytest
import torch

from course_lib import LLM, SamplingParams
from course_lib.batch import Batch
from course_lib.cache import BlockManager, HashIndex, PagedCache
from course_lib.cache.formats import FORMATS
from course_lib.cache.store import Float
from course_lib.engine import ChunkedPrefill, Engine, Swap
from course_lib.engine.graphs import FixedDecode
from course_lib.errors import RequestError
from course_lib.model import Decoder
from tests.conftest import sharpen, small_config
from tests.kernels.interpreted.test_engine import ids

both_formats = pytest.mark.parametrize("kv_format", [FORMATS["int8"], FORMATS["fp8"]], ids=lambda f: f.name)


@pytest.fixture(scope="module")
def twins() -> tuple[Decoder, Decoder]:
    """One model on both backends: norms of heads, a window, groups of two heads."""
    shape = dict(architecture="qwen3", qk_norm=True, heads=4, kv_heads=2, windows=(5, None))
    model = sharpen(Decoder.random(small_config(**shape), seed=1))
    return model, copy.deepcopy(model).prepare("triton")


class Written:
    """A cache into which the kernels have written this pass's tokens already."""

    def __init__(self, cache):
        self.cache = cache

    def __getattr__(self, name):
        return getattr(self.cache, name)

    def write(self, *ignored):
        pass


def contiguous(model, kv_format):
    return model.new_cache(3, 45, kv_format)


def paged(model, kv_format):
    """Three sequences with interleaved blocks. Scales that were never written are NaN for the kernels."""
    cache = PagedCache(model.config, BlockManager(12, 16), model.dtype, kv_format=kv_format)
    if model.backend.name == "triton":
        for scales in cache.store.tensors[2:]:
            scales.fill_(torch.nan)
    for seq in range(3):
        cache.manager.allocate(seq, [0])
    cache.bind(range(3))
    return cache


def batch_of(cache, counts, seed: int) -> Batch:
    rows = [row for row, n in enumerate(counts) if n]
    if isinstance(cache, PagedCache):
        for row in rows:
            assert cache.manager.extend(row, counts[row]) is not None
    tokens = [ids(counts[row], seed=seed + row) for row in rows]
    return Batch.build(tokens, [cache.lengths[row] for row in rows], rows)


@torch.inference_mode()
def logits_of(model, batch: Batch, cache) -> torch.Tensor:
    """Of every new token, without a commit."""
    return model.compute(model.backend.step(batch, cache, model.rope, model.device))


@both_formats
@pytest.mark.parametrize("cache_of", [contiguous, paged])
def test_the_torch_backend_reads_what_the_kernels_stored(twins, kv_format, cache_of):
    plain, model = twins
    cache = cache_of(model, kv_format)
    for i, counts in enumerate([(18, 1, 3), (1, 3, 1), (0, 1, 0)]):
        batch = batch_of(cache, counts, 10 * i)
        got = logits_of(model, batch, cache)
        if cache_of is paged:  # padded reads of the torch backend multiply unwritten scales by 0
            for scales in cache.store.tensors[2:]:
                scales.nan_to_num_(0)
        want = logits_of(plain, batch, Written(cache))
        torch.testing.assert_close(got, want, atol=1e-4, rtol=1e-4, msg=lambda text, i=i: f"step {i}: {text}")
        cache.commit(batch)


@both_formats
def test_both_backends_store_the_same_codes(twins, kv_format):
    """Of the first layer, whose keys and values depend on nothing stored: equal but for ties, and one step there."""
    caches = [paged(model, kv_format) for model in twins]
    for model, cache in zip(twins, caches, strict=True):
        logits_of(model, batch_of(cache, (18, 1, 3), 0), cache)
    for mine, theirs, scale, other in zip(
        *([cache.keys[0].float(), cache.values[0].float()] for cache in caches),
        *(
            [each.transpose(1, 2).flatten(0, 1).nan_to_num(0) for each in cache.store.scales(0).values()]
            for cache in caches
        ),
        strict=True,
    ):
        torch.testing.assert_close(scale, other, rtol=1e-5, atol=0)
        assert scale.count_nonzero() == 22 * scale.shape[1]
        step = 1 if kv_format.name == "int8" else (mine.abs() / 8).clamp(min=2**-9)
        assert ((mine - theirs).abs() <= step).all()
        assert (mine != theirs).float().mean() < 0.01


@both_formats
def test_a_step_of_fixed_size(twins, kv_format):
    """As CUDA graphs record it: filled up with rows that store nothing and attend to nothing."""
    plain, model = twins
    cache = paged(model, kv_format)
    for scales in cache.store.tensors[2:]:
        scales.zero_()
    first = batch_of(cache, (18, 1, 3), 0)
    logits_of(model, first, cache)
    cache.commit(first)
    fixed = FixedDecode(model, cache, rows=4, blocks=4)
    for i, counts in enumerate([(0, 0, 1), (1, 1, 0)]):
        held = int(cache.store.scales(0)["key_scales"].count_nonzero())
        batch = batch_of(cache, counts, 10 * i)
        fixed.load(batch)
        with torch.inference_mode():
            got = fixed.compute()[: len(batch)]
        want = logits_of(plain, batch, Written(cache))
        torch.testing.assert_close(got, want, atol=1e-4, rtol=1e-4)
        cache.commit(batch)
        written = int(cache.store.scales(0)["key_scales"].count_nonzero()) - held
        assert written == len(batch) * model.config.kv_heads, "padding has stored a key"


@pytest.fixture(scope="module")
def llm(twins) -> LLM:
    """tiny's tokenizer before the twin with kernels."""
    llm = LLM("tiny", device="cpu", backend="torch")
    llm.model, llm.max_model_len = twins[1], twins[1].config.context
    return llm


def test_the_engine_serves_over_8_bits(twins, llm):
    """Chunks, a prefix cache, and so few blocks that a request is swapped out; each step as in torch."""
    settings = dict(batching=ChunkedPrefill(), max_num_batched_tokens=24, max_num_seqs=4, preemption=Swap())
    engine = Engine(llm, blocks=4, block_size=16, kv_cache_dtype="int8", index=HashIndex(), **settings)

    def run(batch: Batch, cache: PagedCache, logits_for: list[int]) -> torch.Tensor:
        got = logits_of(twins[1], batch, cache)
        torch.testing.assert_close(got, logits_of(twins[0], batch, Written(cache)), atol=1e-4, rtol=1e-4)
        cache.commit(batch)
        return got[logits_for]

    engine._run = run
    answers = engine.generate([ids(14, seed) for seed in (7, 8, 9)], SamplingParams(temperature=0, max_tokens=5))
    assert [len(answer.outputs[0].token_ids) for answer in answers] == [5, 5, 5]
    assert engine.cache.keys.dtype == torch.int8
    assert "swapped_in" in {event.kind for event in engine.metrics.events}


def test_what_the_kernels_cannot_read_is_one_sentence(llm):
    with pytest.raises(
        RequestError, match="the triton backend reads a KV cache in auto, int8 or fp8, not int4; use the"
    ):
        Engine(llm, kv_cache_dtype="int4")
    with pytest.raises(
        RequestError, match="the triton backend reads keys that are stored after RoPE; use the torch back"
    ):
        llm.model.new_cache(1, 8, Float(before_rope=True))
