"""Wrong solutions of exercise 01, written as a learner would write them, each with the hint it must get."""

from __future__ import annotations

from tests.exercises.planting import planted

# --- linear_flops ---


@planted("linear_flops", "half-the-flops")
def one_flop_per_weight(config, tokens, sequences):
    attention = config.hidden * config.head_dim * (2 * config.heads + 2 * config.kv_heads)
    block = attention + 3 * config.hidden * config.ffn
    return config.layers * block * tokens + config.hidden * config.vocab * sequences


@planted("linear_flops", "kv-sized-with-query-heads")
def four_equal_matrices(config, tokens, sequences):
    block = 4 * config.hidden * config.heads * config.head_dim + 3 * config.hidden * config.ffn
    return 2 * config.layers * block * tokens + 2 * config.hidden * config.vocab * sequences


@planted("linear_flops", "head-dim-derived")
def head_dim_from_hidden(config, tokens, sequences):
    d = config.hidden // config.heads
    block = config.hidden * d * (2 * config.heads + 2 * config.kv_heads) + 3 * config.hidden * config.ffn
    return 2 * config.layers * block * tokens + 2 * config.hidden * config.vocab * sequences


@planted("linear_flops", "square-query-matrix")
def query_is_square(config, tokens, sequences):
    block = 2 * config.hidden**2 + 2 * config.hidden * config.kv_heads * config.head_dim
    block += 3 * config.hidden * config.ffn
    return 2 * config.layers * block * tokens + 2 * config.hidden * config.vocab * sequences


@planted("linear_flops", "embedding-counted")
def embedding_as_product(config, tokens, sequences):
    attention = config.hidden * config.head_dim * (2 * config.heads + 2 * config.kv_heads)
    total = config.layers * (attention + 3 * config.hidden * config.ffn) * tokens
    total += config.vocab * config.hidden * tokens  # embedding
    total += config.vocab * config.hidden * sequences  # lm_head
    return 2 * total


@planted("linear_flops", "head-for-every-token")
def all_logits(config, tokens, sequences):
    attention = config.hidden * config.head_dim * (2 * config.heads + 2 * config.kv_heads)
    block = attention + 3 * config.hidden * config.ffn
    return 2 * tokens * (config.layers * block + config.hidden * config.vocab)


@planted("linear_flops", "head-left-out")
def blocks_only(config, tokens, sequences):
    attention = config.hidden * config.head_dim * (2 * config.heads + 2 * config.kv_heads)
    return 2 * config.layers * (attention + 3 * config.hidden * config.ffn) * tokens


@planted("linear_flops", "ungated-ffn")
def two_ffn_matrices(config, tokens, sequences):
    attention = config.hidden * config.head_dim * (2 * config.heads + 2 * config.kv_heads)
    block = attention + 2 * config.hidden * config.ffn
    return 2 * config.layers * block * tokens + 2 * config.hidden * config.vocab * sequences


@planted("linear_flops", "output-matrix-left-out")
def qkv_only(config, tokens, sequences):
    attention = config.hidden * config.head_dim * (config.heads + 2 * config.kv_heads)
    block = attention + 3 * config.hidden * config.ffn
    return 2 * config.layers * block * tokens + 2 * config.hidden * config.vocab * sequences


# --- attention_flops ---


@planted("attention_flops", "masked-half-counted")
def full_square(config, new, cached):
    return 4 * config.layers * config.heads * config.head_dim * new * (cached + new)


@planted("attention_flops", "half-square")
def half_of_n_squared(config, new, cached):
    return 4 * config.layers * config.heads * config.head_dim * (new * cached + new**2 / 2)


@planted("attention_flops", "own-token-left-out")
def strictly_before(config, new, cached):
    pairs = sum(cached + i for i in range(new))
    return 4 * config.layers * config.heads * config.head_dim * pairs


@planted("attention_flops", "kv-heads-for-query-heads")
def kv_heads(config, new, cached):
    pairs = sum(cached + i + 1 for i in range(new))
    return 4 * config.layers * config.kv_heads * config.head_dim * pairs


@planted("attention_flops", "one-of-two-products")
def scores_only(config, new, cached):
    pairs = new * cached + new * (new + 1) // 2
    return 2 * config.layers * config.heads * config.head_dim * pairs


@planted("attention_flops", "cache-ignored")
def new_tokens_only(config, new, cached):
    return 4 * config.layers * config.heads * config.head_dim * new * (new + 1) // 2


# --- step_bytes ---


def _weights(config):
    attention = config.hidden * config.head_dim * (2 * config.heads + 2 * config.kv_heads)
    return config.layers * (attention + 3 * config.hidden * config.ffn) + config.hidden * config.vocab


@planted("step_bytes", "kv-left-out")
def weights_only(config, batch, context, bytes_per_weight, bytes_per_kv):
    return _weights(config) * bytes_per_weight


@planted("step_bytes", "kv-sized-with-query-heads")
def kv_with_h(config, batch, context, bytes_per_weight, bytes_per_kv):
    token = 2 * config.layers * config.heads * config.head_dim * bytes_per_kv
    return _weights(config) * bytes_per_weight + batch * context * token


@planted("step_bytes", "keys-without-values")
def keys_only(config, batch, context, bytes_per_weight, bytes_per_kv):
    token = config.layers * config.kv_heads * config.head_dim * bytes_per_kv
    return _weights(config) * bytes_per_weight + batch * context * token


@planted("step_bytes", "kv-of-one-sequence")
def one_cache(config, batch, context, bytes_per_weight, bytes_per_kv):
    token = 2 * config.layers * config.kv_heads * config.head_dim * bytes_per_kv
    return _weights(config) * bytes_per_weight + context * token


@planted("step_bytes", "weights-for-every-sequence")
def weights_times_batch(config, batch, context, bytes_per_weight, bytes_per_kv):
    token = 2 * config.layers * config.kv_heads * config.head_dim * bytes_per_kv
    return batch * (_weights(config) * bytes_per_weight + context * token)


@planted("step_bytes", "weight-bytes-for-kv")
def one_format(config, batch, context, bytes_per_weight, bytes_per_kv):
    numbers = _weights(config) + batch * context * 2 * config.layers * config.kv_heads * config.head_dim
    return numbers * bytes_per_weight


@planted("step_bytes", "embedding-counted")
def all_parameters(config, batch, context, bytes_per_weight, bytes_per_kv):
    token = 2 * config.layers * config.kv_heads * config.head_dim * bytes_per_kv
    weights = _weights(config) + config.vocab * config.hidden
    return weights * bytes_per_weight + batch * context * token


@planted("step_bytes", "gib-for-bytes")
def in_gib(config, batch, context, bytes_per_weight, bytes_per_kv):
    token = 2 * config.layers * config.kv_heads * config.head_dim * bytes_per_kv
    return (_weights(config) * bytes_per_weight + batch * context * token) / 1024**3


# --- attainable ---


@planted("attainable", "max-for-min")
def higher_roof(intensity, peak, bandwidth):
    return max(peak, intensity * bandwidth)


@planted("attainable", "memory-roof-only")
def slope(intensity, peak, bandwidth):
    return intensity * bandwidth


@planted("attainable", "compute-roof-only")
def flat(intensity, peak, bandwidth):
    return peak


@planted("attainable", "divided-by-intensity")
def divided(intensity, peak, bandwidth):
    return min(peak, bandwidth / intensity)


@planted("attainable", "share-of-peak")
def fraction(intensity, peak, bandwidth):
    ridge = peak / bandwidth
    return min(1.0, intensity / ridge)


# --- ridge_batch ---


@planted("ridge_batch", "ridge-point-itself")
def ridge_point(peak, bandwidth, bytes_per_weight):
    return peak / bandwidth


@planted("ridge_batch", "multiply-add-as-one")
def one_flop(peak, bandwidth, bytes_per_weight):
    return bytes_per_weight * peak / bandwidth


@planted("ridge_batch", "bytes-divide")
def divided_by_bytes(peak, bandwidth, bytes_per_weight):
    return 2 * (peak / bandwidth) / bytes_per_weight


@planted("ridge_batch", "ridge-upside-down")
def upside_down(peak, bandwidth, bytes_per_weight):
    return bandwidth / peak * bytes_per_weight / 2


@planted("ridge_batch", "bits-for-bytes")
def bits(peak, bandwidth, bytes_per_weight):
    return peak / bandwidth * (bytes_per_weight / 8) / 2


# --- step_seconds ---


@planted("step_seconds", "times-added")
def one_after_the_other(work, traffic, peak, bandwidth):
    return work / peak + traffic / bandwidth


@planted("step_seconds", "min-for-max")
def faster_part(work, traffic, peak, bandwidth):
    return min(work / peak, traffic / bandwidth)


@planted("step_seconds", "bytes-only")
def memory_only(work, traffic, peak, bandwidth):
    return traffic / bandwidth


@planted("step_seconds", "flops-only")
def arithmetic_only(work, traffic, peak, bandwidth):
    return work / peak


@planted("step_seconds", "milliseconds")
def in_milliseconds(work, traffic, peak, bandwidth):
    return 1000 * max(work / peak, traffic / bandwidth)


@planted("step_seconds", "units-crossed")
def crossed(work, traffic, peak, bandwidth):
    return max(work / bandwidth, traffic / peak)
