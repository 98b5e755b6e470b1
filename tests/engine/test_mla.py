"""Latent attention: its two forms and a loop agree, it runs in both engines, and a token is stored once.

That a cached, chunked, batched or paged pass equals a whole one is tested beside the other variants, in `test_cache.py`
and `tests/cache/test_paged.py`; that the logits are those of transformers in `test_mla_parity.py`.
"""

from __future__ import annotations

import dataclasses
import random
from unittest import mock

import pytest
import torch

from course_lib import SamplingParams
from course_lib.backend import choose_backend
from course_lib.batch import Batch
from course_lib.cache import BlockManager, ContiguousCache, PagedCache
from course_lib.cache.formats import FORMATS
from course_lib.cache.store import FLOAT, Float
from course_lib.engine import ChunkedPrefill, Engine, Recompute, Swap
from course_lib.errors import CourseError, ModelError, RequestError
from course_lib.mla import LatentAttention
from course_lib.mla_shape import MlaShape
from course_lib.model import Decoder
from course_lib.perf.tally import tally
from course_lib.rope import Rope
from tests.conftest import latent_config, sharpen
from tests.serving.test_engine import check_logits, ids, preemptions, with_model

V3 = MlaShape(kv_lora_rank=512, q_lora_rank=1536, qk_nope_head_dim=128, qk_rope_head_dim=64, v_head_dim=128)


def random_attention(shape: MlaShape, heads: int, dtype: torch.dtype, seed: int) -> LatentAttention:
    config = latent_config(heads=heads, kv_heads=heads, head_dim=shape.qk_head_dim, mla=shape)
    attention = LatentAttention(config, 0).to(dtype).requires_grad_(False)
    generator = torch.Generator().manual_seed(seed)
    for parameter in attention.parameters():
        parameter.copy_(torch.randn(parameter.shape, generator=generator, dtype=torch.float64))
    return attention


@pytest.mark.parametrize("seed", range(6))
@pytest.mark.parametrize("dtype, tolerance", [(torch.float64, 1e-12), (torch.float32, 1e-4)])
def test_both_forms_equal_a_loop_over_heads_and_tokens(seed, dtype, tolerance):
    """Section 2.1 of the paper, equations 9 to 19, written as plainly as possible in float64, for random shapes.

    Scores have a standard deviation of a few, so a softmax attends to few keys and float32 has its worst case.
    """
    rng = random.Random(seed)
    a, p, v, r = rng.randint(1, 20), 2 * rng.randint(1, 6), rng.randint(1, 20), rng.randint(1, 40)
    sequences, t, n, heads = rng.randint(1, 3), rng.randint(1, 5), rng.randint(5, 30), rng.randint(1, 4)
    attention = random_attention(MlaShape(r, None, a, p, v), heads, dtype, seed)
    generator = torch.Generator().manual_seed(seed)
    query = torch.randn(sequences, t, heads, a + p, generator=generator, dtype=torch.float64).to(dtype)
    entries = torch.randn(sequences, n, r + p, generator=generator, dtype=torch.float64).to(dtype) / r**0.5
    mask = (torch.arange(n) <= torch.arange(n - t, n)[:, None]).expand(sequences, 1, t, n)
    want = torch.empty(sequences, t, heads, v, dtype=torch.float64)
    up = attention.kv_up.double().view(heads, a + v, r)
    for s in range(sequences):
        for i in range(t):
            seen = entries[s, : n - t + i + 1].double()
            for h in range(heads):
                keys = torch.cat((seen[:, :r] @ up[h, :a].T, seen[:, r:]), dim=1)
                probabilities = (keys @ query[s, i, h].double() / (a + p) ** 0.5).softmax(0)
                want[s, i, h] = probabilities @ (seen[:, :r] @ up[h, a:].T)
    for form in (attention.plain, attention.absorbed):
        torch.testing.assert_close(form(query, entries, mask).double(), want, atol=tolerance, rtol=tolerance)
    if t == 1:
        torch.testing.assert_close(
            attention.absorbed(query, entries, None).double(), want, atol=tolerance, rtol=tolerance
        )


@pytest.fixture(scope="module")
def model() -> Decoder:
    return sharpen(Decoder.random(latent_config(), seed=1))


def test_the_cheaper_form_runs_in_every_piece_of_a_batch(model):
    """A prompt, a chunk on a filled cache that the absorbed form serves, and decodes, in one pass."""
    attention, chosen = model.blocks[1].attention, []
    batch = Batch.build([ids(40, 1), ids(3, 2), [5], [6]], [0, 50, 60, 61], range(4))
    cache = model.new_cache(4, 64)
    cache.lengths[:] = batch.cached_lens
    with (
        mock.patch.object(
            attention, "plain", lambda *args: chosen.append("plain") or LatentAttention.plain(attention, *args)
        ),
        mock.patch.object(
            attention, "absorbed", lambda *args: chosen.append("absorbed") or LatentAttention.absorbed(attention, *args)
        ),
    ):
        model.run(batch, cache)
    assert chosen == ["plain", "absorbed", "absorbed"]


def test_what_the_forms_cost():
    """The figures of `mla_shape`, and that the number of new tokens decides, not the heads."""
    assert [round(V3.flops(form, 128, 4096, 0) / 1e12, 2) for form in ("plain", "absorbed")] == [0.69, 2.34]
    assert round(V3.flops("plain", 128, 1, 4095) / 1e9) == 138
    assert round(V3.flops("absorbed", 128, 1, 4095) / 1e9, 2) == 1.14
    assert 128 * (V3.qk_head_dim + V3.v_head_dim) == 40_960 and V3.entry == 576
    assert [V3.cheaper(new, 10**7) for new in (1, 170, 171, 4096)] == ["absorbed", "absorbed", "plain", "plain"]
    assert V3.cheaper(4096, 0) == "plain" and V3.cheaper(1, 10) == "absorbed"
    assert 512 * 256 / (1024 - 256) == pytest.approx(170.67, abs=0.01)


def test_a_token_is_stored_once_for_all_heads_and_values_are_part_of_it():
    """13: r + p elements per layer, in both caches; the anchor is DeepSeek-V3's 70,272 bytes."""
    config = latent_config()
    assert config.kv_bytes_per_token(4) == 2 * (32 + 8) * 4
    manager = BlockManager(10, 4)
    contiguous = ContiguousCache(config, rows=3, capacity=10)
    paged = PagedCache(config, manager)
    assert contiguous.nbytes == 30 * config.kv_bytes_per_token(4)
    assert paged.nbytes == 40 * config.kv_bytes_per_token(4)
    for cache in (contiguous, paged):
        storages = {store.untyped_storage().data_ptr() for store in (cache.keys, cache.values)}
        assert len(storages) == 1 and cache.keys.untyped_storage().nbytes() == cache.nbytes
    manager.allocate(0, ids(6, 1))
    manager.commit(0, ids(6, 1))
    contiguous.lengths = [4, 0, 1]
    assert paged.used_bytes == 6 * config.kv_bytes_per_token(4)
    assert contiguous.used_bytes == 5 * config.kv_bytes_per_token(4)


@pytest.mark.parametrize("kv_format", [*(f for f in FORMATS.values() if f is not FLOAT), Float(before_rope=True)])
def test_formats_of_keys_and_values_are_refused(kv_format):
    with pytest.raises(RequestError, match=f"the KV cache format '{kv_format.label}' is made of keys and values"):
        PagedCache(latent_config(), BlockManager(10, 4), kv_format=kv_format)


def test_what_is_stored_is_the_normalised_latent_and_the_rotated_key(model):
    tokens, cache = ids(9, 3), model.new_cache(capacity=9)
    seen = []
    hook = model.blocks[0].attention.kv_norm.register_forward_hook(lambda module, inputs, output: seen.append(output))
    down = model.blocks[0].attention.down.register_forward_hook(lambda module, inputs, output: seen.append(output))
    model(tokens, cache)
    hook.remove(), down.remove()
    [projected, latent] = seen
    keys, values = cache.read(0, 0, 1, 9)
    rope_key = Rope.rotate(projected[:, None, -8:], model.rope.tables(torch.arange(9)))
    torch.testing.assert_close(keys[0], torch.cat((latent[:, None], rope_key), dim=-1), atol=1e-6, rtol=1e-6)
    assert torch.equal(values, keys[..., :32])


def test_pairs_of_both_forms_are_counted(model):
    with tally(model) as count:
        cache = model.new_cache(capacity=20)
        model(ids(8, 1), cache)
        model(ids(1, 2), cache)
    assert (count.token_passes, count.pairs) == (9, 8 * 9 // 2 + 9)


@pytest.mark.parametrize("preemption", [Recompute, Swap])
def test_the_serving_engine_gives_the_logits_of_the_uncached_model(tiny, model, preemption):
    """Chunked prefill, preemption and forks over the paged cache."""
    tight = dict(blocks=12, block_size=4, max_num_seqs=4, max_num_batched_tokens=16)
    engine = Engine(with_model(tiny, model), batching=ChunkedPrefill(), preemption=preemption(), **tight)
    check_logits(engine, [ids(10, seed) for seed in range(3)], new=9, n=2)
    assert preemptions(engine) > 0


def test_both_engines_generate_the_same(tiny, model):
    llm, params = with_model(tiny, model), SamplingParams(temperature=0.8, seed=1, max_tokens=12, ignore_eos=True)
    prompts = [ids(n, n) for n in (3, 17, 8)]
    offline = llm.generate(prompts, params)
    assert [len(output.outputs[0].token_ids) for output in offline] == [12] * 3
    served = Engine(llm).generate(prompts, params)
    assert [o.outputs[0].token_ids for o in served] == [o.outputs[0].token_ids for o in offline]


@pytest.mark.parametrize(
    "changes, sentence",
    [
        (dict(kv_heads=2), "with latent attention kv_heads must be 4, not 2"),
        (dict(head_dim=16), "with latent attention head_dim must be 24, not 16"),
        (dict(windows=(8, None)), "with latent attention windows must be"),
        (dict(qk_norm=True), "with latent attention qk_norm must be False, not True"),
    ],
)
def test_an_impossible_config_is_one_sentence(changes, sentence):
    with pytest.raises(ModelError, match=sentence):
        latent_config(**changes)


@pytest.mark.parametrize("changes, sentence", [
    (dict(qk_rope_head_dim=7), "qk_rope_head_dim is 7; it must be even"),
    (dict(kv_lora_rank=0), "kv_lora_rank 0 is impossible"),
    (dict(q_lora_rank=0), "q_lora_rank 0 is impossible"),
])  # fmt: skip
def test_an_impossible_shape_is_one_sentence(changes, sentence):
    with pytest.raises(ModelError, match=sentence):
        dataclasses.replace(V3, **changes)


def test_the_triton_backend_is_not_chosen_and_says_why_when_named():
    pytest.importorskip("triton", reason="Triton has no build for this machine, so there is one backend")
    assert choose_backend(None, latent_config(), torch.float16, torch.device("cuda")).name == "torch"
    with pytest.raises(CourseError, match="no kernel for latent attention, whose keys are 40 wide; use torch"):
        choose_backend("triton", latent_config(), torch.float32, torch.device("cpu"))
