"""Wrong solutions of exercise 09, written as a learner would write them, each with the hint it must get.

Those of the batch and of the scheduler are in two files of their own.
"""

from __future__ import annotations

import math

from tests.exercises import planted_09_batch, planted_09_plan  # noqa: F401
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
