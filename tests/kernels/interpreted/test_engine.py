"""The engine on the triton backend gives what it gives on the torch backend: logits of any batch, tokens of any run."""

from __future__ import annotations

import copy

import pytest
import torch

from course_kernels.launch import KernelError
from course_lib import LLM, SamplingParams
from course_lib.batch import Batch
from course_lib.cache import BlockManager, ContiguousCache, HashIndex, PagedCache, RingCache
from course_lib.engine import ChunkedPrefill, Engine, Swap
from course_lib.engine.graphs import FixedDecode
from course_lib.errors import ModelError
from course_lib.model import Decoder
from course_lib.windowed import windowed
from tests.conftest import sharpen, small_config

QWEN = dict(architecture="qwen3", qk_norm=True, heads=6, kv_heads=2)
MISTRAL = dict(architecture="mistral", windows=(5, None), qkv_bias=True)


def ids(n: int, seed: int) -> list[int]:
    return torch.randint(0, 97, (n,), generator=torch.Generator().manual_seed(seed)).tolist()


@pytest.fixture(scope="module", params=[QWEN, MISTRAL], ids=["norms", "windows"])
def twins(request) -> tuple[Decoder, Decoder]:
    """One random model on both backends; norms and biases random too, as their weights of 1 would hide a mistake."""
    model = Decoder.random(small_config(**request.param), seed=1)
    generator = torch.Generator().manual_seed(2)
    state = {k: v if v.dim() > 1 else torch.rand(v.shape, generator=generator) for k, v in model.state_dict().items()}
    model.load_state_dict(state)
    return sharpen(model), copy.deepcopy(model).prepare("triton")


@pytest.fixture(scope="module")
def tiny() -> LLM:
    return LLM("tiny", device="cpu", backend="torch")


@pytest.fixture(scope="module")
def llms(twins, tiny) -> list[LLM]:
    """tiny's tokenizer before each of the twins."""
    pair = [copy.copy(tiny), copy.copy(tiny)]
    for llm, llm.model in zip(pair, twins, strict=True):
        llm.max_model_len = llm.model.config.context
    return pair


def paged(model: Decoder) -> PagedCache:
    """Three sequences whose blocks are interleaved. Unused slots hold NaN for the kernels, which may not look there."""
    cache = PagedCache(model.config, BlockManager(12, 16), model.dtype)
    if model.backend.name == "triton":
        cache.keys.fill_(torch.nan), cache.values.fill_(torch.nan)
    for seq in range(3):
        cache.manager.allocate(seq, [0])
    cache.bind(range(3))
    return cache


def feed(model: Decoder, cache, tokens: list[list[int]]) -> torch.Tensor:
    """Logits of every new token; sequence i gets tokens[i], perhaps none."""
    rows = [row for row, new in enumerate(tokens) if new]
    if isinstance(cache, PagedCache):
        for row in rows:
            assert cache.manager.extend(row, len(tokens[row])) is not None
    batch = Batch.build([tokens[row] for row in rows], [cache.lengths[row] for row in rows], rows)
    return model.run(batch, cache, logits_for=range(len(batch)))


# Prompts that begin together; a chunk, a decode and a prompt's rest; decodes; a decode before and after a chunk; and
# the second sequence alone, whose row is not the first.
STEPS = [(20, 1, 7), (3, 1, 17), (1, 1, 1), (1, 4, 1), (1, 1, 1), (0, 1, 0)]


@pytest.mark.parametrize("cache_of", [lambda model: model.new_cache(3, 45), paged], ids=["contiguous", "paged"])
def test_any_batch_has_the_same_logits(twins, cache_of):
    caches = [cache_of(model) for model in twins]
    for i, counts in enumerate(STEPS):
        tokens = [ids(n, seed=10 * i + row) for row, n in enumerate(counts)]
        want, got = (feed(model, cache, tokens) for model, cache in zip(twins, caches, strict=True))
        torch.testing.assert_close(got, want, atol=1e-4, rtol=1e-4, msg=lambda text, i=i: f"step {i}: {text}")


def test_imposed_windows_have_the_same_logits(twins):
    """The torch backend reads a ring, the kernels a contiguous cache with the window applied; sinks they have not."""
    models = [windowed(model, 6, layers=[0]) for model in twins]
    caches = [model.new_cache(3, 45) for model in models]
    assert [type(cache) for cache in caches] == [RingCache, ContiguousCache]
    for i, counts in enumerate(STEPS[:4]):
        tokens = [ids(n, seed=10 * i + row) for row, n in enumerate(counts)]
        want, got = (feed(model, cache, tokens) for model, cache in zip(models, caches, strict=True))
        torch.testing.assert_close(got, want, atol=1e-4, rtol=1e-4, msg=lambda text, i=i: f"step {i}: {text}")
    with pytest.raises(ModelError, match="the triton backend has no attention sinks; use torch"):
        windowed(twins[1], 6, sinks=1)


def test_a_contiguous_cache_keeps_its_limit(twins):
    cache = twins[1].new_cache(3, 45)
    assert (cache.capacity, cache.keys.shape[1]) == (45, 3 * 48)


@pytest.mark.parametrize("dtype, atol", [(torch.float32, 1e-4), (torch.float16, 0.05)])
def test_tiny_decodes_through_the_kernels(tiny, dtype, atol):
    """The embedded model, a prompt and five decode steps. Its logits reach 20: float16 rounds them by 0.008."""
    model = Decoder(tiny.model.config)
    model.load_state_dict(tiny.model.state_dict())
    model = model.to(dtype).prepare("triton")
    tokens, rest = tiny.tokenizer.encode("And the king said unto the"), ids(5, seed=3)
    want = tiny.model(tokens + rest)
    cache = model.new_cache(capacity=len(tokens) + len(rest))
    got = torch.cat([model(tokens, cache), *(model([token], cache) for token in rest)])
    torch.testing.assert_close(got, want, atol=atol, rtol=0)
    assert model.backend.name == "triton"


def outputs(llm: LLM, make, params: list[SamplingParams]) -> list[list[int]]:
    prompts = [ids(20, 7), ids(3, 8), ids(20, 7) + [1, 2]]
    return [output.token_ids for answer in make(llm).generate(prompts, params) for output in answer.outputs]


MIXED = [
    SamplingParams(temperature=0, max_tokens=5),
    SamplingParams(temperature=0.7, top_p=0.9, n=2, seed=5, max_tokens=4, logprobs=2),
    SamplingParams(temperature=1.3, top_k=20, seed=6, max_tokens=5),
]


def small_engine(llm: LLM) -> Engine:
    """Chunks, a prefix cache, and so few blocks that requests are swapped out."""
    settings = dict(batching=ChunkedPrefill(), max_num_batched_tokens=16, max_num_seqs=4, preemption=Swap())
    return Engine(llm, blocks=4, block_size=16, index=HashIndex(), **settings)


@pytest.mark.parametrize("make", [lambda llm: llm, small_engine], ids=["LLM", "Engine"])
def test_greedy_and_drawn_tokens_are_the_same(llms, make):
    want, got = (outputs(llm, make, MIXED) for llm in llms)
    assert got == want
    assert len({len(tokens) for tokens in got}) > 1


def test_a_step_of_fixed_size_is_the_same_step(twins):
    """Filled up with rows that store nothing and attend to nothing, from tensors that an earlier step has left full."""
    plain, model = twins
    caches = [paged(plain), paged(model)]
    for each, cache in zip(twins, caches, strict=True):
        feed(each, cache, [ids(20, 1), ids(1, 2), ids(7, 3)])
    held = int((~caches[1].keys.isnan()).sum())
    fixed = FixedDecode(model, caches[1], rows=4, blocks=4)
    for i, who in enumerate([(0, 1, 2), (2,), (0, 1)]):
        tokens = [ids(1, 10 * i + row) if row in who else [] for row in range(3)]
        want = feed(plain, caches[0], tokens)
        for row in who:
            caches[1].manager.extend(row, 1)
        batch = Batch.build([tokens[row] for row in who], [caches[1].lengths[row] for row in who], who)
        fixed.load(batch)
        assert not fixed.context_lens[len(who) :].any(), "padding would read keys"
        with torch.inference_mode():
            got = fixed.compute()[: len(who)]
        caches[1].commit(batch)
        torch.testing.assert_close(got, want, atol=1e-4, rtol=1e-4)
        held += len(who) * caches[1].keys[:, 0].numel()
        assert int((~caches[1].keys.isnan()).sum()) == held, "padding has stored a key"


def test_the_engine_replays_decode_steps(llms, monkeypatch):
    """A GPU records and replays; here the same steps are computed anew. Steps with prompts run as they are."""
    computed = []

    def record(compute, pool):
        return lambda: computed.append(1) or compute()

    monkeypatch.setattr("course_lib.engine.graphs.record", record)
    monkeypatch.setattr("torch.cuda.graph_pool_handle", lambda: (0, 0))
    monkeypatch.setattr("course_lib.engine.engine._recordable", lambda model, asked: asked)
    want = outputs(llms[0], lambda llm: Engine(llm, max_num_seqs=4), MIXED)
    got = outputs(llms[1], lambda llm: Engine(llm, max_num_seqs=4, cuda_graphs=True), MIXED)
    assert got == want
    assert len(computed) == 4, "five steps, the first of which has the prompts"


def test_what_the_kernels_cannot_run_is_one_sentence(llms):
    with pytest.raises(ModelError, match="computes in float32 or float16 here and the model is torch.float64; use to"):
        Decoder.random(small_config(), dtype=torch.float64, backend="triton")
    with pytest.raises(KernelError, match="the triton backend: head_dim is 24 and must be 16, 32"):
        Decoder.random(small_config(head_dim=24), backend="triton")
    with pytest.raises(ModelError, match="takes a hidden size of up to 32768, not 40000"):
        Decoder.random(small_config(hidden=40000, layers=0), backend="triton")
    with pytest.raises(KernelError, match="the triton backend: block_size is 8 and must be a power of two"):
        Engine(llms[1], block_size=8)
