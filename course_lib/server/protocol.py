"""The bodies of OpenAI's API that the server reads and writes: the fields it supports, and only those.

https://platform.openai.com/docs/api-reference; fields beyond it have vLLM's names. A field that would change the answer
and is not supported is refused, never ignored.
"""

from __future__ import annotations

import time
import uuid
from dataclasses import fields
from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, model_validator

from course_lib.engine import StepOutput
from course_lib.sampling import SamplingParams

# Clients send these although they ask for nothing. Any other value is refused as unsupported.
NEUTRAL = {
    "echo": False,
    "frequency_penalty": 0,
    "logit_bias": {},
    "logprobs": False,
    "presence_penalty": 0,
    "response_format": {"type": "text"},
    "store": False,
    "suffix": "",
    "tools": [],
}
_SAMPLING = {field.name for field in fields(SamplingParams)}


class Body(BaseModel):
    """Strict: no field is converted to another type. A null counts as left out."""

    model_config = ConfigDict(extra="forbid", strict=True, allow_inf_nan=False)

    @model_validator(mode="before")
    @classmethod
    def _drop_neutral(cls, data: Any) -> Any:
        if not isinstance(data, dict):
            return data
        return {name: value for name, value in data.items() if value is not None and not _is_neutral(name, value)}


def _is_neutral(name: str, value: Any) -> bool:
    # logprobs: 0 asks for the drawn token's, and Python's 0 equals False.
    return name in NEUTRAL and value == NEUTRAL[name] and isinstance(value, bool) == isinstance(NEUTRAL[name], bool)


class StreamOptions(Body):
    """include_usage: a last chunk, without choices, carries the usage."""

    include_usage: bool = False


class SharedRequest(Body):
    """What both endpoints take. Ranges are those of `SamplingParams`, which checks them; `user` is not used."""

    model: str
    stream: bool = False
    stream_options: StreamOptions | None = None
    user: str | None = None
    n: int = 1
    max_tokens: int | None = None
    temperature: float = 1.0
    top_p: float = 1.0
    seed: Annotated[int, Field(ge=-(2**63), lt=2**63)] | None = None
    stop: str | list[str] = []
    # Beyond OpenAI's, with vLLM's meanings.
    top_k: int = 0
    min_p: float = 0.0
    repetition_penalty: float = 1.0
    stop_token_ids: list[int] = []
    ignore_eos: bool = False
    priority: Annotated[int, Field(ge=-(2**31), lt=2**31)] = 0

    def sampling(self, max_tokens: int) -> SamplingParams:
        """max_tokens: where the request names none. Raises RequestError where a value is out of range."""
        return SamplingParams(**{"max_tokens": max_tokens} | self.model_dump(include=_SAMPLING, exclude_unset=True))


class CompletionRequest(SharedRequest):
    """POST /v1/completions. prompt: one or several, as text or token ids."""

    prompt: str | Annotated[list[str] | list[int] | list[list[int]], Field(min_length=1)]


class TextPart(Body):
    """Part of a message."""

    type: Literal["text"]
    text: str


class Message(Body):
    """One message of a conversation."""

    role: Literal["system", "user", "assistant"]
    content: str | list[TextPart]

    def plain(self) -> dict[str, str]:
        """The form that chat templates take."""
        text = self.content if isinstance(self.content, str) else "".join(part.text for part in self.content)
        return {"role": self.role, "content": text}


class ChatRequest(SharedRequest):
    """POST /v1/chat/completions."""

    messages: Annotated[list[Message], Field(min_length=1)]
    max_completion_tokens: int | None = None

    def sampling(self, max_tokens: int) -> SamplingParams:
        """As above. max_completion_tokens is the newer name of max_tokens."""
        if self.max_completion_tokens is None:
            return super().sampling(max_tokens)
        newer = self.model_copy(update={"max_tokens": self.max_completion_tokens})
        return SharedRequest.sampling(newer, max_tokens)


def usage(prompt_tokens: int, completion_tokens: int) -> dict[str, int]:
    """The usage object. A prompt counts once, whatever n is."""
    return {
        "prompt_tokens": prompt_tokens,
        "completion_tokens": completion_tokens,
        "total_tokens": prompt_tokens + completion_tokens,
    }


class Answer:
    """How /v1/completions words the answer to one request. `choice` and `delta` differ between the endpoints."""

    prefix, whole, chunk = "cmpl", "text_completion", "text_completion"

    def __init__(self, model: str):
        self._head = {"id": f"{self.prefix}-{uuid.uuid4().hex}", "created": int(time.time()), "model": model}

    def body(self, choices: list[dict], used: dict | None, kind: str) -> dict[str, Any]:
        """A response, or a chunk of one; kind: `whole` or `chunk`."""
        return {**self._head, "object": kind, "choices": choices, "usage": used}

    def opening(self, index: int) -> list[dict[str, Any]]:
        """The choices of the chunk that comes before a completion's first text; empty where there is no such chunk."""
        return []

    def choice(self, index: int, text: str, last: StepOutput) -> dict[str, Any]:
        """A finished completion."""
        return {"index": index, "text": text, "logprobs": None} | _ending(last)

    def delta(self, index: int, output: StepOutput) -> dict[str, Any]:
        """What one step added to a completion."""
        return self.choice(index, output.text, output)


class ChatAnswer(Answer):
    """The same for /v1/chat/completions."""

    prefix, whole, chunk = "chatcmpl", "chat.completion", "chat.completion.chunk"

    def opening(self, index: int) -> list[dict[str, Any]]:
        return [{"index": index, "delta": {"role": "assistant", "content": ""}, "finish_reason": None}]

    def choice(self, index: int, text: str, last: StepOutput) -> dict[str, Any]:
        return {"index": index, "message": {"role": "assistant", "content": text}, "logprobs": None} | _ending(last)

    def delta(self, index: int, output: StepOutput) -> dict[str, Any]:
        return {"index": index, "delta": {"content": output.text} if output.text else {}} | _ending(output)


def _ending(output: StepOutput) -> dict[str, Any]:
    return {"finish_reason": output.finish_reason, "stop_reason": output.stop_reason}
