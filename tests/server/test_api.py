"""The real `openai` client, unchanged: what the server answers is what the offline engine generates."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

import pytest

from course_lib import SamplingParams
from tests.server.conftest import eventually

PROMPT = "In the beginning"


def offline(llm, prompt, **params) -> list[tuple[str, str]]:
    [output] = llm.generate(prompt, SamplingParams(**params))
    return [(each.text, each.finish_reason) for each in output.outputs]


def choices(completion) -> list[tuple[str, str]]:
    assert [choice.index for choice in completion.choices] == list(range(len(completion.choices)))
    return [(choice.text, choice.finish_reason) for choice in completion.choices]


def collect(stream, text_of) -> tuple[dict[int, str], dict[int, str]]:
    """(texts, finish reasons) by index; a reason comes once, with the last chunk."""
    texts, reasons = {}, {}
    for chunk in stream:
        for choice in chunk.choices:
            assert choice.index not in reasons
            texts[choice.index] = texts.get(choice.index, "") + (text_of(choice) or "")
            if choice.finish_reason:
                reasons[choice.index] = choice.finish_reason
    return texts, reasons


def test_the_model_is_listed(shared):
    [model] = shared.client.models.list().data
    assert model.id == "tiny"


@pytest.mark.parametrize(
    "params",
    [
        {"temperature": 0, "max_tokens": 12},
        {"seed": 7, "max_tokens": 12, "top_p": 0.9, "n": 3},
        {"temperature": 0, "max_tokens": 40, "stop": ["\n", "zzz"]},
        {"seed": 3, "max_tokens": 12, "top_k": 5, "min_p": 0.02, "repetition_penalty": 1.3},
    ],
    ids=["greedy", "n", "stop", "vLLM's"],
)
def test_answers_and_streams_are_the_offline_engines(shared, params):
    named = {key: params[key] for key in params if key not in ("top_k", "min_p", "repetition_penalty")}
    extra = {key: params[key] for key in params if key not in named}
    expected = offline(shared.llm, PROMPT, **params)

    def ask(**more):
        return shared.complete(model="tiny", prompt=PROMPT, extra_body=extra, **named, **more)

    assert choices(ask()) == expected
    texts, reasons = collect(ask(stream=True), lambda choice: choice.text)
    assert [(texts[i], reasons[i]) for i in range(len(expected))] == expected


def test_stop_string_is_named_and_left_out(shared):
    [choice] = shared.complete(model="tiny", prompt=PROMPT, temperature=0, max_tokens=60, stop=",").choices
    assert choice.finish_reason == "stop" and choice.stop_reason == "," and "," not in choice.text


def test_several_prompts_as_text_and_as_ids(shared):
    prompts = [PROMPT, "To be"]
    expected = [each for prompt in prompts for each in offline(shared.llm, prompt, n=2, seed=1, max_tokens=8)]
    assert choices(shared.complete(model="tiny", prompt=prompts, n=2, seed=1, max_tokens=8)) == expected
    ids = [shared.llm.tokenizer.encode(prompt) for prompt in prompts]
    assert choices(shared.complete(model="tiny", prompt=ids, n=2, seed=1, max_tokens=8)) == expected
    assert choices(shared.complete(model="tiny", prompt=ids[0], n=2, seed=1, max_tokens=8)) == expected[:2]


def test_usage_counts_the_prompt_once_and_every_token(shared):
    prompt = len(shared.llm.tokenizer.encode(PROMPT))
    ask = dict(model="tiny", prompt=PROMPT, n=2, max_tokens=5, extra_body={"ignore_eos": True})
    answer = shared.complete(**ask).usage
    assert (answer.prompt_tokens, answer.completion_tokens, answer.total_tokens) == (prompt, 10, prompt + 10)
    *others, last = shared.complete(**ask, stream=True, stream_options={"include_usage": True})
    assert last.usage == answer and last.choices == []
    assert all(chunk.usage is None and chunk.choices for chunk in others)
    assert all(chunk.usage is None for chunk in shared.complete(**ask, stream=True))


def test_stream_is_server_sent_events_up_to_done(shared):
    response = shared.post("/v1/completions", json={"model": "tiny", "prompt": PROMPT, "stream": True, "max_tokens": 3})
    assert response.headers["content-type"].startswith("text/event-stream")
    events = response.text.split("\n\n")
    assert all(event.startswith("data: {") for event in events[:-2]) and len(events) > 2
    assert events[-2:] == ["data: [DONE]", ""]


def test_fields_that_ask_for_nothing_are_taken(shared):
    neutral = dict(presence_penalty=0, frequency_penalty=0.0, logit_bias={}, echo=False, logprobs=None, user="me")
    shared.complete(model="tiny", prompt=PROMPT, max_tokens=1, **neutral)


def test_concurrent_requests_get_the_tokens_they_get_alone(shared):
    cases = [{"seed": i, "max_tokens": 5 + 3 * i, "temperature": i % 3 * 0.5, "n": 1 + i % 2} for i in range(10)]
    prompts = [PROMPT * (1 + i % 4) for i in range(10)]
    expected = [offline(shared.llm, prompt, **case) for prompt, case in zip(prompts, cases, strict=True)]

    def ask(i):
        return choices(shared.complete(model="tiny", prompt=prompts[i], extra_body={"priority": i % 2}, **cases[i]))

    with ThreadPoolExecutor(10) as pool:
        assert list(pool.map(ask, range(10))) == expected


def test_lower_priority_is_admitted_first(start):
    server = start(braked=True, max_num_seqs=1)
    ended = []

    def ask(name, priority):
        server.complete(model="tiny", prompt=PROMPT, max_tokens=1, extra_body={"priority": priority})
        ended.append(name)

    with ThreadPoolExecutor(3) as pool:
        for held, (name, priority) in enumerate([("first", 0), ("late", 5), ("urgent", -5)], 1):
            pool.submit(ask, name, priority)
            eventually(lambda held=held: server.worker.held == held and server.entered == 1)
        for done in range(1, 4):
            server.allow(1)
            eventually(lambda done=done: len(ended) == done)
    assert ended == ["first", "urgent", "late"]


# --- chat ---------------------------------------------------------------------------------------------------------


MESSAGES = [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "Who art thou?"}]


def test_chat_answers_and_streams_what_the_template_asks(chatty):
    params = dict(seed=5, n=2, max_tokens=10)
    [output] = chatty.llm.generate([chatty.llm._chat_ids(MESSAGES)], SamplingParams(**params))
    expected = [(each.text, each.finish_reason) for each in output.outputs]
    answer = chatty.chat(model=chatty.llm.name, messages=MESSAGES, **params)
    assert [(each.message.content, each.finish_reason) for each in answer.choices] == expected
    assert all(each.message.role == "assistant" for each in answer.choices)
    assert answer.usage.prompt_tokens == len(output.prompt_token_ids)
    chunks = list(chatty.chat(model=chatty.llm.name, messages=MESSAGES, stream=True, **params))
    assert [chunk.choices[0].delta.role for chunk in chunks[:2]] == ["assistant"] * 2
    texts, reasons = collect(chunks, lambda choice: choice.delta.content)
    assert [(texts[i], reasons[i]) for i in range(2)] == expected


def test_chat_takes_parts_and_the_newer_name_of_max_tokens(chatty):
    parts = [{"role": "user", "content": [{"type": "text", "text": "Who art"}, {"type": "text", "text": " thou?"}]}]
    ask = dict(model=chatty.llm.name, temperature=0, max_completion_tokens=7, extra_body={"ignore_eos": True})
    answer = chatty.chat(messages=parts, **ask)
    assert answer.usage.completion_tokens == 7
    assert answer.choices == chatty.chat(messages=[MESSAGES[1]], **ask).choices


def test_chat_goes_on_to_the_context_limit_by_default(chatty):
    long = [{"role": "user", "content": "word " * 480}]
    answer = chatty.chat(model=chatty.llm.name, messages=long, extra_body={"ignore_eos": True})
    assert answer.usage.total_tokens == chatty.llm.max_model_len
    assert answer.choices[0].finish_reason == "length"


def test_chat_goes_on_to_the_pools_limit_by_default(start, chatty):
    server = start(chatty.llm, blocks=4)
    answer = server.chat(model=server.llm.name, messages=MESSAGES, extra_body={"ignore_eos": True})
    assert answer.usage.total_tokens == 4 * 16 + 1  # the last token needs no slot


@pytest.mark.parametrize("index", ["radix", "none"])
def test_answers_do_not_depend_on_the_prefix_cache(start, index):
    server = start(prefix_cache=index)
    expected = offline(server.llm, PROMPT * 8, temperature=0, max_tokens=4)
    for _ in range(2):
        assert choices(server.complete(model="tiny", prompt=PROMPT * 8, temperature=0, max_tokens=4)) == expected
    assert (server.engine.manager.stats().hit_tokens > 0) == (index == "radix")
