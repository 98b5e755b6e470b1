"""Wrong solutions of exercise 10, written as a learner would write them, each with the hint it must get.

Those about users' promises and about admission are in two files of their own.
"""

from __future__ import annotations

from collections import Counter

import numpy as np

from course_lib.perf.counts import pass_cost
from tests.exercises import planted_10_admission, planted_10_service  # noqa: F401
from tests.exercises.planting import planted

# --- next_deadline ---


@planted("next_deadline", "one-token-behind")
def tokens_minus_one(arrival, token_times, ttft, tpot):
    return arrival + ttft + (len(token_times) - 1) * tpot


@planted("next_deadline", "first-token-free")
def none_for_the_first(arrival, token_times, ttft, tpot):
    deadline = arrival + ttft
    if token_times:
        deadline += (len(token_times) - 1) * tpot
    return deadline


@planted("next_deadline", "one-token-ahead")
def tokens_plus_one(arrival, token_times, ttft, tpot):
    return arrival + ttft + tpot * (len(token_times) + 1)


@planted("next_deadline", "from-first-token")
def from_the_first(arrival, token_times, ttft, tpot):
    if not token_times:
        return arrival + ttft
    return token_times[0] + tpot * len(token_times)


@planted("next_deadline", "from-last-token")
def from_the_last(arrival, token_times, ttft, tpot):
    return token_times[-1] + tpot if token_times else arrival + ttft


@planted("next_deadline", "ttft-only")
def first_token_only(arrival, token_times, ttft, tpot):
    return arrival + ttft


@planted("next_deadline", "without-arrival")
def duration(arrival, token_times, ttft, tpot):
    return ttft + tpot * len(token_times)


# --- choose_victims ---


def _take(tables, needed, free, candidates, enough=lambda free, needed: free >= needed, gained=None):
    holders, victims = Counter(block for table in tables for block in table), []
    for i in candidates:
        if enough(free, needed):
            break
        victims.append(i)
        for block in tables[i]:
            holders[block] -= 1
        free += gained(tables[i]) if gained else sum(holders[block] == 0 for block in tables[i])
    return victims


@planted("choose_victims", "first-in-order")
def from_the_front(tables, at, needed, free):
    return _take(tables, needed, free, range(len(tables)))


@planted("choose_victims", "nearest-first")
def next_in_order(tables, at, needed, free):
    return _take(tables, needed, free, [*range(at + 1, len(tables)), at])


@planted("choose_victims", "most-blocks-first")
def largest(tables, at, needed, free):
    behind = sorted(range(len(tables) - 1, at - 1, -1), key=lambda i: len(tables[i]), reverse=True)
    return _take(tables, needed, free, behind)


@planted("choose_victims", "only-one")
def last_one(tables, at, needed, free):
    return [len(tables) - 1] if free < needed else []


@planted("choose_victims", "those-before")
def past_the_needy(tables, at, needed, free):
    return _take(tables, needed, free, reversed(range(len(tables))))


@planted("choose_victims", "itself-spared")
def never_itself(tables, at, needed, free):
    return _take(tables, needed, free, range(len(tables) - 1, at, -1))


@planted("choose_victims", "shared-blocks-counted")
def whole_tables(tables, at, needed, free):
    victims, i = [], len(tables) - 1
    while free < needed and i >= at:
        victims.append(i)
        free += len(tables[i])
        i -= 1
    return victims


@planted("choose_victims", "shared-blocks-never-free")
def own_blocks_only(tables, at, needed, free):
    holders = Counter(block for table in tables for block in table)
    return _take(
        tables, needed, free, range(len(tables) - 1, at - 1, -1), gained=lambda t: sum(holders[b] == 1 for b in t)
    )


@planted("choose_victims", "free-blocks-ignored")
def all_from_victims(tables, at, needed, free):
    return _take(tables, needed, 0, range(len(tables) - 1, at - 1, -1))


@planted("choose_victims", "one-too-many")
def more_than_needed(tables, at, needed, free):
    return _take(tables, needed, free, range(len(tables) - 1, at - 1, -1), enough=lambda free, needed: free > needed)


@planted("choose_victims", "in-order-of-service")
def sorted_victims(tables, at, needed, free):
    return sorted(_take(tables, needed, free, range(len(tables) - 1, at - 1, -1)))


# --- resume_seconds ---


def _kv(config, bytes_per_kv):
    return 2 * config.layers * config.kv_heads * config.head_dim * bytes_per_kv


def _fed(config, tokens, cached, flops):
    return pass_cost(config, [tokens - cached], [cached]).flops / flops


@planted("resume_seconds", "swap-one-way")
def out_only(config, tokens, cached, bytes_per_kv, flops, link):
    return _fed(config, tokens, cached, flops), tokens * _kv(config, bytes_per_kv) / link


@planted("resume_seconds", "keys-without-values")
def keys_only(config, tokens, cached, bytes_per_kv, flops, link):
    token = config.layers * config.kv_heads * config.head_dim * bytes_per_kv
    return _fed(config, tokens, cached, flops), (2 * tokens - cached) * token / link


@planted("resume_seconds", "one-layer")
def without_layers(config, tokens, cached, bytes_per_kv, flops, link):
    token = 2 * config.kv_heads * config.head_dim * bytes_per_kv
    return _fed(config, tokens, cached, flops), (tokens + tokens - cached) * token / link


@planted("resume_seconds", "query-heads")
def all_heads(config, tokens, cached, bytes_per_kv, flops, link):
    token = 2 * config.layers * config.heads * config.head_dim * bytes_per_kv
    return _fed(config, tokens, cached, flops), (2 * tokens - cached) * token / link


@planted("resume_seconds", "prefix-copied-back")
def everything_back(config, tokens, cached, bytes_per_kv, flops, link):
    return _fed(config, tokens, cached, flops), 2 * tokens * _kv(config, bytes_per_kv) / link


@planted("resume_seconds", "prefix-not-copied-out")
def only_the_rest(config, tokens, cached, bytes_per_kv, flops, link):
    return _fed(config, tokens, cached, flops), 2 * (tokens - cached) * _kv(config, bytes_per_kv) / link


@planted("resume_seconds", "cached-prefix-recomputed")
def from_the_start(config, tokens, cached, bytes_per_kv, flops, link):
    recompute = pass_cost(config, [tokens], [0]).flops / flops
    return recompute, (2 * tokens - cached) * _kv(config, bytes_per_kv) / link


@planted("resume_seconds", "cached-prefix-not-seen")
def as_a_short_prompt(config, tokens, cached, bytes_per_kv, flops, link):
    recompute = pass_cost(config, [tokens - cached], [0]).flops / flops
    return recompute, (2 * tokens - cached) * _kv(config, bytes_per_kv) / link


@planted("resume_seconds", "attention-left-out")
def linear_only(config, tokens, cached, bytes_per_kv, flops, link):
    cost = pass_cost(config, [tokens - cached], [cached])
    recompute = (cost.linear_flops + cost.head_flops) / flops
    return recompute, (2 * tokens - cached) * _kv(config, bytes_per_kv) / link


# --- aged_order ---


def _by(key, n):
    return sorted(range(n), key=key)


@planted("aged_order", "ageing-sign")
def waiting_hurts(priorities, arrivals, now, ageing):
    return _by(lambda i: (priorities[i] + (now - arrivals[i]) / ageing, arrivals[i]), len(arrivals))


@planted("aged_order", "higher-number-first")
def high_is_urgent(priorities, arrivals, now, ageing):
    return _by(lambda i: (-(priorities[i] + (now - arrivals[i]) / ageing), arrivals[i]), len(arrivals))


@planted("aged_order", "upside-down")
def reverse(priorities, arrivals, now, ageing):
    order = _by(lambda i: (priorities[i] - (now - arrivals[i]) / ageing, arrivals[i]), len(arrivals))
    order.reverse()
    return order


@planted("aged_order", "no-ageing")
def never_ages(priorities, arrivals, now, ageing):
    return _by(lambda i: (priorities[i], arrivals[i]), len(arrivals))


@planted("aged_order", "no-ageing")
def all_age_alike(priorities, arrivals, now, ageing):
    return _by(lambda i: (priorities[i] - now / ageing, arrivals[i]), len(arrivals))


@planted("aged_order", "whole-levels")
def levels(priorities, arrivals, now, ageing):
    return _by(lambda i: (priorities[i] - int((now - arrivals[i]) / ageing), arrivals[i]), len(arrivals))


@planted("aged_order", "clamped-at-zero")
def never_below_zero(priorities, arrivals, now, ageing):
    return _by(lambda i: (max(priorities[i] - (now - arrivals[i]) / ageing, 0.0), arrivals[i]), len(arrivals))


@planted("aged_order", "divided-by-wait")
def quotient(priorities, arrivals, now, ageing):
    return _by(lambda i: (priorities[i] / (1 + (now - arrivals[i]) / ageing), arrivals[i]), len(arrivals))


@planted("aged_order", "ageing-multiplied")
def levels_per_second(priorities, arrivals, now, ageing):
    return _by(lambda i: (priorities[i] - (now - arrivals[i]) * ageing, arrivals[i]), len(arrivals))


@planted("aged_order", "ties-by-index")
def no_tie_break(priorities, arrivals, now, ageing):
    return [int(i) for i in np.argsort(np.array(priorities) - (now - np.array(arrivals)) / ageing, kind="stable")]


@planted("aged_order", "places-for-order")
def places(priorities, arrivals, now, ageing):
    order = _by(lambda i: (priorities[i] - (now - arrivals[i]) / ageing, arrivals[i]), len(arrivals))
    return [order.index(i) for i in range(len(order))]
