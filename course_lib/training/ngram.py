"""The 3-gram model that the embedded models are measured against."""

from __future__ import annotations

import numpy as np

from course_lib.training.corpus import VOCAB


class KneserNey:
    """Interpolated Kneser-Ney 3-gram model with one discount per order."""

    def __init__(self, ids: np.ndarray):
        a, b, c = (ids[i : len(ids) - 2 + i].astype(np.int64) for i in range(3))
        tri, tri_n = np.unique((a * VOCAB + b) * VOCAB + c, return_counts=True)
        bi, bi_n = np.unique(tri % VOCAB**2, return_counts=True)  # continuation counts
        uni = np.bincount(bi % VOCAB, minlength=VOCAB) + 1.0  # the same, plus one
        self.unigram, self.tables = uni / uni.sum(), []
        for keys, counts in ((tri, tri_n), (bi, bi_n)):
            context, start, types = np.unique(keys // VOCAB, return_index=True, return_counts=True)
            self.tables.append((keys, counts, context, np.add.reduceat(counts, start), types))

    def probability(self, ids: np.ndarray, discounts=(0.75, 0.75)) -> np.ndarray:
        """Probability of ids[2:], each given the two tokens before it."""

        def look(keys, values, wanted):
            at = np.minimum(np.searchsorted(keys, wanted), len(keys) - 1)
            return np.where(keys[at] == wanted, values[at], 0)

        a, b, c = (ids[i : len(ids) - 2 + i].astype(np.int64) for i in range(3))
        p = self.unigram[c]
        for (keys, counts, context, totals, types), before, d in zip(
            self.tables[::-1], (b, a * VOCAB + b), discounts, strict=True
        ):
            n, total = look(keys, counts, before * VOCAB + c), look(context, totals, before)
            backed_off = d * look(context, types, before) * p
            p = np.where(total > 0, (np.maximum(n - d, 0) + backed_off) / np.maximum(total, 1), p)
        return p


def tuned_discounts(ids: np.ndarray) -> tuple[float, float]:
    """Grid search: count on 95 % of the training tokens, score on every 20th chunk of 2,048."""
    chunks = np.array_split(ids, len(ids) // 2048)
    ngram = KneserNey(np.concatenate([c for i, c in enumerate(chunks) if i % 20]))
    grid = [(d2, d3) for d2 in np.arange(0.5, 1.0, 0.05) for d3 in np.arange(0.5, 1.0, 0.05)]
    cost = [-sum(np.log(ngram.probability(c, d)).sum() for c in chunks[::20]) for d in grid]
    return tuple(round(float(d), 2) for d in grid[int(np.argmin(cost))])
