"""Wrong solutions of exercise 09: chunks and the flat batch of a step."""

from __future__ import annotations

import math

from tests.exercises.planting import planted

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
