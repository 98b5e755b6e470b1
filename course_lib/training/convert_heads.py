"""From multi-head to grouped-query or multi-query attention: merge KV heads (arXiv 2305.13245, section 2.1).

H query heads over K KV heads become H query heads over K' of them, where K' divides K. Of the old heads, each K / K'
neighbours become one, so that query head i, which read old head i // (H / K), reads new head i // (H / K').

The paper takes the mean of the old heads' projections and compares it with two baselines (section 3.3): the first old
head alone, and new random weights. The cache shrinks by K / K'. What it costs, before and after further training, is
measured by `uptrain`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace

import torch
from torch import Tensor

from course_lib.errors import ModelError
from course_lib.model import Decoder

HOW = ("mean", "first", "random")
INIT_STD = 0.02  # of random projections, as at the start of the training (initializer_range of Llama's configs)


def pool_heads(
    weight: Tensor, old: int, new: int, how: str = "mean", generator: torch.Generator | None = None
) -> Tensor:
    """Merge the heads of one key or value projection.

    weight: [old * d, h], or a bias [old * d]. Returns [new * d, ...] in its dtype; a mean is taken in float32 or wider.
    how: "mean" or "first" of the heads that are merged, or "random": normal weights of deviation 0.02, drawn on the
    CPU from the generator (default: torch's global one). With new == old, "mean" and "first" change nothing.
    Raises ModelError where old is not a multiple of new, or for another `how`.
    """
    if how not in HOW:
        raise ModelError(f"KV heads cannot be merged by '{how}'; use one of {', '.join(HOW)}")
    if new < 1 or old % new:
        raise ModelError(f"{old} KV heads cannot become {new}; ask for a number that divides {old}")
    groups = weight.view(new, old // new, -1, *weight.shape[1:])  # [K', K / K', d, h]
    if how == "mean":
        merged = groups.mean(1, dtype=torch.promote_types(weight.dtype, torch.float32))
    elif how == "first":
        merged = groups[:, 0]
    else:
        merged = INIT_STD * torch.randn(groups[:, 0].shape, generator=generator)
    return merged.flatten(0, 1).to(weight)


def pool_kv_heads(model: Decoder, kv_heads: int, how: str = "mean", seed: int = 0) -> Decoder:
    """A new decoder whose keys and values have `kv_heads` heads; every other weight is the old model's.

    how: see `pool_heads`; `seed` fixes the random weights. Raises ModelError as `pool_heads` does, and for a model with
    latent attention.
    """
    old, size = model.config, model.config.head_dim
    if old.mla:
        raise ModelError(
            "latent attention caches one vector for all heads, so none can be merged; use a model with MHA or GQA"
        )
    generator = torch.Generator().manual_seed(seed)

    def convert(qkv: Tensor) -> Tensor:
        q, k, v = qkv.split([old.heads * size, old.kv_heads * size, old.kv_heads * size])
        k, v = (pool_heads(part, old.kv_heads, kv_heads, how, generator) for part in (k, v))
        return torch.cat((q, k, v))

    return with_kv_heads(model, kv_heads, convert)


def with_kv_heads(model: Decoder, kv_heads: int, convert: Callable[[Tensor], Tensor]) -> Decoder:
    """A new decoder with another number of KV heads, whose fused projections `convert` makes of the old model's.

    convert: weight [(H + 2K) d, h], or bias [(H + 2K) d], to [(H + 2K') d, ...]; called layer by layer.
    """
    state = {name: convert(tensor) if ".qkv." in name else tensor for name, tensor in model.state_dict().items()}
    config = replace(model.config, kv_heads=kv_heads)
    new = Decoder.random(config, dtype=model.dtype, device=model.device, backend=model.backend.name)
    new.load_state_dict(state)
    return new


def pool_projections(
    state: Mapping[str, Tensor], old: int, new: int, how: str = "mean", seed: int = 0
) -> dict[str, Tensor]:
    """The same for a state dict with Hugging Face's names (`...k_proj.weight`, `...v_proj.weight`), for training."""
    generator = torch.Generator().manual_seed(seed)
    return {
        name: pool_heads(tensor, old, new, how, generator) if ".k_proj." in name or ".v_proj." in name else tensor
        for name, tensor in state.items()
    }
