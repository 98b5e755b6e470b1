"""The shapes that are checked and measured: those of real models on a GPU, and tiny ones for the interpreter."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from course_lib import facts
from course_lib.config import ModelConfig


@dataclass(frozen=True)
class Sizes:
    """Letters: H query heads, K KV heads, d head dimension, h hidden size, f FFN size, V vocabulary; see `ModelConfig`.

    Lengths of the ragged batches are no multiples of a page or tile, and some sequences are empty.
    """

    layer: ModelConfig
    """Gives the kernels their H, K, d, h, f and V."""
    model: ModelConfig
    """The model that is run as a whole."""
    dtypes: tuple[torch.dtype, ...]
    """Checked; the first is measured."""
    rows: int
    """Tokens of the kernels that work row by row."""
    batch: int
    """Sequences of a decode step, of the kernels and of the model."""
    context: int
    """Keys of each of them."""
    long_context: int
    """Keys of a single sequence."""
    prompts: tuple[int, ...]
    """Tokens of single prompts."""
    gemm_rows: int
    """Tokens of the matrix products that compute."""
    group: int
    """Rows of a group of the int4 weights."""
    window: int
    decode_lens: tuple[int, ...]
    """Ragged: keys of each sequence."""
    prefill_lens: tuple[tuple[int, int], ...]
    """Ragged: (new tokens, keys) of each sequence."""
    prompt_tokens: int
    new_tokens: int
    """Of each request to the model."""
    copy_bytes: int
    matmul_side: int
    """Of the measurements of the two ceilings."""


FULL = Sizes(
    layer=facts.model("Llama-3.1-8B").config,
    model=facts.model("Qwen3-0.6B").config,
    dtypes=(torch.bfloat16, torch.float16),
    rows=8192,
    batch=64,
    context=4096,
    long_context=32768,
    prompts=(4096, 8192),
    gemm_rows=2048,
    group=128,
    window=512,
    decode_lens=(1, 0, 17, 1000, 4097),
    prefill_lens=((300, 300), (0, 40), (1, 1000), (77, 2000)),
    prompt_tokens=128,
    new_tokens=128,
    copy_bytes=2**31,
    matmul_side=8192,
)
SMALL = Sizes(
    layer=ModelConfig("llama", 2, hidden=64, heads=4, kv_heads=2, head_dim=16, ffn=96, vocab=300, context=128),
    model=ModelConfig(
        "qwen3",
        2,
        hidden=32,
        heads=4,
        kv_heads=2,
        head_dim=16,
        ffn=64,
        vocab=300,
        context=64,
        qk_norm=True,
        tied_embeddings=True,
    ),  # fmt: skip
    dtypes=(torch.float16,),
    rows=5,
    batch=2,
    context=48,
    long_context=96,
    prompts=(40,),
    gemm_rows=17,
    group=32,
    window=16,
    decode_lens=(1, 0, 17, 60),
    prefill_lens=((20, 20), (0, 30), (1, 33), (5, 40)),
    prompt_tokens=6,
    new_tokens=4,
    copy_bytes=2**12,
    matmul_side=16,
)
