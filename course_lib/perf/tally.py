"""Counts what the engine really does, beside the formulas of `counts`: tokens through a block, query-key pairs."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from unittest.mock import patch

from torch import Tensor

from course_lib.backend import TorchBackend
from course_lib.model import Decoder


@dataclass
class Tally:
    """Work of one layer, summed over the forward passes inside `tally`; every layer without a window does the same.

    token_passes: tokens that went through the linear layers. pairs: (query, key) pairs that the causal mask lets
    attend, of one head.
    """

    token_passes: int = 0
    pairs: int = 0


@contextmanager
def tally(model: Decoder) -> Iterator[Tally]:
    """Count the work of the first layer of `model` while the context is open.

    Not for timing: pairs are read off the mask of every call, and the torch backend runs whatever the model chose.
    """
    count = Tally()

    def count_tokens(module, inputs: tuple, output: Tensor) -> None:
        count.token_passes += len(output)

    class Counting(TorchBackend):
        def step(self, batch, cache, rope, device):
            step, kind = super().step(batch, cache, rope, device), (model.config.windows[0], model.config.sinks)
            for piece in step.pieces:
                mask = piece.mask(cache, 0, *kind, device)
                # No mask: one new token a sequence, and it sees every key.
                count.pairs += len(piece.cached) * piece.reach(*kind) if mask is None else int(mask.sum())
            return step

    hook = model.blocks[0].ffn.register_forward_hook(count_tokens)
    try:
        with patch.object(model, "backend", Counting()):
            yield count
    finally:
        hook.remove()
