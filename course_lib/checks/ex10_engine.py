"""Exercise 10, last part: an order with ageing, judged by hand and then by what the engine does with it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from random import Random
from typing import Any

from course_lib import SamplingParams
from course_lib.checks.core import Case, Mistake, Play, Problem, Property
from course_lib.checks.embedded import embedded_llm
from course_lib.checks.own_order import AgedOrder, OwnScheduler, play_in_steps
from course_lib.engine import Engine, Event, Priority, Scheduler
from course_lib.perf.workload import Arrival

AGEING = 8.0  # steps per level. A power of 2: every way to compute the order is then exact, ties included


def aged_order(priorities: list[int], arrivals: list[float], now: float, ageing: float) -> list[int]:
    return _sorted(lambda p, wait, ageing: p - wait / ageing)(priorities, arrivals, now, ageing)


def _by_arrival(arrival: float, i: int) -> tuple[float, int]:
    return arrival, i


def _sorted(level: Callable[[int, float, float], float], tie=_by_arrival) -> AgedOrder:
    """Indices by level(priority, wait, ageing), then by `tie`."""

    def order(priorities: list[int], arrivals: list[float], now: float, ageing: float) -> list[int]:
        def key(i: int) -> tuple:
            return level(priorities[i], now - arrivals[i], ageing), tie(arrivals[i], i)

        return sorted(range(len(priorities)), key=key)

    return order


def _ranks(*args: Any) -> list[int]:
    order = aged_order(*args)
    return [order.index(i) for i in range(len(order))]


def _stays(views: list[dict[str, Any]]) -> str | None:
    before, *later = (view["the result"] for view in views)
    changed = next((order for order in later if order != before), None)
    return None if changed is None else f"first {before}, later {changed}"


# --- in the engine ---


def flood(rng: Random) -> list[Arrival]:
    """Three patient requests among urgent ones, of which more come than two seats and six blocks can serve."""
    patient = [(1, 2), (3, 1), (5, 2)]  # (step, priority)
    urgent = [(step, 0) for step in (0, *range(0, 28, 2))]
    return [
        Arrival(
            time=float(step),
            prompt=[rng.randrange(3, 200) for _ in range(rng.randint(5, 12))],
            params=SamplingParams(temperature=0, max_tokens=rng.randint(2, 7), ignore_eos=True),
            priority=priority,
        )
        for step, priority in sorted(patient + urgent)
    ]


def serve(
    arrivals: Sequence[Arrival], scheduler: Callable[..., Scheduler], limit: int = 10_000
) -> tuple[list[Event], list[list[int]]]:
    """(trace, tokens of each request) of an engine with two seats and a pool too small for two long requests."""
    limits = dict(blocks=6, block_size=4, max_num_seqs=2, max_num_batched_tokens=16)
    engine = Engine(embedded_llm(), scheduler=scheduler, **limits)
    tokens = play_in_steps(engine, arrivals, limit)
    return list(engine.metrics.events), list(tokens.values())


def served_in_order(arrivals: Sequence[Arrival], order: AgedOrder) -> str | None:
    """What the engine does otherwise with `order` than with its own `Priority`; None where nothing."""
    wanted, _ = serve(arrivals, partial(Scheduler, order=Priority(AGEING)))
    own = partial(OwnScheduler, aged_order=order, ageing=AGEING)
    got, tokens = serve(arrivals, own, limit=4 * wanted[-1].step)

    def name(event: Event) -> str:
        arrival = arrivals[int(event.request_id)]
        return f"request {event.request_id} (priority {arrival.priority}, came at step {arrival.time:.0f})"

    for place, (ours, theirs) in enumerate(zip(_first_tokens(got), _first_tokens(wanted), strict=True), 1):
        if ours.request_id != theirs.request_id:
            return (
                f"first token number {place} went to {name(ours)}, and is due to {name(theirs)}; "
                f"{AGEING:.0f} steps of waiting make up for one level"
            )
    for ours, theirs in zip(got, wanted, strict=True):
        if ours != theirs:
            return f"in step {ours.step} {name(ours)} was {ours.kind}, and {name(theirs)} is to be {theirs.kind}"
    alone = embedded_llm().generate([each.prompt for each in arrivals], [each.params for each in arrivals])
    for i, (mixed, output) in enumerate(zip(tokens, alone, strict=True)):
        if mixed != output.outputs[0].token_ids:
            return f"request {i} got other tokens than LLM.generate gives for its prompt"
    return None


def _first_tokens(trace: Sequence[Event]) -> list[Event]:
    first: dict[str, Event] = {}
    for event in trace:
        if event.kind == "token":
            first.setdefault(event.request_id, event)
    return list(first.values())


def _play(rng: Random) -> Play:
    text = "two seats, little memory, an urgent request every second step, three patient ones"
    return Play(text, partial(served_in_order, flood(rng)))


def _order_case(rng: Random) -> Case:
    n = rng.randint(6, 12)
    arrivals = [float(rng.randint(0, 60)) for _ in range(n)]
    return Case("reference", ([rng.randint(0, 4) for _ in range(n)], arrivals, 64.0, rng.choice((2.0, 4.0, 8.0))))


LATER = tuple(([3, 0, 1, 0], [0.0, 14.0, 9.0, 26.0], now, AGEING) for now in (26.0, 31.0, 90.0, 1000.0))

AGED_ORDER = Problem(
    name="aged_order",
    arguments=("priorities", "arrivals", "now", "ageing"),
    reference=aged_order,
    public_points=4,
    hidden_points=4,
    public=lambda rng: [
        # At 12 s, with 4 s per level, request 0 has gained 3 levels, 1 half a level, 2 one level: -1, -0.5 and 0.
        Case("worked example", ([2, 0, 1], [0.0, 10.0, 8.0], 12.0, 4.0), {"the result": [0, 1, 2]}),
        Case("edge case", ([2, 0, 1], [0.0, 1.0, 2.0], 2.0, 4.0), {"the result": [1, 2, 0]}),
        Case("edge case", ([1, 1, 1], [5.0, 3.0, 4.0], 9.0, 8.0), {"the result": [1, 2, 0]}),
        # Equal after ageing: 1 - 8 / 8 = 0 - 0 / 8. The one that came first is first.
        Case("edge case", ([0, 1], [8.0, 0.0], 8.0, 8.0), {"the result": [1, 0]}),
        Case("edge case", ([1, 0, 1, 0], [2.0, 2.0, 2.0, 2.0], 6.0, 2.0), {"the result": [1, 3, 0, 2]}),
        Case("edge case", ([5], [0.0], 3.0, 2.0), {"the result": [0]}),
        Case("edge case", ([], [], 3.0, 2.0), {"the result": []}),
        Property("two requests do not change places as time passes", LATER, _stays),
        Case("reference", ([3, 0, 2, 1, 0, 2], [1.0, 22.0, 9.0, 13.0, 30.0, 4.0], 31.0, 8.0)),
        _play(rng),
    ],
    hidden=lambda rng: [*(_order_case(rng) for _ in range(4)), _play(rng)],
    mistakes=(
        Mistake(
            "ageing-sign",
            "Waiting must help: a level is subtracted for every `ageing` seconds, not added.",
            _sorted(lambda p, wait, ageing: p + wait / ageing),
        ),
        Mistake(
            "higher-number-first",
            "The lower number comes first, as in vLLM: priority 0 is the most urgent.",
            _sorted(lambda p, wait, ageing: -p - wait / ageing),
        ),
        Mistake(
            "upside-down",
            "The list is in the reverse order: the smallest aged priority comes first.",
            lambda *args: aged_order(*args)[::-1],
        ),
        Mistake(
            "no-ageing",
            "Nothing ages, or all age alike: priority 1 waits for ever while requests of priority 0 keep coming.",
            _sorted(lambda p, wait, ageing: p),
        ),
        Mistake(
            "priority-ignored",
            "That is first come, first served: the priority counts too.",
            _sorted(lambda p, wait, ageing: 0),
        ),
        Mistake(
            "whole-levels",
            "In whole levels two requests change places as time passes, and back. Divide, and do not round.",
            _sorted(lambda p, wait, ageing: p - wait // ageing),
        ),
        Mistake(
            "clamped-at-zero",
            "Ageing goes on below 0: clamped there, requests change places as time passes, and levels vanish.",
            _sorted(lambda p, wait, ageing: max(0, p - wait / ageing)),
        ),
        Mistake(
            "divided-by-wait",
            "A quotient changes the order as time passes, and priority 0 never ages. Subtract the levels gained.",
            _sorted(lambda p, wait, ageing: p / (1 + wait / ageing)),
        ),
        Mistake(
            "ageing-multiplied",
            "`ageing` is in seconds per level: the levels gained are wait / ageing, not wait * ageing.",
            _sorted(lambda p, wait, ageing: p - wait * ageing),
        ),
        Mistake(
            "ties-by-index",
            "Where the aged priorities are equal, the earlier arrival comes first.",
            _sorted(lambda p, wait, ageing: p - wait / ageing, tie=lambda arrival, i: i),
        ),
        Mistake(
            "latest-first",
            "Where the aged priorities are equal, the earlier arrival comes first, not the later one.",
            _sorted(lambda p, wait, ageing: p - wait / ageing, tie=lambda arrival, i: (-arrival, i)),
        ),
        Mistake(
            "places-for-order",
            "Return the indices in the order of service, not the place of each request in it.",
            _ranks,
        ),
    ),
)
