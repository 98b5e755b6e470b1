"""Where each of the decoder's tensors comes from: Hugging Face and GGUF names, fusions and permutations."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

import torch
from torch import Tensor

from course_lib.config import ModelConfig


@dataclass(frozen=True)
class Naming:
    """One file format's names. `layer` names contain {i}; `head` is absent where embeddings are tied."""

    embed: str
    norm: str
    head: str
    layer: dict[str, tuple[str, ...]]  # our parameter -> source tensors, stacked along the output axis

    def entries(self, config: ModelConfig) -> Iterator[tuple[str, tuple[str, ...]]]:
        """Every parameter of the decoder with the source tensors it is made of."""
        yield "embed.weight", (self.embed,)
        for i in range(config.layers):
            for ours, theirs in self.layer.items():
                if (ours.endswith("qkv.bias") and not config.qkv_bias) or ("qk_norm" in ours and not config.qk_norm):
                    continue
                ours = ours.replace("qk_norm.", "")
                yield f"blocks.{i}.{ours}", tuple(name.format(i=i) for name in theirs)
        yield "norm.weight", (self.norm,)
        if not config.tied_embeddings:
            yield "head.weight", (self.head,)


def _layer(prefix: str, names: dict[str, str], bias: bool = True) -> dict[str, tuple[str, ...]]:
    def full(*keys: str, kind: str = "weight") -> tuple[str, ...]:
        return tuple(f"{prefix}{names[key]}.{kind}" for key in keys)

    return {
        "attention_norm.weight": full("attention_norm"),
        "attention.qkv.weight": full("q", "k", "v"),
        "attention.qkv.bias": full("q", "k", "v", kind="bias"),
        "qk_norm.attention.q_norm.weight": full("q_norm"),
        "qk_norm.attention.k_norm.weight": full("k_norm"),
        "attention.out.weight": full("out"),
        "ffn_norm.weight": full("ffn_norm"),
        "ffn.gate_up.weight": full("gate", "up"),
        "ffn.down.weight": full("down"),
    }


HUGGING_FACE = Naming(
    embed="model.embed_tokens.weight",
    norm="model.norm.weight",
    head="lm_head.weight",
    layer=_layer(
        "model.layers.{i}.",
        {
            "attention_norm": "input_layernorm",
            "q": "self_attn.q_proj",
            "k": "self_attn.k_proj",
            "v": "self_attn.v_proj",
            "q_norm": "self_attn.q_norm",
            "k_norm": "self_attn.k_norm",
            "out": "self_attn.o_proj",
            "ffn_norm": "post_attention_layernorm",
            "gate": "mlp.gate_proj",
            "up": "mlp.up_proj",
            "down": "mlp.down_proj",
        },
    ),
)

GGUF = Naming(
    embed="token_embd.weight",
    norm="output_norm.weight",
    head="output.weight",
    layer=_layer(
        "blk.{i}.",
        {
            "attention_norm": "attn_norm",
            "q": "attn_q",
            "k": "attn_k",
            "v": "attn_v",
            "q_norm": "attn_q_norm",
            "k_norm": "attn_k_norm",
            "out": "attn_output",
            "ffn_norm": "ffn_norm",
            "gate": "ffn_gate",
            "up": "ffn_up",
            "down": "ffn_down",
        },
    ),
)


def source_shape(ours: str, theirs: str, config: ModelConfig) -> tuple[int, ...]:
    """The shape that source tensor `theirs` must have to become (part of) our parameter `ours`."""
    h, d = config.hidden, config.head_dim
    q, kv = config.heads * d, config.kv_heads * d
    if ours in ("embed.weight", "head.weight"):
        return (config.vocab, h)
    if "q_norm" in ours or "k_norm" in ours:
        return (d,)
    if "norm" in ours:
        return (h,)
    if "qkv" in ours:
        rows = q if ("q_proj" in theirs or "attn_q" in theirs) else kv
        return (rows,) if ours.endswith("bias") else (rows, h)
    return {"out": (h, q), "gate_up": (config.ffn, h), "down": (h, config.ffn)}[ours.split(".")[-2]]


def unpermute(config: ModelConfig) -> Callable[[str, Tensor], Tensor]:
    """Undo the row permutation that llama.cpp's converter applies to Llama's q and k.

    It reorders each head's rows so that interleaved RoPE on them equals half-split RoPE on the original
    (convert_hf_to_gguf.py, LlamaModel.permute). Other architectures are stored as they are.
    """

    def apply(name: str, tensor: Tensor) -> Tensor:
        if config.architecture != "llama" or not (".attn_q." in name or ".attn_k." in name):
            return tensor
        heads = config.heads if ".attn_q." in name else config.kv_heads
        rows = tensor.view(heads, config.head_dim // 2, 2, *tensor.shape[1:])
        return rows.transpose(1, 2).reshape(tensor.shape)

    return apply


def stack(tensors: list[Tensor]) -> Tensor:
    """Fuse projections that share their input: their output rows below one another."""
    return tensors[0] if len(tensors) == 1 else torch.cat(tensors)
