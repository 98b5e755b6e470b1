"""The shape of a model with another attention: what its cache would be, had it been trained so.

Nothing here can be switched on for a trained model: heads, windows and latents are properties of its weights.
"""

from __future__ import annotations

from dataclasses import replace

from course_lib.facts import ModelShape
from course_lib.mla_shape import MlaShape

# Of DeepSeek-V2 and V3 (arXiv 2405.04434, section 3.1.2); in the cache only r + p of them count.
DEEPSEEK_MLA = MlaShape(kv_lora_rank=512, q_lora_rank=1536, qk_nope_head_dim=128, qk_rope_head_dim=64, v_head_dim=128)
GEMMA_PERIOD = 6  # Gemma 3: five layers with a window, then one without


def shape_with_kv_heads(shape: ModelShape, kv_heads: int) -> ModelShape:
    """The shape with K KV heads. Latent attention becomes that of its plain form: keys of a + p, values of v elements.

    The parameters are those of the original: K changes them by little.
    """
    size = (shape.mla.qk_head_dim + shape.mla.v_head_dim) // 2 if shape.mla else shape.head_dim
    return replace(shape, kv_heads=kv_heads, head_dim=size, mla=None, total_params=shape.params)


def redesigns(shape: ModelShape, window: int) -> dict[str, ModelShape]:
    """The shape as it is, and with other attention in its place; names as the planner prints them.

    With fewer KV heads, where the query heads can share them evenly: all, a quarter, an eighth, one. With a window of
    w tokens in every layer or, as Gemma 3, in five layers of six; without the windows that it has. With DeepSeek's
    latent.
    """
    counts = dict.fromkeys((shape.heads, shape.heads // 4, shape.heads // 8, 1))
    shared = {
        f"K = {count}": shape_with_kv_heads(shape, count)
        for count in counts
        if count and shape.heads % count == 0 and count != shape.kv_heads
    }
    hybrid = (window,) * (GEMMA_PERIOD - 1) + (None,)
    full = {"no windows": replace(shape, windows=(None,))} if any(shape.windows) else {}
    latent = {} if shape.mla else {"MLA, 512 + 64": replace(shape, mla=DEEPSEEK_MLA, total_params=shape.params)}
    return {
        "as it is": shape,
        **shared,
        f"w = {window:,} in 5 of 6 layers": replace(shape, windows=hybrid),
        f"w = {window:,} in every layer": replace(shape, windows=(window,)),
        **full,
        **latent,
    }
