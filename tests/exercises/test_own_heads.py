"""Exercise 03 against the engine: references count and compute as it does, and plays tell right from wrong."""

from __future__ import annotations

from random import Random

import pytest
import torch

from course_lib.attention import attend
from course_lib.checks import find_problem
from course_lib.checks.ex01_counts import random_shape
from course_lib.checks.ex03_bytes import random_latent
from course_lib.checks.ex03_engine import latent_model, same_as_plain, same_as_reference, same_text, twin
from course_lib.checks.own_heads import grouped_backend, latent_logits, merged
from course_lib.errors import CourseError
from course_lib.model import Decoder
from course_lib.perf.counts import pass_cost
from tests.conftest import sharpen, small_config

PROMPTS = ["In the beginning", "The king of all the land said"]


def reference(function: str):
    return find_problem(f"03.{function}").reference


def wrong(function: str, key: str):
    [mistake] = [mistake for mistake in find_problem(f"03.{function}").mistakes if mistake.key == key]
    return mistake.wrong


@pytest.mark.parametrize("seed", range(5))
def test_the_intensity_is_that_of_the_engines_counts(seed):
    rng = Random(seed)
    config, batch, n = random_shape(rng), rng.randint(1, 9), rng.randint(2, 5000)
    cost = pass_cost(config, [1] * batch, [n - 1] * batch)
    want = cost.attention_flops / (cost.kv_read_bytes + cost.kv_write_bytes)
    assert reference("attention_intensity")(config, batch, n, 2) == pytest.approx(want, rel=1e-12)


@pytest.mark.parametrize("seed", range(5))
def test_the_intensity_of_latents_is_that_of_the_absorbed_form(seed):
    """Without the two matrices: what one more cached token adds."""
    rng = Random(seed)
    config, n = random_latent(rng), rng.randint(2, 5000)
    flops = [config.layers * config.mla.flops("absorbed", config.heads, 1, cached) for cached in (n - 1, n)]
    want = (flops[1] - flops[0]) / config.kv_bytes(1)
    assert reference("attention_intensity")(config, 3, n, 2) == pytest.approx(want, rel=1e-12)


def test_own_attention_gives_the_engines_logits():
    model = sharpen(Decoder.random(small_config(heads=6, kv_heads=2), dtype=torch.float64))
    tokens = list(range(40, 60))

    def logits() -> torch.Tensor:
        cache = model.new_cache(capacity=len(tokens))
        model.forward(tokens[:12], cache)
        return torch.cat([model.forward([token], cache) for token in tokens[12:]])

    wanted = logits()
    for attention, right in (
        (reference("grouped_attention"), True),
        (wrong("grouped_attention", "strided-groups"), False),
        (wrong("grouped_attention", "newest-key-hidden"), False),
    ):
        model.backend = grouped_backend(attention)
        assert ((logits() - wanted).abs().max() < 1e-9) == right


def test_a_prompt_attends_as_ever():
    model = Decoder.random(small_config())
    wanted = model.forward([5, 9, 7])
    model.backend = grouped_backend(lambda *step: pytest.fail("a prompt asked for decode attention"))
    assert model.backend.attend is not attend and torch.equal(model.forward([5, 9, 7]), wanted)


def test_the_text_of_right_attention_is_the_models():
    assert same_text(PROMPTS, 4, reference("grouped_attention")) is None


@pytest.mark.parametrize("key", ["strided-groups", "over-d", "padding-attended", "results-out-of-order"])
def test_wrong_attention_writes_another_text(key):
    said = same_text(PROMPTS, 8, wrong("grouped_attention", key))
    assert said.startswith("the prompt ") and "is to go on with" in said


def test_what_is_no_attention_is_said():
    with pytest.raises(CourseError, match=r"^the attention of a layer must be torch.float64 of shape \[2, 8, 32\]$"):
        same_text(PROMPTS, 2, wrong("grouped_attention", "group-axis-kept"))


def test_merging_a_trained_model_is_compared_with_the_engines_own():
    merge = reference("merge_kv_heads")
    assert [same_as_reference(kv_heads, 100, merge) for kv_heads in (8, 4, 1)] == [None] * 3


@pytest.mark.parametrize("key", ["every-nth-head", "summed", "first-of-group", "rows-averaged", "values-before-keys"])
def test_a_wrong_merge_shows_in_the_perplexity(key):
    assert same_as_reference(2, 0, wrong("merge_kv_heads", key)).startswith("the perplexity with 2 of 8 KV heads is ")


def test_merging_nothing_must_change_nothing():
    assert "must change nothing, but the logits at index" in same_as_reference(8, 0, lambda qkv, *counts: 2 * qkv)


def test_what_is_no_projection_is_said():
    with pytest.raises(CourseError, match=r"^a projection with 2 KV heads must be .*float32 of shape \[192, 128\]$"):
        merged(twin(), wrong("merge_kv_heads", "keys-kept"), 2)


@pytest.mark.parametrize("seed", range(3))
def test_right_attention_over_latents_gives_the_plain_forms_logits(seed):
    assert same_as_plain(seed, reference("absorbed_attention")) is None


@pytest.mark.parametrize(
    "key", ["scaled-by-nope-only", "rotated-part-left-out", "value-from-the-end", "first-matrices-for-all"]
)
def test_wrong_attention_over_latents_shows_in_the_logits(key):
    assert same_as_plain(0, wrong("absorbed_attention", key)).startswith("the logits at index")


def test_each_decode_step_of_each_layer_asks_the_learners_function():
    calls = []

    def attention(*step):
        calls.append([list(part.shape) for part in step])
        return reference("absorbed_attention")(*step)

    latent_logits(latent_model(), [5, 9, 7, 30], 2, attention)
    assert calls == [[[4, 8], [4, 4], [n, 20], [4, 8, 16], [4, 10, 16]] for n in (3, 3, 4, 4)]


def test_what_is_no_attention_over_latents_is_said():
    with pytest.raises(CourseError, match=r"^the attention of a layer must be torch.float64 of shape \[4, 10\]$"):
        same_as_plain(0, wrong("absorbed_attention", "w-uv-not-used"))
