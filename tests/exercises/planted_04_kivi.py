"""Wrong solutions of exercise 04: the float window of KIVI, and the bytes of a compressed cache."""

from __future__ import annotations

import math

import torch

from tests.exercises.planting import planted

# --- kivi_append ---


def _split(tokens, groups, group):
    leave = groups * group
    return tokens[:leave].reshape(groups, group, *tokens.shape[1:]), tokens[leave:]


@planted("kivi_append", "newest-leave")
def quantises_the_newest(recent, new, group, residual):
    tokens = torch.cat((recent, new))
    groups = max(len(tokens) - residual, 0) // group
    stay = len(tokens) - groups * group
    return tokens[stay:].reshape(groups, group, *tokens.shape[1:]), tokens[:stay]


@planted("kivi_append", "residual-ignored")
def quantises_at_once(recent, new, group, residual):
    tokens = torch.cat((recent, new))
    return _split(tokens, len(tokens) // group, group)


@planted("kivi_append", "never-flushed")
def waits_for_ever(recent, new, group, residual):
    return _split(torch.cat((recent, new)), 0, group)


@planted("kivi_append", "one-group-a-call")
def if_for_while(recent, new, group, residual):
    tokens = torch.cat((recent, new))
    return _split(tokens, 1 if len(tokens) >= residual + group else 0, group)


@planted("kivi_append", "rounded-up")
def rounds_up(recent, new, group, residual):
    tokens = torch.cat((recent, new))
    groups = math.ceil(max(len(tokens) - residual, 0) / group)
    return _split(tokens, min(groups, len(tokens) // group), group)


@planted("kivi_append", "one-late")
def strictly_more(recent, new, group, residual):
    tokens, groups = torch.cat((recent, new)), 0
    while len(tokens) - groups * group > residual + group:
        groups += 1
    return _split(tokens, groups, group)


@planted("kivi_append", "one-early")
def one_too_few_stay(recent, new, group, residual):
    tokens, groups = torch.cat((recent, new)), 0
    while len(tokens) - groups * group >= max(residual - 1, 0) + group:
        groups += 1
    return _split(tokens, groups, group)


@planted("kivi_append", "all-at-once")
def empties_the_window(recent, new, group, residual):
    tokens = torch.cat((recent, new))
    groups = len(tokens) // group if len(tokens) - residual >= group else 0
    return _split(tokens, groups, group)


@planted("kivi_append", "residual-in-groups")
def counts_groups(recent, new, group, residual):
    tokens = torch.cat((recent, new))
    return _split(tokens, max(0, len(tokens) // group - residual // group), group)


@planted("kivi_append", "exactly-residual")
def keeps_only_residual(recent, new, group, residual):
    tokens = torch.cat((recent, new))
    leaving, rest = _split(tokens, max(len(tokens) - residual, 0) // group, group)
    return leaving, rest[-residual:] if residual else rest[:0]


@planted("kivi_append", "counted-twice")
def keeps_all(recent, new, group, residual):
    tokens = torch.cat((recent, new))
    return _split(tokens, max(len(tokens) - residual, 0) // group, group)[0], tokens


@planted("kivi_append", "of-new-alone")
def looks_at_the_chunk(recent, new, group, residual):
    leaving, rest = _split(new, max(len(new) - residual, 0) // group, group)
    return leaving, torch.cat((recent, rest))


@planted("kivi_append", "new-first")
def prepends(recent, new, group, residual):
    tokens = torch.cat((new, recent))
    return _split(tokens, max(len(tokens) - residual, 0) // group, group)


@planted("kivi_append", "no-group-leaves")
def stacks_a_list(recent, new, group, residual):
    tokens, groups = torch.cat((recent, new)), []
    while len(tokens) >= residual + group:
        groups.append(tokens[:group])
        tokens = tokens[group:]
    return torch.stack(groups), tokens


@planted("kivi_append", "groups-joined")
def flat_block(recent, new, group, residual):
    tokens = torch.cat((recent, new))
    leave = max(len(tokens) - residual, 0) // group * group
    return tokens[:leave], tokens[leave:]


# --- compressed_bytes ---


def _elements(config):
    return 2 * config.layers * config.kv_heads * config.head_dim


@planted("compressed_bytes", "scales-forgotten")
def codes_only(config, tokens, recent, bits, group, scale_bytes, float_bytes):
    return _elements(config) * ((tokens - recent) * bits / 8 + recent * float_bytes)


@planted("compressed_bytes", "scale-per-element")
def a_scale_each(config, tokens, recent, bits, group, scale_bytes, float_bytes):
    return _elements(config) * ((tokens - recent) * (bits / 8 + scale_bytes) + recent * float_bytes)


@planted("compressed_bytes", "scale-per-head")
def a_scale_for_each_head(config, tokens, recent, bits, group, scale_bytes, float_bytes):
    elements, heads = _elements(config), 2 * config.layers * config.kv_heads
    return (tokens - recent) * (elements * bits / 8 + heads * scale_bytes) + elements * recent * float_bytes


@planted("compressed_bytes", "scale-in-bits")
def everything_by_eight(config, tokens, recent, bits, group, scale_bytes, float_bytes):
    return _elements(config) * ((tokens - recent) * (bits + scale_bytes / group) / 8 + recent * float_bytes)


@planted("compressed_bytes", "bits-for-bytes")
def bits(config, tokens, recent, bits, group, scale_bytes, float_bytes):
    return _elements(config) * ((tokens - recent) * (bits + scale_bytes / group) + recent * float_bytes)


@planted("compressed_bytes", "whole-bytes")
def integer_division(config, tokens, recent, bits, group, scale_bytes, float_bytes):
    return _elements(config) * ((tokens - recent) * (bits // 8 + scale_bytes / group) + recent * float_bytes)


@planted("compressed_bytes", "float-window-forgotten")
def quantised_only(config, tokens, recent, bits, group, scale_bytes, float_bytes):
    return _elements(config) * (tokens - recent) * (bits / 8 + scale_bytes / group)


@planted("compressed_bytes", "all-in-codes")
def no_window(config, tokens, recent, bits, group, scale_bytes, float_bytes):
    return _elements(config) * tokens * (bits / 8 + scale_bytes / group)


@planted("compressed_bytes", "recent-counted-twice")
def window_beside_all(config, tokens, recent, bits, group, scale_bytes, float_bytes):
    return _elements(config) * (tokens * (bits / 8 + scale_bytes / group) + recent * float_bytes)


@planted("compressed_bytes", "recent-with-scales")
def scales_for_all(config, tokens, recent, bits, group, scale_bytes, float_bytes):
    scales = _elements(config) * tokens / group * scale_bytes
    return _elements(config) * ((tokens - recent) * bits / 8 + recent * float_bytes) + scales


@planted("compressed_bytes", "keys-without-values")
def keys_only(config, tokens, recent, bits, group, scale_bytes, float_bytes):
    elements = config.layers * config.kv_heads * config.head_dim
    return elements * ((tokens - recent) * (bits / 8 + scale_bytes / group) + recent * float_bytes)


@planted("compressed_bytes", "query-heads")
def with_query_heads(config, tokens, recent, bits, group, scale_bytes, float_bytes):
    elements = 2 * config.layers * config.heads * config.head_dim
    return elements * ((tokens - recent) * (bits / 8 + scale_bytes / group) + recent * float_bytes)
