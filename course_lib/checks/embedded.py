"""The models that checks run an engine with."""

from __future__ import annotations

from functools import cache

import torch

from course_lib import LLM


@cache
def embedded_llm(name: str = "tiny-draft") -> LLM:
    """An embedded model, by default the smaller, so that a check is quick; in float64, so that no rounding decides."""
    return LLM(name, device="cpu", dtype=torch.float64, backend="torch")
