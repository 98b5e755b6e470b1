"""The bodies of OpenAI's API that the server reads: the fields it supports, and only those.

https://platform.openai.com/docs/api-reference; fields beyond it have vLLM's names. A field that would change the answer
and is not supported is refused, never ignored.
"""

from __future__ import annotations

from dataclasses import fields
from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, model_validator

from course_lib.errors import RequestError
from course_lib.sampling import MAX_LOGPROBS, SamplingParams

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
MAX_STOPS = 16  # OpenAI takes 4; each is looked for at every token

Int = Annotated[int, Field(ge=-(2**63), lt=2**63)]
# With an error for each of its elements, one long list would hold the event loop up for minutes.
Ints = Annotated[list[Int], Field(fail_fast=True)]
Texts = Annotated[list[str], Field(fail_fast=True)]


class Body(BaseModel):
    """Strict: no field is converted to another type. A null counts as left out."""

    model_config = ConfigDict(extra="forbid", strict=True, allow_inf_nan=False)

    @model_validator(mode="before")
    @classmethod
    def _drop_neutral(cls, data: Any) -> Any:
        if not isinstance(data, dict):
            return data
        asked = {name: value for name, value in data.items() if value is not None and not _is_neutral(name, value)}
        unknown = [name for name in asked if name not in cls.model_fields]
        for name in unknown[1:]:  # as for lists
            del asked[name]
        return asked


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
    n: Int = 1
    max_tokens: Int | None = None
    temperature: float = 1.0
    top_p: float = 1.0
    seed: Int | None = None
    stop: str | Annotated[Texts, Field(max_length=MAX_STOPS)] = []
    # Beyond OpenAI's, with vLLM's meanings.
    top_k: Int = 0
    min_p: float = 0.0
    repetition_penalty: float = 1.0
    stop_token_ids: Ints = []
    ignore_eos: bool = False
    priority: Annotated[int, Field(ge=-(2**31), lt=2**31)] = 0
    cache_salt: Annotated[str, Field(min_length=1)] | None = None

    def sampling(self, max_tokens: int, /, **instead) -> SamplingParams:
        """max_tokens: where the request names none. instead: replaces fields. Raises RequestError as SamplingParams."""
        asked = self.model_dump(include=_SAMPLING, exclude_unset=True)
        return SamplingParams(**{"max_tokens": max_tokens} | asked | instead)


class CompletionRequest(SharedRequest):
    """POST /v1/completions. prompt: one or several, as text or token ids."""

    prompt: str | Annotated[Texts | Ints | Annotated[list[Ints], Field(fail_fast=True)], Field(min_length=1)]
    logprobs: Annotated[int, Field(ge=0, le=5)] | None = None


class TextPart(Body):
    """Part of a message."""

    type: Literal["text"]
    text: str


class Message(Body):
    """One message of a conversation."""

    role: Literal["system", "user", "assistant"]
    content: str | Annotated[list[TextPart], Field(fail_fast=True)]

    def plain(self) -> dict[str, str]:
        """The form that chat templates take."""
        text = self.content if isinstance(self.content, str) else "".join(part.text for part in self.content)
        return {"role": self.role, "content": text}


class ChatRequest(SharedRequest):
    """POST /v1/chat/completions."""

    messages: Annotated[list[Message], Field(min_length=1, fail_fast=True)]
    max_completion_tokens: Int | None = None
    logprobs: bool = False
    top_logprobs: Annotated[int, Field(ge=0, le=MAX_LOGPROBS)] = 0

    def sampling(self, max_tokens: int, /, **instead) -> SamplingParams:
        """As above. max_completion_tokens is the newer name of max_tokens."""
        if self.top_logprobs and not self.logprobs:
            raise RequestError("top_logprobs is given without logprobs: true; set it, or leave top_logprobs out")
        instead["logprobs"] = self.top_logprobs if self.logprobs else None
        if self.max_completion_tokens is not None:
            instead["max_tokens"] = self.max_completion_tokens
        return super().sampling(max_tokens, **instead)
