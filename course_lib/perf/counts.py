"""FLOPs and bytes of one forward pass, counted from a config.

Letters, here and in the notebooks: L layers, h hidden, H query heads, K KV heads, d head_dim, f ffn, V vocab; S
sequences, of which each brings n new tokens and has c cached ones; b_w bytes per weight, b bytes per KV element.

What is counted. A multiply-add is 2 FLOP. Matrix products and causal attention count; norms, RoPE, softmax, biases and
the embedding (a look-up) do not: they are under 1 % of the FLOPs. Every weight is read once per pass, whatever the
number of tokens; every cached key and value is read once per pass, every new one written once. Activations are left
out. So the bytes are a lower bound of the traffic, and a time derived from them is one too.

Sources: 2 FLOP per weight and token and the attention term are the forward cost of Kaplan et al. 2020
(arXiv 2001.08361, section 2.1; their attention term is the causal average of ours). KV bytes: arXiv 2309.06180.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from course_lib.config import ModelConfig


@dataclass(frozen=True)
class PassCost:
    """FLOPs and bytes of one forward pass of `tokens` new tokens."""

    tokens: int
    linear_flops: float  # the matrix products inside the blocks
    attention_flops: float  # q with every key, weights with every value
    head_flops: float  # lm_head, for the last position of each sequence
    weight_bytes: float
    kv_read_bytes: float
    kv_write_bytes: float

    @property
    def flops(self) -> float:
        return self.linear_flops + self.attention_flops + self.head_flops

    @property
    def bytes(self) -> float:
        return self.weight_bytes + self.kv_read_bytes + self.kv_write_bytes

    @property
    def intensity(self) -> float:
        """FLOP per byte of memory traffic."""
        return self.flops / self.bytes


def block_matrix_params(config: ModelConfig) -> int:
    """Weights of the matrices of all blocks: L * (hHd + 2hKd + Hdh + 3hf). Each is used once per token."""
    return replace(config, qkv_bias=False).block_parameters()  # biases are added, not multiplied


def matmul_params(config: ModelConfig) -> int:
    """P, the weights that take part in matrix products: those of the blocks and lm_head (hV), tied or not."""
    return block_matrix_params(config) + config.hidden * config.vocab


def pass_cost(
    config: ModelConfig,
    new: Sequence[int],
    cached: Sequence[int],
    bytes_per_weight: float = 2,
    bytes_per_kv: float = 2,
) -> PassCost:
    """Cost of one pass over S sequences: sequence i brings `new[i]` tokens and has `cached[i]` in the cache.

    Query at position p sees p + 1 keys, itself included, or W + s of them in a layer with a sliding window W and sinks.
    """
    tokens = sum(new)
    pairs = keys = 0  # (query, key) pairs and cached keys read, summed over layers and sequences
    sequences = Counter(zip(new, cached, strict=True))  # equal ones are counted once: batches here can be large
    for window, layers in Counter(config.windows).items():
        reach = None if window is None else window + config.sinks
        for (n, c), count in sequences.items():
            pairs += layers * count * (visible_pairs(c + n, reach) - visible_pairs(c, reach))
            # The first new token sees most of the cache: all of it, or the W - 1 positions before its own and s sinks.
            keys += layers * count * (c if reach is None else min(c, reach - 1))
    kv_of_layer = config.kv_bytes_per_token(bytes_per_kv) / config.layers
    return PassCost(
        tokens=tokens,
        linear_flops=2 * block_matrix_params(config) * tokens,
        attention_flops=_latent_flops(config, sequences) if config.mla else 4 * config.heads * config.head_dim * pairs,
        head_flops=2 * config.hidden * config.vocab * len(new),
        weight_bytes=matmul_params(config) * bytes_per_weight,
        kv_read_bytes=kv_of_layer * keys,
        kv_write_bytes=kv_of_layer * config.layers * tokens,
    )


def decode_flops_per_key(config: ModelConfig) -> int:
    """FLOPs of a decode step for each key that a query sees: 4 L H d, or with MLA, absorbed, 2 L H (2r + p)."""
    if config.mla:
        return config.layers * config.mla.flops("absorbed", config.heads, new=1, cached=0)
    return 4 * config.layers * config.heads * config.head_dim


def _latent_flops(config: ModelConfig, sequences: Mapping[tuple[int, int], int]) -> int:
    """Attention FLOPs with MLA, each sequence in its cheaper form; W_UK and W_UV of new tokens are linear layers."""
    mla, heads = config.mla, config.heads
    per_layer = [count * mla.flops(mla.cheaper(n, c), heads, n, c) for (n, c), count in sequences.items()]
    return config.layers * sum(per_layer)


def prefill_cost(config: ModelConfig, n: int, bytes_per_weight: float = 2, bytes_per_kv: float = 2) -> PassCost:
    """Cost of one prompt of n tokens on an empty cache: attention is 4 L H d n(n+1)/2 FLOP."""
    return pass_cost(config, [n], [0], bytes_per_weight, bytes_per_kv)


def decode_cost(
    config: ModelConfig, batch: int, context: int, bytes_per_weight: float = 2, bytes_per_kv: float = 2
) -> PassCost:
    """Cost of one decode step of B sequences: each new token is the last of its `context` positions.

    FLOPs are B * (2P + 4 L H d context): grouped-query attention (K < H) saves bytes here, not FLOPs.
    Bytes are P b_w + B context kv: context - 1 positions read and one written per sequence.
    """
    return pass_cost(config, [1] * batch, [context - 1] * batch, bytes_per_weight, bytes_per_kv)


def visible_pairs(n: int, window: int | None = None) -> int:
    """Number of (query, key) pairs of n causal positions: 1 + 2 + ... + n, each term at most `window`."""
    if window is None or n <= window:
        return n * (n + 1) // 2
    return window * (window + 1) // 2 + (n - window) * window
