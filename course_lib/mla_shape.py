"""The numbers of multi-head latent attention (MLA; DeepSeek-V2, arXiv 2405.04434, section 2.1), and what it costs.

A token's keys and values are compressed into one latent of r elements. For each of H heads W_UK [a, r] maps it back to
a key of a elements, W_UV [v, r] to a value of v. A rotation by the position cannot be moved past W_UK, so p further
elements, one rotated key that all heads share, carry the position. The cache holds these r + p elements and nothing
else.

Two forms compute the same attention, as q . (W_UK c) = (W_UK^T q) . c:
- plain: map every latent to the keys and values of all heads, then attend: a + p elements for a key, v for a value.
- absorbed: W_UK^T is applied to the query and W_UV to the output. Between them H query heads share one key, the cached
  r + p elements, and one value, the first r of them: multi-query attention.

Which one is cheaper (`MlaShape.flops`; DeepSeek-V3's H 128, r 512, a 128, p 64, v 128, in one layer). Both apply W_UK
and W_UV once per new token, to its latent or to its query and output. Beside that:
- Prefill of 4,096 tokens: plain 0.69 TFLOP, absorbed 2.34, because a query and a key meet on a + p + v = 320 elements
  in the plain form and on 2r + p = 1,088 in the absorbed one.
- Decode at 4,096 tokens: plain 138 GFLOP, absorbed 1.14, because plain maps all cached latents again for one query.
  In bytes: absorbed reads the r + p = 576 elements of a token, plain also writes and reads the H(a + p + v) = 40,960
  that it makes of them.
- Between them: n new tokens on a long cache cost the same in both at n = r(a + v) / (2r - a - v), here 171.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Literal

from course_lib.errors import ModelError

Form = Literal["plain", "absorbed"]


@dataclass(frozen=True)
class MlaShape:
    """What MLA adds to a decoder's shape; the names are those of DeepSeek's configs. Raises ModelError if impossible.

    q_lora_rank: queries go through a latent of their own; None for a plain projection (DeepSeek-V2-Lite).
    """

    kv_lora_rank: int  # r
    q_lora_rank: int | None
    qk_nope_head_dim: int  # a
    qk_rope_head_dim: int  # p
    v_head_dim: int  # v

    def __post_init__(self):
        for name, value in vars(self).items():
            if value is not None and value < 1:
                raise ModelError(f"latent attention with {name} {value} is impossible; it must be at least 1")
        if self.qk_rope_head_dim % 2:
            raise ModelError(f"qk_rope_head_dim is {self.qk_rope_head_dim}; it must be even, as RoPE rotates pairs")

    @property
    def qk_head_dim(self) -> int:
        """a + p, elements of a query and, in the plain form, of a key."""
        return self.qk_nope_head_dim + self.qk_rope_head_dim

    @property
    def entry(self) -> int:
        """r + p, what the cache holds of a token in one layer."""
        return self.kv_lora_rank + self.qk_rope_head_dim

    def matrix_parameters(self, hidden: int, heads: int) -> int:
        """Weights of one layer's attention matrices, without the norms."""
        queries = heads * self.qk_head_dim
        q = hidden * queries if self.q_lora_rank is None else self.q_lora_rank * (hidden + queries)
        up = self.kv_lora_rank * heads * (self.qk_nope_head_dim + self.v_head_dim)
        return q + hidden * self.entry + up + heads * self.v_head_dim * hidden

    def norm_parameters(self) -> int:
        """Weights of one layer's norms of the latents."""
        return self.kv_lora_rank + (self.q_lora_rank or 0)

    def flops(self, form: Form, heads: int, new: int, cached: int) -> int:
        """FLOPs of causal attention in one layer, `new` tokens behind `cached` ones; a multiply-add is 2.

        Without W_UK and W_UV of the new tokens, which count as linear layers. plain: 2H(cached r(a + v) + pairs
        (a + p + v)), as it maps the cached latents again; absorbed: 2H pairs (2r + p).
        """
        pairs = new * cached + new * (new + 1) // 2
        if form == "plain":
            again = cached * self.kv_lora_rank * (self.qk_nope_head_dim + self.v_head_dim)
            return 2 * heads * (again + pairs * (self.qk_head_dim + self.v_head_dim))
        return 2 * heads * pairs * (self.entry + self.kv_lora_rank)

    def cheaper(self, new: int, cached: int) -> Form:
        """The form with fewer FLOPs, the absorbed one where they are equal. The number of heads does not matter."""
        plain, absorbed = (self.flops(form, 1, new, cached) for form in ("plain", "absorbed"))
        return "plain" if plain < absorbed else "absorbed"


def hf_mla(need: Callable[[str], Any], config: Mapping[str, Any], source: str) -> MlaShape:
    """Read DeepSeek's Hugging Face config; need: an entry, or a ModelError that names it.

    Raises ModelError where the model is more than dense layers without biases. `source` names the file.
    """
    if config.get("n_routed_experts") and config.get("first_k_dense_replace", 0) < need("num_hidden_layers"):
        raise ModelError(f"{source}: mixtures of experts are not supported; DeepSeek models run with dense layers only")
    if config.get("attention_bias"):
        raise ModelError(f"{source}: latent attention with biases (attention_bias) is not supported")
    return MlaShape(
        kv_lora_rank=need("kv_lora_rank"),
        q_lora_rank=config.get("q_lora_rank"),
        qk_nope_head_dim=need("qk_nope_head_dim"),
        qk_rope_head_dim=need("qk_rope_head_dim"),
        v_head_dim=need("v_head_dim"),
    )
