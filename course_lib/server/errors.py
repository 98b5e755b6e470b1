"""Every way in which a request can end badly, and its answer in OpenAI's form."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Iterator
from typing import Any

from fastapi import Request
from fastapi.exceptions import RequestValidationError
from fastapi.responses import Response
from starlette.exceptions import HTTPException

from course_lib.errors import CourseError, RequestError
from course_lib.server.protocol import ChatRequest, SharedRequest

RETRY_AFTER_S = 1
CLIENT_CLOSED_REQUEST = 499  # nginx's; nobody is there to read it


class ApiError(Exception):
    """An answer in OpenAI's form. param: the field it is about."""

    def __init__(self, status: int, message: str, param: str | None = None, code: str | None = None):
        super().__init__(message)
        self.status, self.param, self.code = status, param, code


class Overloaded(CourseError):
    """As many requests wait as may; the client should come back later."""


class Unavailable(CourseError):
    """The server is about to end."""


class Disconnected(Exception):
    """The client of a request has gone."""


HANDLED = (ApiError, Overloaded, Unavailable, Disconnected, RequestValidationError, HTTPException, Exception)


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
    """(sentence, OpenAI's type, field) of pydantic's deepest error, of the right type if there is one: of a union's
    branches, the one that fits best."""
    kind = "invalid_request_error"
    problem = max(error.errors(), key=lambda each: (len(each["loc"]), not each["type"].endswith("_type")))
    path = [str(part) for part in problem["loc"][1:]]
    if problem["type"] == "json_invalid":
        return "the body is not valid JSON", kind, None
    if not path:
        return "the body must be a JSON object, sent as application/json", kind, None
    if problem["type"] == "extra_forbidden":
        return f"{path[-1]} is not supported by this server; leave it out", kind, path[0]
    return f"{'.'.join(path)}: {problem['msg']}", kind, path[0]
