"""Wrong solutions of exercise 03's two kinds of attention, written as a learner would write them."""

from __future__ import annotations

import torch

from tests.exercises.planting import planted

# --- grouped_attention ---


def _groups(query, keys):
    S, H, d = query.shape
    K = keys.shape[1]
    return query.view(S, K, H // K, d)


def _masked(scores, lengths, own=lambda at, lengths: at < lengths):
    at = torch.arange(scores.shape[-1])
    return scores.masked_fill(~own(at, lengths[:, None])[:, None, None, :], float("-inf"))


def _solution(query, keys, values, weights):
    scores = torch.einsum("skgd,sknd->skgn", _groups(query, keys), keys) / query.shape[-1] ** 0.5
    return torch.einsum("skgn,sknd->skgd", weights(scores), values).reshape(query.shape)


@planted("grouped_attention", "strided-groups")
def by_repeat(query, keys, values, lengths):
    times = query.shape[1] // keys.shape[1]
    keys, values = keys.repeat(1, times, 1, 1), values.repeat(1, times, 1, 1)
    scores = (query[:, :, None] @ keys.mT) / query.shape[-1] ** 0.5
    return (_masked(scores, lengths).softmax(-1) @ values)[:, :, 0]


@planted("grouped_attention", "queries-strided")
def views_as_group_and_kv(query, keys, values, lengths):
    S, H, d = query.shape
    K = keys.shape[1]
    q = query.view(S, H // K, K, d).transpose(1, 2)
    scores = q @ keys.transpose(-1, -2) / d**0.5
    return (_masked(scores, lengths).softmax(-1) @ values).reshape(S, H, d)


@planted("grouped_attention", "results-out-of-order")
def transposes_the_result(query, keys, values, lengths):
    scores = _groups(query, keys) @ keys.transpose(-1, -2) / query.shape[-1] ** 0.5
    out = _masked(scores, lengths).softmax(-1) @ values
    return out.transpose(1, 2).reshape(query.shape)


@planted("grouped_attention", "group-axis-kept")
def four_axes(query, keys, values, lengths):
    scores = _groups(query, keys) @ keys.transpose(-1, -2) / query.shape[-1] ** 0.5
    return _masked(scores, lengths).softmax(-1) @ values


@planted("grouped_attention", "one-kv-head")
def reads_head_zero(query, keys, values, lengths):
    scores = torch.einsum("shd,snd->shn", query, keys[:, 0]) / query.shape[-1] ** 0.5
    hidden = torch.arange(keys.shape[2]) >= lengths[:, None]
    weights = scores.masked_fill(hidden[:, None], float("-inf")).softmax(-1)
    return torch.einsum("shn,snd->shd", weights, values[:, 0])


@planted("grouped_attention", "not-scaled")
def forgets_the_scale(query, keys, values, lengths):
    scores = _groups(query, keys) @ keys.mT
    return (_masked(scores, lengths).softmax(-1) @ values).reshape(query.shape)


@planted("grouped_attention", "over-d")
def divides_by_d(query, keys, values, lengths):
    scores = _groups(query, keys) @ keys.mT / query.shape[-1]
    return (_masked(scores, lengths).softmax(-1) @ values).reshape(query.shape)


@planted("grouped_attention", "padding-attended")
def no_mask(query, keys, values, lengths):
    return _solution(query, keys, values, lambda scores: scores.softmax(-1))


@planted("grouped_attention", "longest-for-all")
def cuts_at_the_longest(query, keys, values, lengths):
    n = int(lengths.max())
    return _solution(query, keys[:, :, :n], values[:, :, :n], lambda scores: scores.softmax(-1))


@planted("grouped_attention", "shortest-for-all")
def cuts_at_the_shortest(query, keys, values, lengths):
    n = int(lengths.min())
    return _solution(query, keys[:, :, :n], values[:, :, :n], lambda scores: scores.softmax(-1))


@planted("grouped_attention", "first-length-for-all")
def cuts_at_the_first(query, keys, values, lengths):
    n = lengths[0]
    return _solution(query, keys[:, :, :n], values[:, :, :n], lambda scores: scores.softmax(-1))


@planted("grouped_attention", "mask-misaligned")
def mask_with_two_axes(query, keys, values, lengths):
    own = torch.arange(keys.shape[2]) < lengths[:, None]
    return _solution(
        query, keys, values, lambda scores: torch.where(own, scores, torch.tensor(float("-inf"))).softmax(-1)
    )


@planted("grouped_attention", "mask-upside-down")
def hides_its_own_keys(query, keys, values, lengths):
    return _solution(
        query, keys, values, lambda s: _masked(s, lengths, own=lambda at, lengths: at >= lengths).softmax(-1)
    )


@planted("grouped_attention", "newest-key-hidden")
def one_too_few(query, keys, values, lengths):
    return _solution(
        query, keys, values, lambda s: _masked(s, lengths, own=lambda at, lengths: at < lengths - 1).softmax(-1)
    )


@planted("grouped_attention", "one-key-too-many")
def one_too_many(query, keys, values, lengths):
    return _solution(
        query, keys, values, lambda s: _masked(s, lengths, own=lambda at, lengths: at <= lengths).softmax(-1)
    )


@planted("grouped_attention", "zero-for-infinity")
def scores_times_mask(query, keys, values, lengths):
    own = (torch.arange(keys.shape[2]) < lengths[:, None])[:, None, None]
    return _solution(query, keys, values, lambda scores: (scores * own).softmax(-1))


@planted("grouped_attention", "padding-zeroed")
def clears_the_padding(query, keys, values, lengths):
    own = (torch.arange(keys.shape[2]) < lengths[:, None])[:, None, :, None]
    return _solution(query, keys * own, values * own, lambda scores: scores.softmax(-1))


@planted("grouped_attention", "hidden-too-late")
def masks_the_weights(query, keys, values, lengths):
    own = (torch.arange(keys.shape[2]) < lengths[:, None])[:, None, None]
    return _solution(query, keys, values, lambda scores: scores.softmax(-1) * own)


@planted("grouped_attention", "softmax-over-group")
def over_the_group(query, keys, values, lengths):
    return _solution(query, keys, values, lambda scores: _masked(scores, lengths).softmax(2))


@planted("grouped_attention", "softmax-over-kv-heads")
def over_the_kv_heads(query, keys, values, lengths):
    return _solution(query, keys, values, lambda scores: _masked(scores, lengths).softmax(dim=1))


@planted("grouped_attention", "group-averaged")
def averages_the_group(query, keys, values, lengths):
    scores = _groups(query, keys).mean(2)[:, :, None] @ keys.mT / query.shape[-1] ** 0.5
    out = _masked(scores, lengths).softmax(-1) @ values
    return out.expand_as(_groups(query, keys)).reshape(query.shape)


@planted("grouped_attention", "times-root-d")
def multiplies(query, keys, values, lengths):
    scores = _groups(query, keys) @ keys.mT * query.shape[-1] ** 0.5
    return (_masked(scores, lengths).softmax(-1) @ values).reshape(query.shape)


# --- absorbed_attention ---


def _latent_query(q_nope, w_uk):
    return (q_nope[:, None] @ w_uk)[:, 0]


def _head_output(latent, w_uv):
    return (w_uv @ latent[:, :, None])[:, :, 0]


def _scores(q_nope, q_rope, cache, w_uk):
    r = w_uk.shape[-1]
    return _latent_query(q_nope, w_uk) @ cache[:, :r].T + q_rope @ cache[:, r:].T


def _scaled_by(size):
    def solution(q_nope, q_rope, cache, w_uk, w_uv):
        a, p, r = q_nope.shape[1], q_rope.shape[1], w_uk.shape[-1]
        weights = (_scores(q_nope, q_rope, cache, w_uk) / size(a, p, r)).softmax(-1)
        return _head_output(weights @ cache[:, :r], w_uv)

    return solution


planted("absorbed_attention", "scaled-by-nope-only")(_scaled_by(lambda a, p, r: a**0.5))
planted("absorbed_attention", "scaled-by-latent")(_scaled_by(lambda a, p, r: (r + p) ** 0.5))
planted("absorbed_attention", "scaled-by-r")(_scaled_by(lambda a, p, r: r**0.5))
planted("absorbed_attention", "no-scale")(_scaled_by(lambda a, p, r: 1))
planted("absorbed_attention", "no-root")(_scaled_by(lambda a, p, r: a + p))


def _weights(q_nope, q_rope, cache, w_uk):
    size = q_nope.shape[1] + q_rope.shape[1]
    return (_scores(q_nope, q_rope, cache, w_uk) / size**0.5).softmax(-1)


@planted("absorbed_attention", "rotated-part-left-out")
def latents_only(q_nope, q_rope, cache, w_uk, w_uv):
    latents = cache[:, : w_uk.shape[2]]
    size = q_nope.shape[1] + q_rope.shape[1]
    weights = (_latent_query(q_nope, w_uk) @ latents.T / size**0.5).softmax(-1)
    return _head_output(weights @ latents, w_uv)


@planted("absorbed_attention", "rotated-key-first")
def rope_in_front(q_nope, q_rope, cache, w_uk, w_uv):
    p = q_rope.shape[1]
    rotated, latents = cache[:, :p], cache[:, p:]
    scores = _latent_query(q_nope, w_uk) @ latents.T + q_rope @ rotated.T
    weights = (scores / (q_nope.shape[1] + p) ** 0.5).softmax(-1)
    return _head_output(weights @ latents, w_uv)


@planted("absorbed_attention", "value-from-the-end")
def last_r_elements(q_nope, q_rope, cache, w_uk, w_uv):
    values = cache[:, -w_uv.shape[2] :]
    return _head_output(_weights(q_nope, q_rope, cache, w_uk) @ values, w_uv)


@planted("absorbed_attention", "value-with-rotated-key")
def whole_entry_summed(q_nope, q_rope, cache, w_uk, w_uv):
    return torch.einsum("hr,hvr->hv", _weights(q_nope, q_rope, cache, w_uk) @ cache, w_uv)


@planted("absorbed_attention", "w-uk-transposed")
def sums_over_r(q_nope, q_rope, cache, w_uk, w_uv):
    r, size = w_uk.shape[2], q_nope.shape[1] + q_rope.shape[1]
    query = torch.cat([(w_uk @ q_nope[:, :, None])[:, :, 0], q_rope], dim=1)
    weights = (query @ cache.T / size**0.5).softmax(-1)
    return _head_output(weights @ cache[:, :r], w_uv)


@planted("absorbed_attention", "w-uk-not-used")
def query_as_it_is(q_nope, q_rope, cache, w_uk, w_uv):
    query = torch.cat([q_nope, q_rope], dim=1)
    weights = (query @ cache.T / query.shape[1] ** 0.5).softmax(-1)
    return _head_output(weights @ cache[:, : w_uk.shape[2]], w_uv)


@planted("absorbed_attention", "w-uv-transposed")
def other_axis_of_w_uv(q_nope, q_rope, cache, w_uk, w_uv):
    latent = _weights(q_nope, q_rope, cache, w_uk) @ cache[:, : w_uk.shape[2]]
    return (latent[:, None] @ w_uv)[:, 0]


@planted("absorbed_attention", "w-uv-not-used")
def latent_output(q_nope, q_rope, cache, w_uk, w_uv):
    return _weights(q_nope, q_rope, cache, w_uk) @ cache[:, : w_uk.shape[2]]


@planted("absorbed_attention", "first-matrices-for-all")
def matrices_of_head_zero(q_nope, q_rope, cache, w_uk, w_uv):
    r, size = w_uk.shape[2], q_nope.shape[1] + q_rope.shape[1]
    scores = q_nope @ w_uk[0] @ cache[:, :r].T + q_rope @ cache[:, r:].T
    return (scores / size**0.5).softmax(-1) @ cache[:, :r] @ w_uv[0].T


@planted("absorbed_attention", "softmax-over-heads-of-latents")
def over_the_heads(q_nope, q_rope, cache, w_uk, w_uv):
    size = q_nope.shape[1] + q_rope.shape[1]
    weights = (_scores(q_nope, q_rope, cache, w_uk) / size**0.5).softmax(0)
    return _head_output(weights @ cache[:, : w_uk.shape[2]], w_uv)


@planted("absorbed_attention", "two-softmaxes")
def a_softmax_for_each_part(q_nope, q_rope, cache, w_uk, w_uv):
    r, root = w_uk.shape[2], (q_nope.shape[1] + q_rope.shape[1]) ** 0.5
    content = (_latent_query(q_nope, w_uk) @ cache[:, :r].T / root).softmax(-1)
    position = (q_rope @ cache[:, r:].T / root).softmax(-1)
    return _head_output((content + position) / 2 @ cache[:, :r], w_uv)


@planted("absorbed_attention", "matrices-exchanged")
def uv_before_uk_after(q_nope, q_rope, cache, w_uk, w_uv):
    r = w_uk.shape[2]
    return _head_output(_weights(q_nope, q_rope, cache, w_uv) @ cache[:, :r], w_uk)


@planted("absorbed_attention", "heads-summed")
def sums_the_heads(q_nope, q_rope, cache, w_uk, w_uv):
    latent = _weights(q_nope, q_rope, cache, w_uk) @ cache[:, : w_uk.shape[2]]
    return torch.einsum("hr,hvr->v", latent, w_uv)
