"""Wrong solutions of exercise 10: who can never be served, and who would be served too late."""

from __future__ import annotations

import math

from tests.exercises.planting import planted

# --- never_fits ---


def _first_limit(seats, budget, pool):
    return "max_num_seqs" if seats else "max_num_batched_tokens" if budget else "blocks" if pool else "fits"


def _whole(prompt, limits):
    return not limits["chunked"] and prompt > limits["max_num_batched_tokens"]


def _slots(limits):
    return limits["blocks"] * limits["block_size"]


@planted("never_fits", "last-token-counted")
def all_tokens(prompt, new, n, limits):
    return _first_limit(n > limits["max_num_seqs"], _whole(prompt, limits), prompt + new > _slots(limits))


@planted("never_fits", "prompt-only")
def prompt_fits(prompt, new, n, limits):
    return _first_limit(n > limits["max_num_seqs"], _whole(prompt, limits), prompt > _slots(limits))


@planted("never_fits", "blocks-rounded-down")
def floored(prompt, new, n, limits):
    blocks = (prompt + new - 1) // limits["block_size"]
    return _first_limit(n > limits["max_num_seqs"], _whole(prompt, limits), blocks > limits["blocks"])


@planted("never_fits", "every-completion-at-once")
def n_times(prompt, new, n, limits):
    return _first_limit(n > limits["max_num_seqs"], _whole(prompt, limits), n * (prompt + new - 1) > _slots(limits))


@planted("never_fits", "budget-although-chunked")
def always_budget(prompt, new, n, limits):
    whole = prompt > limits["max_num_batched_tokens"]
    return _first_limit(n > limits["max_num_seqs"], whole, prompt + new - 1 > _slots(limits))


@planted("never_fits", "budget-ignored")
def no_budget(prompt, new, n, limits):
    return _first_limit(n > limits["max_num_seqs"], False, prompt + new - 1 > _slots(limits))


@planted("never_fits", "seats-ignored")
def no_seats(prompt, new, n, limits):
    return _first_limit(False, _whole(prompt, limits), prompt + new - 1 > _slots(limits))


@planted("never_fits", "last-limit-named")
def pool_first(prompt, new, n, limits):
    if prompt + new - 1 > _slots(limits):
        return "blocks"
    return _first_limit(False, _whole(prompt, limits), False) if n <= limits["max_num_seqs"] else "max_num_seqs"


# --- predicted_ttft ---


def _steps(tokens, share, step_seconds):
    return math.ceil(tokens / share) * step_seconds


@planted("predicted_ttft", "running-ignored")
def queue_only(running, waiting, prompt, budget, step_seconds):
    return _steps(sum(waiting) + prompt, budget, step_seconds)


@planted("predicted_ttft", "begun-prompts-ignored")
def decodes_only(running, waiting, prompt, budget, step_seconds):
    return _steps(sum(waiting) + prompt, budget - running.count(1), step_seconds)


@planted("predicted_ttft", "decodes-ignored")
def whole_budget(running, waiting, prompt, budget, step_seconds):
    return _steps(sum(r for r in running if r > 1) + sum(waiting) + prompt, budget, step_seconds)


@planted("predicted_ttft", "decodes-fed-once")
def all_tokens_once(running, waiting, prompt, budget, step_seconds):
    return _steps(sum(running) + sum(waiting) + prompt, budget, step_seconds)


@planted("predicted_ttft", "every-running-decodes")
def all_decode(running, waiting, prompt, budget, step_seconds):
    return _steps(sum(r for r in running if r > 1) + sum(waiting) + prompt, budget - len(running), step_seconds)


@planted("predicted_ttft", "queue-ignored")
def no_queue(running, waiting, prompt, budget, step_seconds):
    return _steps(sum(r for r in running if r > 1) + prompt, budget - running.count(1), step_seconds)


@planted("predicted_ttft", "own-prompt-left-out")
def until_its_turn(running, waiting, prompt, budget, step_seconds):
    return _steps(sum(r for r in running if r > 1) + sum(waiting), budget - running.count(1), step_seconds)


@planted("predicted_ttft", "not-whole-steps")
def fractions(running, waiting, prompt, budget, step_seconds):
    tokens = sum(r for r in running if r > 1) + sum(waiting) + prompt
    return tokens / (budget - running.count(1)) * step_seconds
