"""Models and engines over every format of the KV cache: chunks, company and blocks never change the answer.

Models are float64 here. In float32, a product's last bit depends on the rows beside it, and a key that lies between two
codes would now and then get the other one: a difference that no tolerance of this file would allow.
"""

from __future__ import annotations

import random

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from course_lib import LLM, SamplingParams
from course_lib.attention import attend, segments
from course_lib.batch import Batch
from course_lib.cache import ContiguousCache, HashIndex
from course_lib.cache.formats import FORMATS
from course_lib.cache.kivi import Kivi
from course_lib.cache.per_token import Int4
from course_lib.cache.store import FLOAT, Float
from course_lib.calibration import fit_codebook
from course_lib.engine import ChunkedPrefill, Engine, Swap
from course_lib.errors import RequestError
from course_lib.model import Decoder
from course_lib.rope import Rope
from tests.cache.test_formats import bound, fill, keys_and_values
from tests.cache.test_paged import Engine as PagedEngine
from tests.cache.test_paged import ModelWorkload
from tests.cache.workload import INDEXES, random_step
from tests.conftest import sharpen, small_config
from tests.engine.test_cache import close, ids

MODEL = sharpen(Decoder.random(small_config(qk_norm=True), seed=1, dtype=torch.float64))
SHALLOW = sharpen(Decoder.random(small_config(layers=1), seed=3, dtype=torch.float64))
INT8, FP8 = FORMATS["int8"], FORMATS["fp8"]
CODEBOOK = fit_codebook(MODEL, ids(100, seed=9))
PER_TOKEN = [INT8, FP8, Int4(), CODEBOOK, Int4(before_rope=True), fit_codebook(MODEL, ids(100), before_rope=True)]
KIVI = Kivi(bits=4, group=4, residual=8)


def label(kv_format) -> str:
    return kv_format.label.replace(", keys ", "-").replace(" ", "-")


def alone(model: Decoder, tokens: list[int], kv_format) -> torch.Tensor:
    return model(tokens, model.new_cache(1, len(tokens), kv_format))


@pytest.mark.parametrize("kv_format", PER_TOKEN, ids=label)
@given(cuts=st.lists(st.integers(1, 9), min_size=1, max_size=5))
@settings(max_examples=10, deadline=None)
def test_chunked_equals_whole(kv_format, cuts):
    tokens = ids(sum(cuts))
    cache, parts, start = MODEL.new_cache(1, len(tokens), kv_format), [], 0
    for n in cuts:
        parts.append(MODEL(tokens[start : start + n], cache))
        start += n
    close(torch.cat(parts), alone(MODEL, tokens, kv_format))


@given(cuts=st.lists(st.integers(1, 11), min_size=1, max_size=6))
@settings(max_examples=15, deadline=None)
@pytest.mark.parametrize("before_rope", [False, True])
def test_kivi_after_any_chunks(before_rope, cuts):
    """What a token reads depends on how much was stored after it in its pass, so the last one's logits are compared,
    of a model of one layer, whose keys depend on no attention."""
    kv_format = Kivi(bits=4, group=4, residual=8, before_rope=before_rope)
    tokens = ids(sum(cuts))
    cache, start = SHALLOW.new_cache(1, len(tokens), kv_format), 0
    for n in cuts:
        logits = SHALLOW(tokens[start : start + n], cache)
        start += n
    close(logits[-1], alone(SHALLOW, tokens, kv_format)[-1])


@pytest.mark.parametrize("kv_format", [*PER_TOKEN, KIVI], ids=label)
@given(
    lengths=st.lists(st.tuples(st.integers(0, 19), st.integers(1, 9)), min_size=1, max_size=4),
    seed=st.integers(0, 99),
)
@settings(max_examples=8, deadline=None)
def test_each_row_of_a_ragged_batch_equals_the_row_alone(kv_format, lengths, seed):
    prompts = [ids(cached + new, seed + i) for i, (cached, new) in enumerate(lengths)]
    cached = [c for c, _ in lengths]
    cache = MODEL.new_cache(len(lengths), 28, kv_format)
    if filled := [row for row, c in enumerate(cached) if c]:
        MODEL.run(Batch.build([prompts[row][: cached[row]] for row in filled], [0] * len(filled), filled), cache)
    batch = Batch.build([p[c:] for p, c in zip(prompts, cached, strict=True)], cached, range(len(lengths)))
    logits = MODEL.run(batch, cache, logits_for=range(len(batch)))
    for (start, end), prompt, c in zip(batch.spans, prompts, cached, strict=True):
        single = MODEL.new_cache(1, 28, kv_format)
        if c:
            MODEL(prompt[:c], single)
        close(logits[start:end], MODEL(prompt[c:], single))


class FormatWorkload(ModelWorkload):
    """Compares each token's logits with those of the sequence alone in a contiguous cache of the same format."""

    def compute(self, seq, new, copies):
        self.engine.cache.copy_blocks(copies)
        self.engine.cache.bind([seq])
        start = len(self.tokens[seq]) - len(new)
        want = alone(self.engine.model, self.tokens[seq], self.engine.cache.format)[start:]
        close(self.engine.model(new, self.engine.cache), want)


@pytest.mark.parametrize("kv_format", [*PER_TOKEN[:3], PER_TOKEN[4]], ids=label)
@pytest.mark.parametrize("index", INDEXES.values(), ids=INDEXES)
def test_paged_equals_contiguous_on_random_histories(kv_format, index):
    """Prefix hits, forks, copies, cuts, evictions and reuse, on a pool that is nearly always full."""
    for seed in range(2):
        rng = random.Random(seed)
        engine = PagedEngine(MODEL, rng.randint(4, 12), rng.randint(1, 4), index, seed, kv_format)
        load = FormatWorkload(engine)
        for _ in range(15):
            random_step(rng, [load])
            load.check()


@pytest.mark.parametrize("kv_format", [INT8, FP8, KIVI], ids=label)
def test_attention_is_within_the_bound_that_follows(kv_format):
    """Scores are off by at most e = max_j sum_c |q_c| dk_jc / sqrt(d), so a weight p_j by a factor of at most exp(2e).

    So the output is off by at most max_j dv_j + (exp(2e) - 1) sum_j p_j |v_j|; dk and dv bound the stored numbers.
    """
    n, x = 30, keys_and_values(30)
    config = small_config()
    cache = ContiguousCache(config, 1, n, kv_format=kv_format)
    fill(cache, x, 0, [n])
    cache.truncate(0, n - 1)  # its last token is then the batch's
    batch = Batch.build([[0]], [n - 1], [0])
    cache.write(0, *x[:, 0, n - 1 :], cache.slots(batch))
    query = 0.3 * torch.randn(1, 4, 16, generator=torch.Generator().manual_seed(1))
    query[..., 5] /= 20  # the channel whose keys are large
    got = attend(query, 0, cache, segments(batch), None)[0].double()
    (keys, values), (dk, dv) = x[:, 0].double(), bound(kv_format, x)[:, 0]
    for head in range(4):
        q, kv = query[0, head].double(), head // 2
        p = (keys[:, kv] @ q / 4).softmax(0)
        e = (dk[:, kv] @ q.abs() / 4).max()
        limit = dv[:, kv].amax(0) + (2 * e).expm1() * (p @ values[:, kv].abs())
        error = (got[head] - p @ values[:, kv]).abs()
        assert (error <= limit + 1e-5).all()
        assert (2 * e).expm1() < 1, "a bound that allows anything shows nothing"
        assert error.max() > 1e-4, "nothing was quantised"


@pytest.mark.parametrize("windows", [(), (5, None)], ids=["full", "window"])
def test_keys_before_rope_change_no_answer(windows):
    """Stored as they were and rotated on read: whole, in chunks and in blocks, in a ring too."""
    model = sharpen(Decoder.random(small_config(architecture="mistral", windows=windows), seed=2, dtype=torch.float64))
    tokens, want = ids(21), None
    want, unrotated = model(tokens), Float(before_rope=True)
    cache = model.new_cache(1, 21, unrotated)
    close(torch.cat([model(tokens[:8], cache), model(tokens[8:20], cache), model(tokens[20:], cache)]), want)
    engine = PagedEngine(model, kv_format=unrotated)
    close(engine.prefill(0, tokens)[1], want)
    close(engine.step({0: [3]})[0], model([*tokens, 3])[-1:])


def test_keys_before_rope_are_stored_before_rope():
    tokens = ids(9)
    plain, unrotated = (
        ContiguousCache(MODEL.config, 1, 9, MODEL.dtype, kv_format=f) for f in (FLOAT, Float(before_rope=True))
    )
    for cache in (plain, unrotated):
        MODEL(tokens, cache)
    assert not torch.allclose(plain.keys[:, 1:], unrotated.keys[:, 1:], atol=1e-2)
    for layer in range(2):
        rotated = Rope.rotate(unrotated.keys[layer], MODEL.rope.tables(torch.arange(9)))
        close(rotated, plain.keys[layer])


@pytest.mark.parametrize("before_rope", [False, True])
def test_a_codebook_is_fitted_to_the_keys_and_weighs_them_by_the_queries(before_rope, monkeypatch):
    """Worked out here for a model of one layer: queries and keys are products of the normed embedding."""
    fitted = []
    monkeypatch.setattr("course_lib.calibration.fit_keys", lambda *arguments: fitted.extend(arguments))
    tokens = ids(60)
    fit_codebook(SHALLOW, tokens, before_rope=before_rope)
    block = SHALLOW.blocks[0]
    qkv = block.attention.qkv(block.attention_norm(SHALLOW.embed(torch.tensor(tokens)))).view(60, -1, 16)
    rotated = Rope.rotate(qkv, SHALLOW.rope.tables(torch.arange(60)))
    squares = rotated[:, :4].square().mean(0).unflatten(0, (2, 2)).mean(1)  # [K, d]
    if before_rope:
        squares = (squares + squares.roll(8, -1)) / 2
    close(fitted[0][0], (qkv if before_rope else rotated)[:, 4:6])
    torch.testing.assert_close(fitted[1][0], squares.float())


def test_a_calibration_text_has_a_length():
    with pytest.raises(RequestError, match="a calibration text has 2 to 128 tokens, the model's context, not 129"):
        fit_codebook(MODEL, ids(129))


@pytest.fixture(scope="module")
def draft() -> LLM:
    """The smallest embedded model, in float64."""
    return LLM("tiny-draft", device="cpu", dtype=torch.float64, backend="torch", kv_cache_dtype="int8")


def test_llm_and_engine_take_a_name(draft):
    """The engine's cache is the LLM's by default. Swapped, forked and found again, blocks keep their scales."""
    prompts = [ids(20, 7), ids(3, 8), ids(20, 7) + [1, 2]]
    params = [
        SamplingParams(temperature=0, max_tokens=6, ignore_eos=True),
        SamplingParams(temperature=0.8, n=2, seed=5, max_tokens=5, ignore_eos=True),
        SamplingParams(temperature=0, max_tokens=6, ignore_eos=True, logprobs=1),
    ]
    settings = dict(batching=ChunkedPrefill(), max_num_batched_tokens=16, max_num_seqs=4, preemption=Swap())
    engine = Engine(draft, blocks=9, block_size=4, index=HashIndex(), **settings)
    assert engine.cache.format == INT8 and engine.cache.keys.dtype == torch.int8
    got, want = engine.generate(prompts, params), draft.generate(prompts, params)
    assert [[o.token_ids for o in each.outputs] for each in got] == [
        [o.token_ids for o in each.outputs] for each in want
    ]
    kinds = {event.kind for event in engine.metrics.events}
    assert {"swapped_out", "swapped_in"} <= kinds
    [a], [b] = ([next(iter(o.logprobs[-1].values())).logprob for o in each[2].outputs] for each in (got, want))
    assert a == pytest.approx(b, abs=1e-6)
    assert Engine(draft, kv_cache_dtype="fp8").cache.format == FP8


def test_the_format_is_shown_where_it_is_not_the_default(draft, tiny):
    assert repr(draft).endswith("backend torch, KV cache int8")
    assert repr(tiny).endswith("backend torch")


@pytest.mark.parametrize("name", FORMATS)
def test_every_name_generates(name):
    llm = LLM("tiny-draft", device="cpu", kv_cache_dtype=name)
    [answer] = llm.generate(ids(150), SamplingParams(max_tokens=4, temperature=0, ignore_eos=True))
    assert len(answer.outputs[0].token_ids) == 4


def test_unsupported_combinations_are_one_sentence(draft):
    with pytest.raises(
        RequestError, match="there is no KV cache format 'int3'; use auto, int8, fp8, int4, kivi4, kivi2"
    ):
        LLM("tiny-draft", device="cpu", kv_cache_dtype="int3")
    with pytest.raises(
        RequestError, match="kivi2 keeps a window of float tokens for each row, .* use int8 or fp8 here"
    ):
        Engine(draft, kv_cache_dtype="kivi2")
