"""Bad requests: OpenAI's error object, the right class in the client, the field named."""

from __future__ import annotations

import asyncio
import json

import httpx
import openai
import pytest
from pydantic import ValidationError
from starlette.exceptions import HTTPException

from course_lib.server.limits import MAX_BODY_BYTES, BodyLimit
from course_lib.server.protocol import CompletionRequest
from tests.server.test_api import PROMPT

JSON = {"Content-Type": "application/json"}


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
        ({"stop_token_ids": [2**64]}, "stop_token_ids", "less than"),
        ({"min_p": 2}, "min_p", "between 0 and 1"),
        ({"priority": 2**31}, "priority", "less than"),
        ({"prompt": ""}, "prompt", "empty"),
        ({"prompt": []}, "prompt", "at least 1 item"),
        ({"prompt": [5000]}, "prompt", "0 .. 2047"),
        ({"prompt": [7] * 1024}, "prompt", "shorten it to at most 1023"),
        ({"logprobs": 6}, "logprobs", "less than or equal to 5"),
        ({"logprobs": True}, "logprobs", "valid integer"),
        ({"top_logprobs": 2}, "top_logprobs", "not supported"),
        ({"cache_salt": ""}, "cache_salt", "at least 1 character"),
        ({"stop": ["a"] * 17}, "stop", "at most 16"),
        ({"n": 10**4299, "prompt": ["a"] * 20}, "n", "less than"),
        ({"temperature": 10**400}, "temperature", "valid number"),
        ({"prompt": [[1], []]}, "prompt", "empty"),
        ({"prompt": ["a", 1]}, "prompt", "valid"),
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
        ("POST", "/v1/completions", rb'{"model": "tiny", "prompt": "a", "cache_salt": "\ud800"}', 400),
        (
            "POST",
            "/v1/chat/completions",
            rb'{"model": "tiny", "messages": [{"role": "user", "content": "\ud800"}]}',
            400,
        ),
        ("POST", "/v1/completions", b'{"model": "tiny", "prompt": ' + b"[" * 500_000, 400),
        ("POST", "/v1/completions", b'{"model": "tiny", "prompt": "a", "n": 1' + b"0" * 5000 + b"}", 400),
        ("POST", "/v1/completions", b'{"model": "tiny", "prompt": "\xff"}', 400),
        ("POST", "/v1/chat/completions", b'{"model": "tiny", "messages": [1]}', 400),
        ("POST", "/v1/embeddings", b"{}", 404),
        ("GET", "/v1/completions", None, 405),
    ],
)
def test_every_refusal_has_openais_form(shared, method, path, content, status):
    response = httpx.request(method, shared.url + path, content=content, headers=JSON, timeout=30)
    assert response.status_code == status and is_openai_shaped(response)


def test_the_shape_of_a_body_costs_one_error(shared):
    """A body within the limit, wrong in each of its elements, is refused by the first: an error for each would take
    the event loop minutes."""
    many = 2**20 // 8
    bodies = [
        ({"prompt": [1.5] * many}, "prompt"),
        ({"prompt": [[1.5]] * many}, "prompt"),
        ({"prompt": "a", "stop_token_ids": ["a"] * many}, "stop_token_ids"),
        ({"prompt": "a", "stop": [1] * many}, "stop"),
        ({"prompt": "a"} | {f"x{i:05}": 1 for i in range(many // 2)}, "x00000"),
    ]
    for body, param in bodies:
        with pytest.raises(ValidationError) as caught:
            CompletionRequest.model_validate({"model": "tiny"} | body)
        assert caught.value.error_count() < 10
        response = shared.post("/v1/completions", json={"model": "tiny"} | body)
        assert response.status_code == 400 and response.json()["error"]["param"] == param


def test_a_body_that_is_too_long_is_not_kept():
    """An endless one: the application is stopped at the first piece beyond the limit."""
    pieces = 0

    async def receive():
        nonlocal pieces
        pieces += 1
        return {"type": "http.request", "body": b"a" * 2**16, "more_body": True}

    async def application(scope, receive, send):
        while True:
            await receive()

    with pytest.raises(HTTPException):
        asyncio.run(BodyLimit(application)({"type": "http"}, receive, None))
    assert pieces == MAX_BODY_BYTES // 2**16 + 1


def test_a_body_that_is_too_long_is_413(shared):
    fits = {"model": "tiny", "prompt": [7] * 1000, "max_tokens": 1, "user": ""}
    fits["user"] = "a" * (MAX_BODY_BYTES - len(json.dumps(fits)))
    for padding, status in [("", 200), ("a", 413)]:
        body = json.dumps(fits | {"user": fits["user"] + padding}).encode()
        response = shared.post("/v1/completions", content=body, headers=JSON)
        assert response.status_code == status
    assert is_openai_shaped(response) and f"more than {MAX_BODY_BYTES} bytes" in response.json()["error"]["message"]


def test_extreme_values_do_not_end_the_engine(start):
    """What passes the checks is sampled, however strange; the server goes on."""
    server = start()
    for fields in (
        {"temperature": 1e308},
        {"temperature": 1.1e-5, "min_p": 1e-320},
        {"top_p": 1e-320},
        {"repetition_penalty": 1e308, "temperature": 1e-5},
        {"repetition_penalty": 1e-308},
        {"top_k": 2**62, "seed": -(2**63), "n": 3},
        {"seed": 2**63 - 1, "n": 3},
        {"max_tokens": 2**62, "prompt": [7] * 1020},
        {"stop": ["\ud800", "a" * 100_000], "stop_token_ids": [-1, 2**62], "cache_salt": "\0" * 100_000},
        {"priority": -(2**31)},
        {"logprobs": 5, "temperature": 1e308},
    ):
        body = {"model": "tiny", "prompt": [7] * 9, "max_tokens": 3} | fields
        assert server.post("/v1/completions", content=json.dumps(body), headers=JSON).status_code == 200, fields
    assert server.worker.failure is None and server.worker.held == 0
