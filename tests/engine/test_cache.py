"""The cache never changes the answer: cached = uncached = chunked, batched = alone, windowed or not.

Numbers in names refer to the mistakes of real engines that a test makes impossible here.
"""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from course_lib.attention import Segment, attend, segments
from course_lib.batch import Batch
from course_lib.cache import ContiguousCache
from course_lib.errors import RequestError
from course_lib.model import Decoder
from tests.conftest import latent_config, sharpen, small_config

MODELS = {
    "full": sharpen(Decoder.random(small_config(), seed=1)),
    "window": sharpen(Decoder.random(small_config(architecture="mistral", windows=(5, None)), seed=2)),
    "latent": sharpen(Decoder.random(latent_config(), seed=3)),
}


def ids(n: int, seed: int = 0) -> list[int]:
    return torch.randint(0, 97, (n,), generator=torch.Generator().manual_seed(seed)).tolist()


def close(got, want):
    torch.testing.assert_close(got, want, atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize("kind", MODELS)
@given(cuts=st.lists(st.integers(1, 9), min_size=1, max_size=8))
@settings(max_examples=40, deadline=None)
def test_chunked_equals_whole(kind, cuts):
    """1, 4, 6: any chunk sizes, the first with an empty cache, later ones with a filled one."""
    model, tokens = MODELS[kind], ids(sum(cuts))
    cache, parts, start = model.new_cache(capacity=len(tokens)), [], 0
    for n in cuts:
        parts.append(model(tokens[start : start + n], cache))
        start += n
    assert cache.lengths == [len(tokens)]
    close(torch.cat(parts), model(tokens))


@pytest.mark.parametrize("kind", MODELS)
@given(
    lengths=st.lists(st.tuples(st.integers(0, 7), st.integers(1, 6)), min_size=1, max_size=5),
    seed=st.integers(0, 99),
)
@settings(max_examples=40, deadline=None)
def test_each_row_of_a_ragged_batch_equals_the_row_alone(kind, lengths, seed):
    """7: rows with any mix of cached and new tokens, decodes beside prompts, give what each gives by itself."""
    model = MODELS[kind]
    cache = model.new_cache(len(lengths), 16)
    prompts = [ids(cached + new, seed + i) for i, (cached, new) in enumerate(lengths)]
    filled = [
        (i, prompt[:cached]) for i, (prompt, (cached, _)) in enumerate(zip(prompts, lengths, strict=True)) if cached
    ]
    if filled:
        model.run(Batch.build([t for _, t in filled], [0] * len(filled), [i for i, _ in filled]), cache)
    cached = [c for c, _ in lengths]
    fresh = [prompt[c:] for prompt, c in zip(prompts, cached, strict=True)]
    batch = Batch.build(fresh, cached, range(len(lengths)))
    logits = model.run(batch, cache, logits_for=range(len(batch)))
    for (start, end), prompt, c in zip(batch.spans, prompts, cached, strict=True):
        close(logits[start:end], model(prompt)[c:])


def test_logits_come_in_the_order_asked_for():
    """All of a batch's tokens, turned round, are not all of them in order."""
    model, batch = MODELS["full"], Batch.build([[5], [6], [7]], [0] * 3, [0, 1, 2])
    plain, turned = (model.run(batch, model.new_cache(3, 4), logits_for=order) for order in ([0, 1, 2], [2, 1, 0]))
    close(turned, plain.flip(0))
    assert not torch.allclose(turned, plain, atol=1e-2)


def test_identical_rows_give_identical_logits():
    """7: a mask built for batch 1 made two equal rows differ."""
    model = MODELS["full"]
    cache = model.new_cache(3, 16)
    logits = model.run(Batch.build([ids(6)] * 3, [0] * 3, [0, 1, 2]), cache)
    close(logits[1:], logits[:1].expand(2, -1))


def test_decode_position_is_the_number_of_tokens_before_it():
    """3, 4: position len - 1 for the token being fed, and 0 for the first token of a prompt."""
    assert Batch.build([[5]], [7], [0]).positions.tolist() == [7]
    assert Batch.build([[5, 6], [9]], [0, 3], [0, 1]).positions.tolist() == [0, 1, 3]


def test_mask_rows_start_at_the_cached_length():
    """1: three new tokens on two cached ones, worked by hand."""
    piece, cpu = Segment(start=0, new=3, first_row=0, cached=[2]), torch.device("cpu")
    plain, windowed, with_sink = (piece.visible(*kind, None, cpu)[0, 0].int() for kind in ((None, 0), (2, 0), (2, 1)))
    assert plain.tolist() == [[1, 1, 1, 0, 0], [1, 1, 1, 1, 0], [1, 1, 1, 1, 1]]
    assert windowed.tolist() == [[0, 1, 1, 0, 0], [0, 0, 1, 1, 0], [0, 0, 0, 1, 1]]
    assert with_sink.tolist() == [[1, 1, 1, 0, 0], [1, 0, 1, 1, 0], [1, 0, 0, 1, 1]]


def test_segments_join_only_neighbours_of_equal_length():
    batch = Batch.build([[1], [1], [1, 2, 3], [1], [1]], [4, 9, 0, 2, 2], [0, 1, 2, 4, 6])
    assert [(p.start, p.new, p.first_row, p.cached) for p in segments(batch)] == [
        (0, 1, 0, [4, 9]),
        (2, 3, 2, [0]),
        (5, 1, 4, [2]),
        (6, 1, 6, [2]),
    ]


def test_segments_part_where_padding_would_cost_more_than_a_call():
    """At most 1.5 times the keys of the shortest and 32 more, whichever way the lengths go; new tokens are keys."""
    lengths = [0, 32, 33, 80, 81, 1, 500]
    batch = Batch.build([[1]] * len(lengths), lengths, range(len(lengths)))
    assert [piece.cached for piece in segments(batch)] == [[0, 32], [33, 80, 81], [1], [500]]


@pytest.mark.parametrize("heads, kv_heads", [(4, 4), (4, 2), (4, 1)])
@pytest.mark.parametrize("window", [None, 3])
def test_attention_equals_a_float64_loop(heads, kv_heads, window):
    """Each query head reads KV head i // (H / K), written as plainly as possible, in float64."""
    config = small_config(layers=1, heads=heads, kv_heads=kv_heads)
    generator = torch.Generator().manual_seed(4)
    cache = ContiguousCache(config, rows=2, capacity=12)
    cached, new = [5, 2], [3, 1]
    for row in range(2):
        fill = Batch.build([[0] * cached[row]], [0], [row])
        k, v = torch.randn(2, cached[row], kv_heads, 16, generator=generator)
        cache.write(0, k, v, cache.slots(fill))
        cache.commit(fill)
    batch = Batch.build([[0] * n for n in new], cached, [0, 1])
    k, v = torch.randn(2, len(batch), kv_heads, 16, generator=generator)
    cache.write(0, k, v, cache.slots(batch))
    query = torch.randn(len(batch), heads, 16, generator=generator)
    got = attend(query, 0, cache, segments(batch), window)
    for (start, end), row, before in zip(batch.spans, batch.rows, cached, strict=True):
        keys, values = (t[0].double() for t in cache.read(0, row, 1, before + end - start))
        for i in range(end - start):
            position = before + i
            first = 0 if window is None else max(0, position - window + 1)
            for head in range(heads):
                kv = head // (heads // kv_heads)
                scores = keys[first : position + 1, kv] @ query[start + i, head].double() / 16**0.5
                want = scores.softmax(0) @ values[first : position + 1, kv]
                close(got[start + i, head].double(), want)


def test_truncate_forgets_and_overwrites():
    """Tokens past the cut must not leak into what is generated next, however long the cache was."""
    model, tokens = MODELS["full"], ids(12)
    cache = model.new_cache(capacity=16)
    model(tokens, cache)
    cache.truncate(0, 4)
    close(model(tokens[4:9], cache), model(tokens)[4:9])
    with pytest.raises(RequestError, match="holds 9 tokens and cannot be cut to 10"):
        cache.truncate(0, 10)


def test_overflow_is_refused_before_anything_is_written():
    model = MODELS["full"]
    cache = model.new_cache(capacity=6)
    model(ids(4), cache)
    before = cache.keys.clone()
    with pytest.raises(RequestError, match="has room for 6 tokens and would hold 7"):
        model(ids(3), cache)
    assert cache.lengths == [4] and torch.equal(cache.keys, before)
    with pytest.raises(RequestError, match="more than the model's context, 128"):
        model.new_cache(capacity=129)


def test_a_cache_that_cannot_be_reserved_names_its_size():
    with pytest.raises(RequestError, match=r"needs 512,000.0 GB, more than cpu can reserve; ask for fewer"):
        ContiguousCache(small_config(), rows=1000, capacity=10**9)


def test_bytes_follow_the_formula():
    """11: KV heads, not query heads; the anchors are published models."""
    cache = ContiguousCache(small_config(), rows=3, capacity=10, dtype=torch.float16)
    assert cache.nbytes == 3 * 10 * small_config().kv_bytes_per_token(2) == 3 * 10 * 2 * 2 * 2 * 16 * 2
    cache.lengths = [4, 0, 1]
    assert cache.used_bytes == 5 * small_config().kv_bytes_per_token(2)
    qwen3_4b = small_config(layers=36, heads=32, kv_heads=8, head_dim=128)
    assert qwen3_4b.kv_bytes_per_token(2) == 147_456
    llama = small_config(layers=32, heads=32, kv_heads=8, head_dim=128)
    assert llama.kv_bytes_per_token(2) * 32_768 == 4_294_967_296
