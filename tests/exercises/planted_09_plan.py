"""Wrong solutions of exercise 09: the scheduler."""

from __future__ import annotations

from tests.exercises.planting import planted

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
