"""The perplexity of a text: against the record of tiny's evaluation, a loop by hand, and through other caches."""

from __future__ import annotations

import json

import pytest
import torch

from course_lib.errors import RequestError
from course_lib.model import Decoder
from course_lib.perf.perplexity import score
from course_lib.weights.loading import ASSETS
from tests.conftest import sharpen, small_config


@pytest.fixture(scope="module")
def model() -> Decoder:
    return sharpen(Decoder.random(small_config(), seed=1))


def text(n: int) -> list[int]:
    return torch.randint(0, 97, (n,), generator=torch.Generator().manual_seed(0)).tolist()


def test_each_window_is_scored_alone_from_its_second_token_on(model):
    tokens = text(30)
    got = score(model, tokens, window=10)
    for i in range(3):
        window = tokens[10 * i : 10 * i + 10]
        logprobs = model(window).log_softmax(-1)
        want = torch.stack([-logprobs[t, window[t + 1]] for t in range(9)])
        torch.testing.assert_close(got.nll[i], want)
    assert got.tokens == 27
    assert got.perplexity == pytest.approx(float(got.nll.mean().exp()))


@pytest.mark.parametrize("chunk", [1, 4, 10])
def test_chunks_and_batches_change_nothing(model, chunk):
    tokens = text(57)  # five windows, and a rest that is dropped
    want = score(model, tokens, window=10, together=5).nll
    torch.testing.assert_close(score(model, tokens, window=10, chunk=chunk, together=2).nll, want, atol=1e-4, rtol=0)


def test_keys_and_values_come_through_the_given_cache(model):
    class Forgetful:
        """The model's cache with values of zero."""

        def __init__(self, rows: int, capacity: int):
            self.cache = model.new_cache(rows, capacity)

        def __getattr__(self, name):
            return getattr(self.cache, name)

        def read(self, *where):
            keys, values = self.cache.read(*where)
            return keys, torch.zeros_like(values)

    tokens = text(20)
    assert not torch.allclose(score(model, tokens, 10, new_cache=Forgetful).nll, score(model, tokens, 10).nll)


@pytest.mark.slow
def test_tiny_scores_what_its_evaluation_recorded(tiny):
    """`eval.json` was written by transformers, from the same file and windows: a beginning token, then the text."""
    want = json.loads((ASSETS / "tiny" / "eval.json").read_text())["heldout_txt_perplexity"]["target"]
    tokens = [0, *tiny.tokenizer.encode((ASSETS / "heldout.txt").read_text(), special=False)]
    assert score(tiny.model, tokens).perplexity == pytest.approx(want, rel=1e-3)


def test_a_short_text_is_refused(model):
    with pytest.raises(RequestError, match="the text has 9 tokens and a window 10"):
        score(model, text(9), window=10)
