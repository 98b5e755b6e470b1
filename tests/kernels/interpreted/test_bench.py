"""The benchmark's check of a whole model, which runs the Triton backend; for the rest see tests/kernels/bench."""

from __future__ import annotations

from course_kernels.bench import model
from course_kernels.bench.sizes import SMALL


def test_a_model_that_computes_something_else_does_not_pass(monkeypatch):
    assert model.check_model(SMALL, "cpu", seed=0)["passed"]
    random_llm = model.random_llm
    monkeypatch.setattr(
        model, "random_llm", lambda s, dtype, device, backend, seed: random_llm(s, dtype, device, backend, seed + 1)
    )
    result = model.check_model(SMALL, "cpu", seed=0)
    assert not result["passed"] and result["error"] > 0.1
