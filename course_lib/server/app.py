"""The routes: OpenAI's API in front of an `EngineWorker`."""

from __future__ import annotations

import asyncio
import contextlib
import json
import time
from collections.abc import AsyncIterator, Iterator
from typing import Any

from fastapi import FastAPI, Request
from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse, Response, StreamingResponse
from prometheus_client import CONTENT_TYPE_LATEST
from starlette.exceptions import HTTPException

from course_lib.errors import RequestError
from course_lib.server.protocol import Answer, ChatAnswer, ChatRequest, CompletionRequest, SharedRequest, usage
from course_lib.server.worker import Disconnected, EngineWorker, Overloaded, Stream, Unavailable

RETRY_AFTER_S = 1
CLIENT_CLOSED_REQUEST = 499  # nginx's; nobody is there to read it


def build_app(worker: EngineWorker) -> FastAPI:
    """The application. Its lifespan starts and stops the worker."""

    @contextlib.asynccontextmanager
    async def lifespan(_: FastAPI):
        worker.start()
        yield
        await worker.stop()

    # The pages of FastAPI's documentation load scripts from elsewhere.
    app = FastAPI(title="course serve", lifespan=lifespan, docs_url=None, redoc_url=None)
    llm, started = worker.engine.llm, int(time.time())
    for kind in (ApiError, Overloaded, Unavailable, Disconnected, RequestValidationError, HTTPException, Exception):
        app.add_exception_handler(kind, respond)

    @app.get("/health")
    async def health() -> Response:
        if reason := worker.unavailable:
            raise Unavailable(reason)
        return JSONResponse({"status": "ok"})

    @app.get("/metrics")
    async def metrics() -> Response:
        return Response(worker.monitor.text(), media_type=CONTENT_TYPE_LATEST)

    @app.get("/v1/models")
    async def models() -> dict[str, Any]:
        entry = {"id": llm.name, "object": "model", "created": started, "owned_by": "course"}
        return {"object": "list", "data": [entry | {"max_model_len": llm.max_model_len}]}

    @app.post("/v1/completions")
    async def completions(body: CompletionRequest, request: Request) -> Response:
        check_model(body)
        prompts = [body.prompt] if isinstance(body.prompt, str) or isinstance(body.prompt[0], int) else body.prompt
        with naming_the_field(body):
            ids = [await encode(prompt) if isinstance(prompt, str) else prompt for prompt in prompts]
        return await answer(body, ids, 16, Answer(llm.name), request)

    @app.post("/v1/chat/completions")
    async def chat(body: ChatRequest, request: Request) -> Response:
        check_model(body)
        with naming_the_field(body):
            text = llm.tokenizer.render_chat([message.plain() for message in body.messages])
            ids = await encode(text, special=False)  # the template wrote the special tokens
        room = min(llm.max_model_len, worker.engine.manager.capacity + 1) - len(ids)
        return await answer(body, [ids], max(room, 1), ChatAnswer(llm.name), request)

    def check_model(body: SharedRequest) -> None:
        if body.model != llm.name:
            message = f"the model {body.model!r} is not served here; this server has {llm.name!r}"
            raise ApiError(404, message, "model", "model_not_found")
        if body.stream_options is not None and not body.stream:
            raise ApiError(400, "stream_options is allowed only with stream: true", "stream_options")

    async def encode(text: str, special: bool = True) -> list[int]:
        """In a thread: a long text takes the tokenizer a while, and the loop serves others."""
        try:
            text.encode()
        except UnicodeEncodeError:
            raise RequestError("the text has half of a surrogate pair; send whole characters") from None
        return await asyncio.to_thread(llm.tokenizer.encode, text, special)

    async def answer(body: SharedRequest, ids: list[list[int]], default: int, form: Answer, request: Request):
        with naming_the_field(body):
            stream = await worker.submit(ids, body.sampling(default), body.priority)
        stream.watch(request.receive)
        prompt_tokens = sum(map(len, ids))
        if body.stream:
            with_usage = body.stream_options is not None and body.stream_options.include_usage
            events = server_sent(chunks(stream, form, prompt_tokens, with_usage), stream)
            return StreamingResponse(events, media_type="text/event-stream", headers={"Cache-Control": "no-cache"})
        return JSONResponse(await whole(stream, form, prompt_tokens))

    return app


async def whole(stream: Stream, form: Answer, prompt_tokens: int) -> dict[str, Any]:
    """The response to a request that does not stream."""
    texts, last, tokens = [""] * stream.seats, {}, 0
    try:
        async for index, output in stream:
            texts[index] += output.text
            last[index] = output
            tokens += 1
    finally:
        stream.close()
    choices = [form.choice(i, text, last[i]) for i, text in enumerate(texts)]
    return form.body(choices, usage(prompt_tokens, tokens), form.whole)


async def chunks(stream: Stream, form: Answer, prompt_tokens: int, with_usage: bool) -> AsyncIterator[dict[str, Any]]:
    """The chunks of a streamed response. A step whose text is held back has none."""
    tokens = 0
    for index in range(stream.seats):
        if opening := form.opening(index):
            yield form.body(opening, None, form.chunk)
    async for index, output in stream:
        tokens += 1
        if output.text or output.finish_reason:
            yield form.body([form.delta(index, output)], None, form.chunk)
    if with_usage:
        yield form.body([], usage(prompt_tokens, tokens), form.chunk)


async def server_sent(bodies: AsyncIterator[dict[str, Any]], stream: Stream) -> AsyncIterator[str]:
    """Server-sent events. The status has been sent: an error becomes an event, without the [DONE] after it."""
    try:
        async for body in bodies:
            yield f"data: {json.dumps(body)}\n\n"
        yield "data: [DONE]\n\n"
    except Unavailable as error:
        yield f"data: {json.dumps(error_body(str(error), 'server_error'))}\n\n"
    except Disconnected:
        return
    finally:
        stream.close()


# --- errors -------------------------------------------------------------------------------------------------------


class ApiError(Exception):
    """An answer in OpenAI's form. param: the field it is about."""

    def __init__(self, status: int, message: str, param: str | None = None, code: str | None = None):
        super().__init__(message)
        self.status, self.param, self.code = status, param, code


@contextlib.contextmanager
def naming_the_field(body: SharedRequest) -> Iterator[None]:
    """Turn a RequestError into a 400. Its sentence names the field it is about first; if none, it is the prompt."""
    try:
        yield
    except RequestError as error:
        prompt = "messages" if isinstance(body, ChatRequest) else "prompt"
        fields = type(body).model_fields
        param = next((word for word in str(error).split() if word in fields), prompt)
        raise ApiError(400, str(error), param) from None


def error_body(message: str, kind: str, param: str | None = None, code: str | None = None) -> dict[str, Any]:
    """OpenAI's error object."""
    return {"error": {"message": message, "type": kind, "param": param, "code": code}}


async def respond(request: Request, error: Exception) -> Response:
    """The answer to a request that ended in an error, whatever the error is."""
    headers = None
    match error:
        case ApiError():
            status, body = error.status, error_body(str(error), "invalid_request_error", error.param, error.code)
        case RequestValidationError():
            status, body = 400, error_body(*_problem(error))
        case Overloaded():
            status, body = 429, error_body(str(error), "rate_limit_error", None, "overloaded")
            headers = {"Retry-After": str(RETRY_AFTER_S)}
        case Unavailable():
            status, body = 503, error_body(str(error), "server_error", None, "unavailable")
        case Disconnected():
            status, body = CLIENT_CLOSED_REQUEST, error_body(str(error), "server_error")
        case HTTPException():  # no such route, wrong method
            what = f"{request.method} {request.url.path}: {error.detail}"
            status, body = error.status_code, error_body(what, "invalid_request_error")
        case _:
            status, body = 500, error_body("the server failed; its log says why", "server_error")
    # ASCII with escapes: an error may quote what UTF-8 cannot encode.
    return Response(json.dumps(body), status, headers, "application/json")


def _problem(error: RequestValidationError) -> tuple[str, str, str | None]:
    """(sentence, OpenAI's type, field) of pydantic's deepest error: of a union's branches, the one that fits best."""
    kind = "invalid_request_error"
    problem = max(error.errors(), key=lambda problem: len(problem["loc"]))
    path = [str(part) for part in problem["loc"][1:]]
    if problem["type"] == "json_invalid":
        return "the body is not valid JSON", kind, None
    if not path:
        return "the body must be a JSON object, sent as application/json", kind, None
    if problem["type"] == "extra_forbidden":
        return f"{path[-1]} is not supported by this server; leave it out", kind, path[0]
    return f"{'.'.join(path)}: {problem['msg']}", kind, path[0]
