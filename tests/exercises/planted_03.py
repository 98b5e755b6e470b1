"""Wrong solutions of exercise 03, written as a learner would write them, each with the hint it must get.

Those of attention and of merging are in files of their own.
"""

from __future__ import annotations

import torch

from tests.exercises import planted_03_attention, planted_03_merge  # noqa: F401
from tests.exercises.planting import planted

# --- cache_bytes ---


def _tokens(config, tokens):
    return sum(min(tokens, window or tokens) for window in config.windows)


def _elements(config):
    if config.mla:
        return config.mla.kv_lora_rank + config.mla.qk_rope_head_dim
    return 2 * config.kv_heads * config.head_dim


@planted("cache_bytes", "heads-for-kv-heads")
def with_query_heads(config, tokens, bytes_per_element):
    elements = _elements(config) if config.mla else 2 * config.heads * config.head_dim
    return elements * _tokens(config, tokens) * bytes_per_element


@planted("cache_bytes", "group-for-kv-heads")
def with_group_size(config, tokens, bytes_per_element):
    elements = _elements(config) if config.mla else 2 * (config.heads // config.kv_heads) * config.head_dim
    return elements * _tokens(config, tokens) * bytes_per_element


@planted("cache_bytes", "key-without-value")
def keys_alone(config, tokens, bytes_per_element):
    elements = _elements(config) if config.mla else config.kv_heads * config.head_dim
    return elements * _tokens(config, tokens) * bytes_per_element


@planted("cache_bytes", "d-from-hidden")
def head_dim_worked_out(config, tokens, bytes_per_element):
    d = config.hidden // config.heads
    elements = _elements(config) if config.mla else 2 * config.kv_heads * d
    return elements * _tokens(config, tokens) * bytes_per_element


@planted("cache_bytes", "of-one-token")
def per_token(config, tokens, bytes_per_element):
    return config.layers * _elements(config) * bytes_per_element


@planted("cache_bytes", "elements-for-bytes")
def counts_elements(config, tokens, bytes_per_element):
    return _elements(config) * _tokens(config, tokens)


@planted("cache_bytes", "windows-counted-full")
def without_windows(config, tokens, bytes_per_element):
    return config.layers * _elements(config) * tokens * bytes_per_element


@planted("cache_bytes", "window-in-every-layer")
def one_window_for_all(config, tokens, bytes_per_element):
    windows = [window for window in config.windows if window is not None]
    kept = min(tokens, windows[0]) if windows else tokens
    return config.layers * _elements(config) * kept * bytes_per_element


@planted("cache_bytes", "window-always-full")
def reserves_the_window(config, tokens, bytes_per_element):
    kept = sum(tokens if window is None else window for window in config.windows)
    return _elements(config) * kept * bytes_per_element


@planted("cache_bytes", "larger-of-the-two")
def max_for_min(config, tokens, bytes_per_element):
    kept = sum(max(tokens, window or 0) for window in config.windows)
    return _elements(config) * kept * bytes_per_element


@planted("cache_bytes", "layer-with-window-is-free")
def full_layers_only(config, tokens, bytes_per_element):
    kept = sum(tokens for window in config.windows if window is None)
    return _elements(config) * kept * bytes_per_element


@planted("cache_bytes", "latent-twice")
def two_of_everything(config, tokens, bytes_per_element):
    if config.mla:
        width = config.mla.kv_lora_rank + config.mla.qk_rope_head_dim
    else:
        width = config.kv_heads * config.head_dim
    return 2 * width * _tokens(config, tokens) * bytes_per_element


@planted("cache_bytes", "latent-and-value-apart")
def key_latent_and_value_latent(config, tokens, bytes_per_element):
    mla = config.mla
    elements = 2 * mla.kv_lora_rank + mla.qk_rope_head_dim if mla else _elements(config)
    return elements * _tokens(config, tokens) * bytes_per_element


@planted("cache_bytes", "rotated-key-left-out")
def latent_alone(config, tokens, bytes_per_element):
    elements = config.mla.kv_lora_rank if config.mla else _elements(config)
    return elements * _tokens(config, tokens) * bytes_per_element


@planted("cache_bytes", "latent-for-each-head")
def a_latent_a_head(config, tokens, bytes_per_element):
    heads = config.heads if config.mla else 1
    return heads * _elements(config) * _tokens(config, tokens) * bytes_per_element


@planted("cache_bytes", "rotated-key-for-each-head")
def a_rotated_key_a_head(config, tokens, bytes_per_element):
    mla = config.mla
    elements = mla.kv_lora_rank + config.kv_heads * mla.qk_rope_head_dim if mla else _elements(config)
    return elements * _tokens(config, tokens) * bytes_per_element


@planted("cache_bytes", "latent-as-full-heads")
def without_a_look_at_mla(config, tokens, bytes_per_element):
    return 2 * config.kv_heads * config.head_dim * bytes_per_element * _tokens(config, tokens)


@planted("cache_bytes", "keys-made-from-latents")
def plain_form_cached(config, tokens, bytes_per_element):
    mla = config.mla
    elements = _elements(config)
    if mla:
        elements = config.heads * (mla.qk_nope_head_dim + mla.qk_rope_head_dim + mla.v_head_dim)
    return elements * _tokens(config, tokens) * bytes_per_element


# --- attention_intensity ---


def _latent(config):
    mla = config.mla
    read = mla.kv_lora_rank + mla.qk_rope_head_dim
    return 2 * config.heads * (read + mla.kv_lora_rank), read


@planted("attention_intensity", "half-of-the-flops")
def multiply_adds(config, batch, tokens, bytes_per_element):
    flops, read = _latent(config) if config.mla else (4 * config.heads, 2 * config.kv_heads)
    return flops / 2 / (read * bytes_per_element)


@planted("attention_intensity", "as-many-heads-above-as-below")
def kv_heads_compute(config, batch, tokens, bytes_per_element):
    kv = config.kv_heads * config.head_dim
    flops, read = _latent(config) if config.mla else (4 * kv, 2 * kv)
    return (batch * tokens * flops) / (batch * tokens * read * bytes_per_element)


@planted("attention_intensity", "as-many-heads-above-as-below")
def query_heads_are_read(config, batch, tokens, bytes_per_element):
    width = config.heads * config.head_dim
    flops, read = _latent(config) if config.mla else (4 * width, 2 * width)
    return flops / read / bytes_per_element


@planted("attention_intensity", "upside-down")
def bytes_per_flop(config, batch, tokens, bytes_per_element):
    flops, read = _latent(config) if config.mla else (4 * config.heads, 2 * config.kv_heads)
    return read * bytes_per_element / flops


@planted("attention_intensity", "cache-read-once-for-all")
def batch_shares_the_cache(config, batch, tokens, bytes_per_element):
    flops, read = _latent(config) if config.mla else (4 * config.heads, 2 * config.kv_heads)
    return batch * flops * tokens / (read * tokens * bytes_per_element)


@planted("attention_intensity", "bytes-of-one-key")
def one_key_is_read(config, batch, tokens, bytes_per_element):
    flops, read = _latent(config) if config.mla else (4 * config.heads, 2 * config.kv_heads)
    return tokens * flops / (read * bytes_per_element)


@planted("attention_intensity", "flops-of-one-key")
def one_key_is_met(config, batch, tokens, bytes_per_element):
    flops, read = _latent(config) if config.mla else (4 * config.heads, 2 * config.kv_heads)
    return batch * flops / (batch * tokens * read * bytes_per_element)


@planted("attention_intensity", "only-keys-read")
def values_are_free(config, batch, tokens, bytes_per_element):
    flops, read = _latent(config) if config.mla else (4 * config.heads, config.kv_heads)
    return flops / (read * bytes_per_element)


@planted("attention_intensity", "flops-for-each-element")
def per_element(config, batch, tokens, bytes_per_element):
    flops, read = _latent(config) if config.mla else (4 * config.heads, 2 * config.kv_heads)
    return flops / read


@planted("attention_intensity", "latent-as-heads")
def formula_of_heads(config, batch, tokens, bytes_per_element):
    return 2 * config.heads / config.kv_heads / bytes_per_element


@planted("attention_intensity", "value-as-long-as-key")
def whole_entry_is_the_value(config, batch, tokens, bytes_per_element):
    shared = 1 if config.mla else 2
    heads = 1 if config.mla else config.kv_heads
    return 4 * config.heads / (shared * heads * bytes_per_element)


@planted("attention_intensity", "latent-read-twice")
def key_and_value_are_read(config, batch, tokens, bytes_per_element):
    flops, read = _latent(config) if config.mla else (4 * config.heads, config.kv_heads)
    return flops / (2 * read * bytes_per_element)


@planted("attention_intensity", "heads-exchanged")
def group_upside_down(config, batch, tokens, bytes_per_element):
    flops, read = _latent(config) if config.mla else (4 * config.kv_heads, 2 * config.heads)
    return flops / (read * bytes_per_element)


@planted("attention_intensity", "plain-form")
def work_of_the_plain_form(config, batch, tokens, bytes_per_element):
    flops, read = 4 * config.heads, 2 * config.kv_heads
    if config.mla:
        flops, read = 2 * config.heads * (config.head_dim + config.mla.v_head_dim), _latent(config)[1]
    return flops / (read * bytes_per_element)


# --- spread_heads ---


@planted("spread_heads", "tiled")
def by_repeat(kv, heads):
    return kv.repeat(heads // kv.shape[0], 1, 1)


@planted("spread_heads", "tiled")
def by_remainder(kv, heads):
    return torch.stack([kv[i % kv.shape[0]] for i in range(heads)])


@planted("spread_heads", "tiled")
def by_cat(kv, heads):
    return torch.cat([kv] * (heads // kv.shape[0]))


@planted("spread_heads", "divided-by-kv-heads")
def i_over_k(kv, heads):
    return kv[torch.arange(heads) // kv.shape[0]]


@planted("spread_heads", "first-head-for-all")
def expands_one(kv, heads):
    return kv[0].expand(heads, -1, -1)


@planted("spread_heads", "tokens-repeated")
def along_the_tokens(kv, heads):
    return torch.repeat_interleave(kv, heads // kv.shape[0], dim=1)


@planted("spread_heads", "elements-repeated")
def along_the_last_axis(kv, heads):
    return torch.repeat_interleave(kv, heads // kv.shape[0], dim=-1)


@planted("spread_heads", "flattened-first")
def without_dim(kv, heads):
    return torch.repeat_interleave(kv, heads // kv.shape[0])


@planted("spread_heads", "each-head-h-times")
def heads_times(kv, heads):
    return kv.repeat_interleave(heads, 0)


@planted("spread_heads", "group-axis-left")
def forgets_to_flatten(kv, heads):
    return kv.unsqueeze(1).repeat(1, heads // kv.shape[0], 1, 1)
