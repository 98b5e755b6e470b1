"""Where each of the decoder's tensors comes from: Hugging Face and GGUF names, fusions and permutations."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from course_lib.config import ModelConfig
from course_lib.mla_shape import MlaShape


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


def deepseek(mla: MlaShape) -> Naming:
    """Hugging Face's names of a DeepSeek model with dense layers: another attention in the same block."""

    def projection(name: str) -> str:
        return f"model.layers.{{i}}.self_attn.{name}.weight"

    layer = {ours: theirs for ours, theirs in HUGGING_FACE.layer.items() if "qkv" not in ours and "qk_norm" not in ours}
    first = "q_a_proj" if mla.q_lora_rank else "q_proj"
    layer["attention.down.weight"] = projection(first), projection("kv_a_proj_with_mqa")
    layer["attention.kv_norm.weight"] = (projection("kv_a_layernorm"),)
    layer["attention.kv_up"] = (projection("kv_b_proj"),)
    if mla.q_lora_rank:
        layer["attention.q_norm.weight"] = (projection("q_a_layernorm"),)
        layer["attention.q_up.weight"] = (projection("q_b_proj"),)
    return replace(HUGGING_FACE, layer=layer)


def source_shape(ours: str, theirs: str, config: ModelConfig) -> tuple[int, ...]:
    """The shape that source tensor `theirs` must have to become (part of) our parameter `ours`."""
    h, d = config.hidden, config.head_dim
    q, kv = config.heads * d, config.kv_heads * d
    if ours in ("embed.weight", "head.weight"):
        return (config.vocab, h)
    if config.mla and ".self_attn." in theirs:
        return _latent_shape(theirs.split(".")[-2], config)
    if "q_norm" in ours or "k_norm" in ours:
        return (d,)
    if "norm" in ours:
        return (h,)
    if "qkv" in ours:
        rows = q if ("q_proj" in theirs or "attn_q" in theirs) else kv
        return (rows,) if ours.endswith("bias") else (rows, h)
    return {"out": (h, q), "gate_up": (config.ffn, h), "down": (h, config.ffn)}[ours.split(".")[-2]]


def _latent_shape(projection: str, config: ModelConfig) -> tuple[int, ...]:
    mla, h, heads = config.mla, config.hidden, config.heads
    return {
        "q_proj": (heads * mla.qk_head_dim, h),
        "q_a_proj": (mla.q_lora_rank, h),
        "q_a_layernorm": (mla.q_lora_rank,),
        "q_b_proj": (heads * mla.qk_head_dim, mla.q_lora_rank),
        "kv_a_proj_with_mqa": (mla.entry, h),
        "kv_a_layernorm": (mla.kv_lora_rank,),
        "kv_b_proj": (heads * (mla.qk_nope_head_dim + mla.v_head_dim), mla.kv_lora_rank),
        "o_proj": (h, heads * mla.v_head_dim),
    }[projection]


def half_split(config: ModelConfig) -> Callable[[str, Tensor], Tensor]:
    """Reorder the rows that DeepSeek's interleaved RoPE rotates, so that half-split RoPE gives the same scores.

    They are the last p rows of each query head and of the joint projection of latent and rope key: elements 2i and
    2i + 1, which are a pair, move to i and i + p/2. Queries and keys move alike, so their products stay.
    """
    p = config.mla.qk_rope_head_dim

    def apply(name: str, tensor: Tensor) -> Tensor:
        if name.split(".")[-2] not in ("q_proj", "q_b_proj", "kv_a_proj_with_mqa"):
            return tensor
        heads = tensor.view(1 if "kv_a" in name else config.heads, -1, tensor.shape[-1])
        fixed, turned = heads.split((heads.shape[1] - p, p), dim=1)
        return torch.cat((fixed, turned[:, 0::2], turned[:, 1::2]), dim=1).view(tensor.shape)

    return apply


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
