"""Wrong solutions of exercise 02, written as a learner would write them, each with the hint it must get."""

from __future__ import annotations

import torch

from tests.exercises.planting import planted

# --- kv_bytes ---


@planted("kv_bytes", "query-heads")
def with_query_heads(config, tokens, sequences, bytes_per_element):
    return 2 * config.layers * config.heads * config.head_dim * tokens * sequences * bytes_per_element


@planted("kv_bytes", "groups-for-kv-heads")
def with_groups(config, tokens, sequences, bytes_per_element):
    groups = config.heads // config.kv_heads
    return 2 * config.layers * groups * config.head_dim * tokens * sequences * bytes_per_element


@planted("kv_bytes", "hidden-for-kv-width")
def with_hidden(config, tokens, sequences, bytes_per_element):
    return 2 * config.layers * config.hidden * tokens * sequences * bytes_per_element


@planted("kv_bytes", "keys-without-values")
def keys_only(config, tokens, sequences, bytes_per_element):
    return config.layers * config.kv_heads * config.head_dim * tokens * sequences * bytes_per_element


@planted("kv_bytes", "head-dim-derived")
def derived_head_dim(config, tokens, sequences, bytes_per_element):
    d = config.hidden // config.heads
    return 2 * config.layers * config.kv_heads * d * tokens * sequences * bytes_per_element


@planted("kv_bytes", "one-layer")
def single_layer(config, tokens, sequences, bytes_per_element):
    return 2 * config.kv_heads * config.head_dim * tokens * sequences * bytes_per_element


@planted("kv_bytes", "gib-for-bytes")
def in_gib(config, tokens, sequences, bytes_per_element):
    return 2 * config.layers * config.kv_heads * config.head_dim * tokens * sequences * bytes_per_element / 2**30


# --- append ---


@planted("append", "written-at-zero")
def at_zero(buffer, new, length):
    if length + new.shape[1] > buffer.shape[1]:
        raise ValueError("full")
    buffer[:, : new.shape[1]] = new
    return length + new.shape[1]


@planted("append", "one-early")
def over_the_last_token(buffer, new, length):
    if length + new.shape[1] > buffer.shape[1]:
        raise ValueError("full")
    start = length - 1 if length else 0
    buffer[:, start : start + new.shape[1]] = new
    return length + new.shape[1]


@planted("append", "copy-not-in-place")
def into_a_copy(buffer, new, length):
    buffer = buffer.clone()
    buffer[:, length : length + new.shape[1]] = new
    return length + new.shape[1]


@planted("append", "concatenated")
def with_cat(buffer, new, length):
    return torch.cat([buffer[:, :length], new], dim=1)


@planted("append", "returns-new-count")
def counts_new(buffer, new, length):
    if length + new.shape[1] > buffer.shape[1]:
        raise ValueError("full")
    buffer[:, length : length + new.shape[1]] = new
    return new.shape[1]


@planted("append", "returns-capacity")
def counts_all(buffer, new, length):
    if length + new.shape[1] > buffer.shape[1]:
        raise ValueError("full")
    buffer[:, length : length + new.shape[1]] = new
    return buffer.shape[1]


@planted("append", "returns-buffer")
def gives_buffer(buffer, new, length):
    buffer[:, length : length + new.shape[1]] = new
    return buffer


@planted("append", "first-token-only")
def one_token(buffer, new, length):
    buffer[:, length] = new[:, 0]
    return length + new.shape[1]


@planted("append", "overflow-cut")
def drops_what_does_not_fit(buffer, new, length):
    free = buffer.shape[1] - length
    new = new[:, :free]
    buffer[:, length : length + new.shape[1]] = new
    return length + new.shape[1]


@planted("append", "no-return")
def forgets_to_return(buffer, new, length):
    buffer[:, length : length + new.shape[1]] = new


# --- positions ---


@planted("positions", "from-zero")
def from_zero(cached, new):
    return torch.arange(0, new)


@planted("positions", "one-late")
def length_for_position(cached, new):
    return torch.arange(new) + cached + 1


@planted("positions", "after-the-new-ones")
def offset_already_advanced(cached, new):
    length = cached + new
    return torch.arange(length, length + new)


@planted("positions", "one-offset-for-all")
def one_offset(cached, new):
    return torch.tensor([cached] * new)


@planted("positions", "whole-sequence")
def all_positions(cached, new):
    return torch.arange(cached + new)


@planted("positions", "float-positions")
def floats(cached, new):
    return torch.linspace(cached, cached + new - 1, new)


# --- causal_mask ---


@planted("causal_mask", "rows-from-zero")
def diagonal_at_zero(cached, new):
    return torch.tril(torch.ones(new, cached + new)).bool()


@planted("causal_mask", "no-mask")
def all_visible(cached, new):
    return torch.full((new, cached + new), True)


@planted("causal_mask", "inverted")
def true_means_hidden(cached, new):
    return torch.triu(torch.ones(new, cached + new), diagonal=cached + 1).bool()


@planted("causal_mask", "new-tokens-only")
def square(cached, new):
    return torch.tril(torch.ones(new, new)).bool()


@planted("causal_mask", "cache-hidden")
def cached_columns_hidden(cached, new):
    mask = torch.zeros(new, cached + new, dtype=torch.bool)
    for row in range(new):
        mask[row, cached : cached + row + 1] = True
    return mask


@planted("causal_mask", "own-token-hidden")
def strictly_before(cached, new):
    query = torch.arange(cached, cached + new)
    return torch.arange(cached + new)[None] < query[:, None]


@planted("causal_mask", "whole-sequence")
def full_square(cached, new):
    return torch.tril(torch.ones(cached + new, cached + new)).bool()


@planted("causal_mask", "float-mask")
def ones_and_zeros(cached, new):
    return torch.tril(torch.ones(new, cached + new), diagonal=cached)


@planted("causal_mask", "additive-mask")
def minus_infinity(cached, new):
    return torch.triu(torch.full((new, cached + new), float("-inf")), diagonal=cached + 1)


# --- attend ---


def _weights(q, keys, mask):
    scores = q @ keys.transpose(-1, -2) / q.shape[-1] ** 0.5
    return scores.masked_fill(~mask, float("-inf")).softmax(-1)


@planted("attend", "heads-tiled")
def repeated(q, keys, values, mask):
    times = q.shape[0] // keys.shape[0]
    return _weights(q, keys.repeat(times, 1, 1), mask) @ values.repeat(times, 1, 1)


@planted("attend", "unscaled")
def without_scale(q, keys, values, mask):
    group = q.shape[0] // keys.shape[0]
    scores = q @ keys.repeat_interleave(group, 0).mT
    return scores.masked_fill(~mask, float("-inf")).softmax(-1) @ values.repeat_interleave(group, 0)


@planted("attend", "scaled-by-d")
def divided_by_d(q, keys, values, mask):
    group = q.shape[0] // keys.shape[0]
    scores = q @ keys.repeat_interleave(group, 0).mT / q.shape[-1]
    return scores.masked_fill(~mask, float("-inf")).softmax(-1) @ values.repeat_interleave(group, 0)


@planted("attend", "mask-ignored")
def sees_the_future(q, keys, values, mask):
    group = q.shape[0] // keys.shape[0]
    everything = torch.ones_like(mask)
    return _weights(q, keys.repeat_interleave(group, 0), everything) @ values.repeat_interleave(group, 0)


@planted("attend", "mask-inverted")
def fills_the_visible(q, keys, values, mask):
    group = q.shape[0] // keys.shape[0]
    return _weights(q, keys.repeat_interleave(group, 0), ~mask) @ values.repeat_interleave(group, 0)


@planted("attend", "masked-with-zero")
def zero_scores(q, keys, values, mask):
    group = q.shape[0] // keys.shape[0]
    scores = q @ keys.repeat_interleave(group, 0).mT / q.shape[-1] ** 0.5
    return scores.masked_fill(~mask, 0.0).softmax(-1) @ values.repeat_interleave(group, 0)


@planted("attend", "masked-after-softmax")
def masks_the_weights(q, keys, values, mask):
    group = q.shape[0] // keys.shape[0]
    scores = q @ keys.repeat_interleave(group, 0).mT / q.shape[-1] ** 0.5
    return (scores.softmax(-1) * mask) @ values.repeat_interleave(group, 0)


@planted("attend", "softmax-over-queries")
def wrong_axis(q, keys, values, mask):
    group = q.shape[0] // keys.shape[0]
    scores = q @ keys.repeat_interleave(group, 0).mT / q.shape[-1] ** 0.5
    return scores.masked_fill(~mask, float("-inf")).softmax(dim=1) @ values.repeat_interleave(group, 0)


# --- decode_loop ---


@planted("decode_loop", "everything-fed-again")
def without_cache(step, prompt, max_new_tokens, context, eos_id):
    sequence, reason = list(prompt), "length"
    while len(sequence) - len(prompt) < max_new_tokens:
        if len(sequence) == context:
            return sequence[len(prompt) :], "context"
        sequence.append(int(step(sequence, 0)[-1].argmax()))
        if sequence[-1] == eos_id:
            return sequence[len(prompt) :], "stop"
    return sequence[len(prompt) :], reason


def _loop(step, prompt, most, reason, eos_id, position):
    tokens = []
    while len(tokens) < most:
        logits = step(prompt, 0) if not tokens else step([tokens[-1]], position(len(prompt), len(tokens)))
        tokens.append(int(logits[-1].argmax()))
        if tokens[-1] == eos_id:
            return tokens, "stop"
    return tokens, reason


def _limit(prompt, max_new_tokens, context):
    room = context - len(prompt)
    return (max_new_tokens, "length") if max_new_tokens <= room else (room, "context")


@planted("decode_loop", "position-is-length")
def position_len(step, prompt, max_new_tokens, context, eos_id):
    limit = _limit(prompt, max_new_tokens, context)
    return _loop(step, prompt, *limit, eos_id, lambda p, t: p + t)


@planted("decode_loop", "offset-not-advanced")
def same_offset(step, prompt, max_new_tokens, context, eos_id):
    limit = _limit(prompt, max_new_tokens, context)
    return _loop(step, prompt, *limit, eos_id, lambda p, t: p)


@planted("decode_loop", "position-counts-new-tokens")
def counts_only_new(step, prompt, max_new_tokens, context, eos_id):
    limit = _limit(prompt, max_new_tokens, context)
    return _loop(step, prompt, *limit, eos_id, lambda p, t: t - 1)


@planted("decode_loop", "prefill-not-at-zero")
def prompt_length_as_offset(step, prompt, max_new_tokens, context, eos_id):
    offset, feed, tokens = len(prompt), list(prompt), []
    most, reason = _limit(prompt, max_new_tokens, context)
    while len(tokens) < most:
        logits = step(feed, offset)
        offset += len(feed)
        feed = [int(logits[-1].argmax())]
        tokens += feed
        if feed[0] == eos_id:
            return tokens, "stop"
    return tokens, reason


@planted("decode_loop", "no-clamp")
def runs_past_the_context(step, prompt, max_new_tokens, context, eos_id):
    return _loop(step, prompt, max_new_tokens, "length", eos_id, lambda p, t: p + t - 1)


@planted("decode_loop", "clamp-unsaid")
def says_length(step, prompt, max_new_tokens, context, eos_id):
    most = min(max_new_tokens, context - len(prompt))
    return _loop(step, prompt, most, "length", eos_id, lambda p, t: p + t - 1)


@planted("decode_loop", "eos-ignored")
def never_stops(step, prompt, max_new_tokens, context, eos_id):
    limit = _limit(prompt, max_new_tokens, context)
    return _loop(step, prompt, *limit, None, lambda p, t: p + t - 1)


@planted("decode_loop", "eos-dropped")
def drops_the_end(step, prompt, max_new_tokens, context, eos_id):
    limit = _limit(prompt, max_new_tokens, context)
    tokens, reason = _loop(step, prompt, *limit, eos_id, lambda p, t: p + t - 1)
    return [token for token in tokens if token != eos_id], reason


@planted("decode_loop", "prompt-in-result")
def whole_text(step, prompt, max_new_tokens, context, eos_id):
    limit = _limit(prompt, max_new_tokens, context)
    tokens, reason = _loop(step, prompt, *limit, eos_id, lambda p, t: p + t - 1)
    return prompt + tokens, reason


@planted("decode_loop", "one-step-too-many")
def feeds_the_last_token(step, prompt, max_new_tokens, context, eos_id):
    limit = _limit(prompt, max_new_tokens, context)
    tokens, reason = _loop(step, prompt, *limit, eos_id, lambda p, t: p + t - 1)
    step([tokens[-1]], len(prompt) + len(tokens) - 1)
    return tokens, reason


@planted("decode_loop", "first-row")
def first_row(step, prompt, max_new_tokens, context, eos_id):
    most, reason = _limit(prompt, max_new_tokens, context)
    tokens = []
    while len(tokens) < most:
        feed, start = ([tokens[-1]], len(prompt) + len(tokens) - 1) if tokens else (prompt, 0)
        tokens.append(int(step(feed, start)[0].argmax()))
        if tokens[-1] == eos_id:
            return tokens, "stop"
    return tokens, reason
