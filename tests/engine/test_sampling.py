"""Sampling: each filter by hand, the draw by a chi-square test, the seed by repetition."""

from __future__ import annotations

import math

import pytest
import torch

from course_lib.errors import RequestError
from course_lib.sampling import (
    Sampler,
    SamplingParams,
    keep_min_p,
    keep_top_k,
    keep_top_p,
    penalise_repetition,
    probabilities,
    top_logprobs,
)

LOGITS = torch.tensor([0.5, 0.3, 0.15, 0.05]).log()


def kept(logits) -> list[int]:
    return logits.isfinite().nonzero().flatten().tolist()


def test_top_k_keeps_the_largest():
    assert kept(keep_top_k(LOGITS[[3, 0, 2, 1]], 2)) == [1, 3]
    assert kept(keep_top_k(LOGITS, 0)) == kept(keep_top_k(LOGITS, -1)) == kept(keep_top_k(LOGITS, 9)) == [0, 1, 2, 3]


@pytest.mark.parametrize(
    "p, want", [(0.01, [0]), (0.5, [0]), (0.51, [0, 1]), (0.79, [0, 1]), (0.9, [0, 1, 2]), (1, [0, 1, 2, 3])]
)
def test_top_p_sums_probabilities_and_keeps_the_first(p, want):
    """15: a sum of log-probabilities would keep everything; dropping the first would leave nothing."""
    assert kept(keep_top_p(LOGITS, p)) == want


def test_top_p_handles_each_row_of_a_batch_by_itself():
    """16: the sum runs over the last axis, not over the batch."""
    rows = torch.stack([LOGITS, torch.zeros(4)])
    assert kept(keep_top_p(rows, 0.6)[0]) == [0, 1] and len(kept(keep_top_p(rows, 0.6)[1])) == 3


def test_min_p_is_relative_to_the_largest():
    assert kept(keep_min_p(LOGITS, 0.31)) == [0, 1]
    assert kept(keep_min_p(LOGITS, 0.29)) == [0, 1, 2]


def test_repetition_penalty_pushes_both_signs_down():
    logits = torch.tensor([2.0, -2.0, 1.0])
    assert penalise_repetition(logits, torch.tensor([0, 1]), 2.0).tolist() == [1.0, -4.0, 1.0]
    assert logits.tolist() == [2.0, -2.0, 1.0]


def test_repetition_penalty_equals_transformers():
    from transformers import RepetitionPenaltyLogitsProcessor

    logits = torch.randn(1, 50, generator=torch.Generator().manual_seed(0))
    seen = [3, 3, 7, 49]
    want = RepetitionPenaltyLogitsProcessor(1.3)(torch.tensor([seen]), logits.clone())[0]
    torch.testing.assert_close(penalise_repetition(logits[0], torch.tensor(sorted(set(seen))), 1.3), want)


def test_distribution_equals_transformers_warpers():
    """Temperature, top-k and top-p in this order; ties aside, the same tokens with the same mass."""
    from transformers import TemperatureLogitsWarper, TopKLogitsWarper, TopPLogitsWarper

    logits = torch.randn(1, 200, generator=torch.Generator().manual_seed(1)) * 3
    want = logits
    for warper in (TemperatureLogitsWarper(0.7), TopKLogitsWarper(40), TopPLogitsWarper(0.8)):
        want = warper(None, want)
    got = probabilities(logits[0], SamplingParams(temperature=0.7, top_k=40, top_p=0.8))
    torch.testing.assert_close(got, want[0].softmax(-1))


def test_greedy_is_arg_max_and_needs_no_division():
    assert probabilities(LOGITS, SamplingParams(temperature=0)).tolist() == [1, 0, 0, 0]
    assert Sampler(SamplingParams(temperature=0), seed=0).draw(LOGITS, []) == 0


def test_draws_follow_the_distribution():
    """Chi-square over 20,000 draws, 3 degrees of freedom: a right sampler fails once in a million seeds (30.7)."""
    sampler = Sampler(SamplingParams(), seed=0)
    n = 20_000
    counts = torch.bincount(torch.tensor([sampler.draw(LOGITS, []) for _ in range(n)]), minlength=4)
    expected = LOGITS.exp() * n
    assert float(((counts - expected) ** 2 / expected).sum()) < 30.7


def test_a_dropped_token_is_never_drawn():
    sampler = Sampler(SamplingParams(top_k=1), seed=0)
    assert {sampler.draw(LOGITS, []) for _ in range(200)} == {0}


def test_log_probabilities_name_the_drawn_token_and_the_most_probable():
    """Unnormalised logits; ranks from 1; nothing twice."""
    logits = LOGITS[[3, 0, 2, 1]] + 7
    want = {0: (0.05, 4), 1: (0.5, 1), 2: (0.15, 3), 3: (0.3, 2)}
    for token, k, ids in [(0, 2, [0, 1, 3]), (3, 2, [3, 1]), (1, 0, [1]), (2, 9, [2, 1, 3, 0])]:
        rows = top_logprobs(logits, token, k)
        assert [i for i, _, _ in rows] == ids
        for i, logprob, rank in rows:
            assert (math.exp(logprob), rank) == (pytest.approx(want[i][0]), want[i][1])


def test_a_drawn_token_that_ties_with_the_kth_keeps_out_of_the_k():
    """Ranks up to k then name k tokens, as OpenAI's list of the k most probable needs."""
    for token in range(4):
        ranks = sorted(rank for _, _, rank in top_logprobs(torch.zeros(4), token, 2))
        assert ranks in ([1, 2], [1, 2, 4])


@pytest.mark.parametrize(
    "bad, says",
    [
        (dict(temperature=-1), "temperature is -1; it must be 0"),
        (dict(temperature=math.nan), "temperature is nan"),
        (dict(top_p=0), "top_p is 0; it must be above 0"),
        (dict(top_k=-2), "top_k is -2"),
        (dict(min_p=2), "min_p is 2"),
        (dict(max_tokens=0), "max_tokens is 0; it must be at least 1"),
        (dict(n=0), "n is 0"),
        (dict(repetition_penalty=0), "repetition_penalty is 0"),
        (dict(stop=["a", ""]), "a stop string is empty"),
        (dict(logprobs=21), "logprobs is 21; it must be 0 to 20"),
        (dict(logprobs=-1), "logprobs is -1"),
        (dict(seed=2**63), "seed is 9223372036854775808; it must be a signed 64-bit number"),
    ],
)
def test_bad_parameters_are_named(bad, says):
    with pytest.raises(RequestError, match=says):
        SamplingParams(**bad)
