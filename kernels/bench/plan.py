"""Everything that a run does, in order, and when each section has to be over."""

from __future__ import annotations

from functools import partial
from importlib.util import find_spec

import torch

from course_kernels.bench import ceilings
from course_kernels.bench.cases import Case, cases
from course_kernels.bench.check import check
from course_kernels.bench.inputs import Draw
from course_kernels.bench.measure import measure
from course_kernels.bench.measured import Measured, measured
from course_kernels.bench.model import ENGINES, check_model, measure_model
from course_kernels.bench.runner import Entry, Skipped
from course_kernels.bench.sizes import FULL, SMALL, Sizes

# Section -> the share of the run's time by which it must be over. What a section leaves, the next ones have.
SECTIONS = {"ceilings": 0.1, "checks": 0.5, "kernels": 0.75, "model": 1.0}


def deadlines(seconds: float) -> dict[str, float]:
    """Of each section, in seconds from the start."""
    return {section: share * seconds for section, share in SECTIONS.items()}


def plan(small: bool, seed: int) -> list[Entry]:
    """The entries of all sections; small: of tiny shapes on the CPU."""
    s, device = (SMALL, "cpu") if small else (FULL, "cuda")
    check_one, measure_one, model_one = (partial(run, s, device, seed) for run in (_check, _measure, _model))
    return [
        Entry("ceilings", "copy", partial(ceilings.copy, s, device)),
        Entry("ceilings", "matmul", partial(ceilings.matmul, s, device)),
        *(
            Entry("checks", f"{case.name}, {short(dtype)}", partial(check_one, dtype, case))
            for case in cases(s)
            for dtype in s.dtypes
        ),
        Entry("checks", "whole model, float32", partial(check_model, s, device, seed)),
        *(Entry("kernels", each.name, partial(measure_one, each)) for each in measured(s)),
        *(Entry("model", engine, partial(model_one, engine)) for engine in ENGINES),
    ]


def short(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")


def _check(s: Sizes, device: str, seed: int, dtype: torch.dtype, case: Case) -> dict:
    _require(case.form, device)
    return check(case, Draw(s, dtype, device, seed))


def _measure(s: Sizes, device: str, seed: int, each: Measured) -> dict:
    _require(each.form, device)
    return measure(each, Draw(s, s.dtypes[0], device, seed))


def _require(form: str, device: str) -> None:
    if form == "cuda" and device == "cpu":
        raise Skipped("CUDA C++ has no interpreter")
    if form == "cuda":
        from course_kernels.cuda import nvrtc  # Triton comes with it

        if nvrtc.nvrtc is None:
            raise Skipped("the package cuda-bindings is missing, so no CUDA C++ can be compiled")


def _model(s: Sizes, device: str, seed: int, engine: str) -> dict:
    if ENGINES[engine] is None and find_spec("transformers") is None:
        raise Skipped("transformers is not installed")
    if ENGINES[engine] == ("triton", True) and device == "cpu":
        raise Skipped("CUDA graphs need a GPU")
    return measure_model(engine, s, s.dtypes[0], device, seed)
