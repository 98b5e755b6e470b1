"""The model that checks run an engine with."""

from __future__ import annotations

from functools import cache

import torch

from course_lib import LLM


@cache
def embedded_llm() -> LLM:
    """The smaller embedded model, so that a check is quick; in float64, so that no rounding decides an arg-max."""
    return LLM("tiny-draft", device="cpu", dtype=torch.float64, backend="torch")
