"""The register of planted wrong solutions."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple


class Planted(NamedTuple):
    """A wrong solution, the problem it answers, and the key of the hint that must name its mistake."""

    problem: str
    hint: str
    function: Callable[..., Any]


PLANTED: list[Planted] = []


def planted(problem: str, hint: str) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Register the decorated function."""

    def register(function: Callable[..., Any]) -> Callable[..., Any]:
        PLANTED.append(Planted(problem, hint, function))
        return function

    return register
