"""The routes: OpenAI's API in front of an `EngineWorker`."""

from __future__ import annotations

import asyncio
import contextlib
import json
import time
from collections.abc import AsyncIterator
from typing import Any

from fastapi import FastAPI, Request
from fastapi.responses import JSONResponse, Response, StreamingResponse
from prometheus_client import CONTENT_TYPE_LATEST

from course_lib.errors import RequestError
from course_lib.server.answers import Answer, ChatAnswer, usage
from course_lib.server.errors import (
    HANDLED,
    ApiError,
    Disconnected,
    Unavailable,
    error_body,
    naming_the_field,
    respond,
)
from course_lib.server.limits import BodyLimit
from course_lib.server.protocol import ChatRequest, CompletionRequest, SharedRequest
from course_lib.server.stream import Stream
from course_lib.server.worker import EngineWorker


def build_app(worker: EngineWorker) -> FastAPI:
    """The application. Its lifespan starts and stops the worker."""

    @contextlib.asynccontextmanager
    async def lifespan(_: FastAPI):
        worker.start()
        yield
        await worker.stop()

    # The pages of FastAPI's documentation load scripts from elsewhere.
    app = FastAPI(title="course serve", lifespan=lifespan, docs_url=None, redoc_url=None)
    app.add_middleware(BodyLimit)
    llm, started = worker.engine.llm, int(time.time())
    for kind in HANDLED:
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
        prompts = [body.prompt] if isinstance(body.prompt, str) or isinstance(body.prompt[0], int) else body.prompt
        check(body, len(prompts))
        with naming_the_field(body):
            ids = [await encode(prompt) if isinstance(prompt, str) else prompt for prompt in prompts]
        return await answer(body, ids, 16, Answer(llm.name), request)

    @app.post("/v1/chat/completions")
    async def chat(body: ChatRequest, request: Request) -> Response:
        check(body, 1)
        with naming_the_field(body):
            text = llm.tokenizer.render_chat([message.plain() for message in body.messages])
            ids = await encode(text, special=False)  # the template wrote the special tokens
        room = min(llm.max_model_len, worker.engine.manager.capacity + 1) - len(ids)
        return await answer(body, [ids], max(room, 1), ChatAnswer(llm.name, llm.tokenizer, body.top_logprobs), request)

    def check(body: SharedRequest, prompts: int) -> None:
        """What can be refused before any work is done for the request."""
        if body.model != llm.name:
            message = f"the model {body.model!r} is not served here; this server has {llm.name!r}"
            raise ApiError(404, message, "model", "model_not_found")
        if body.stream_options is not None and not body.stream:
            raise ApiError(400, "stream_options is allowed only with stream: true", "stream_options")
        with naming_the_field(body):
            worker.check_room(prompts, body.n)

    async def encode(text: str, special: bool = True) -> list[int]:
        """In a thread: a long text takes the tokenizer a while, and the loop serves others."""
        try:
            text.encode()
        except UnicodeEncodeError:
            raise RequestError("the text has half of a surrogate pair; send whole characters") from None
        return await asyncio.to_thread(llm.tokenizer.encode, text, special)

    async def answer(body: SharedRequest, ids: list[list[int]], default: int, form: Answer, request: Request):
        if await request.is_disconnected():  # while its text was encoded
            raise Disconnected()
        settings = dict(priority=body.priority, cache_salt=body.cache_salt or "")
        with naming_the_field(body):
            stream = await worker.submit(ids, body.sampling(default), request.receive, **settings)
        prompt_tokens = sum(map(len, ids))
        if body.stream:
            with_usage = body.stream_options is not None and body.stream_options.include_usage
            events = server_sent(chunks(stream, form, prompt_tokens, with_usage), stream)
            return StreamingResponse(events, media_type="text/event-stream", headers={"Cache-Control": "no-cache"})
        return JSONResponse(await whole(stream, form, prompt_tokens))

    return app


async def whole(stream: Stream, form: Answer, prompt_tokens: int) -> dict[str, Any]:
    """The response to a request that does not stream."""
    outputs = [[] for _ in range(stream.seats)]
    try:
        async for index, output in stream:
            outputs[index].append(output)
    finally:
        stream.close()
    choices = [form.choice(i, each) for i, each in enumerate(outputs)]
    return form.body(choices, usage(prompt_tokens, sum(map(len, outputs))), form.whole)


async def chunks(stream: Stream, form: Answer, prompt_tokens: int, with_usage: bool) -> AsyncIterator[dict[str, Any]]:
    """The chunks of a streamed response. A step whose text is held back has none, unless it has log-probabilities."""
    tokens = 0
    for index in range(stream.seats):
        if opening := form.opening(index):
            yield form.body(opening, None, form.chunk)
    async for index, output in stream:
        tokens += 1
        if output.text or output.finish_reason or output.logprobs:
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
