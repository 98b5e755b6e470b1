"""Which backend a model gets. What triton's computes is tested in tests/kernels/interpreted/test_engine.py."""

from __future__ import annotations

import pytest
import torch

from course_lib import LLM
from course_lib.backend import choose_backend
from course_lib.engine import Engine
from course_lib.errors import CourseError, ModelError, RequestError
from tests.conftest import small_config

CPU, GPU = torch.device("cpu"), torch.device("cuda")


def choose(name: str | None, device: torch.device, **shape) -> str:
    return choose_backend(name, small_config(**shape), torch.float32, device).name


@pytest.fixture
def triton():
    pytest.importorskip("triton", reason="Triton has no build for this machine, so there is one backend")


def test_a_cpu_gets_torch_and_a_gpu_triton(triton):
    assert choose(None, CPU) == "torch"
    assert choose(None, GPU) == "triton"
    assert choose("torch", GPU) == "torch"


def test_the_environment_names_a_backend_and_an_argument_overrides_it(triton, monkeypatch):
    monkeypatch.setenv("COURSE_BACKEND", "torch")
    assert choose(None, GPU) == "torch"
    assert choose("triton", GPU) == "triton"


def test_a_model_that_the_kernels_cannot_run_gets_torch_unless_triton_is_named(triton):
    assert choose(None, GPU, head_dim=24) == "torch"
    with pytest.raises(CourseError, match="head_dim is 24"):
        choose("triton", GPU, head_dim=24)


def test_without_triton_a_gpu_gets_torch(monkeypatch):
    def missing(interpret):
        raise CourseError("the package triton is missing")

    monkeypatch.setattr("course_lib.backend.choice._triton", missing)
    assert choose(None, GPU) == "torch"


def test_an_unknown_name_says_which_there_are(monkeypatch):
    monkeypatch.setenv("COURSE_BACKEND", "cuda")
    with pytest.raises(ModelError, match="there is no backend 'cuda'; use torch or triton"):
        LLM("tiny")


def test_the_backend_is_shown(tiny):
    assert repr(tiny) == "tiny: 4.0 M parameters in float32 on cpu, backend torch"


def test_cuda_graphs_need_a_gpu(tiny):
    with pytest.raises(RequestError, match="CUDA graphs need a GPU and the triton backend, and the model is on cpu"):
        Engine(tiny, cuda_graphs=True)
