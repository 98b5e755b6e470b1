"""One streamed completion of an OpenAI-compatible server, timed as its client sees it.

httpx, and not the `openai` package, which is built on the same kind of client but also makes an object of every chunk:
measured 1.4 times the CPU time per chunk. At hundreds of streams a client's own time is taken for the server's.
"""

from __future__ import annotations

import json
from time import perf_counter

import httpx

from course_lib.errors import CourseError
from course_lib.perf.service import Sample
from course_lib.perf.workload import Arrival

CONNECT_TIMEOUT_S, READ_TIMEOUT_S = 10, 600  # until there is a connection; between two pieces of an answer


def connect(url: str) -> httpx.AsyncClient:
    """A client of the server at `url`, with or without /v1. Raises CourseError where that is no address."""
    try:
        address = httpx.URL(url.rstrip("/").removesuffix("/v1"))
        valid = address.scheme in ("http", "https") and address.host and (address.port or 0) < 2**16
    except httpx.InvalidURL:
        valid = False
    if not valid:
        raise CourseError(f"{url!r} is no address of a server; give one such as http://127.0.0.1:8000")
    return httpx.AsyncClient(
        base_url=address,
        # By default the 101st request would wait here for a connection, unseen by the server. Idle connections go
        # before uvicorn closes them, after 5 s: a request that meets a closing one is lost.
        limits=httpx.Limits(max_connections=None, max_keepalive_connections=None, keepalive_expiry=2),
        timeout=httpx.Timeout(READ_TIMEOUT_S, connect=CONNECT_TIMEOUT_S, pool=None),
        trust_env=False,  # a proxy would be measured with the server
    )


async def served_model(http: httpx.AsyncClient, wanted: str | None) -> tuple[str, int | None]:
    """(name, most tokens of prompt and completion where the server tells) of the model to measure.

    wanted: None takes the only one. Raises CourseError where nothing answers, or does not have it.
    """
    try:
        response = await http.get("/v1/models")
        models = {entry["id"]: entry.get("max_model_len") for entry in response.raise_for_status().json()["data"]}
    except httpx.TransportError as error:
        raise CourseError(
            f"no server answers at {http.base_url} ({_reason(error)}); start one with `course serve`, or leave --url "
            "out to have it started"
        ) from None
    except (httpx.HTTPError, ValueError, KeyError, TypeError) as error:
        raise CourseError(
            f"{http.base_url} does not list its models under /v1/models ({_reason(error)}); give the address of a "
            "server with OpenAI's API"
        ) from None
    if wanted is None and len(models) == 1:
        [wanted] = models
    if wanted not in models:
        asked = "has several models" if wanted is None else f"does not serve {wanted!r}"
        raise CourseError(f"{http.base_url} {asked}; choose one of these with --model: {', '.join(models)}")
    return wanted, models[wanted]


async def complete(http: httpx.AsyncClient, model: str, arrival: Arrival, start: float) -> Sample:
    """Send a request and read its answer to the end; what goes wrong becomes the sample's failure, one sentence.

    start: when it was due. Tokens are counted by the server's usage, for a piece of a stream may hold several tokens,
    or none. `itl` holds the gaps between pieces with text.
    """
    body = {
        "model": model,
        "prompt": arrival.prompt,
        "max_tokens": arrival.params.max_tokens,
        "temperature": arrival.params.temperature,
        "ignore_eos": arrival.params.ignore_eos,
        "stream": True,
        "stream_options": {"include_usage": True},
    }
    stream = _Stream()
    try:
        async with http.stream("POST", "/v1/completions", json=body) as response:
            if response.status_code == 200:
                async for line in response.aiter_lines():
                    stream.read(line, perf_counter())
            else:
                stream.failure = f"HTTP {response.status_code}: {_message(await response.aread())}"
    except httpx.HTTPError as error:
        stream.failure = _reason(error)
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        stream.failure = f"not a stream of OpenAI's form: {_reason(error)}"
    return stream.sample(start, perf_counter())


class _Stream:
    """What has come of one answer."""

    def __init__(self):
        self.pieces: list[float] = []  # when text came
        self.last: float | None = None  # when a choice came, with text or without
        self.tokens: int | None = None
        self.done = False
        self.failure: str | None = None

    def read(self, line: str, now: float) -> None:
        """Take one line of the event stream, which came at `now`."""
        if not line.startswith("data:"):
            return
        data = line.removeprefix("data:").strip()
        if data == "[DONE]":
            self.done = True
            return
        event = json.loads(data)
        if event.get("error"):
            self.failure = f"broken off: {event['error'].get('message')}"
        for choice in event.get("choices", ()):
            self.last = now
            if choice["text"]:
                self.pieces.append(now)
        if event.get("usage"):
            self.tokens = event["usage"]["completion_tokens"]

    def sample(self, start: float, now: float) -> Sample:
        """The completion, or its failure, which ended at `now`."""
        if self.failure is None and not self.done:
            self.failure = "broken off: the stream ended without [DONE]"
        if self.failure is None and (self.tokens is None or self.last is None):
            self.failure = "the server sent no usage or no choice; it must know stream_options.include_usage"
        return Sample(
            start=start,
            end=self.last if self.failure is None else now,
            first=next(iter(self.pieces), self.last),  # an answer may have no text
            tokens=self.tokens or 0,
            itl=tuple(b - a for a, b in zip(self.pieces, self.pieces[1:], strict=False)),
            failure=self.failure,
        )


def _message(content: bytes) -> str:
    """Of an error body, OpenAI-shaped or not."""
    try:
        return json.loads(content)["error"]["message"]
    except (ValueError, KeyError, TypeError):
        return content.decode(errors="replace")[:200]


def _reason(error: Exception) -> str:
    if isinstance(error, httpx.HTTPStatusError):
        return f"HTTP {error.response.status_code}"
    return f"{type(error).__name__}: {error}".removesuffix(": ")
