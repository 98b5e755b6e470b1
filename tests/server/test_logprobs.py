"""Log-probabilities through the real `openai` client: OpenAI's two shapes, whole and streamed, the engine's values."""

from __future__ import annotations

import openai
import pytest

from course_lib import SamplingParams
from tests.server.test_api import MESSAGES, PROMPT
from tests.serving.test_engine import Script

SAMPLED = dict(seed=7, n=2, max_tokens=12)
STOPPED = dict(temperature=0, max_tokens=60, stop=[",", " no such text"])


def close(values):
    """Rounding differs where a prefix hit changes the shape of a step."""
    return pytest.approx(values, abs=1e-4)


def expected(llm, prompt, k: int, **params) -> list:
    """The offline engine's completions."""
    [output] = llm.generate(prompt, SamplingParams(logprobs=k, **params))
    return output.outputs


def check_completion(choice_logprobs, text: str, want) -> None:
    """One choice of /v1/completions against a completion of the offline engine."""
    tokens, offsets = choice_logprobs.tokens, choice_logprobs.text_offset
    drawn = [entry[token] for token, entry in zip(want.token_ids, want.logprobs, strict=True)]
    assert tokens == [one.decoded_token for one in drawn]
    assert choice_logprobs.token_logprobs == close([one.logprob for one in drawn])
    for got, entry in zip(choice_logprobs.top_logprobs, want.logprobs, strict=True):
        assert got == close({one.decoded_token: one.logprob for one in entry.values()})
    assert text == want.text and offsets == sorted(offsets)
    inside = [(token, at) for token, at in zip(tokens, offsets, strict=True) if at < len(text)]
    assert inside and all(text.startswith(token, at) for token, at in inside)


def gathered(stream, field: str) -> tuple[list[str], list[dict[str, list]]]:
    """Texts and log-probabilities of a stream's completions, put together from its chunks."""
    texts, lists = ["", ""], [{}, {}]
    for chunk in stream:
        for choice in chunk.choices:
            texts[choice.index] += (choice.text if field == "text" else choice.delta.content) or ""
            if choice.logprobs is not None:
                for name, values in choice.logprobs:
                    lists[choice.index].setdefault(name, []).extend(values or [])
    return texts, lists


@pytest.mark.parametrize("params", [SAMPLED, STOPPED], ids=["n", "stop"])
@pytest.mark.parametrize("k", [0, 3])
def test_completions(shared, params, k):
    answer = shared.complete(model="tiny", prompt=PROMPT, logprobs=k, **params)
    texts, lists = gathered(shared.complete(model="tiny", prompt=PROMPT, logprobs=k, stream=True, **params), "text")
    want = expected(shared.llm, PROMPT, k, **params)
    for i, (choice, completion) in enumerate(zip(answer.choices, want, strict=True)):
        check_completion(choice.logprobs, choice.text, completion)
        check_completion(type(choice.logprobs)(**lists[i]), texts[i], completion)
    assert answer.usage.completion_tokens == sum(len(choice.logprobs.tokens) for choice in answer.choices)


def test_what_a_stop_string_cut_off_lies_behind_the_end(shared):
    choice = shared.complete(model="tiny", prompt=PROMPT, logprobs=0, **STOPPED).choices[0]
    *inside, last = choice.logprobs.text_offset
    assert choice.stop_reason == "," == choice.logprobs.tokens[-1] and last == len(choice.text)
    assert all(offset < len(choice.text) for offset in inside)


def check_chat(content, text: str, want, k: int) -> None:
    """One choice of /v1/chat/completions against a completion of the offline engine."""
    for got, token, entry in zip(content, want.token_ids, want.logprobs, strict=True):
        assert (got.token, got.logprob) == (entry[token].decoded_token, close(entry[token].logprob))
        best = sorted((one for one in entry.values()), key=lambda one: one.rank)[:k]
        assert [one.token for one in got.top_logprobs] == [one.decoded_token for one in best]
        assert [one.logprob for one in got.top_logprobs] == close([one.logprob for one in best])
    if want.stop_reason is None:
        assert bytes(byte for got in content for byte in got.bytes or []).decode(errors="replace") == text


@pytest.mark.parametrize("params", [SAMPLED, STOPPED], ids=["n", "stop"])
@pytest.mark.parametrize("k", [0, 4])
def test_chats(chatty, params, k):
    ask = dict(model=chatty.llm.name, messages=MESSAGES, logprobs=True, top_logprobs=k, **params)
    answer, (texts, lists) = chatty.chat(**ask), gathered(chatty.chat(**ask, stream=True), "content")
    want = expected(chatty.llm, [chatty.llm._chat_ids(MESSAGES)], k, **params)
    for i, (choice, completion) in enumerate(zip(answer.choices, want, strict=True)):
        assert choice.message.content == texts[i] == completion.text
        check_chat(choice.logprobs.content, choice.message.content, completion, k)
        check_chat(lists[i]["content"], texts[i], completion, k)
    assert answer.usage.completion_tokens == sum(len(choice.logprobs.content) for choice in answer.choices)


def test_half_characters_and_the_end_token_in_a_chat(chatty, monkeypatch):
    """A euro sign is three tokens here: each has its own byte. The end token has a name, no bytes and no text."""
    tokens = [*chatty.llm.tokenizer.encode("\N{EURO SIGN}"), chatty.llm.model.config.eos_ids[0]]
    assert len(tokens) == 4
    monkeypatch.setattr("course_lib.llm.Sampler", lambda *_: Script(tokens))
    ask = dict(model=chatty.llm.name, messages=MESSAGES, logprobs=True)
    answers = [chatty.chat(**ask), chatty.chat(**ask, stream=True)]
    choice = answers[0].choices[0]
    texts, lists = gathered(answers[1], "content")
    assert choice.message.content == texts[0] == "\N{EURO SIGN}" and choice.finish_reason == "stop"
    for content in (choice.logprobs.content, lists[0]["content"]):
        assert [(one.token, one.bytes) for one in content] == [
            ("\\xe2", [0xE2]),
            ("\\x82", [0x82]),
            ("\\xac", [0xAC]),
            ("<|endoftext|>", None),
        ]


def test_nobody_gets_what_nobody_asked_for(shared, chatty):
    assert shared.complete(model="tiny", prompt=PROMPT, max_tokens=2).choices[0].logprobs is None
    for fields in ({}, {"logprobs": False}, {"logprobs": False, "top_logprobs": 0}):
        answer = chatty.chat(model=chatty.llm.name, messages=MESSAGES, max_tokens=2, **fields)
        assert answer.choices[0].logprobs is None
        chunks = chatty.chat(model=chatty.llm.name, messages=MESSAGES, max_tokens=2, stream=True, **fields)
        assert all(choice.logprobs is None for chunk in chunks for choice in chunk.choices)


@pytest.mark.parametrize(
    ("fields", "param", "says"),
    [
        ({"logprobs": True, "top_logprobs": 21}, "top_logprobs", "less than or equal to 20"),
        ({"logprobs": True, "top_logprobs": -1}, "top_logprobs", "greater than or equal to 0"),
        ({"top_logprobs": 3}, "top_logprobs", "without logprobs"),
        ({"logprobs": 3}, "logprobs", "boolean"),
    ],
)
def test_bad_fields_of_a_chat(chatty, fields, param, says):
    with pytest.raises(openai.BadRequestError) as caught:
        chatty.chat(model=chatty.llm.name, messages=MESSAGES, **fields)
    assert caught.value.param == param and says in caught.value.message
