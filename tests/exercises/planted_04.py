"""Wrong solutions of exercise 04, written as a learner would write them, each with the hint it must get.

Those of the ring are here; those of codes and of what they take are in two files of their own.
"""

from __future__ import annotations

import torch

from tests.exercises import planted_04_codes, planted_04_kivi  # noqa: F401
from tests.exercises.planting import planted

# --- ring_slots ---


@planted("ring_slots", "no-sinks")
def plain_ring(positions, window, sinks):
    return positions.remainder(window)


@planted("ring_slots", "sinks-in-the-ring")
def one_large_ring(positions, window, sinks):
    return positions % (sinks + window)


@planted("ring_slots", "ring-over-the-sinks")
def forgets_the_first_slot(positions, window, sinks):
    slots = positions.clone()
    behind = positions >= sinks
    slots[behind] = (positions[behind] - sinks) % window
    return slots


@planted("ring_slots", "counted-from-zero")
def turned_ring(positions, window, sinks):
    return torch.where(positions < sinks, positions, positions % window + sinks)


@planted("ring_slots", "window-less-sinks")
def sinks_taken_from_the_window(positions, window, sinks):
    ring = window - sinks
    return torch.where(positions < sinks, positions, sinks + (positions - sinks) % ring)


@planted("ring_slots", "ring-too-short")
def without_the_query(positions, window, sinks):
    return torch.where(positions < sinks, positions, sinks + (positions - sinks) % (window - 1))


@planted("ring_slots", "ring-too-long")
def one_more_slot(positions, window, sinks):
    return torch.where(positions < sinks, positions, sinks + (positions - sinks) % (window + 1))


@planted("ring_slots", "sinks-not-told-apart")
def one_formula_for_all(positions, window, sinks):
    return (positions - sinks) % window + sinks


@planted("ring_slots", "one-sink-too-few")
def last_sink_in_the_ring(positions, window, sinks):
    return torch.where(positions + 1 < sinks, positions, sinks + (positions - sinks) % window)


@planted("ring_slots", "stuck-at-the-end")
def no_round(positions, window, sinks):
    return torch.minimum(positions, torch.tensor(sinks + window - 1))


@planted("ring_slots", "list-for-tensor")
def list_of_slots(positions, window, sinks):
    return [p if p < sinks else sinks + (p - sinks) % window for p in positions.tolist()]


# --- window_mask ---


@planted("window_mask", "no-window")
def causal_only(queries, keys, window, sinks):
    return (keys[None] >= 0) & (keys[None] <= queries[:, None])


@planted("window_mask", "not-causal")
def window_only(queries, keys, window, sinks):
    distance = queries[:, None] - keys[None]
    return (keys >= 0) & ((distance < window) | (keys < sinks))


@planted("window_mask", "window-too-long")
def distance_up_to_w(queries, keys, window, sinks):
    distance = queries[:, None] - keys[None]
    return (keys >= 0) & (distance >= 0) & ((distance <= window) | (keys < sinks))


@planted("window_mask", "window-too-short")
def distance_below_w_minus_one(queries, keys, window, sinks):
    distance = queries[:, None] - keys[None]
    return (keys >= 0) & (distance >= 0) & ((distance < window - 1) | (keys < sinks))


@planted("window_mask", "sinks-forgotten")
def without_sinks(queries, keys, window, sinks):
    distance = queries[:, None] - keys[None]
    return (keys >= 0) & (distance >= 0) & (distance < window)


@planted("window_mask", "sinks-not-causal")
def sinks_for_everybody(queries, keys, window, sinks):
    distance = queries[:, None] - keys[None]
    mask = (keys >= 0) & (distance >= 0) & (distance < window)
    mask[:, (keys >= 0) & (keys < sinks)] = True
    return mask


@planted("window_mask", "one-sink-too-many")
def sinks_up_to_s(queries, keys, window, sinks):
    distance = queries[:, None] - keys[None]
    return (keys >= 0) & (distance >= 0) & ((distance < window) | (keys <= sinks))


@planted("window_mask", "sinks-in-the-window")
def shorter_window(queries, keys, window, sinks):
    distance = queries[:, None] - keys[None]
    return (keys >= 0) & (distance >= 0) & ((distance < window - sinks) | (keys < sinks))


@planted("window_mask", "empty-slots-visible")
def empty_slots_are_sinks(queries, keys, window, sinks):
    distance = queries[:, None] - keys[None]
    return (distance >= 0) & ((distance < window) | (keys < sinks))


@planted("window_mask", "slots-for-positions")
def by_column(queries, keys, window, sinks):
    columns = torch.arange(keys.shape[0])
    distance = queries[:, None] - columns
    return (distance >= 0) & ((distance < window) | (columns < sinks))


@planted("window_mask", "one-window-for-all")
def window_of_the_chunk(queries, keys, window, sinks):
    near = (keys > queries[-1] - window) | (keys < sinks)
    return (keys >= 0) & near & (keys[None] <= queries[:, None])


@planted("window_mask", "own-token-hidden")
def strictly_before(queries, keys, window, sinks):
    distance = queries[:, None] - keys[None]
    return (keys >= 0) & (distance > 0) & ((distance < window) | (keys < sinks))


@planted("window_mask", "inverted")
def true_means_hidden(queries, keys, window, sinks):
    distance = queries[:, None] - keys[None]
    return (keys < 0) | (distance < 0) | ((distance >= window) & (keys >= sinks))


@planted("window_mask", "additive-mask")
def minus_infinity(queries, keys, window, sinks):
    distance = queries[:, None] - keys[None]
    seen = (keys >= 0) & (distance >= 0) & ((distance < window) | (keys < sinks))
    return torch.where(seen, 0.0, float("-inf"))


# --- ring_append ---


def _write(ring, held, new, positions, slots):
    for i, slot in enumerate(slots.tolist()):
        ring[slot], held[slot] = new[i], positions[i]


@planted("ring_append", "stored-before-attending")
def attends_to_the_ring(ring, held, new, positions, slots):
    _write(ring, held, new, positions, slots)
    return ring, held, ring, held


@planted("ring_append", "attends-twice")
def writes_then_joins(ring, held, new, positions, slots):
    _write(ring, held, new, positions, slots)
    return torch.cat((ring, new)), torch.cat((held, positions)), ring, held


@planted("ring_append", "cut-before-attending")
def trims_first(ring, held, new, positions, slots):
    size = ring.shape[0]
    keys, at = torch.cat((ring, new))[-size:], torch.cat((held, positions))[-size:]
    _write(ring, held, new, positions, slots)
    return keys, at, ring, held


@planted("ring_append", "new-not-attended")
def sees_only_the_cache(ring, held, new, positions, slots):
    keys, at = ring.clone(), held.clone()
    _write(ring, held, new, positions, slots)
    return keys, at, ring, held


@planted("ring_append", "old-not-attended")
def sees_only_the_chunk(ring, held, new, positions, slots):
    _write(ring, held, new, positions, slots)
    return new, positions, ring, held


@planted("ring_append", "empty-slots-dropped")
def drops_empty_slots(ring, held, new, positions, slots):
    full = held != -1
    keys, at = torch.cat((ring[full], new)), torch.cat((held[full], positions))
    _write(ring, held, new, positions, slots)
    return keys, at, ring, held


@planted("ring_append", "slots-for-positions")
def numbers_the_columns(ring, held, new, positions, slots):
    keys = torch.cat((ring, new))
    _write(ring, held, new, positions, slots)
    return keys, torch.arange(keys.shape[0]), ring, held


@planted("ring_append", "held-not-updated")
def forgets_held(ring, held, new, positions, slots):
    keys, at = torch.cat((ring, new)), torch.cat((held, positions))
    ring[slots] = new
    return keys, at, ring, held


@planted("ring_append", "nothing-stored")
def forgets_to_store(ring, held, new, positions, slots):
    return torch.cat((ring, new)), torch.cat((held, positions)), ring, held


@planted("ring_append", "last-token-only")
def stores_one_token(ring, held, new, positions, slots):
    keys, at = torch.cat((ring, new)), torch.cat((held, positions))
    ring[slots[-1]], held[slots[-1]] = new[-1], positions[-1]
    return keys, at, ring, held


@planted("ring_append", "first-stays")
def keeps_the_first(ring, held, new, positions, slots):
    keys, at = torch.cat((ring, new)), torch.cat((held, positions))
    written = set()
    for i, slot in enumerate(slots.tolist()):
        if slot not in written:
            ring[slot], held[slot] = new[i], positions[i]
            written.add(slot)
    return keys, at, ring, held


@planted("ring_append", "sinks-overwritten")
def own_slots(ring, held, new, positions, slots):
    keys, at = torch.cat((ring, new)), torch.cat((held, positions))
    _write(ring, held, new, positions, positions % ring.shape[0])
    return keys, at, ring, held


@planted("ring_append", "shifted")
def moves_along(ring, held, new, positions, slots):
    keys, at = torch.cat((ring, new)), torch.cat((held, positions))
    return keys, at, keys[len(new) :], at[len(new) :]
