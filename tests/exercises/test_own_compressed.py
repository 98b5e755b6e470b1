"""The caches that exercise 04 ends with: right functions agree with the engine's own, wrong ones show in the logits."""

from __future__ import annotations

from itertools import accumulate, pairwise

import pytest
import torch

from course_lib.cache.formats import FORMATS
from course_lib.checks import find_problem, load_exercise
from course_lib.checks.own_compressed import KiviStore, OwnRing, feed, int8_cache, kivi_cache
from course_lib.checks.run import local_call, run
from course_lib.windowed import windowed

TEXT = list(range(40, 85))
CHUNKS = [7, 1, 20, 1, 1, 15]


def functions(**wrong):
    """The right functions of the exercise by name, some of them replaced."""
    return {problem.name: problem.reference for problem in load_exercise("04")} | wrong


def mistake(function: str, key: str):
    [found] = [each.wrong for each in find_problem(f"04.{function}").mistakes if each.key == key]
    return found


def fed(model, cache):
    ends = accumulate(CHUNKS, initial=0)
    return torch.cat([feed(model, cache, TEXT[start:end]) for start, end in pairwise(ends)])


def ring_error(model, **wrong) -> float:
    """Largest error of a logit against the engine's decoder with the window and the sinks."""
    right = functions(**wrong)
    cache = OwnRing(model, 10, 2, *(right[name] for name in ("ring_slots", "window_mask", "ring_append")))
    return float((fed(model, cache) - windowed(model, 10, 2).forward(TEXT)).abs().max())


def test_right_functions_keep_a_ring(tiny):
    assert ring_error(tiny.model) < 1e-3


@pytest.mark.parametrize(
    "function, key",
    [
        ("ring_slots", "sinks-in-the-ring"),
        ("ring_slots", "ring-over-the-sinks"),
        ("window_mask", "window-too-long"),
        ("window_mask", "sinks-forgotten"),
        ("ring_append", "stored-before-attending"),
        ("ring_append", "cut-before-attending"),
        ("ring_append", "held-not-updated"),
    ],
)
def test_a_wrong_ring_shows_in_the_logits(tiny, function, key):
    assert not ring_error(tiny.model, **{function: mistake(function, key)}) < 0.1  # NaN where nothing is visible


def test_int8_is_the_engines_int8(tiny):
    model, right = tiny.model, functions()
    cache = int8_cache(model, right["int8_quantize"])
    engines = model.new_cache(capacity=len(TEXT), kv_format=FORMATS["int8"])
    want = torch.cat(
        [model.forward(TEXT[start:end], engines) for start, end in pairwise(accumulate(CHUNKS, initial=0))]
    )
    assert (fed(model, cache) - want).abs().max() < 1e-3
    said = right["compressed_bytes"](model.config, len(TEXT), 0, 8, model.config.head_dim, 4, 4)
    assert cache.nbytes == engines.nbytes == said


def kivi_store(per_channel: bool, group: int = 4, residual: int = 6, **wrong) -> KiviStore:
    right = functions(**wrong)
    names = "kivi_append", "int4_quantize", "int4_dequantize"
    return KiviStore(per_channel, group, residual, *(right[name] for name in names))


@pytest.mark.parametrize("per_channel", [True, False])
def test_a_kivi_store_is_within_half_a_step_in_whatever_chunks(per_channel):
    x = torch.randn(45, 2, 8, generator=torch.Generator().manual_seed(0)) + 3.0
    whole, chunked = kivi_store(per_channel), kivi_store(per_channel)
    whole.append(x)
    for start, end in pairwise(accumulate(CHUNKS, initial=0)):
        chunked.append(x[start:end])
    assert torch.equal(whole.read(), chunked.read()) and whole.nbytes == chunked.nbytes
    # 45 tokens: 39 are beyond the newest 6, so 9 groups of 4 are in codes and 9 tokens in float.
    codes = x[:36].unflatten(0, (9, 4)) if per_channel else x[:36].unflatten(-1, (2, 4))
    axis = 1 if per_channel else -1
    low, high = codes.amin(axis, keepdim=True), codes.amax(axis, keepdim=True)
    # Half a step; scale and zero are float16, so a value, (code - zero) * scale, and its zero are off by 2^-11 of them.
    bound = (high - low) / 30 + 2**-10 * torch.maximum(low.abs(), high.abs()) + 2**-11 * low.abs()
    read = whole.read()[:36].reshape(codes.shape)
    assert ((read - codes).abs() <= bound).all()
    assert torch.equal(whole.read()[36:], x[36:])


def test_wrong_codes_show_in_the_logits(tiny):
    """4-bit keys per token cost more than per channel, and a zero point of the wrong sign leaves nothing."""
    model = tiny.model
    want = model.forward(TEXT)

    def error(**wrong) -> float:
        right = functions(**wrong)
        names = "kivi_append", "int4_quantize", "int4_dequantize"
        return float((fed(model, kivi_cache(model, 8, 8, *(right[name] for name in names))) - want).abs().max())

    right, per_token = error(), error(int4_quantize=mistake("int4_quantize", "axis-ignored"))
    assert right < per_token < error(int4_dequantize=mistake("int4_dequantize", "zero-added"))


@pytest.mark.parametrize("function", ["ring_append", "kivi_append", "int8_quantize"])
def test_a_result_of_no_use_to_the_decoder_is_a_failure(function):
    """Right in the cases, and something else in the shapes of the decoder: the grader goes on."""
    problem = find_problem(f"04.{function}")

    def wrong(*args):
        """d of the decoder is 32, that of the cases is less."""
        return None if args[0].shape[-1] == 32 else problem.reference(*args)

    failure = run(problem, local_call(wrong)).failure
    assert failure.stage == "in the engine" and "something else than tensors" in failure.text
