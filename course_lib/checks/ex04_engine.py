"""Exercise 04 in the decoder: a learner's function among right ones, and the logits that come of it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import accumulate, pairwise
from typing import Any

import torch
from torch import Tensor

from course_lib.checks.core import Play
from course_lib.checks.embedded import embedded_llm
from course_lib.checks.ex04_mask import window_mask
from course_lib.checks.ex04_ring import ring_slots
from course_lib.checks.own_compressed import Cache, OwnRing, feed, int8_cache, kivi_cache
from course_lib.errors import CourseError
from course_lib.windowed import windowed

TEXT = """In the beginning God created the heaven and the earth. And the earth was without form, and void; and
darkness was upon the face of the deep. And the Spirit of God moved upon the face of the waters."""
ROUNDING = 1e-4  # of the decoder's logits, which are float32 and up to 20
INT8_BOUND = 0.3  # of a logit; right functions are off by 0.17 at most on this text


def ring_play(chunks: Sequence[int], window: int, sinks: int, reference: Callable[..., Any]) -> Play:
    """A text in chunks through a ring, against one pass of the engine's decoder with that window and those sinks."""

    def play(ring_append: Callable[..., Any]) -> str | None:
        model, ids = embedded_llm().model, _text(sum(chunks))
        cache = OwnRing(model, window, sinks, ring_slots, window_mask, _checked(ring_append, reference))
        want = windowed(model, window, sinks).forward(ids)
        return _apart(_feed_chunks(cache, ids, chunks), want, ROUNDING, "those of a pass without a ring")

    return Play(f"chunks of {_said(chunks)} tokens through rings with w = {window} and s = {sinks}", play)


def int8_play(prompt: int, answer: int, reference: Callable[..., Any]) -> Play:
    """A prompt and a greedy answer, against those of the engine's float cache."""

    def play(int8_quantize: Callable[..., Any]) -> str | None:
        model, ids = embedded_llm().model, _text(prompt)
        cache, plain = int8_cache(model, _checked(int8_quantize, reference)), model.new_cache()
        got, want = feed(model, cache, ids), model.forward(ids, plain)
        for step in range(answer):
            if wrong := _apart(got, want, INT8_BOUND, "those of the float cache"):
                return wrong
            token = int(want[-1].argmax())
            if int(got[-1].argmax()) != token:
                return f"token {step} of the answer is not that of the float cache"
            got, want = feed(model, cache, [token]), model.forward([token], plain)
        return None

    return Play(f"a prompt of {prompt} tokens and an answer of {answer} with keys and values in int8", play)


def kivi_play(
    chunks: Sequence[int], group: int, residual: int, reference: Callable[..., Any], *int4: Callable[..., Any]
) -> Play:
    """A text in chunks, against the right functions. int4: int4_quantize, int4_dequantize."""

    def play(kivi_append: Callable[..., Any]) -> str | None:
        model, ids = embedded_llm().model, _text(sum(chunks))
        got, want = (
            _feed_chunks(kivi_cache(model, group, residual, append, *int4), ids, chunks)
            for append in (_checked(kivi_append, reference), reference)
        )
        return _apart(got, want, ROUNDING, "those of the same cache with a right kivi_append")

    return Play(f"chunks of {_said(chunks)} tokens with g = {group} and R = {residual}", play)


def bytes_play(int8_quantize: Callable[..., Any], *kivi: Callable[..., Any]) -> Play:
    """The bytes of caches that hold a text. kivi: kivi_append, int4_quantize, int4_dequantize."""

    def play(compressed_bytes: Callable[..., Any]) -> str | None:
        model, ids = embedded_llm().model, _text(45)
        d, float_bytes = model.config.head_dim, model.dtype.itemsize
        for cache, recent, scheme in (
            (int8_cache(model, int8_quantize), 0, (8, d, 4)),
            (kivi_cache(model, 8, 16, *kivi), 21, (4, 8, 4)),  # 29 tokens are beyond the newest 16: 3 groups leave
        ):
            feed(model, cache, ids)
            got = compressed_bytes(model.config, len(ids), recent, *scheme, float_bytes)
            if not isinstance(got, int | float) or got != cache.nbytes:
                return f"{scheme[0]} bits: the cache has {cache.nbytes:,} bytes, and the function says {got!r:.40}"
        return None

    return Play("an int8 cache and a 4-bit one with 45 tokens", play)


def _text(tokens: int) -> list[int]:
    return embedded_llm().tokenizer.encode(TEXT)[:tokens]


def _said(chunks: Sequence[int]) -> str:
    return ", ".join(map(str, chunks))


def _feed_chunks(cache: Cache, ids: list[int], chunks: Sequence[int]) -> Tensor:
    ends = accumulate(chunks, initial=0)
    return torch.cat([feed(embedded_llm().model, cache, ids[start:end]) for start, end in pairwise(ends)])


def _apart(got: Tensor, want: Tensor, bound: float, what: str) -> str | None:
    error = (got - want).abs().amax(-1)
    if (error <= bound).all():
        return None
    first = int((~(error <= bound)).nonzero()[0])  # so that NaN counts too
    return f"the logits of token {first} differ by {error[first]:.2g} from {what}; {bound:g} is allowed"


def _checked(function: Callable[..., Any], reference: Callable[..., Any]) -> Callable[..., Any]:
    """The function, which raises CourseError where its result has not the types and shapes of the reference's."""

    def call(*args: Any) -> Any:
        wanted, got = reference(*args), function(*args)
        if not isinstance(got, tuple) or [*map(_kind, got)] != [*map(_kind, wanted)]:
            raise CourseError("a call gave something else than tensors of the right shapes and dtypes")
        return got

    return call


def _kind(value: Any) -> Any:
    return (value.shape, value.dtype) if isinstance(value, Tensor) else type(value)
