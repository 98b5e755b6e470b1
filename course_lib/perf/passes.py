"""Forward passes of a given shape, ready to be timed: what a prompt costs, what a decode step costs."""

from __future__ import annotations

from collections.abc import Callable

import torch

from course_lib.batch import Batch
from course_lib.cache.store import FLOAT, KVFormat
from course_lib.model import Decoder


def prefill_pass(model: Decoder, n: int) -> Callable[[], torch.Tensor]:
    """A call that runs one prompt of n random tokens on an empty cache and returns its last logits [1, V]."""
    return _pass(model, new=n, cached=0, sequences=1)


def decode_pass(model: Decoder, batch: int, context: int, kv_format: KVFormat = FLOAT) -> Callable[[], torch.Tensor]:
    """A call that runs one decode step of `batch` sequences, each on its position `context`; returns logits [B, V]."""
    return _pass(model, new=1, cached=context - 1, sequences=batch, kv_format=kv_format)


def _pass(
    model: Decoder, new: int, cached: int, sequences: int, kv_format: KVFormat = FLOAT
) -> Callable[[], torch.Tensor]:
    generator = torch.Generator().manual_seed(0)
    ids = torch.randint(model.config.vocab, (sequences, new), generator=generator).tolist()
    cache = model.new_cache(sequences, cached + new, kv_format)
    # The cache holds zeros instead of real keys: the time of a pass does not depend on the values.
    cache.lengths[:] = [cached] * sequences
    batch = Batch.build(ids, [cached] * sequences, range(sequences))

    def run() -> torch.Tensor:
        logits = model.run(batch, cache)
        for row in range(sequences):
            cache.truncate(row, cached)
        return logits

    return run
