"""Shared by all tests: one thread (two OpenMP threads on busy cores collapse), no hub, small random models."""

from __future__ import annotations

import os

os.environ["OMP_NUM_THREADS"] = "1"  # for the notebooks' kernels and the grader's children too
os.environ.setdefault("HF_HUB_OFFLINE", "1")
os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
os.environ.setdefault("MPLBACKEND", "agg")
os.environ.pop("COURSE_MODEL", None)
os.environ.pop("COURSE_DEVICE", None)
os.environ.pop("COURSE_BACKEND", None)

from importlib.util import find_spec  # noqa: E402

import pytest  # noqa: E402
import torch  # noqa: E402

from course_lib.config import ModelConfig  # noqa: E402
from course_lib.mla_shape import MlaShape  # noqa: E402
from course_lib.model import Decoder  # noqa: E402

torch.set_num_threads(1)


@pytest.fixture(autouse=True)
def _seeded():
    """What a test draws without a seed of its own does not depend on the tests before it."""
    torch.manual_seed(0)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """The kernels' tests, which are the longest, come first, or one worker would wait for the other at the end.

    Notebook A1 interprets and compiles kernels; its cells are skipped, with a reason, where there is no Triton.
    """
    items.sort(key=lambda item: "kernels" not in item.path.parts)
    if find_spec("triton") is None:
        for item in items:
            if item.path.name == "A1_gpu_kernels.ipynb":
                item.add_marker(pytest.mark.skip(reason="Triton has no build for this machine, so A1 is for reading"))


def small_config(**changes) -> ModelConfig:
    """A random-model shape that runs in milliseconds; head_dim is not hidden / heads, on purpose."""
    shape = dict(
        architecture="llama", layers=2, hidden=48, heads=4, kv_heads=2, head_dim=16, ffn=96, vocab=97, context=128
    )
    return ModelConfig(**(shape | changes))


def latent_config(**changes) -> ModelConfig:
    """As `small_config`, with latent attention. All widths differ, so that none can stand for another."""
    mla = MlaShape(kv_lora_rank=32, q_lora_rank=20, qk_nope_head_dim=16, qk_rope_head_dim=8, v_head_dim=12)
    return small_config(**(dict(architecture="deepseek_v3", kv_heads=4, head_dim=24, mla=mla) | changes))


def sharpen(model: Decoder, factor: float = 8.0) -> Decoder:
    """Random weights attend almost evenly, which would hide a wrong mask or block: scale queries, keys and values."""
    state = model.state_dict()
    for name in state:
        if name.endswith(("attention.qkv.weight", "attention.down.weight", "attention.q_up.weight", "attention.kv_up")):
            state[name] = state[name] * factor
    model.load_state_dict(state)
    return model


@pytest.fixture(scope="session")
def tiny():
    """The embedded model behind the offline engine."""
    from course_lib import LLM

    return LLM("tiny", device="cpu")
