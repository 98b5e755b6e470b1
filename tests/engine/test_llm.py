"""The offline engine, on `tiny`: batching, chunking, limits, stops, seeds, streaming, metrics."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from course_lib import LLM, SamplingParams
from course_lib.engine import Engine
from course_lib.errors import RequestError
from course_lib.weights.loading import ASSETS

PROMPTS = ["In the beginning", "To be, or not", "And the king said unto", "O"]
GREEDY = SamplingParams(temperature=0, max_tokens=12)


def texts(outputs) -> list[str]:
    return [output.outputs[0].text for output in outputs]


def test_greedy_tokens_are_the_arg_max_of_uncached_logits(tiny):
    """Every generated token against a forward pass without a cache; near ties are compared by logit, not by id (40)."""
    output = tiny.generate(PROMPTS[0], GREEDY)[0]
    known = list(output.prompt_token_ids)
    for token in output.outputs[0].token_ids:
        logits = tiny.model(known)[-1]
        assert logits[token] >= logits.max() - 1e-4
        known.append(token)


def test_batched_requests_draw_what_they_draw_alone(tiny):
    """Per-request seeds: batch mates change neither the random stream nor, beyond rounding, the distribution."""
    params = [SamplingParams(temperature=0.7, seed=i, max_tokens=10) for i in range(len(PROMPTS))]
    together = tiny.generate(PROMPTS, params)
    alone = [tiny.generate(prompt, one)[0] for prompt, one in zip(PROMPTS, params, strict=True)]
    assert texts(together) == texts(alone)


def test_prefill_in_chunks_changes_nothing(tiny):
    small = LLM("tiny", device="cpu", max_batch_tokens=3)
    assert texts(small.generate(PROMPTS, GREEDY)) == texts(tiny.generate(PROMPTS, GREEDY))


def test_generation_is_clamped_at_the_context_limit_and_says_so():
    """2, 27: limit 10, prompt 5, 10 new tokens asked: 5 come, and the reason is given."""
    llm = LLM("tiny", device="cpu", max_model_len=10)
    completion = llm.generate([[5, 6, 7, 8, 9]], SamplingParams(temperature=0, max_tokens=10, ignore_eos=True))[
        0
    ].outputs[0]
    assert len(completion.token_ids) == 5
    assert completion.finish_reason == "length"
    assert completion.stop_reason == "the context limit of 10 tokens is reached"


def test_the_whole_context_can_be_used(tiny):
    """The last token needs no cache slot: a full context must neither overflow nor stop early."""
    context = tiny.model.config.context
    ids = [7] * (context - 2)
    completion = tiny.generate([ids], SamplingParams(temperature=0, max_tokens=99, ignore_eos=True))[0].outputs[0]
    assert len(completion.token_ids) == 2


@pytest.mark.parametrize(
    "prompt, says",
    [
        ([], "the prompt is empty"),
        ("", "the prompt is empty"),
        ([10**6], "outside 0 .."),
        ([-1], "outside 0 .."),
        ([1] * 5000, "the prompt has 5000 tokens and the limit for prompt and completion is"),
    ],
)
def test_prompts_that_cannot_be_served_are_refused_in_one_sentence(tiny, prompt, says):
    with pytest.raises(RequestError, match=says):
        tiny.generate([prompt] if isinstance(prompt, list) else prompt, GREEDY)


def test_no_prompts_give_no_outputs(tiny):
    assert tiny.generate([], GREEDY) == []


def test_parameters_must_match_prompts(tiny):
    with pytest.raises(RequestError, match="2 sampling parameters were given for 4 prompts"):
        tiny.generate(PROMPTS, [GREEDY, GREEDY])


def test_limits_of_the_engine_are_checked():
    with pytest.raises(RequestError, match="max_model_len is 99999"):
        LLM("tiny", device="cpu", max_model_len=99_999)


def test_n_completions_are_not_copies_of_one_another(tiny):
    """17: a first token sampled once and broadcast would make the starts equal."""
    outputs = tiny.generate(PROMPTS[3], SamplingParams(n=16, temperature=5.0, seed=0, max_tokens=1))[0].outputs
    assert len({tuple(o.token_ids) for o in outputs}) > 8
    again = tiny.generate(PROMPTS[3], SamplingParams(n=16, temperature=5.0, seed=0, max_tokens=1))[0].outputs
    assert [o.token_ids for o in outputs] == [o.token_ids for o in again]


def test_unseeded_requests_differ_but_a_seeded_engine_repeats():
    hot = SamplingParams(temperature=3.0, max_tokens=8)
    first, second = LLM("tiny", device="cpu", seed=5), LLM("tiny", device="cpu", seed=5)
    a, b = first.generate(["O", "O"], hot)
    assert a.outputs[0].token_ids != b.outputs[0].token_ids
    assert texts(second.generate(["O", "O"], hot)) == texts([a, b])


def test_stop_token_ends_and_is_kept_in_the_ids_only(tiny):
    free = tiny.generate(PROMPTS[0], GREEDY)[0].outputs[0]
    stop = free.token_ids[4]
    first = free.token_ids.index(stop)
    stopped = tiny.generate(PROMPTS[0], SamplingParams(temperature=0, max_tokens=12, stop_token_ids=[stop]))[0].outputs[
        0
    ]
    assert stopped.token_ids == free.token_ids[: first + 1]
    assert (stopped.finish_reason, stopped.stop_reason) == ("stop", stop)
    assert stopped.text == tiny.tokenizer.decode(free.token_ids[:first])


def test_stop_string_is_cut_even_when_it_spans_tokens_and_never_streams_out(tiny):
    free = tiny.generate(PROMPTS[0], GREEDY)[0].outputs[0].text
    stop = free[7:10]
    params = SamplingParams(temperature=0, max_tokens=12, stop=stop)
    stopped = tiny.generate(PROMPTS[0], params)[0].outputs[0]
    assert stopped.text == free[: free.find(stop)]
    assert (stopped.finish_reason, stopped.stop_reason) == ("stop", stop)
    assert "".join(tiny.stream(PROMPTS[0], params)) == stopped.text


def test_stream_adds_up_to_generate(tiny):
    pieces = list(tiny.stream(PROMPTS[1], GREEDY))
    assert len(pieces) > 3
    assert "".join(pieces) == tiny.generate(PROMPTS[1], GREEDY)[0].outputs[0].text


def test_broken_characters_stream_as_they_decode(tiny):
    """Random bytes are seldom valid UTF-8: held back while they may become a character, replaced at the end."""
    params = SamplingParams(temperature=50.0, seed=3, max_tokens=40, ignore_eos=True)
    output = tiny.generate("O", params)[0].outputs[0]
    assert "".join(tiny.stream("O", params)) == output.text == tiny.tokenizer.decode(output.token_ids)


def test_end_token_stops_unless_ignored(tiny):
    eos = tiny.model.config.eos_ids[0]
    norm = tiny.model.norm.weight
    saved = norm.data.clone()
    try:
        norm.data.zero_()  # all logits equal: arg max is id 0, the end token
        assert eos == 0
        stopped = tiny.generate("O", GREEDY)[0].outputs[0]
        ignored = tiny.generate("O", SamplingParams(temperature=0, max_tokens=3, ignore_eos=True))[0].outputs[0]
    finally:
        norm.data = saved
    assert (stopped.token_ids, stopped.finish_reason, stopped.text) == ([0], "stop", "")
    assert (ignored.token_ids, ignored.finish_reason) == ([0, 0, 0], "length")


def test_metrics_are_ordered_and_add_up(tiny):
    metrics = tiny.generate(PROMPTS[0], GREEDY)[0].metrics
    assert len(metrics.token_times) == 12 and len(metrics.itl) == 11
    assert metrics.ttft > 0 and min(metrics.itl) > 0
    assert metrics.latency == pytest.approx(metrics.ttft + 11 * metrics.tpot)
    assert tiny.generate("O", SamplingParams(max_tokens=1))[0].metrics.tpot is None


def test_a_model_without_a_chat_template_says_what_to_do(tiny):
    with pytest.raises(RequestError, match="no chat template"):
        tiny.chat([{"role": "user", "content": "hi"}])


def test_streaming_several_completions_is_refused(tiny):
    with pytest.raises(RequestError, match="n is 2"):
        list(tiny.stream("O", SamplingParams(n=2)))


# --- log-probabilities ----------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def reference():
    """Log-probabilities [V], float64, of the token after a list of ids: transformers' model, its own softmax."""
    transformers = pytest.importorskip("transformers")
    model = transformers.AutoModelForCausalLM.from_pretrained(ASSETS / "tiny").float().eval()

    def of(known: list[int]) -> np.ndarray:
        with torch.no_grad():
            logits = model(torch.tensor([known])).logits[0, -1].double().numpy()
        shifted = logits - logits.max()
        return shifted - np.log(np.exp(shifted).sum())

    return of


def check_logprobs(reference, prompt: list[int], completion, k: int) -> None:
    """Of each token: its own and the k largest, with their ranks where no near tie leaves them open."""
    known = list(prompt)
    for token, entry in zip(completion.token_ids, completion.logprobs, strict=True):
        want = reference(known)
        assert next(iter(entry)) == token and len(entry) in (k, k + 1)
        for i, one in entry.items():
            assert one.logprob == pytest.approx(want[i], abs=1e-4)
            assert 1 + (want > want[i] + 1e-4).sum() <= one.rank <= (want > want[i] - 1e-4).sum()
        best = sorted((one.logprob for one in entry.values() if one.rank <= k), reverse=True)
        np.testing.assert_allclose(best, np.sort(want)[::-1][:k], atol=1e-4)
        known.append(token)


@pytest.mark.parametrize("run", [LLM.generate, lambda llm, *ask: Engine(llm).generate(*ask)], ids=["LLM", "Engine"])
@pytest.mark.parametrize("k", [0, 3])
def test_log_probabilities_are_those_of_the_model(tiny, reference, run, k):
    """Neither temperature nor filters nor the penalty changes them, though each changes what is drawn."""
    params = SamplingParams(
        n=2, seed=4, temperature=1.5, top_k=40, min_p=0.001, repetition_penalty=1.5, max_tokens=10, logprobs=k
    )
    [output] = run(tiny, PROMPTS[0], params)
    for completion in output.outputs:
        check_logprobs(reference, output.prompt_token_ids, completion, k)
    assert any(one.rank > k for each in output.outputs for entry in each.logprobs for one in entry.values())


def test_log_probabilities_name_their_tokens(tiny):
    """A greedy text is made of the tokens of rank 1."""
    [output] = tiny.generate(PROMPTS[0], SamplingParams(temperature=0, max_tokens=12, logprobs=1))
    entries = output.outputs[0].logprobs
    assert "".join(one.decoded_token for entry in entries for one in entry.values()) == output.outputs[0].text


def test_who_asks_for_no_log_probabilities_pays_nothing(tiny, monkeypatch):
    monkeypatch.setattr("course_lib.sequence.top_logprobs", None)
    assert tiny.generate(PROMPTS[0], GREEDY)[0].outputs[0].logprobs is None
