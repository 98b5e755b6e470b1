"""The ring cache holds what its formula says and never changes the answer: full cache with the mask = ring cache."""

from __future__ import annotations

import copy

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from course_lib import SamplingParams, facts
from course_lib.attention import Segment, attend, segments
from course_lib.batch import Batch
from course_lib.cache import BlockManager, ContiguousCache, KVCache, PagedCache, RingCache
from course_lib.cache.codebook import Codebook, fit_keys
from course_lib.cache.formats import FORMATS
from course_lib.cache.ring_layers import RingLayers
from course_lib.cache.store import FLOAT, Float
from course_lib.errors import ModelError, RequestError
from course_lib.model import Decoder
from course_lib.windowed import windowed
from tests.conftest import sharpen, small_config
from tests.engine.test_cache import close, ids

MODEL = sharpen(Decoder.random(small_config(layers=3), seed=3))
STEPS = st.lists(st.lists(st.integers(0, 9), min_size=1, max_size=3), min_size=1, max_size=8)


def feed(model: Decoder, cache: KVCache, news: list[int], seed: int) -> Tensor:
    """Logits of all tokens of a pass in which row i gets news[i] new ones, perhaps none."""
    rows = [row for row, new in enumerate(news) if new]
    tokens = [ids(news[row], seed + row) for row in rows]
    batch = Batch.build(tokens, [cache.lengths[row] for row in rows], rows)
    return model.run(batch, cache, logits_for=range(len(batch)))


def full(model: Decoder, tokens: list[int]) -> Tensor:
    """Logits [t, V] of one pass, through a cache that keeps everything."""
    return model(tokens, ContiguousCache(model.config, 1, len(tokens)))


def compare(model: Decoder, steps: list[list[int]], cuts: list[int] = ()) -> None:
    """A history of passes on the ring cache and on the plain one, on logits. cuts: tokens to drop after each step."""
    rows = max(map(len, steps))
    caches = [make(model.config, rows, 100) for make in (RingCache, ContiguousCache)]
    longest = [0] * rows
    for i, news in enumerate(steps):
        if any(news):
            got, want = (feed(model, cache, news, 10 * i) for cache in caches)
            close(got, want)
        for row, length in enumerate(caches[1].lengths):
            longest[row] = max(longest[row], length)
            shorter = max(0, length - cuts[i]) if i < len(cuts) else length
            try:
                caches[0].truncate(row, shorter)
            except RequestError:
                assert model.config.sinks < shorter < longest[row] - 1
            else:
                caches[1].truncate(row, shorter)
        assert caches[0].lengths == caches[1].lengths


@given(
    steps=STEPS,
    windows=st.tuples(*[st.sampled_from([None, 1, 2, 3, 5, 8, 200])] * 3),
    sinks=st.integers(0, 4),
    cuts=st.lists(st.sampled_from([0, 0, 1, 2, 30]), max_size=8),
)
@settings(max_examples=120, deadline=None)
def test_ring_equals_the_full_cache_with_the_mask(steps, windows, sinks, cuts):
    """Any chunks, shorter and longer than the windows, ragged batches, decodes beside prompts, cuts on the way."""
    model = MODEL
    for layer, window in enumerate(windows):
        if window:
            model = windowed(model, window, sinks, layers=[layer])
    compare(model, steps, cuts)


def fitted() -> Codebook:
    """Codebooks that differ from layer to layer: the ring's stores hold other layers than the model's first ones."""
    keys = torch.randn(3, 64, 2, 16, generator=torch.Generator().manual_seed(6)) * torch.tensor([1, 4, 0.5]).view(
        3, 1, 1, 1
    )
    return Codebook(keys=fit_keys(keys, torch.ones(3, 2, 16)))


@pytest.mark.parametrize(
    "kv_format", [FORMATS["int8"], FORMATS["fp8"], FORMATS["int4"], fitted()], ids=lambda f: f.name
)
def test_formats_are_read_as_in_the_plain_cache(kv_format):
    """A chunk that attends before it is stored is read as it will be stored. Bytes are the formula's, as for floats.

    On attention, layer by layer: through a model, a last bit of difference could round to another code.
    """
    config, generator = small_config(layers=3, windows=(4, None, 7), sinks=1), torch.Generator().manual_seed(7)
    caches = [make(config, 2, 50, kv_format=kv_format) for make in (RingCache, ContiguousCache)]
    for news in [(3, 9), (1, 1), (6, 2), (1, 1), (1, 20), (1, 1)]:
        batch = Batch.build([[0] * new for new in news], list(caches[0].lengths), [0, 1])
        slots = [cache.slots(batch) for cache in caches]
        for layer, window in enumerate(config.windows):
            query = torch.randn(len(batch), 4, 16, generator=generator)
            fresh = torch.randn(2, len(batch), 2, 16, generator=generator)
            outputs = []
            for cache, where in zip(caches, slots, strict=True):
                cache.write(layer, *fresh, where)
                outputs.append(attend(query, layer, cache, segments(batch), window, 1))
            close(*outputs)
        for cache in caches:
            cache.commit(batch)
    constants = sum(each.nbytes for each in kv_format.keys.constants) if isinstance(kv_format, Codebook) else 0
    per_element = kv_format.bytes_per_element(config.head_dim, torch.float32)
    assert caches[0].nbytes == 2 * config.kv_bytes(50, per_element) + constants


def test_a_format_that_needs_tokens_in_order_is_refused():
    with pytest.raises(
        RequestError, match="kivi2 keeps a window of float tokens for each row, which only a contiguous"
    ):
        RingCache(windowed(MODEL, 4).config, 2, 20, kv_format=FORMATS["kivi2"])
    assert type(windowed(MODEL, 4).new_cache(2, 20, FORMATS["kivi2"])) is ContiguousCache
    assert type(windowed(MODEL, 4).new_cache(2, 20, FORMATS["int8"])) is RingCache


def test_keys_stored_before_rope_are_rotated_by_their_own_positions():
    """Slots of a ring are not positions. The same floats, rotated when they are read, not when they are written."""
    model = windowed(MODEL, 4, sinks=1, layers=[0, 2])
    caches = [model.new_cache(2, 50, kv_format) for kv_format in (FLOAT, Float(before_rope=True))]
    assert [type(cache) for cache in caches] == [RingCache] * 2
    for i, news in enumerate([[3, 9], [1, 1], [6, 2], [1, 1], [1, 20], [1, 1]]):
        close(*(feed(model, cache, news, i) for cache in caches))


@pytest.mark.parametrize("sinks", [0, 2])
def test_decode_over_several_turns_of_the_ring(sinks):
    """Two sequences at different places, 40 tokens on windows of 4 and 7, against one pass without a cache."""
    model = windowed(windowed(MODEL, 4, sinks, layers=[0]), 7, sinks, layers=[2])
    texts = [ids(43, seed=1), ids(50, seed=2)]
    cache = RingCache(model.config, 2, 50)
    model.run(Batch.build([texts[0][:3], texts[1][:10]], [0, 0], [0, 1]), cache)
    wants = [full(model, text) for text in texts]
    for i in range(40):
        batch = Batch.build([[texts[0][3 + i]], [texts[1][10 + i]]], cache.lengths, [0, 1])
        got = model.run(batch, cache)
        close(got, torch.stack([wants[0][3 + i], wants[1][10 + i]]))


def by_loop(query: Tensor, keys: Tensor, values: Tensor, first: int, window: int | None, sinks: int) -> Tensor:
    """Attention of the tokens from position `first` on as the definition reads, in float64.

    query [t, H, d]; keys, values [n, K, d].
    """
    out = torch.empty(query.shape, dtype=torch.float64)
    group = query.shape[1] // keys.shape[1]
    for i in range(len(query)):
        p = first + i
        seen = [j for j in range(p + 1) if window is None or j > p - window or j < sinks]
        for head in range(query.shape[1]):
            k, v = (each[seen, head // group].double() for each in (keys, values))
            out[i, head] = (k @ query[i, head].double() / query.shape[2] ** 0.5).softmax(0) @ v
    return out


def check_attention(make: type[KVCache], window: int | None, sinks: int) -> None:
    config = small_config(layers=1, windows=(window,), sinks=sinks)
    cache, generator = make(config, 2, 40), torch.Generator().manual_seed(5)
    history = [[torch.empty(0, 2, 16)] * 2 for _ in range(2)]
    for news in [(3, 6), (1, 1), (2, 1), (6, 3), (1, 1), (1, 1), (11, 1), (1, 1)]:
        cached = list(cache.lengths)
        batch = Batch.build([[0] * new for new in news], cached, [0, 1])
        slots = cache.slots(batch)
        query = torch.randn(len(batch), 4, 16, generator=generator)
        fresh = torch.randn(2, len(batch), 2, 16, generator=generator)
        cache.write(0, *fresh, slots)
        got = attend(query, 0, cache, segments(batch), window, sinks)
        cache.commit(batch)
        for row, (start, end) in enumerate(batch.spans):
            pairs = zip(history[row], fresh, strict=True)
            history[row] = [torch.cat((old, new[start:end])) for old, new in pairs]
            close(got[start:end].double(), by_loop(query[start:end], *history[row], cached[row], window, sinks))


@pytest.mark.parametrize("make", [RingCache, ContiguousCache])
@pytest.mark.parametrize("window, sinks", [(4, 0), (4, 2), (4, 5), (1, 3), (None, 0)])
def test_attention_equals_a_float64_loop(make, window, sinks):
    """Sinks are seen once, inside the window and outside of it, after chunks and decodes of any length."""
    check_attention(make, window, sinks)


def test_where_keys_stand_worked_by_hand():
    """One sink, a window of 3: slots 1, 2, 3 go round. Rows of 2, 4, 5 and 7 tokens, then 2 new ones in each."""
    cache = RingCache(small_config(layers=1, windows=(3,), sinks=1), 4, 20)
    for row, length in enumerate((2, 4, 5, 7)):
        for position in range(length):
            slots = cache.slots(batch := Batch.build([[0]], [position], [row]))
            value = torch.full((1, 2, 16), float(position))
            cache.write(0, value, value, slots)
            cache.commit(batch)
    want = [[0, 1, -1, -1], [0, 1, 2, 3], [0, 4, 2, 3], [0, 4, 5, 6]]
    assert cache.key_positions(0, 0, 4, 7).tolist() == want
    keys, values = cache.read(0, 0, 4, 7)
    assert keys[1:, :, 0, 0].tolist() == values[1:, :, 1, 5].tolist() == want[1:]
    assert cache.key_positions(0, 0, 2, 4) is None  # nothing was replaced yet

    batch = Batch.build([[0, 0]] * 4, [2, 4, 5, 7], range(4))
    slots = cache.slots(batch)
    assert slots.tolist() == [[2, 3, 4 + 1, 4 + 2, 8 + 2, 8 + 3, 12 + 1, 12 + 2]]
    fresh = batch.positions.float()[:, None, None].expand(-1, 2, 16)
    cache.write(0, fresh, fresh, slots)
    late = [row + [length, length + 1] for row, length in zip(want, (2, 4, 5, 7), strict=True)]
    assert cache.key_positions(0, 0, 4, 9).tolist() == late
    assert cache.read(0, 0, 4, 9)[0][1:, :, 0, 0].tolist() == late[1:]  # the chunk attends before it replaces
    cache.commit(batch)
    want = [[0, 1, 2, 3], [0, 4, 5, 3], [0, 4, 5, 6], [0, 7, 8, 6]]
    assert cache.key_positions(0, 0, 4, 9).tolist() == want
    assert cache.read(0, 0, 4, 9)[0][..., 0, 0].tolist() == want


def test_bytes_follow_the_formula():
    """min(n, W + s) tokens in a layer with a window, n in the others, from the config that the formula takes."""
    config = small_config(layers=4, windows=(5, None, 5, 30), sinks=2)
    cache = RingCache(config, rows=3, capacity=20, dtype=torch.float16)
    assert cache.nbytes == 3 * config.kv_bytes(20, 2) == 3 * (7 + 20 + 7 + 20) * 2 * 2 * 16 * 2
    feed(Decoder.random(config, dtype=torch.float16), cache, [9, 0, 4], 0)
    assert cache.used_bytes == config.kv_bytes(9, 2) + config.kv_bytes(4, 2) == (7 + 9 + 7 + 9 + 4 * 4) * 2 * 2 * 16 * 2
    assert ContiguousCache(config, 3, 20, torch.float16).nbytes == 3 * 20 * config.kv_bytes_per_token(2)


@pytest.mark.parametrize(
    "name, tokens", [("Gemma-3-27B", 32_768), ("gpt-oss-20b", 131_072), ("Mistral-7B-v0.1", 32_768), ("Gemma-3-27B", 9)]
)
def test_hybrid_patterns_in_small_have_the_bytes_of_the_published_models(name, tokens):
    """Memory is counted on device "meta", so that the real shapes can be reserved."""
    shape = facts.model(name)
    config = small_config(
        layers=shape.layers,
        heads=shape.heads,
        kv_heads=shape.kv_heads,
        head_dim=shape.head_dim,
        windows=shape.layer_windows,
        context=tokens,
    )
    cache = RingCache(config, 1, tokens, torch.bfloat16, "meta")
    assert cache.nbytes == config.kv_bytes(tokens) == shape.kv_bytes(tokens)


def test_the_model_chooses_the_smaller_cache():
    assert type(MODEL.new_cache(2, 20)) is ContiguousCache
    model = windowed(MODEL, 8, sinks=2, layers=[1])
    assert type(model.new_cache(2, 10)) is ContiguousCache  # inside the window nothing would be saved
    cache = model.new_cache(2, 20)
    assert type(cache) is RingCache and cache.nbytes == 2 * model.config.kv_bytes(20, 4)
    with pytest.raises(RequestError, match="a ring cache has no block tables; use the torch backend"):
        cache.tables(Batch.build([[1]], [0], [0]))


def test_generate_runs_on_rings(tiny, monkeypatch):
    """Prompts longer than the window and chunks shorter and longer than it; against logits of one pass each (40)."""
    llm, made = copy.copy(tiny), []
    llm.model = windowed(tiny.model, 8, sinks=2, layers=[0, 2])
    new_cache = llm.model.new_cache
    monkeypatch.setattr(llm.model, "new_cache", lambda *shape: made.append(new_cache(*shape)) or made[-1])
    for llm.max_batch_tokens in (5, 64):
        prompts = [ids(30, 1), ids(3, 2), ids(17, 3)]
        for output in llm.generate(prompts, SamplingParams(temperature=0, max_tokens=12, ignore_eos=True)):
            known = list(output.prompt_token_ids)
            for token in output.outputs[0].token_ids:
                logits = full(llm.model, known)[-1]
                assert logits[token] >= logits.max() - 1e-4
                known.append(token)
    assert [type(cache) for cache in made] == [RingCache] * 2


def test_blocks_apply_windows_and_sinks_too():
    """A paged cache drops nothing, and gives the same answer: the mask is the model's affair."""
    model = windowed(MODEL, 4, sinks=2, layers=[0, 2])
    manager, texts = BlockManager(40, 3), [ids(30, seed=4), ids(21, seed=5)]
    cache = PagedCache(model.config, manager)
    for row in range(2):
        manager.allocate(row, [])
    cache.bind(range(2))
    start = [0, 0]
    for news in [(9, 2), (1, 1), (8, 17), (12, 1)]:
        for row, new in enumerate(news):
            assert manager.extend(row, new) == []
        tokens = [text[at : at + new] for text, at, new in zip(texts, start, news, strict=True)]
        batch = Batch.build(tokens, start, range(2))
        logits = model.run(batch, cache, logits_for=range(len(batch)))
        for (first, last), text, at, new in zip(batch.spans, texts, start, news, strict=True):
            close(logits[first:last], full(model, text)[at : at + new])
        start = [at + new for at, new in zip(start, news, strict=True)]


def test_a_cut_beyond_what_is_held_is_refused():
    model = windowed(MODEL, 5, sinks=1)
    cache = RingCache(model.config, 1, 40)
    tokens = ids(30)
    model(tokens[:6], cache)
    cache.truncate(0, 2)  # nothing was dropped yet
    model(tokens[2:14], cache)
    message = (
        "^row 0 has held 14 tokens, so its windows have dropped keys that position 12 needs; cut it to 13 or more, or "
        "to 1 or fewer and feed the rest again$"
    )
    with pytest.raises(RequestError, match=message):
        cache.truncate(0, 12)
    cache.truncate(0, 13)
    with pytest.raises(RequestError, match="has held 14 tokens"):
        cache.truncate(0, 12)
    close(model([7], cache), full(model, tokens[:13] + [7])[-1:])
    with pytest.raises(RequestError, match="row 0 holds 14 tokens and cannot be cut to 15"):
        cache.truncate(0, 15)
    cache.truncate(0, 1)  # the sink alone is whole
    close(model(tokens[1:20], cache), full(model, tokens[:20])[1:])


def test_a_pass_that_fails_leaves_the_cache_as_it_was():
    model = windowed(MODEL, 5)
    cache, twin = (RingCache(model.config, 1, 20) for _ in range(2))
    tokens = ids(20)
    for each in (cache, twin):
        model(tokens[:8], each)
    with pytest.raises(RequestError, match="row 0 has room for 20 tokens and would hold 21"):
        model(ids(13), cache)
    with pytest.raises(RequestError, match="row 0 holds 8 tokens, but the batch says its new tokens start at 7"):
        model.run(Batch.build([[1]], [7], [0]), cache)
    slots = cache.slots(batch := Batch.build([ids(6, 9)], [8], [0]))
    cache.write(0, *torch.ones(2, len(batch), 2, 16), slots)  # and then the pass ends with an error
    close(model(tokens[8:], cache), model(tokens[8:], twin))


def test_a_cache_of_narrower_windows_is_refused():
    narrow = windowed(MODEL, 4)
    cache = narrow.new_cache(capacity=20)
    narrow(ids(10), cache)
    with pytest.raises(RequestError, match="the cache has dropped keys that this model sees; take one of the model's"):
        MODEL([1], cache)


def test_a_windowed_model_shares_weights_and_leaves_the_original_alone():
    tokens = ids(12)
    before = MODEL(tokens)
    model = windowed(MODEL, 4, sinks=1, layers=[1])
    assert model.config.windows == (None, 4, None) and MODEL.config.windows == (None,) * 3
    assert {p.data_ptr() for p in model.parameters()} == {p.data_ptr() for p in MODEL.parameters()}
    assert torch.equal(MODEL(tokens), before)
    assert (model(tokens)[-1] - before[-1]).abs().max() > 1e-2
    close(model(tokens)[:4], before[:4])
    with pytest.raises(RequestError, match="there is no layer 3; the model's layers are 0 to 2"):
        windowed(MODEL, 4, layers=[1, 3])
    for window, sinks in ((0, 0), (4, -1)):
        with pytest.raises(ModelError, match="a window is at least 1, or None, sinks 0"):
            windowed(MODEL, window, sinks)


# --- planted mistakes ---

BEGIN, VISIBLE, MAKE = RingLayers.begin, Segment.visible, RingLayers.__init__


def one_slot_on(kind: RingLayers, batch: Batch) -> Tensor:
    """The ring begins at its second slot."""
    slots, behind = BEGIN(kind, batch), batch.positions - kind.sinks
    turned = slots - behind % kind.ring + (behind + 1) % kind.ring
    return torch.where(behind < 0, slots, turned.minimum(slots // kind.room * kind.room + kind.room - 1))


def trimmed_first(kind: RingLayers, batch: Batch) -> Tensor:
    """A long chunk is cut to the window and stored before it attends."""
    slots = BEGIN(kind, batch)
    kind.write = lambda place, *new: kind.store.write(place, *(each[kind.kept] if kind.late else each for each in new))
    kind.late = False
    return slots


def sinks_go_round(kind: RingLayers, batch: Batch) -> Tensor:
    """Sinks have no slots of their own."""
    slots = BEGIN(kind, batch)
    return slots // kind.room * kind.room + batch.positions % kind.room


def ring_too_short(kind: RingLayers, *args) -> None:
    """A ring of W - 1: the new token replaces a key that it sees itself."""
    MAKE(kind, *args)
    kind.ring = max(1, kind.ring - 1)


def sink_seen_twice(kind: RingLayers, tokens: Tensor, count: int) -> Tensor:
    """An empty slot of the ring passes for the sink of the same remainder."""
    slot, last = torch.arange(count), tokens - 1
    around = last - (last - slot) % kind.ring
    return torch.where(slot < kind.sinks, slot.where(slot <= last, -1), around)


def window_too_wide(piece: Segment, window: int | None, *rest) -> Tensor | None:
    return VISIBLE(piece, window and window + 1, *rest)


def window_too_narrow(piece: Segment, window: int | None, *rest) -> Tensor | None:
    return VISIBLE(piece, window and max(1, window - 1), *rest)


def sinks_forgotten(piece: Segment, window: int | None, sinks: int, *rest) -> Tensor | None:
    return VISIBLE(piece, window, 0, *rest)


PLANTED = [
    (RingLayers, "begin", one_slot_on),
    (RingLayers, "begin", trimmed_first),
    (RingLayers, "begin", sinks_go_round),
    (RingLayers, "__init__", ring_too_short),
    (RingLayers, "_positions", sink_seen_twice),
    (Segment, "visible", window_too_wide),
    (Segment, "visible", window_too_narrow),
    (Segment, "visible", sinks_forgotten),
]


@pytest.mark.parametrize("owner, name, wrong", PLANTED, ids=[wrong.__name__ for *_, wrong in PLANTED])
def test_the_comparisons_catch_a_planted_mistake(owner, name, wrong, monkeypatch):
    """By the logits, by the float64 loop, or by the attention's own count of keys."""
    monkeypatch.setattr(owner, name, wrong)
    with pytest.raises((AssertionError, RequestError)):
        compare(windowed(MODEL, 4, sinks=2, layers=[0, 2]), [[3, 9], [1, 1], [6, 2], [1, 1], [1, 1]])
        check_attention(RingCache, 4, 2)
