"""Exercise A1 where it goes wrong beyond a wrong number, and its kernels in the engine."""

from __future__ import annotations

import re
from collections.abc import Callable
from functools import partial

import pytest
import torch

from course_lib.checks.own_kernels import OwnKernels
from course_lib.checks.run import local_call
from course_lib.grading.grader import GRADED
from course_lib.model import Decoder
from tests.conftest import sharpen, small_config
from tests.exercises import planted_A1
from tests.exercises.conftest import failures, grade_id, needs_triton, notebook, with_function

interpreted = pytest.mark.skipif(planted_A1.SKIPPED is not None, reason=str(planted_A1.SKIPPED))


def with_body(body: str, checked: bool = True) -> dict:
    """The solution of A1 with another kernel in the place of the first."""
    kernel = f"""@triton.jit
def add_rms_norm_kernel(x_ptr, y_ptr, h, BLOCK: tl.constexpr):
    column = tl.arange(0, BLOCK)
    {body}


def add_rms_norm(x, residual, weight, eps):
    y = torch.full((len(x), len(weight)), torch.nan, dtype=x.dtype)
    add_rms_norm_kernel[(len(x),)](x, y, len(weight), BLOCK=triton.next_power_of_2(len(weight)))
    return y
"""
    return with_function("add_rms_norm", "@memcheck\n" * checked + kernel, "A1")


@needs_triton
@pytest.mark.parametrize(
    "body, checked, said",
    [
        ("while True: pass", True, "it ran longer than the limit of 3 s"),
        ("tl.load(x_ptr + 2**40 + column)", False, "its process was ended by signal 11"),
        ("tl.load(x_ptr + 2**40 + column)", True, "raised KernelError: add_rms_norm_kernel: program (0, 0, 0) loads 4"),
    ],
)
def test_a_kernel_that_breaks_a_rule_costs_one_function(grade_notebook, body, checked, said):
    grade = grade_notebook(with_body(body, checked))
    assert grade.status == GRADED and list(failures(grade)) == ["add_rms_norm"], failures(grade)
    assert said in failures(grade)["add_rms_norm"]


@needs_triton
def test_the_grader_finds_a_hint_for_a_kernel_that_runs_in_its_child(grade_notebook):
    changed = notebook("A1")
    [cell] = [cell for cell in changed["cells"] if grade_id(cell) == "solve-int4_gemv"]
    cell["source"] = "".join(cell["source"]).replace("q - zero[None, :]", "q - zero[None, :] - 1")
    grade = grade_notebook(changed)
    assert {f.name: f.failure.hint_key for f in grade.functions if f.failure} == {"int4_gemv": "zero-plus-one"}


@interpreted
def test_an_error_in_a_kernel_is_placed_in_it():
    """A line of the kernel, not that of the launcher which started it."""
    from tests.exercises.planted_A1_norm import launch

    x = torch.ones(1, 4)
    [name, text] = local_call(launch)((x, x, x[0], "no number")).error
    assert name != "InterpreterError" and re.search(r"\(line \d+ of _kernel\)$", text), text


# --- in the engine ---


def own(problem: str, **wrong: str) -> Callable[..., torch.Tensor]:
    from tests.exercises import planted_A1_attention, planted_A1_norm

    of = {"add_rms_norm": planted_A1_norm, "online_attention": planted_A1_attention}[problem]
    return partial(of.launch, wrong=wrong.get(problem, ""))


def logits(model: Decoder, tokens: list[int], prompt: int) -> torch.Tensor:
    """Of the tokens behind the prompt, each fed in a decode step."""
    cache = model.new_cache(capacity=len(tokens))
    model.forward(tokens[:prompt], cache)
    return torch.cat([model.forward([token], cache) for token in tokens[prompt:]])


@interpreted
def test_own_kernels_decode_as_the_engine_does():
    """With a window in one layer, in decode steps that lie outside of it."""
    model = sharpen(Decoder.random(small_config(windows=(6, None))))
    tokens = list(range(40, 60))
    wanted = logits(model, tokens, 18)

    def error(**wrong: str) -> float:
        model.backend = OwnKernels(own("add_rms_norm", **wrong), own("online_attention", **wrong))
        return (logits(model, tokens, 18) - wanted).abs().max().item()

    assert error() < 1e-4
    assert error(add_rms_norm="norm of x") > 1e-2
    assert error(online_attention="start ignored") > 1e-2
