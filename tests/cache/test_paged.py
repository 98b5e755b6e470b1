"""The paged cache never changes the answer: all comparisons are on logits, with blocks scattered over the pool."""

from __future__ import annotations

import random

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from course_lib.batch import Batch
from course_lib.cache import BlockManager, PagedCache
from course_lib.cache.store import FLOAT, KVFormat
from course_lib.errors import RequestError
from course_lib.model import Decoder
from tests.cache.workload import INDEXES, Workload, random_step
from tests.conftest import small_config
from tests.engine.test_cache import MODELS, close, ids

both_indexes = pytest.mark.parametrize("index", INDEXES.values(), ids=INDEXES)


class Engine:
    """A model over a paged cache whose free blocks come in random order and hold stale values."""

    def __init__(
        self,
        model: Decoder,
        blocks: int = 40,
        block_size: int = 4,
        index: type | None = None,
        seed: int = 0,
        kv_format: KVFormat = FLOAT,
    ):
        self.model, self.manager = model, BlockManager(blocks, block_size, index and index())
        self.cache = PagedCache(model.config, self.manager, model.dtype, kv_format=kv_format)
        heads, width, _ = model.config.kv_entry  # of latent attention, values are a part of the keys
        shape = (2, self.manager.capacity, heads, width)
        stale = torch.empty(shape, dtype=model.dtype)
        generator = torch.Generator().manual_seed(seed)
        for layer in range(model.config.layers):
            self.cache.write(layer, *stale.normal_(std=100, generator=generator), torch.arange(shape[1]))
        order = list(range(blocks))
        random.Random(seed).shuffle(order)
        for seq in range(blocks):
            self.manager.allocate(seq, [0])
        for seq in order:
            self.manager.free(seq)

    def step(self, feeds: dict[int, list[int]]) -> list[torch.Tensor]:
        """One forward pass; logits of all fed tokens, one tensor per sequence."""
        for seq, new in feeds.items():
            copies = self.manager.extend(seq, len(new))
            assert copies is not None
            self.cache.copy_blocks(copies)
        self.cache.bind(feeds)
        batch = Batch.build(list(feeds.values()), self.cache.lengths, range(len(feeds)))
        logits = self.model.run(batch, self.cache, logits_for=range(len(batch)))
        self.manager.check_integrity()
        return [logits[start:end] for start, end in batch.spans]

    def prefill(self, seq: int, prompt: list[int]) -> tuple[int, torch.Tensor]:
        """(prefix hit, logits of the tokens behind it)."""
        hit = self.manager.allocate(seq, prompt)
        return hit, self.step({seq: prompt[hit:]})[0]


@pytest.mark.parametrize("kind", MODELS)
@given(
    lengths=st.lists(st.tuples(st.integers(0, 9), st.integers(1, 7)), min_size=1, max_size=5),
    block_size=st.integers(1, 5),
    seed=st.integers(0, 99),
)
@settings(max_examples=40, deadline=None)
def test_a_ragged_batch_equals_each_sequence_alone(kind, lengths, block_size, seed):
    """Any mix of cached and new tokens, decodes beside prompts, full attention and sliding window."""
    engine = Engine(MODELS[kind], 80, block_size, seed=seed)
    prompts = [ids(cached + new, seed + i) for i, (cached, new) in enumerate(lengths)]
    for seq in range(len(prompts)):
        engine.manager.allocate(seq, [])
    if first := {seq: prompts[seq][:cached] for seq, (cached, _) in enumerate(lengths) if cached}:
        engine.step(first)
    logits = engine.step({seq: prompts[seq][cached:] for seq, (cached, _) in enumerate(lengths)})
    for got, prompt, (cached, _) in zip(logits, prompts, lengths, strict=True):
        close(got, MODELS[kind](prompt)[cached:])


@pytest.mark.parametrize("kind", MODELS)
@pytest.mark.parametrize("chunk", [1, 3, 4, 5])
def test_chunked_prefill_and_decode_equal_whole(kind, chunk):
    """Chunks of any size against blocks of 4, then a decode of two sequences at different places, side by side."""
    model, tokens, other = MODELS[kind], ids(16), ids(21, seed=1)
    engine = Engine(model)
    engine.manager.allocate(0, tokens)
    parts = [engine.step({0: tokens[start : start + chunk]})[0] for start in range(0, 16, chunk)]
    close(torch.cat(parts), model(tokens))
    _, got = engine.prefill(1, other)
    close(got, model(other))
    for token in ids(6, seed=2):
        tokens, other = tokens + [token], other + [96 - token]
        mine, theirs = engine.step({0: tokens[-1:], 1: other[-1:]})
        close(mine, model(tokens)[-1:])
        close(theirs, model(other)[-1:])


@pytest.mark.parametrize("kind", MODELS)
@both_indexes
def test_a_prefix_hit_equals_no_hit(kind, index):
    """While the first request runs, after it ended, and where the two part in the middle of a block."""
    model, prompt = MODELS[kind], ids(14)
    engine = Engine(model, index=index)
    assert engine.prefill(0, prompt)[0] == 0
    for ended in (False, True):
        if ended:
            engine.manager.free(0)
        for same, hit in ((14, 12), (10, 8), (12, 12), (3, 0)):
            tokens = prompt[:same] + ids(5, seed=same + 50 * ended)
            got_hit, logits = engine.prefill(1, tokens)
            assert got_hit == hit
            close(logits, model(tokens)[hit:])
            engine.manager.free(1)


@both_indexes
def test_a_hit_reads_the_cached_values(index):
    """The test above can fail: with the hit's blocks spoilt, the logits change."""
    model, prompt = MODELS["full"], ids(9)
    engine = Engine(model, index=index)
    engine.prefill(0, prompt)
    engine.manager.free(0)
    engine.cache.values.zero_()
    hit, logits = engine.prefill(1, prompt)
    assert hit == 8
    assert (logits - model(prompt)[8:]).abs().max() > 1e-3


@both_indexes
def test_one_prompt_in_two_requests_at_once(index):
    """Neither hits; both compute; the second switches to the first one's blocks and goes on from them."""
    model, prompt = MODELS["full"], ids(10)
    engine = Engine(model, index=index)
    for seq in (0, 1):
        assert engine.manager.allocate(seq, prompt) == 0
    for logits in engine.step({0: prompt, 1: prompt}):
        close(logits, model(prompt))
    first, second = (engine.manager.table(seq).blocks for seq in (0, 1))
    assert first[:2] == second[:2] and first[2] != second[2] and engine.manager.stats().in_use == 4
    close(engine.step({1: [5, 6]})[0], model(prompt + [5, 6])[-2:])


@pytest.mark.parametrize("kind", MODELS)
@pytest.mark.parametrize("index", [None, *INDEXES.values()], ids=["none", *INDEXES])
@pytest.mark.parametrize("length", [6, 8])
def test_forks_diverge_and_leave_each_other_alone(kind, index, length):
    """Parallel samples of one prompt, in the middle of a block and at its end; a fork of a fork too."""
    model, prompt = MODELS[kind], ids(length)
    engine = Engine(model, index=index)
    engine.prefill(0, prompt)
    engine.manager.fork(0, 1)
    engine.manager.fork(0, 2)
    assert engine.manager.stats().in_use == 2
    texts = {seq: list(prompt) for seq in range(3)}
    for step in range(6):
        feeds = {seq: [10 * seq + step] for seq in texts}
        for seq, logits in zip(feeds, engine.step(feeds), strict=True):
            texts[seq] += feeds[seq]
            close(logits, model(texts[seq])[-1:])
        if step == 2:
            engine.manager.fork(1, 3)
            texts[3] = list(texts[1])
    engine.manager.free(0)
    close(engine.step({1: [7, 8, 9]})[0], model(texts[1] + [7, 8, 9])[-3:])


def test_a_missing_copy_is_refused():
    """Copy-on-write is asked for before the forward pass; a write into a shared block does not go through."""
    engine = Engine(MODELS["full"])
    engine.prefill(0, ids(6))
    engine.manager.fork(0, 1)
    engine.cache.bind([1])
    with pytest.raises(
        RequestError, match=r"sequence 1 does not have blocks of its own for 7 tokens; call extend\(1, 1\)"
    ):
        engine.model([3], engine.cache)
    [(source, target)] = engine.manager.extend(1, 1)
    assert source == engine.manager.table(0).blocks[1] and target == engine.manager.table(1).blocks[1]


@pytest.mark.parametrize("kind", MODELS)
@pytest.mark.parametrize("index", [None, *INDEXES.values()], ids=["none", *INDEXES])
@pytest.mark.parametrize("length", [5, 8, 12])
def test_truncate_then_go_on(kind, index, length):
    """As after rejected draft tokens. A cut through an indexed block leaves the block to whoever asks for it again."""
    model, tokens = MODELS[kind], ids(14)
    engine = Engine(model, index=index)
    engine.prefill(0, tokens)
    engine.cache.truncate(0, length)
    changed = tokens[:length] + ids(6, seed=9)
    close(engine.step({0: changed[length:]})[0], model(changed)[length:])
    hit, logits = engine.prefill(1, tokens)
    assert hit == (12 if index else 0)
    close(logits, model(tokens)[hit:])
    with pytest.raises(RequestError, match="sequence 1 holds 14 tokens and cannot be cut to 15"):
        engine.cache.truncate(0, 15)


@pytest.mark.parametrize("index", [None, *INDEXES.values()], ids=["none", *INDEXES])
def test_memory_is_reused_while_a_neighbour_runs(index):
    """A pool with room for two: sequences come and go, the first one stays and is never disturbed."""
    model = MODELS["full"]
    engine = Engine(model, blocks=8, index=index)
    tokens = ids(5)
    engine.prefill(0, tokens)
    for turn in range(6):
        prompt = ids(14, seed=20 + turn)
        assert not engine.manager.can_allocate(prompt + ids(14)) and engine.manager.can_allocate(prompt)
        close(engine.prefill(1, prompt)[1], model(prompt))
        tokens = tokens + [turn]
        close(engine.step({0: [turn]})[0], model(tokens)[-1:])
        engine.manager.free(1)


class ModelWorkload(Workload):
    """A random workload that runs a model and compares every token's logits with those of the sequence alone."""

    def __init__(self, engine: Engine):
        super().__init__(engine.manager)
        self.engine = engine

    def compute(self, seq, new, copies):
        self.engine.cache.copy_blocks(copies)
        self.engine.cache.bind([seq])
        start = len(self.tokens[seq]) - len(new)
        close(self.engine.model(new, self.engine.cache), self.engine.model(self.tokens[seq])[start:])


@pytest.mark.parametrize("kind", MODELS)
@pytest.mark.parametrize("index", [None, *INDEXES.values()], ids=["none", *INDEXES])
def test_logits_on_random_histories(kind, index):
    """Hits, forks, copies, cuts, evictions and reuse in any order, on a pool that is nearly always full."""
    for seed in range(12):
        rng = random.Random(seed)
        load = ModelWorkload(Engine(MODELS[kind], rng.randint(4, 12), rng.randint(1, 4), index, seed))
        for _ in range(30):
            random_step(rng, [load])
            load.check()


def test_what_a_kernel_reads():
    """Block tables int32 [S, widest], padded with 0; slots int64; slot = block * block_size + offset."""
    engine = Engine(MODELS["full"])
    engine.manager.allocate(5, ids(9))
    engine.manager.allocate(3, ids(2))
    engine.cache.bind([5, 3])
    slots = engine.cache.slots(Batch.build([ids(9), ids(2)], [0, 0], [0, 1]))
    tables = engine.cache.block_tables
    first, second = (list(engine.manager.table(seq).blocks) for seq in (5, 3))
    assert tables.dtype == torch.int32 and tables.tolist() == [first, [*second, 0, 0]]
    assert slots.dtype == torch.int64
    assert slots.tolist() == [first[p // 4] * 4 + p % 4 for p in range(9)] + [second[0] * 4, second[0] * 4 + 1]
    assert sorted(first) != list(range(first[0], first[0] + 3))  # scattered, or the tests above show little


def test_wrong_batches_are_refused_before_anything_is_written():
    engine = Engine(MODELS["full"])
    engine.prefill(0, ids(4))
    before = engine.cache.keys.clone()
    with pytest.raises(RequestError, match="row 0 holds 4 tokens, but the batch says its new tokens start at 3"):
        engine.model.run(Batch.build([[1]], [3], [0]), engine.cache)
    with pytest.raises(
        RequestError, match=r"sequence 0 does not have blocks of its own for 5 tokens; call extend\(0, 1\)"
    ):
        engine.model.run(Batch.build([[1]], [4], [0]), engine.cache)
    assert torch.equal(engine.cache.keys, before)
    for call in (engine.manager.free, engine.manager.table, lambda seq: engine.manager.extend(seq, 1)):
        with pytest.raises(RequestError, match="sequence 9 has no block table; allocate it first"):
            call(9)
    for call in (lambda: engine.manager.allocate(0, [1]), lambda: engine.manager.fork(0, 0)):
        with pytest.raises(RequestError, match="sequence 0 has a block table already; free it first"):
            call()
    with pytest.raises(RequestError, match="a pool of 0 blocks of 4 tokens is empty; both must be at least 1"):
        BlockManager(0, 4)
    engine.manager.check_integrity()


def test_bytes_count_tokens_once_and_reservations_are_checked():
    config = small_config()
    manager = BlockManager(10, 4)
    cache = PagedCache(config, manager, dtype=torch.float16)
    assert cache.nbytes == 40 * config.kv_bytes_per_token(2)
    assert not cache.keys.any() and not cache.values.any()  # a padded read multiplies what it finds by 0
    manager.allocate(0, ids(6))
    assert manager.stats().waste == 8 and cache.used_bytes == 0  # reserved, nothing computed
    manager.commit(0, ids(6))
    manager.fork(0, 1)
    assert manager.stats().waste == 2 and cache.used_bytes == 6 * config.kv_bytes_per_token(2)
    with pytest.raises(RequestError, match=r"for 1000000000 x 1000 tokens needs 512,000.0 GB, more than cpu can"):
        cache_manager = BlockManager(1, 1000)
        cache_manager.pool.total = 10**9  # a real pool of that size would take long to build
        PagedCache(config, cache_manager)
