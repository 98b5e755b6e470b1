"""Rotary position embedding."""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn

from course_lib.config import Llama3Scaling, ModelConfig


class Rope(nn.Module):
    """Rotary position embedding (arXiv 2104.09864), half-split form: element i pairs with i + d/2, as in Hugging Face.

    GGUF stores Llama's q and k for the interleaved form (i pairs with i + 1); its loader permutes them back.
    """

    def __init__(self, config: ModelConfig):
        super().__init__()
        d = config.rope_dim
        self.frequencies = config.rope_theta ** (-torch.arange(0, d, 2, dtype=torch.float64, device="cpu") / d)
        if config.rope_scaling:
            self.frequencies = _llama3_frequencies(self.frequencies, config.rope_scaling)

    def cos_sin(self, positions: Tensor) -> tuple[Tensor, Tensor]:
        """Cosines and sines, each float32 [T, d/2], of the batch's positions; made once per forward pass.

        Angles are float64: a float32 product is off by 0.004 rad at position 100,000.
        """
        if self.frequencies.device != positions.device:
            self.frequencies = self.frequencies.to(positions.device)
        angle = torch.outer(positions.double(), self.frequencies)
        return angle.cos().float(), angle.sin().float()

    def tables(self, positions: Tensor) -> tuple[Tensor, Tensor]:
        """What `rotate` takes, float32 [T, 1, d] each; the sine has the sign of rotate_half(x) = (-x2, x1)."""
        cos, sin = self.cos_sin(positions)
        return torch.cat((cos, cos), dim=-1)[:, None], torch.cat((-sin, sin), dim=-1)[:, None]

    @staticmethod
    def rotate(x: Tensor, tables: tuple[Tensor, Tensor]) -> Tensor:
        """Rotate x [T, heads, d] in float32; the result has x's dtype."""
        cos, sin = tables
        x32 = x.float()
        return torch.addcmul(x32 * cos, x32.roll(x.shape[-1] // 2, dims=-1), sin).type_as(x)


def _llama3_frequencies(frequencies: Tensor, scaling: Llama3Scaling) -> Tensor:
    """Llama 3.1: long wavelengths are slowed by `factor`, short ones kept, those between blended."""
    turns = scaling.original_context * frequencies / (2 * math.pi)  # full turns over the original context
    blend = (turns - scaling.low_freq_factor) / (scaling.high_freq_factor - scaling.low_freq_factor)
    blend = blend.clamp(0, 1)
    return (1 - blend) * frequencies / scaling.factor + blend * frequencies
