"""The bodies of OpenAI's API that the server writes: whole answers, and the chunks of streamed ones."""

from __future__ import annotations

import time
import uuid
from typing import Any

from course_lib.engine import StepOutput
from course_lib.outputs import Logprob
from course_lib.tokenizer import Tokenizer


def usage(prompt_tokens: int, completion_tokens: int) -> dict[str, int]:
    """The usage object. A prompt counts once, whatever n is."""
    return {
        "prompt_tokens": prompt_tokens,
        "completion_tokens": completion_tokens,
        "total_tokens": prompt_tokens + completion_tokens,
    }


class Answer:
    """How /v1/completions words the answer to one request. `choice`, `delta` and `logprobs` differ for chats.

    Every generated token has its log-probabilities, as it has its place in the usage: the end token and those of a stop
    string too. They come with the step that drew the token, which may be before its text. A token's text begins at its
    text_offset, in characters; where that is not before the end of the text, a stop string has cut the token off.
    """

    prefix, whole, chunk = "cmpl", "text_completion", "text_completion"

    def __init__(self, model: str):
        self._head = {"id": f"{self.prefix}-{uuid.uuid4().hex}", "created": int(time.time()), "model": model}

    def body(self, choices: list[dict], used: dict | None, kind: str) -> dict[str, Any]:
        """A response, or a chunk of one; kind: `whole` or `chunk`."""
        return {**self._head, "object": kind, "choices": choices, "usage": used}

    def opening(self, index: int) -> list[dict[str, Any]]:
        """The choices of the chunk that comes before a completion's first text; empty where there is no such chunk."""
        return []

    def choice(self, index: int, outputs: list[StepOutput]) -> dict[str, Any]:
        """A completion that consists of these steps' outputs."""
        return {"index": index, "text": joined(outputs)} | self.ending(outputs)

    def delta(self, index: int, output: StepOutput) -> dict[str, Any]:
        """What one step added to a completion."""
        return self.choice(index, [output])

    def ending(self, outputs: list[StepOutput]) -> dict[str, Any]:
        """The fields that whole answers and chunks of both endpoints share."""
        asked, last = outputs[0].logprobs is not None, outputs[-1]
        return {
            "logprobs": self.logprobs(outputs) if asked else None,
            "finish_reason": last.finish_reason,
            "stop_reason": last.stop_reason,
        }

    def logprobs(self, outputs: list[StepOutput]) -> dict[str, list]:
        """Four lists with one element per token. top_logprobs has the drawn token too, as the one after the k."""
        drawn = [output.logprobs[output.token_id] for output in outputs]
        return {
            "tokens": [one.decoded_token for one in drawn],
            "token_logprobs": [one.logprob for one in drawn],
            "top_logprobs": [{one.decoded_token: one.logprob for one in each.logprobs.values()} for each in outputs],
            "text_offset": [output.text_offset for output in outputs],
        }


class ChatAnswer(Answer):
    """The same for /v1/chat/completions. top_logprobs: how many of the most probable tokens are listed."""

    prefix, whole, chunk = "chatcmpl", "chat.completion", "chat.completion.chunk"

    def __init__(self, model: str, tokenizer: Tokenizer, top_logprobs: int):
        super().__init__(model)
        self._tokenizer, self._top = tokenizer, top_logprobs

    def opening(self, index: int) -> list[dict[str, Any]]:
        return [{"index": index, "delta": {"role": "assistant", "content": ""}, "finish_reason": None}]

    def choice(self, index: int, outputs: list[StepOutput]) -> dict[str, Any]:
        return {"index": index, "message": {"role": "assistant", "content": joined(outputs)}} | self.ending(outputs)

    def delta(self, index: int, output: StepOutput) -> dict[str, Any]:
        return {"index": index, "delta": {"content": output.text} if output.text else {}} | self.ending([output])

    def logprobs(self, outputs: list[StepOutput]) -> dict[str, Any]:
        """One entry per token; bytes are the token's own, so those of a completion add up to its text in UTF-8."""
        return {"content": [self._entry(output) for output in outputs], "refusal": None}

    def _entry(self, output: StepOutput) -> dict[str, Any]:
        best = [(token, one) for token, one in output.logprobs.items() if one.rank <= self._top]
        best.sort(key=lambda item: item[1].rank)
        own = self._token(output.token_id, output.logprobs[output.token_id])
        return own | {"top_logprobs": [self._token(*item) for item in best]}

    def _token(self, token: int, one: Logprob) -> dict[str, Any]:
        known = self._tokenizer.token_bytes(token)
        return {
            "token": one.decoded_token,
            "logprob": one.logprob,
            "bytes": None if known is None else list(known),
        }


def joined(outputs: list[StepOutput]) -> str:
    """The text of these steps' outputs."""
    return "".join(output.text for output in outputs)
