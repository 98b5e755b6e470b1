"""The 3-gram model that `tiny` is measured against: a yardstick that is wrong would flatter it."""

from __future__ import annotations

import numpy as np
import pytest

from course_lib.training.train_tiny import VOCAB, KneserNey


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
