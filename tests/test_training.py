"""How the embedded models are trained and scored: a yardstick that is wrong would flatter them."""

from __future__ import annotations

import math
from types import SimpleNamespace

import numpy as np
import pytest
import torch
import torch.nn.functional as F

from course_lib.training.corpus import VOCAB
from course_lib.training.ngram import KneserNey
from course_lib.training.recipes import ASSETS, Recipe
from course_lib.training.trainer import STEP_TOKENS, Trainer, batch, causal_attention, learning_rate, score, train

SHAPE = dict(
    hidden_size=16,
    num_hidden_layers=1,
    intermediate_size=16,
    num_attention_heads=2,
    num_key_value_heads=1,
    head_dim=8,
)


@pytest.mark.parametrize("context", [(3, 5), (5, 3), (1999, 7)], ids=["seen", "reversed", "never seen"])
def test_probabilities_of_all_next_tokens_sum_to_one(context):
    ids = np.tile(np.array([3, 5, 8, 3, 5, 9, 2, 3, 5, 8], dtype=np.int64), 20)
    ngram = KneserNey(ids)
    total = sum(float(ngram.probability(np.array([*context, token]), (0.7, 0.85))[0]) for token in range(VOCAB))
    assert total == pytest.approx(1.0, abs=1e-6)


def test_a_frequent_continuation_is_more_probable():
    ids = np.tile(np.array([3, 5, 8, 3, 5, 8, 3, 5, 9], dtype=np.int64), 20)
    ngram = KneserNey(ids)
    eight, nine = (float(ngram.probability(np.array([3, 5, token]), (0.7, 0.85))[0]) for token in (8, 9))
    assert eight > nine > 0


@pytest.mark.parametrize("length", [512, 513], ids=["plain products", "fused kernel"])
@pytest.mark.parametrize("kv_heads", [4, 2, 1])
def test_training_attends_with_query_head_i_to_kv_head_i_over_the_group(length, kv_heads):
    generator = torch.Generator().manual_seed(0)
    q = torch.randn(2, 4, length, 8, generator=generator)
    k, v = (torch.randn(2, kv_heads, length, 8, generator=generator) for _ in range(2))
    got, _ = causal_attention(None, q, k, v, None, scaling=0.3)
    k, v = (x.repeat_interleave(4 // kv_heads, 1) for x in (k, v))
    want = F.scaled_dot_product_attention(q, k, v, is_causal=True, scale=0.3)
    torch.testing.assert_close(got, want.transpose(1, 2), rtol=0, atol=1e-5)


def test_every_step_has_the_same_number_of_tokens_and_its_own_windows():
    ids = np.arange(5000, dtype=np.uint16)
    shapes = [tuple(batch(ids, step, 20, seed=1).shape) for step in (0, 11, 12, 16, 17, 19)]
    assert shapes == [(8, 256), (8, 256), (4, 512), (4, 512), (2, 1024), (2, 1024)]
    assert batch(ids, 0, 20, seed=1, phases=((1.0, 512),)).shape == (4, 512)
    assert all(windows * length == STEP_TOKENS for windows, length in shapes)
    first = batch(ids, 0, 20, seed=1)
    assert torch.equal(first, batch(ids, 0, 20, seed=1))
    assert not torch.equal(first, batch(ids, 1, 20, seed=1)) and not torch.equal(first, batch(ids, 0, 20, seed=2))
    assert (first.diff(dim=1) == 1).all()


def test_the_learning_rate_rises_to_its_peak_and_falls_to_two_percent():
    rates = [learning_rate(step, 100, 1.0, warmup=10) for step in range(101)]
    assert rates[0] == pytest.approx(0.1) and rates[9] == rates[10] == 1.0
    assert rates[55] == pytest.approx(0.51) and rates[100] == pytest.approx(0.02)
    assert rates[10:] == sorted(rates[10:], reverse=True)


def test_a_score_leaves_out_first_tokens_and_a_short_last_window():
    def model(x, use_cache):
        """Each token is followed by the next number with probability 0.75, by each of the 99 others alike."""
        logits = torch.full((*x.shape, 100), math.log(0.25 / 99))
        return SimpleNamespace(logits=logits.scatter(-1, x[..., None] + 1, math.log(0.75)))

    ids = np.array([7, 8, 9, 10, 50, 51, 60, 61, 1, 2], dtype=np.uint16)
    losses, best = score(model, ids, length=4)
    right, wrong = -math.log(0.75), -math.log(0.25 / 99)
    torch.testing.assert_close(losses, torch.tensor([[right, right, right], [right, wrong, right]]))
    assert best.tolist() == [[8, 9, 10], [51, 52, 61]]


def test_a_stopped_training_continues_to_the_same_weights(tmp_path, monkeypatch):
    recipe = Recipe(ASSETS / "none", SHAPE, steps=4, lr=1e-3)
    rng = np.random.default_rng(5)
    works = [tmp_path / "whole", tmp_path / "stopped"]
    texts = {part: rng.integers(0, VOCAB, size).astype(np.uint16) for part, size in (("train", 4000), ("held", 960))}
    for work in works:
        work.mkdir()
        for part, ids in texts.items():
            np.save(work / f"{part}.npy", ids)
    train("m", recipe, works[0], save_every=2)

    def stop_at_the_fourth(self, step, teacher=None):
        if step == 3:
            raise KeyboardInterrupt
        return trained_step(self, step, teacher)

    trained_step = Trainer.step
    with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
        patch.setattr(Trainer, "step", stop_at_the_fourth)
        train("m", recipe, works[1], save_every=2)
    assert torch.load(works[1] / "m.pt")["step"] == 2
    train("m", recipe, works[1], save_every=2)
    whole, stopped = (torch.load(work / "m.pt") for work in works)
    assert whole["step"] == stopped["step"] == 4
    assert all(torch.equal(tensor, stopped["model"][name]) for name, tensor in whole["model"].items())
