"""Wrong solutions of exercise 09, written as a learner would write them, each with the hint that it must get."""

from __future__ import annotations

import math

from tests.exercises.planting import planted

# --- static_steps ---


@planted("static_steps", "means-for-longest")
def sum_of_means(lengths, seats):
    steps = 0
    for start in range(0, len(lengths), seats):
        batch = lengths[start : start + seats]
        steps += sum(batch) / len(batch)
    return steps


@planted("static_steps", "seats-always-full")
def tokens_over_seats(lengths, seats):
    return math.ceil(sum(lengths) / seats)


@planted("static_steps", "freed-seats-refilled")
def refills(lengths, seats):
    running, waiting, steps = [], list(lengths), 0
    while running or waiting:
        while waiting and len(running) < seats:
            running.append(waiting.pop(0))
        running = [left - 1 for left in running if left > 1]
        steps += 1
    return steps


@planted("static_steps", "sorted-by-length")
def similar_lengths_together(lengths, seats):
    ordered = sorted(lengths)
    return sum(max(ordered[i : i + seats]) for i in range(0, len(ordered), seats))


@planted("static_steps", "longest-of-all")
def padded_to_the_longest(lengths, seats):
    if not lengths:
        return 0
    return math.ceil(len(lengths) / seats) * max(lengths)


@planted("static_steps", "last-batch-dropped")
def full_batches(lengths, seats):
    return sum(max(lengths[k * seats : (k + 1) * seats]) for k in range(len(lengths) // seats))


@planted("static_steps", "no-batching")
def all_tokens(lengths, seats):
    return sum(lengths)


@planted("static_steps", "one-batch")
def longest(lengths, seats):
    return max(lengths, default=0)


# --- continuous_steps ---


@planted("continuous_steps", "sum-over-seats")
def perfect_packing(lengths, seats):
    return sum(lengths) / seats


@planted("continuous_steps", "static-refill")
def waits_for_all(lengths, seats):
    waiting, steps = list(lengths), 0
    while waiting:
        batch, waiting = waiting[:seats], waiting[seats:]
        steps += max(batch)
    return steps


@planted("continuous_steps", "finished-not-removed")
def removes_one_step_late(lengths, seats):
    running, waiting, steps = [], list(lengths), 0
    while waiting or any(running):
        while waiting and len(running) < seats:
            running.append(waiting.pop(0))
        running = [left - 1 for left in running if left > 0]  # whoever is at 0 goes after the others have joined
        steps += 1
    return steps


@planted("continuous_steps", "seats-dealt-in-turn")
def round_robin(lengths, seats):
    busy = [0] * seats
    for i, n in enumerate(lengths):
        busy[i % seats] += n
    return max(busy)


@planted("continuous_steps", "longest-first")
def longest_first(lengths, seats):
    busy = [0] * seats
    for n in sorted(lengths)[::-1]:
        busy[busy.index(min(busy))] += n
    return max(busy)


@planted("continuous_steps", "shortest-first")
def shortest_first(lengths, seats):
    busy = [0] * seats
    for n in sorted(lengths):
        busy[busy.index(min(busy))] += n
    return max(busy)


@planted("continuous_steps", "seats-unlimited")
def everybody_at_once(lengths, seats):
    return max(lengths, default=0)


@planted("continuous_steps", "seat-reused-in-its-last-step")
def joins_in_the_last_step(lengths, seats):
    running, waiting, steps = [], list(lengths), 0
    while running or waiting:
        while waiting and len(running) < seats:
            running.append(waiting.pop(0))
        if waiting:  # those in their last step make room at once
            leaving = sum(left == 1 for left in running)
            joining, waiting = waiting[:leaving], waiting[leaving:]
            running += joining
        running = [left - 1 for left in running if left > 1]
        steps += 1
    return steps


@planted("continuous_steps", "one-at-a-time")
def sequential(lengths, seats):
    return sum(lengths)


# --- sustainable_rate ---


@planted("sustainable_rate", "one-request")
def rate_of_one_seat(seats, tokens, fixed, each):
    return 1 / (tokens * (fixed + each * seats))


@planted("sustainable_rate", "step-of-one")
def step_of_a_single_sequence(seats, tokens, fixed, each):
    step = fixed + each
    return seats / (tokens * step)


@planted("sustainable_rate", "each-left-out")
def constant_step(seats, tokens, fixed, each):
    return seats / (tokens * fixed)


@planted("sustainable_rate", "fixed-left-out")
def no_overhead(seats, tokens, fixed, each):
    return 1 / (tokens * each)


@planted("sustainable_rate", "fixed-for-each-sequence")
def one_after_the_other(seats, tokens, fixed, each):
    step = seats * (fixed + each)
    return seats / (tokens * step)


@planted("sustainable_rate", "tokens-per-second")
def token_rate(seats, tokens, fixed, each):
    return seats / (fixed + seats * each)


@planted("sustainable_rate", "seconds-per-request")
def inverse(seats, tokens, fixed, each):
    return tokens * (fixed + seats * each) / seats


@planted("sustainable_rate", "time-in-the-seat")
def latency(seats, tokens, fixed, each):
    return tokens * (fixed + seats * each)


@planted("sustainable_rate", "little-multiplied")
def seats_times_latency(seats, tokens, fixed, each):
    latency = tokens * (fixed + seats * each)
    return seats * latency


# --- prefill_chunks ---


@planted("prefill_chunks", "budget-per-request")
def budget_for_the_prompt_alone(prompt, decodes, budget):
    chunks = []
    while prompt > 0:
        chunks.append(min(prompt, budget))
        prompt -= chunks[-1]
    return chunks


@planted("prefill_chunks", "whole-prompt")
def not_cut(prompt, decodes, budget):
    return [prompt]


@planted("prefill_chunks", "equal-chunks")
def balanced(prompt, decodes, budget):
    count = math.ceil(prompt / (budget - decodes))
    size, more = divmod(prompt, count)
    return [size + 1] * more + [size] * (count - more)


@planted("prefill_chunks", "rest-dropped")
def full_chunks_only(prompt, decodes, budget):
    room = budget - decodes
    return [room for _ in range(prompt // room)]


@planted("prefill_chunks", "last-chunk-full")
def rounded_up(prompt, decodes, budget):
    room = budget - decodes
    return [room] * math.ceil(prompt / room)


@planted("prefill_chunks", "empty-chunk")
def zero_at_the_end(prompt, decodes, budget):
    room = budget - decodes
    return [room] * (prompt // room) + [prompt % room]


@planted("prefill_chunks", "decodes-counted-once")
def decodes_in_the_first_step(prompt, decodes, budget):
    chunks, room = [], budget - decodes
    while prompt > 0:
        chunks.append(min(prompt, room))
        prompt -= chunks[-1]
        room = budget
    return chunks


@planted("prefill_chunks", "count-for-sizes")
def how_many(prompt, decodes, budget):
    return math.ceil(prompt / (budget - decodes))


# --- ragged_batch ---


def _ragged(feeds, tokens, position, last=lambda start, n: start + n - 1):
    """What most wrong solutions share: the loop."""
    token_ids, positions, query_lens, ends = [], [], [], []
    for known, computed, n in feeds:
        new = tokens(known, computed, n)
        ends.append(last(len(token_ids), len(new)))
        positions += [position(computed, i, len(token_ids)) for i in range(len(new))]
        token_ids += new
        query_lens.append(len(new))
    return token_ids, positions, query_lens, ends


def _next(known, computed, n):
    return known[computed : computed + n]


@planted("ragged_batch", "chunk-positions-from-zero")
def every_chunk_starts_at_zero(feeds):
    return _ragged(feeds, _next, lambda computed, i, start: i)


@planted("ragged_batch", "position-one-too-far")
def position_is_length(feeds):
    return _ragged(feeds, _next, lambda computed, i, start: computed + i + 1)


@planted("ragged_batch", "positions-across-the-batch")
def numbered_rows(feeds):
    return _ragged(feeds, _next, lambda computed, i, start: start + i)


@planted("ragged_batch", "tokens-from-the-start")
def first_tokens(feeds):
    return _ragged(feeds, lambda known, computed, n: known[:n], lambda computed, i, start: computed + i)


@planted("ragged_batch", "tokens-from-the-end")
def last_tokens(feeds):
    return _ragged(feeds, lambda known, computed, n: known[-n:], lambda computed, i, start: computed + i)


@planted("ragged_batch", "whole-rest")
def ignores_the_plan(feeds):
    return _ragged(feeds, lambda known, computed, n: known[computed:], lambda computed, i, start: computed + i)


@planted("ragged_batch", "computed-fed-again")
def without_a_cache(feeds):
    return _ragged(feeds, lambda known, computed, n: known[: computed + n], lambda computed, i, start: i)


@planted("ragged_batch", "last-one-past")
def ends_for_last(feeds):
    return _ragged(feeds, _next, lambda computed, i, start: computed + i, lambda start, n: start + n)


@planted("ragged_batch", "last-within-the-sequence")
def last_of_the_chunk(feeds):
    return _ragged(feeds, _next, lambda computed, i, start: computed + i, lambda start, n: n - 1)


@planted("ragged_batch", "first-for-last")
def starts_for_last(feeds):
    return _ragged(feeds, _next, lambda computed, i, start: computed + i, lambda start, n: start)


@planted("ragged_batch", "context-for-query-lens")
def sequence_lengths(feeds):
    token_ids, positions, _, last = _ragged(feeds, _next, lambda computed, i, start: computed + i)
    return token_ids, positions, [computed + n for _, computed, n in feeds], last


@planted("ragged_batch", "padded")
def rectangle(feeds):
    width = max(n for _, _, n in feeds)
    return _ragged(
        feeds,
        lambda known, computed, n: known[computed : computed + n] + (width - n) * [0],
        lambda computed, i, start: computed + i,
    )


# --- plan_step ---


def _serve(queue, budget):
    """What most wrong solutions share: tokens to each of the queue until the budget is used up."""
    plan = []
    for request, remaining in queue:
        n = min(remaining, budget)
        if n > 0:
            plan.append((request, n))
            budget -= n
    return plan


def _split(running):
    return [p for p in running if p[1] == 1], [p for p in running if p[1] > 1]


@planted("plan_step", "budget-per-request")
def counter_never_incremented(running, waiting, budget, max_seqs):
    decodes, prompts = _split(running)
    plan, used = [], 0
    for request, remaining in decodes + prompts + waiting[: max_seqs - len(running)]:
        if used < budget:
            plan.append((request, min(remaining, budget - used)))
    return plan


@planted("plan_step", "decodes-not-counted")
def decodes_for_free(running, waiting, budget, max_seqs):
    decodes, prompts = _split(running)
    return [(request, 1) for request, _ in decodes] + _serve(prompts + waiting[: max_seqs - len(running)], budget)


@planted("plan_step", "prompts-first")
def prompts_first(running, waiting, budget, max_seqs):
    decodes, prompts = _split(running)
    return _serve(prompts + waiting[: max_seqs - len(running)] + decodes, budget)


@planted("plan_step", "prompts-alone")
def prefill_steps_and_decode_steps(running, waiting, budget, max_seqs):
    decodes, prompts = _split(running)
    prompts += waiting[: max_seqs - len(running)]
    if prompts:
        return _serve(prompts, budget)
    return _serve(decodes, budget)


@planted("plan_step", "new-before-begun")
def admits_before_it_goes_on(running, waiting, budget, max_seqs):
    decodes, prompts = _split(running)
    return _serve(decodes + waiting[: max_seqs - len(running)] + prompts, budget)


@planted("plan_step", "running-as-listed")
def takes_running_as_it_is(running, waiting, budget, max_seqs):
    return _serve(running + waiting[: max_seqs - len(running)], budget)


@planted("plan_step", "whole-prompts-only")
def waits_until_it_fits(running, waiting, budget, max_seqs):
    decodes, prompts = _split(running)
    plan, left = [], budget
    for request, remaining in decodes + prompts + waiting[: max_seqs - len(running)]:
        if remaining > left:
            break
        plan.append((request, remaining))
        left -= remaining
    return plan


@planted("plan_step", "overtaking")
def skips_what_does_not_fit(running, waiting, budget, max_seqs):
    decodes, prompts = _split(running)
    plan, left = [], budget
    for request, remaining in decodes + prompts + waiting[: max_seqs - len(running)]:
        if remaining <= left:
            plan.append((request, remaining))
            left -= remaining
    return plan


@planted("plan_step", "shortest-first")
def short_prompts_first(running, waiting, budget, max_seqs):
    decodes, prompts = _split(running)
    waiting.sort(key=lambda p: p[1])
    return _serve(decodes + prompts + waiting[: max_seqs - len(running)], budget)


@planted("plan_step", "last-come-first")
def pops_from_the_end(running, waiting, budget, max_seqs):
    decodes, prompts = _split(running)
    plan = _serve(decodes + prompts, budget)
    left, seats = budget - sum(n for _, n in plan), max_seqs - len(running)
    while waiting and left and seats:
        request, remaining = waiting.pop()
        plan.append((request, min(remaining, left)))
        left, seats = left - plan[-1][1], seats - 1
    return plan


@planted("plan_step", "seats-ignored")
def everybody_may_join(running, waiting, budget, max_seqs):
    decodes, prompts = _split(running)
    return _serve(decodes + prompts + waiting, budget)


@planted("plan_step", "begun-prompts-hold-no-seat")
def counts_decodes_only(running, waiting, budget, max_seqs):
    decodes, prompts = _split(running)
    return _serve(decodes + prompts + waiting[: max_seqs - len(decodes)], budget)


@planted("plan_step", "one-seat-too-many")
def off_by_one_seat(running, waiting, budget, max_seqs):
    decodes, prompts = _split(running)
    plan, seats = _serve(decodes + prompts, budget), len(running)
    left = budget - sum(n for _, n in plan)
    for request, remaining in waiting:
        if left and seats <= max_seqs:
            plan.append((request, min(remaining, left)))
            left, seats = left - plan[-1][1], seats + 1
    return plan


@planted("plan_step", "static-refill")
def admits_only_into_an_empty_batch(running, waiting, budget, max_seqs):
    decodes, prompts = _split(running)
    if not running:
        prompts = waiting[:max_seqs]
    return _serve(decodes + prompts, budget)


@planted("plan_step", "one-admission")
def one_newcomer(running, waiting, budget, max_seqs):
    decodes, prompts = _split(running)
    newcomers = waiting[:1] if len(running) < max_seqs else []
    return _serve(decodes + prompts + newcomers, budget)


@planted("plan_step", "one-prompt-a-step")
def single_prompt(running, waiting, budget, max_seqs):
    decodes, prompts = _split(running)
    prompts += waiting[: max_seqs - len(running)]
    return _serve(decodes + prompts[:1], budget)


@planted("plan_step", "equal-shares")
def fair_shares(running, waiting, budget, max_seqs):
    decodes, prompts = _split(running)
    prompts += waiting[: max_seqs - len(running)]
    share = (budget - len(decodes)) // max(len(prompts), 1)
    return _serve(decodes, budget) + [(i, min(n, share)) for i, n in prompts if min(n, share) > 0]


@planted("plan_step", "zero-tokens")
def nobody_left_out(running, waiting, budget, max_seqs):
    decodes, prompts = _split(running)
    plan = []
    for request, remaining in decodes + prompts + waiting[: max_seqs - len(running)]:
        plan.append((request, min(remaining, budget)))
        budget -= plan[-1][1]
    return plan


@planted("plan_step", "more-than-remaining")
def all_that_is_left(running, waiting, budget, max_seqs):
    decodes, prompts = _split(running)
    plan = [(request, 1) for request, _ in decodes]
    for request, _ in prompts + waiting[: max_seqs - len(running)]:
        left = budget - sum(n for _, n in plan)
        if left > 0:
            plan.append((request, left))
    return plan
