"""The engine gives what `LLM.generate` and an uncached forward pass give, whatever is scheduled with whom."""

from __future__ import annotations

import copy
from itertools import count

import pytest
import torch

from course_lib import LLM, SamplingParams
from course_lib.cache import HashIndex, RadixIndex
from course_lib.engine import (
    ChunkedPrefill,
    ContinuousBatching,
    EarliestDeadline,
    Engine,
    Fcfs,
    Plan,
    Priority,
    Recompute,
    Scheduler,
    StaticBatching,
    Swap,
)
from course_lib.errors import CourseError, RequestError
from course_lib.model import Decoder
from tests.conftest import sharpen, small_config

PROMPTS = ["In the beginning", "To be, or not", "And the king said unto", "O"]
TIGHT = dict(blocks=16, block_size=4, max_num_seqs=4, max_num_batched_tokens=16)


def with_model(llm: LLM, model: Decoder) -> LLM:
    """The same tokenizer in front of another model."""
    twin = copy.copy(llm)
    twin.model, twin.max_model_len = model, model.config.context
    return twin


@pytest.fixture(scope="module", params=["full", "window"])
def random_llm(request, tiny):
    """A random model, once with full attention and once with a sliding window in one of its layers."""
    window = {"architecture": "mistral", "windows": (5, None)} if request.param == "window" else {}
    return with_model(tiny, sharpen(Decoder.random(small_config(**window), seed=1)))


class Script:
    """A sampler that keeps the logits it is shown and draws given tokens."""

    greedy = nucleus = False  # it wants to see each row

    def __init__(self, tokens: list[int]):
        self.tokens, self.logits = tokens, []

    def draw(self, logits: torch.Tensor, seen: list[int]) -> int:
        self.logits.append(logits)
        return self.tokens[len(self.logits) - 1]


def ids(n: int, seed: int) -> list[int]:
    return torch.randint(0, 97, (n,), generator=torch.Generator().manual_seed(seed)).tolist()


def check_logits(engine: Engine, prompts: list[list[int]], new: int = 8, n: int = 1) -> None:
    """Every logit row that a token is drawn from, against a forward pass over the whole sequence without a cache."""
    scripts = []
    for i, prompt in enumerate(prompts):
        engine.add_request(prompt, SamplingParams(n=n, max_tokens=new, ignore_eos=True))
        leader = engine.scheduler.waiting[-1]
        for request in (leader, *leader.siblings):
            request.seq.sampler = Script(ids(new, seed=100 * i + request.index))
            scripts.append((prompt, request.seq.sampler))
    while engine.has_unfinished:
        engine.step()
        engine.manager.check_integrity()
    assert engine.manager.stats().in_use == 0 and not engine._host
    for prompt, script in scripts:
        want = engine.llm.model(prompt + script.tokens[:-1])[len(prompt) - 1 :]
        torch.testing.assert_close(torch.stack(script.logits), want, atol=1e-5, rtol=1e-5)


def preemptions(engine: Engine) -> int:
    return sum(step.preemptions for step in engine.metrics.steps)


@pytest.mark.parametrize("batching", [StaticBatching, ContinuousBatching, ChunkedPrefill])
@pytest.mark.parametrize("order", [Fcfs, Priority, EarliestDeadline])
def test_logits_are_those_of_the_uncached_model(random_llm, batching, order):
    engine = Engine(random_llm, batching=batching(), order=order(), max_num_seqs=3, max_num_batched_tokens=24)
    check_logits(engine, [ids(n, n) for n in (1, 9, 16, 17, 5)])


def test_a_prompt_in_exactly_four_chunks(random_llm):
    engine = Engine(random_llm, block_size=3, max_num_seqs=1, max_num_batched_tokens=5)
    check_logits(engine, [ids(20, 0)])
    assert [step.prefill_tokens for step in engine.metrics.steps][:5] == [5, 5, 5, 5, 0]


@pytest.mark.parametrize("preemption", [Recompute, Swap])
@pytest.mark.parametrize("index", [None, HashIndex, RadixIndex])
@pytest.mark.parametrize("batching", [ContinuousBatching, ChunkedPrefill])
def test_preempted_and_resumed_equals_uninterrupted(random_llm, preemption, index, batching):
    engine = Engine(random_llm, preemption=preemption(), index=index and index(), batching=batching(), **TIGHT)
    check_logits(engine, [ids(12, seed) for seed in range(4)], new=12)
    assert preemptions(engine) > 0


@pytest.mark.parametrize("index", [HashIndex, RadixIndex])
def test_with_a_prefix_hit_equals_without(random_llm, index):
    engine = Engine(random_llm, index=index(), block_size=4, max_num_seqs=2)
    common = ids(13, 0)
    check_logits(engine, [common + ids(n, n) for n in (1, 4, 7)] + [common])
    check_logits(engine, [common])  # now the whole prompt but its last block is there
    assert [record.cached_tokens for record in engine.metrics.requests] == [0, 0, 12, 12, 12]


@pytest.mark.parametrize("index", [None, HashIndex])
@pytest.mark.parametrize("blocks", [64, 14])
def test_forked_completions_do_not_disturb_each_other(random_llm, index, blocks):
    """n = 3, prompts that end within a block or fill it; in the small pool forks are preempted."""
    engine = Engine(random_llm, index=index and index(), blocks=blocks, block_size=4, preemption=Swap())
    check_logits(engine, [ids(10, 1), ids(8, 2)], new=9, n=3)
    assert (preemptions(engine) > 0) == (blocks == 14)


def test_blocks_are_swapped_out_before_a_copy_overwrites_them(random_llm):
    """Both prompts fill a pool of 4 blocks; the first fork's copy-on-write takes a block of the second prompt."""
    engine = Engine(random_llm, blocks=4, block_size=4, preemption=Swap())
    check_logits(engine, [ids(6, 1), ids(8, 2)], new=4, n=2)
    assert engine.metrics.steps[1].preemptions == 2


SETTINGS = {
    "static": dict(batching=StaticBatching()),
    "continuous": dict(batching=ContinuousBatching(), max_num_seqs=2),
    "chunked": dict(batching=ChunkedPrefill(), max_num_seqs=3, max_num_batched_tokens=3),
    "recompute": dict(blocks=12, block_size=4, preemption=Recompute()),
    "swap": dict(blocks=12, block_size=4, preemption=Swap()),
    "priority": dict(order=Priority(), max_num_seqs=1),
    "deadline": dict(order=EarliestDeadline(), index=HashIndex(), max_num_seqs=2),
}


@pytest.mark.parametrize("name", SETTINGS)
def test_greedy_tokens_are_those_of_the_offline_engine(tiny, name):
    """Compared where the margin is clear (40): at the first difference, if any, the two tokens' logits are a tie."""
    params = SamplingParams(temperature=0, max_tokens=24)
    engine = Engine(tiny, **SETTINGS[name])
    for got, want in zip(engine.generate(PROMPTS, params), tiny.generate(PROMPTS, params), strict=True):
        a, b = got.outputs[0].token_ids, want.outputs[0].token_ids
        differ = next((i for i, (x, y) in enumerate(zip(a, b, strict=False)) if x != y), None)
        if differ is None:
            assert a == b and got.outputs[0].text == want.outputs[0].text
            assert got.outputs[0].finish_reason == want.outputs[0].finish_reason
        else:
            logits = tiny.model(got.prompt_token_ids + a[:differ])[-1]
            assert abs(logits[a[differ]] - logits[b[differ]]) < 1e-4


def sampled(engine: Engine, prompt: str, **params) -> list[list[int]]:
    [output] = engine.generate(prompt, SamplingParams(temperature=0.8, max_tokens=12, **params))
    return [completion.token_ids for completion in output.outputs]


def test_n_completions_equal_n_requests_with_their_seeds(tiny):
    """Completion i of n draws with seed + i."""
    together = sampled(Engine(tiny, block_size=4), PROMPTS[0], n=3, seed=7)
    alone = [sampled(Engine(tiny, block_size=4), PROMPTS[0], seed=7 + i)[0] for i in range(3)]
    assert together == alone
    assert len({tuple(tokens) for tokens in together}) == 3


def test_a_request_draws_the_same_tokens_in_any_company(tiny):
    alone = sampled(Engine(tiny), PROMPTS[0], seed=3)[0]
    params = [SamplingParams(temperature=0.8, max_tokens=12, seed=seed) for seed in (3, 1, 2, 3)]
    crowded = Engine(tiny, blocks=10, block_size=4, max_num_batched_tokens=8, max_num_seqs=4)
    assert crowded.generate(PROMPTS, params)[0].outputs[0].token_ids == alone
    assert preemptions(crowded) > 0


def drain(engine: Engine, request_id: str) -> tuple[list[int], str, str | None]:
    """Token ids, streamed text and finish reason of a request with one completion."""
    outputs = []
    while engine.has_unfinished:
        outputs += [output for output in engine.step() if output.request_id == request_id]
    return [o.token_id for o in outputs], "".join(o.text for o in outputs), outputs[-1].finish_reason


def test_streamed_text_adds_up_and_a_stop_string_never_appears(tiny):
    whole = tiny.generate(PROMPTS[0], SamplingParams(temperature=0, max_tokens=24))[0].outputs[0].text
    stop = whole[len(whole) // 2 :][:4]
    params = SamplingParams(temperature=0, max_tokens=24, stop=stop)
    want = tiny.generate(PROMPTS[0], params)[0].outputs[0]
    engine = Engine(tiny)
    got = drain(engine, engine.add_request(PROMPTS[0], params))
    assert got == (want.token_ids, want.text, "stop")
    assert stop not in got[1] and whole.startswith(got[1])


def test_log_probabilities_do_not_depend_on_the_company(tiny):
    """Alone, and in small chunks, preempted, beside others with other wishes."""
    [mine, *others] = [
        SamplingParams(temperature=0.8, seed=i, max_tokens=12, logprobs=k) for i, k in enumerate([4, None, 20, 0])
    ]
    alone = Engine(tiny).generate(PROMPTS[0], mine)[0].outputs[0]
    crowded = Engine(tiny, blocks=10, block_size=4, max_num_batched_tokens=8, max_num_seqs=4)
    outputs = [output.outputs[0] for output in crowded.generate(PROMPTS, [mine, *others])]
    assert preemptions(crowded) > 0 and outputs[0].token_ids == alone.token_ids
    for got, want in zip(outputs[0].logprobs, alone.logprobs, strict=True):
        assert [one.rank for one in got.values()] == [one.rank for one in want.values()]
        assert {i: one.logprob for i, one in got.items()} == pytest.approx(
            {i: one.logprob for i, one in want.items()}, abs=1e-4
        )
    assert [output.logprobs and len(output.logprobs) for output in outputs] == [12, None, 12, 12]


def test_log_probabilities_come_at_once_and_their_offset_finds_the_text(tiny):
    """The text is held back while a stop string or a character is open. What the string cut off lies behind the end."""
    text = "a\N{EURO SIGN}b stop c"
    tokens = tiny.tokenizer.encode(text)
    engine = Engine(tiny)
    engine.add_request(PROMPTS[0], SamplingParams(max_tokens=len(tokens), stop=" stop", logprobs=0))
    engine.scheduler.waiting[0].seq.sampler = Script(tokens)
    outputs = []
    while engine.has_unfinished:
        outputs += engine.step()
    assert all(list(output.logprobs) == [output.token_id] for output in outputs)
    assert "".join(output.text for output in outputs) == "a\N{EURO SIGN}b" and outputs[-1].finish_reason == "stop"
    assert not outputs[0].text  # it might have been the beginning of the stop string
    shown = [output.logprobs[output.token_id].decoded_token for output in outputs]
    assert shown[:5] == ["a", "\\xe2", "\\x82", "\\xac", "b"] and "".join(shown[5:]).startswith(" stop")
    assert [output.text_offset for output in outputs][:6] == [0, 1, 1, 1, 2, 3]


def test_a_salt_separates_what_the_prefix_cache_shares(tiny):
    engine, prompt = Engine(tiny, index=HashIndex()), ids(33, 0)
    for salt, cached in [("a", 0), ("b", 0), ("a", 32), ("", 0)]:
        engine.add_request(prompt, SamplingParams(max_tokens=1), cache_salt=salt)
        engine.step()
        assert engine.metrics.requests[-1].cached_tokens == cached


def test_generation_is_clamped_at_the_context_limit(tiny):
    """2: limit 10, prompt 5, 10 new tokens asked: 5 come, and the reason is given."""
    short = copy.copy(tiny)
    short.max_model_len = 10
    engine = Engine(short, blocks=3, block_size=3)
    [output] = engine.generate([[5, 6, 7, 8, 9]], SamplingParams(temperature=0, max_tokens=10, ignore_eos=True))
    assert len(output.outputs[0].token_ids) == 5
    assert output.outputs[0].stop_reason == "the context limit of 10 tokens is reached"


@pytest.mark.parametrize("steps", [0, 1, 4])
@pytest.mark.parametrize("n", [1, 3])
def test_cancelling_frees_the_blocks_at_once_and_disturbs_nobody(tiny, steps, n):
    """Before it is admitted, within its prompt, and while it decodes."""
    params = SamplingParams(temperature=0, max_tokens=10, ignore_eos=True)
    alone = Engine(tiny).generate([[5, 6, 7]], params)[0].outputs[0].token_ids
    engine = Engine(tiny, block_size=4, max_num_batched_tokens=10, max_num_seqs=4)
    kept = engine.add_request([5, 6, 7], params)
    gone = engine.add_request(list(range(10, 30)), SamplingParams(n=n, max_tokens=10, ignore_eos=True))
    tokens = [output.token_id for _ in range(steps) for output in engine.step() if output.request_id == kept]
    assert engine.abort(gone) and not engine.abort(gone)
    assert engine.manager.stats().in_use == (0 if steps == 0 else -(-(2 + steps) // 4))
    engine.manager.check_integrity()
    assert tokens + drain(engine, kept)[0] == alone
    assert engine.manager.stats().in_use == 0
    assert [r.finish_reason for r in engine.metrics.requests] == ["abort"] * n + ["length"]


def test_a_full_host_changes_no_logits(random_llm):
    engine = Engine(random_llm, preemption=Swap(host_blocks=6), **TIGHT)
    check_logits(engine, [ids(12, seed) for seed in range(4)], new=12)
    assert {"preempted", "swapped_out", "swapped_in"} <= {event.kind for event in engine.metrics.events}


def test_cancelling_a_swapped_request_drops_its_host_memory(tiny):
    engine = Engine(tiny, preemption=Swap(), **TIGHT)
    requests = [engine.add_request(ids(12, i), SamplingParams(max_tokens=12, ignore_eos=True)) for i in range(4)]
    while not engine._host:
        assert engine.step()
    engine.abort(requests[-1])
    assert not engine._host
    while engine.has_unfinished:
        engine.step()


def test_what_cannot_be_served_is_refused_before_any_work(tiny):
    """19, through the front door; nothing of the call stays behind."""
    engine = Engine(tiny, blocks=2, block_size=4)
    params = SamplingParams(max_tokens=5)
    with pytest.raises(RequestError, match="the pool has 2"):
        engine.add_request(list(range(8)), params)
    with pytest.raises(RequestError, match="the pool has 2"):
        engine.generate([[1, 2], list(range(8))], params)
    with pytest.raises(RequestError, match="empty"):
        engine.add_request([], params)
    assert not engine.has_unfinished and not engine.scheduler.waiting and engine.step() == []
    engine.add_request([1, 2], params)
    with pytest.raises(RequestError, match="idle"):
        engine.generate([[1, 2]], params)


def test_a_scheduler_that_feeds_nobody_is_named(tiny):
    """A learner's scheduler may do that; the loop must not spin for ever."""

    class Idle(Scheduler):
        def schedule(self, now):
            return Plan()

    engine = Engine(tiny, scheduler=Idle)
    engine.add_request("O")
    with pytest.raises(CourseError, match="fed no request"):
        engine.step()


def test_metrics_agree_with_what_happened(tiny):
    engine = Engine(tiny, block_size=4, max_num_seqs=2, max_num_batched_tokens=6)
    params = SamplingParams(temperature=0, max_tokens=5, ignore_eos=True)
    names = [engine.add_request(list(range(20, 20 + n)), params, priority=n) for n in (10, 7, 3)]
    while engine.has_unfinished:
        engine.step()
    steps, events = list(engine.metrics.steps), list(engine.metrics.events)
    assert [step.step for step in steps] == list(range(engine.steps))
    assert sum(step.prefill_tokens for step in steps) == 20
    assert sum(step.decode_tokens for step in steps) == 3 * 4  # the last token is not fed back
    assert all(step.prefill_tokens + step.decode_tokens <= 6 and step.running <= 2 for step in steps)
    assert all(step.blocks.free + step.blocks.cached + step.blocks.in_use == step.blocks.total for step in steps)
    assert all(0 <= step.waste < 1 and min(step.scheduling_s, step.forward_s, step.sampling_s) > 0 for step in steps)
    records = {record.request_id: record for record in engine.metrics.requests}
    for name, prompt in zip(names, (10, 7, 3), strict=True):
        trace = [event for event in events if event.request_id == name]
        assert [event.kind for event in trace if event.kind != "scheduled"] == ["arrival", *["token"] * 5, "finished"]
        assert sum(event.tokens for event in trace) == prompt + 4
        record = records[name]
        assert (record.prompt_tokens, record.priority, record.finish_reason) == (prompt, prompt, "length")
        assert 0 <= record.queue_time <= record.times.ttft <= record.times.latency
        assert record.times.token_times == tuple(event.time for event in trace if event.kind == "token")
        first = next(event for event in trace if event.kind == "scheduled")
        assert record.queue_time == first.time - record.times.arrival


def test_the_seconds_of_a_step_go_to_the_right_part(tiny, monkeypatch):
    """On a clock that advances by one when it is read: once for each part, and once for the tokens that were drawn."""
    engine = Engine(tiny)
    engine.add_request("O", SamplingParams(n=3))
    monkeypatch.setattr("course_lib.engine.engine.perf_counter", count().__next__)
    engine.step()
    [step] = engine.metrics.steps
    assert (step.time, step.scheduling_s, step.forward_s, step.sampling_s) == (0, 2, 1, 2)


def test_the_trace_shows_preemption(tiny):
    for preemption, kinds in [(Recompute(), {"preempted"}), (Swap(), {"swapped_out", "swapped_in"})]:
        engine = Engine(tiny, preemption=preemption, **TIGHT)
        engine.generate([ids(12, i) for i in range(4)], SamplingParams(max_tokens=12, ignore_eos=True))
        seen = {event.kind for event in engine.metrics.events}
        assert seen == kinds | {"arrival", "scheduled", "token", "finished"}
        assert sum(record.preemptions for record in engine.metrics.requests) == preemptions(engine)
