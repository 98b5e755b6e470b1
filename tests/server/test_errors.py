"""Bad requests: OpenAI's error object, the right class in the client, the field named."""

from __future__ import annotations

import httpx
import openai
import pytest

from tests.server.test_api import PROMPT


def is_openai_shaped(response) -> bool:
    error = response.json()["error"]
    return set(error) == {"message", "type", "param", "code"} and bool(error["message"])


@pytest.mark.parametrize(
    ("fields", "param", "says"),
    [
        ({"temperature": -1}, "temperature", "0 (greedy) or more"),
        ({"top_p": 0}, "top_p", "above 0"),
        ({"n": 0}, "n", "at least 1"),
        ({"n": 65}, "n", "max_num_seqs is 64"),
        ({"n": 10**9}, "n", "at most 128"),
        ({"n": "2"}, "n", "valid integer"),
        ({"max_tokens": 0}, "max_tokens", "at least 1"),
        ({"stop": ""}, "stop", "empty"),
        ({"seed": 2**63}, "seed", "less than"),
        ({"min_p": 2}, "min_p", "between 0 and 1"),
        ({"priority": 2**31}, "priority", "less than"),
        ({"prompt": ""}, "prompt", "empty"),
        ({"prompt": []}, "prompt", "prompt"),
        ({"prompt": [5000]}, "prompt", "0 .. 2047"),
        ({"prompt": [7] * 1024}, "prompt", "shorten it to at most 1023"),
        ({"logprobs": 0}, "logprobs", "not supported"),
        ({"best_of": 2}, "best_of", "not supported"),
        ({"presence_penalty": 0.5}, "presence_penalty", "not supported"),
        ({"no_such_field": 1}, "no_such_field", "not supported"),
        ({"stream_options": {"include_usage": True}}, "stream_options", "stream"),
        ({"messages": []}, "messages", "not supported"),
    ],
)
@pytest.mark.parametrize("stream", [False, True], ids=["whole", "stream"])
def test_a_bad_field_is_named(shared, fields, param, says, stream):
    if stream and "stream_options" in fields:
        fields = {"stream_options": {"include_usage": 1}}
        says = "boolean"
    with pytest.raises(openai.BadRequestError) as caught:
        shared.client.post(
            "/completions", cast_to=object, body={"model": "tiny", "prompt": PROMPT, "stream": stream} | fields
        )
    assert caught.value.param == param and says in caught.value.message
    assert caught.value.type == "invalid_request_error"
    assert shared.worker.held == 0


def test_an_unknown_model_is_not_found(shared):
    with pytest.raises(openai.NotFoundError) as caught:
        shared.complete(model="gpt-9", prompt=PROMPT)
    assert (caught.value.param, caught.value.code) == ("model", "model_not_found")
    assert "'tiny'" in caught.value.message


@pytest.mark.parametrize(
    ("messages", "param", "says"),
    [
        ([{"role": "user", "content": "hello"}], "model", "no chat template"),
        ([], "messages", "at least 1"),
        ([{"role": "oracle", "content": "hello"}], "messages", "role"),
        ([{"role": "user", "content": [{"type": "image_url", "image_url": {"url": "x"}}]}], "messages", "text"),
    ],
)
def test_bad_conversations(shared, messages, param, says):
    with pytest.raises(openai.BadRequestError) as caught:
        shared.chat(model="tiny", messages=messages)
    assert caught.value.param == param and says in caught.value.message


def test_what_can_never_fit_the_pool_is_refused(start):
    server = start(blocks=4)
    with pytest.raises(openai.BadRequestError, match="ask for at most 65 tokens"):
        server.complete(model="tiny", prompt=PROMPT, max_tokens=100)
    assert server.complete(model="tiny", prompt=PROMPT, max_tokens=3).choices


def test_one_bad_prompt_of_several_leaves_nothing_behind(start):
    server = start(braked=True)
    with pytest.raises(openai.BadRequestError, match="outside 0"):
        server.complete(model="tiny", prompt=[[5, 6], [9999]])
    assert not server.engine.has_unfinished and server.worker.held == 0


@pytest.mark.parametrize(
    ("method", "path", "content", "status"),
    [
        ("POST", "/v1/completions", b"{", 400),
        ("POST", "/v1/completions", b"[]", 400),
        ("POST", "/v1/completions", b'{"model": "tiny", "prompt": "a", "temperature": NaN}', 400),
        ("POST", "/v1/completions", b"", 400),
        ("POST", "/v1/completions", rb'{"model": "tiny", "prompt": "half a pair: \ud800"}', 400),
        ("POST", "/v1/completions", rb'{"model": "tiny", "prompt": "a", "\ud800": 1}', 400),
        ("POST", "/v1/completions", rb'{"model": "\ud800", "prompt": "a"}', 404),
        ("POST", "/v1/chat/completions", b'{"model": "tiny", "messages": [1]}', 400),
        ("POST", "/v1/embeddings", b"{}", 404),
        ("GET", "/v1/completions", None, 405),
    ],
)
def test_every_refusal_has_openais_form(shared, method, path, content, status):
    headers = {"Content-Type": "application/json"}
    response = httpx.request(method, shared.url + path, content=content, headers=headers, timeout=30)
    assert response.status_code == status and is_openai_shaped(response)
