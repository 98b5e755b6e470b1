"""The same weights in transformers, as the peer to compare with."""

from __future__ import annotations

import time

import torch

from course_lib.config import ModelConfig
from course_lib.errors import CourseError
from course_lib.model import Decoder
from course_lib.weights.names import HUGGING_FACE, source_shape


def as_transformers(model: Decoder):
    """A transformers model that shares this decoder's values (copied); its attention is SDPA, as ours.

    Raises CourseError where transformers is missing or the model is neither a plain Llama nor a plain Qwen3.
    """
    try:
        from transformers import LlamaConfig, LlamaForCausalLM, Qwen3Config, Qwen3ForCausalLM
    except ImportError:
        raise CourseError("the comparison needs transformers; `python3 course.py test` installs it") from None

    c: ModelConfig = model.config
    classes = {"llama": (LlamaConfig, LlamaForCausalLM), "qwen3": (Qwen3Config, Qwen3ForCausalLM)}
    if c.architecture not in classes or c.rope_scaling:
        scaled = " with it" if c.rope_scaling else ""
        raise CourseError(
            f"the comparison is made for Llama and Qwen3 shapes without RoPE scaling, not for {c.architecture}{scaled}"
        )
    config_class, model_class = classes[c.architecture]
    config = config_class(
        hidden_size=c.hidden,
        intermediate_size=c.ffn,
        num_hidden_layers=c.layers,
        num_attention_heads=c.heads,
        num_key_value_heads=c.kv_heads,
        head_dim=c.head_dim,
        vocab_size=c.vocab,
        max_position_embeddings=c.context,
        rms_norm_eps=c.norm_eps,
        rope_parameters={"rope_type": "default", "rope_theta": c.rope_theta},
        tie_word_embeddings=c.tied_embeddings,
        attn_implementation="sdpa",
        dtype=model.dtype,
    )
    with torch.device("meta"):
        twin = model_class(config)
    state, own = {}, model.state_dict()
    for ours, theirs in HUGGING_FACE.entries(c):
        sizes = [source_shape(ours, name, c)[0] for name in theirs]
        parts = own[ours].contiguous().split(sizes)
        state.update({name: part.clone() for name, part in zip(theirs, parts, strict=True)})
    twin.load_state_dict(state, assign=True, strict=False)  # lm_head is absent where tied
    twin.tie_weights()
    twin.model.rotary_emb = type(twin.model.rotary_emb)(config)  # its buffers were made on the meta device
    return twin.to(model.device).eval().requires_grad_(False)


class Clock:
    """A transformers streamer that notes when each token of `generate` came."""

    def __init__(self):
        self.times: list[float] = []
        self._prompt = True

    def put(self, tokens) -> None:
        if self._prompt:  # the first call hands over the prompt
            self._prompt = False
        else:
            self.times.append(time.perf_counter())

    def end(self) -> None:
        pass
