"""Exercise 09, fifth part: the scheduler's decision for one step, judged on lists and then in the engine."""

from __future__ import annotations

from collections.abc import Callable
from random import Random

from course_lib.checks.core import Case, Mistake, Play, Problem
from course_lib.checks.ex09_engine import hidden_plays, public_plays
from course_lib.checks.own_plan import Pair, PlanStep


def plan_step(running: list[Pair], waiting: list[Pair], budget: int, max_seqs: int) -> list[Pair]:
    return _fill(_decodes(running) + _begun(running) + waiting[: max_seqs - len(running)], budget)


def _decodes(running: list[Pair]) -> list[Pair]:
    return [pair for pair in running if pair[1] == 1]


def _begun(running: list[Pair]) -> list[Pair]:
    """Prompts under way."""
    return [pair for pair in running if pair[1] > 1]


def _fill(queue: list[Pair], budget: int) -> list[Pair]:
    """Give each of the queue what it needs, as long as the budget lasts."""
    feeds = []
    for request, remaining in queue:
        if not budget:
            break
        feeds.append((request, min(remaining, budget)))
        budget -= feeds[-1][1]
    return feeds


def _whole(queue: list[Pair], budget: int, overtake: bool) -> list[Pair]:
    """Nothing is cut. What does not fit ends the step, or is passed over."""
    feeds = []
    for request, remaining in queue:
        if remaining <= budget:
            feeds.append((request, remaining))
            budget -= remaining
        elif not overtake:
            break
    return feeds


def _queued(order: Callable[[list[Pair], list[Pair], int], list[Pair]]) -> PlanStep:
    """`plan_step` that fills the step in another order: of (running, waiting, free seats)."""
    return lambda running, waiting, budget, max_seqs: _fill(order(running, waiting, max_seqs - len(running)), budget)


def _right_queue(running: list[Pair], waiting: list[Pair], free: int) -> list[Pair]:
    return _decodes(running) + _begun(running) + waiting[:free]


def _prompts_alone(running: list[Pair], waiting: list[Pair], free: int) -> list[Pair]:
    return _begun(running) + waiting[:free] or _decodes(running)


def _with_zeros(running: list[Pair], waiting: list[Pair], budget: int, max_seqs: int) -> list[Pair]:
    queue = _right_queue(running, waiting, max_seqs - len(running))
    fed = dict(_fill(queue, budget))
    return [(request, fed.get(request, 0)) for request, _ in queue]


def _beyond_remaining(running: list[Pair], waiting: list[Pair], budget: int, max_seqs: int) -> list[Pair]:
    """The first prompt gets all that the decodes leave, whether it needs it or not."""
    decodes, prompts = _decodes(running), _begun(running) + waiting[: max_seqs - len(running)]
    return decodes + [(request, budget - len(decodes)) for request, _ in prompts[:1] if budget > len(decodes)]


def _equal_shares(running: list[Pair], waiting: list[Pair], budget: int, max_seqs: int) -> list[Pair]:
    decodes, prompts = _decodes(running), _begun(running) + waiting[: max_seqs - len(running)]
    share = (budget - len(decodes)) // len(prompts) if prompts else 0
    return decodes + [(request, min(remaining, share)) for request, remaining in prompts if share]


def random_lists(rng: Random) -> tuple[list[Pair], list[Pair], int, int]:
    """Decodes and begun prompts in any order, a queue behind them, a budget that some of it exceeds."""
    max_seqs, ids = rng.randint(6, 12), iter(rng.sample(range(100), 40))
    running = [(next(ids), rng.choice((1, 1, 1, rng.randint(2, 20)))) for _ in range(rng.randint(3, max_seqs))]
    waiting = [(next(ids), rng.randint(1, 30)) for _ in range(rng.randint(2, 15))]
    return running, waiting, rng.randint(max_seqs, 60), max_seqs


def _case(stage: str, running: list[Pair], waiting: list[Pair], budget: int, max_seqs: int, want=None) -> Case:
    return Case(stage, (running, waiting, budget, max_seqs), None if want is None else {"the result": want})


def _public(rng: Random) -> list[Case | Play]:
    return [
        # 1 token for the decode, 6 to end prompt 1, and the 9 that are left begin prompt 2.
        _case("worked example", [(0, 1), (1, 6)], [(2, 20), (3, 5)], 16, 8, [(0, 1), (1, 6), (2, 9)]),
        _case("edge case", [(5, 1), (6, 1)], [], 16, 8, [(5, 1), (6, 1)]),
        _case("edge case", [], [(0, 100), (1, 4)], 16, 8, [(0, 16)]),  # longer than the budget
        _case("edge case", [], [(0, 4), (1, 3), (2, 5)], 16, 8, [(0, 4), (1, 3), (2, 5)]),
        _case("edge case", [(4, 40), (7, 1), (8, 1)], [(9, 3)], 16, 8, [(7, 1), (8, 1), (4, 14)]),
        _case("edge case", [(0, 1), (1, 3)], [(2, 3), (3, 4)], 16, 3, [(0, 1), (1, 3), (2, 3)]),  # one seat is free
        _case("edge case", [(0, 1), (1, 1)], [(2, 3), (3, 4)], 16, 2, [(0, 1), (1, 1)]),  # none is
        _case("edge case", [(0, 1), (1, 1), (2, 1), (3, 1)], [(4, 9)], 4, 4, [(0, 1), (1, 1), (2, 1), (3, 1)]),
        _case(
            "edge case", [], [(0, 8), (1, 8), (2, 3)], 16, 8, [(0, 8), (1, 8)]
        ),  # the budget is used to the last token
        _case("reference", *random_lists(rng)),
        *public_plays(),
    ]


def _hidden(rng: Random) -> list[Case | Play]:
    return [*(_case("reference", *random_lists(rng)) for _ in range(6)), *hidden_plays(rng)]


PLAN_STEP = Problem(
    name="plan_step",
    arguments=("running", "waiting", "budget", "max_seqs"),
    reference=plan_step,
    public=_public,
    hidden=_hidden,
    public_points=4,
    hidden_points=4,
    mistakes=(
        Mistake(
            "budget-per-request",
            "The budget is that of the whole step, not of each request: count down what you have given.",
            lambda r, w, b, s: [(i, min(n, b)) for i, n in _right_queue(r, w, s - len(r))],
        ),
        Mistake(
            "decodes-not-counted",
            "Decodes are tokens of the step too: subtract them from the budget before the prompts share the rest.",
            lambda r, w, b, s: _decodes(r) + _fill(_begun(r) + w[: s - len(r)], b),
        ),
        Mistake(
            "prompts-first",
            "Decodes come first. Prompts before them use the budget up, and running answers stall while others queue.",
            _queued(lambda r, w, free: _begun(r) + w[:free] + _decodes(r)),
        ),
        Mistake(
            "prompts-alone",
            "The decodes were left out because prompts were there. Every decode gets its token in every step.",
            _queued(_prompts_alone),
        ),
        Mistake(
            "new-before-begun",
            "Prompts under way come before new ones; otherwise those that were admitted never get done.",
            _queued(lambda r, w, free: _decodes(r) + w[:free] + _begun(r)),
        ),
        Mistake(
            "running-as-listed",
            "A prompt under way was served before decodes behind it in `running`. Every decode goes first.",
            _queued(lambda r, w, free: r + w[:free]),
        ),
        Mistake(
            "whole-prompts-only",
            "Cut a prompt to what is left of the budget. Fed only whole, one longer than the budget waits for ever.",
            lambda r, w, b, s: _whole(_right_queue(r, w, s - len(r)), b, overtake=False),
        ),
        Mistake(
            "overtaking",
            "A prompt that does not fit whole was passed over for a later one. Give it what is left; nobody overtakes.",
            lambda r, w, b, s: _whole(_right_queue(r, w, s - len(r)), b, overtake=True),
        ),
        Mistake(
            "shortest-first",
            "First come, first served: take the waiting requests in their order, not the short ones first.",
            _queued(lambda r, w, free: _decodes(r) + _begun(r) + sorted(w, key=lambda pair: pair[1])[:free]),
        ),
        Mistake(
            "last-come-first",
            "The first of `waiting` came first; list.pop() without an index takes the last.",
            _queued(lambda r, w, free: _decodes(r) + _begun(r) + w[::-1][:free]),
        ),
        Mistake(
            "seats-ignored",
            "At most max_seqs requests run: only max_seqs - len(running) of the waiting ones may join.",
            _queued(lambda r, w, free: _decodes(r) + _begun(r) + w),
        ),
        Mistake(
            "begun-prompts-hold-no-seat",
            "A prompt under way holds a seat as a decode does: count all of `running`.",
            lambda r, w, b, s: _fill(_decodes(r) + _begun(r) + w[: s - len(_decodes(r))], b),
        ),
        Mistake(
            "one-seat-too-many",
            "One request too many runs: with max_seqs - len(running) seats free, as many may join and no more.",
            lambda r, w, b, s: _fill(_right_queue(r, w, s - len(r) + 1), b),
        ),
        Mistake(
            "static-refill",
            "Requests join as soon as a seat is free; waiting for the whole batch to end is static batching.",
            _queued(lambda r, w, free: _decodes(r) + _begun(r) + ([] if r else w[:free])),
        ),
        Mistake(
            "one-admission",
            "Go on admitting while budget and seats last; one request in each step leaves both unused.",
            _queued(lambda r, w, free: _decodes(r) + _begun(r) + w[: min(free, 1)]),
        ),
        Mistake(
            "one-prompt-a-step",
            "What one prompt leaves of the budget goes to the next one in the same step.",
            _queued(lambda r, w, free: _decodes(r) + (_begun(r) + w[:free])[:1]),
        ),
        Mistake(
            "equal-shares",
            "Do not share the budget out: the first prompt in order gets all it can use, the next what is left.",
            _equal_shares,
        ),
        Mistake(
            "zero-tokens",
            "Stop when the budget is used up. Who gets no token is not in the plan.",
            _with_zeros,
        ),
        Mistake(
            "more-than-remaining",
            "A prompt gets at most the tokens that it still has to feed: the smaller of `remaining` and what is left.",
            _beyond_remaining,
        ),
    ),
)
