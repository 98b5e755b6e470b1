"""Exercise 10 against the engine: its references are what the engine does, and a learner's order drives it."""

from __future__ import annotations

from functools import partial
from random import Random

import pytest

from course_lib import SamplingParams
from course_lib.cache.block_manager import BlockManager
from course_lib.checks.ex10_deadline import next_deadline
from course_lib.checks.ex10_engine import AGEING, aged_order, flood, serve, served_in_order
from course_lib.checks.ex10_fits import never_fits
from course_lib.checks.ex10_ttft import predicted_ttft
from course_lib.checks.ex10_victims import choose_victims
from course_lib.checks.own_order import OwnScheduler, play_in_steps
from course_lib.engine import (
    ChunkedPrefill,
    ContinuousBatching,
    EarliestDeadline,
    Engine,
    Plan,
    Request,
    Scheduler,
    State,
)
from course_lib.errors import CourseError, RequestError
from course_lib.perf.workload import Arrival
from course_lib.sequence import Sequence

SAID = {"max_num_seqs": "and max_num_seqs is", "max_num_batched_tokens": "in steps of at most", "blocks": "blocks of"}


def request(i: int, prompt: int, new: int = 1, n: int = 1) -> Request:
    params = SamplingParams(max_tokens=new, n=n)
    return Request(i, str(i), 0, Sequence(None, list(range(prompt)), params, None, None, (), 10**6, 0.0))


@pytest.mark.parametrize("seed", range(200))
def test_never_fits_is_the_engines_admission_control(seed):
    rng = Random(seed)
    prompt, new, n = rng.randint(1, 40), rng.randint(1, 12), rng.randint(1, 4)
    seats = rng.randint(1, 4)
    limits = {
        "blocks": rng.randint(1, 6),
        "block_size": rng.choice((4, 8)),
        "max_num_seqs": seats,
        "max_num_batched_tokens": rng.randint(seats, 40),
        "chunked": rng.random() < 0.5,
    }
    scheduler = Scheduler(
        BlockManager(limits["blocks"], limits["block_size"]),
        batching=ChunkedPrefill() if limits["chunked"] else ContinuousBatching(),
        max_num_seqs=seats,
        max_num_batched_tokens=limits["max_num_batched_tokens"],
    )
    leader = request(0, prompt, new, n)
    leader.siblings = [request(i, prompt, new, n) for i in range(1, n)]
    limit = never_fits(prompt, new, n, limits)
    if limit == "fits":
        scheduler.check(leader)
    else:
        with pytest.raises(RequestError, match=SAID[limit]):
            scheduler.check(leader)


@pytest.mark.parametrize("seed", range(200))
def test_victims_are_those_of_the_engine(seed):
    """Tables with shared prefixes, made by forks; one request grows by so many blocks that others may have to go."""
    rng = Random(seed)
    manager = BlockManager(rng.randint(12, 24), 4)
    scheduler = Scheduler(manager)
    for i in range(6):
        if i and rng.random() < 0.4:
            manager.fork(rng.randrange(i), i)  # no block of it is its own until it writes
        else:
            manager.allocate(i, range(4 * rng.randint(1, 2)))
            manager.commit(i, [0] * (4 * len(manager.table(i).blocks)))
        scheduler.running.append(request(i, 1))
        scheduler.running[-1].state = State.RUNNING
    at, needed = rng.randrange(6), rng.randint(1, 9)
    tables = [list(manager.table(i).blocks) for i in range(6)]
    want = choose_victims(tables, at, needed, manager.available)
    plan = Plan()
    made = scheduler._make_room(scheduler.running[at], 4 * needed, plan)
    assert [victim.id for victim in plan.preempted] == want
    assert made == (at not in want)


def test_next_deadline_is_the_key_of_earliest_deadline():
    served = request(0, 5)
    served.ttft, served.tpot, served.seq.arrival = 0.75, 0.25, 3.0
    for time in (4.0, 4.5, 6.0):
        assert next_deadline(3.0, served.seq.token_times, 0.75, 0.25) == EarliestDeadline().key(served)
        served.seq.output.append(7)
        served.seq.token_times.append(time)


@pytest.mark.parametrize("seed", range(8))
def test_predicted_ttft_is_what_the_engine_takes(tiny, seed):
    """Where its assumptions hold: no decode ends, and the prompts before it end with their first token."""
    rng = Random(seed)
    budget, decodes = rng.randint(8, 16), rng.randint(0, 4)
    lengths = [rng.randint(10, 30) for _ in range(rng.randint(3, 5))]  # more than one step can feed
    engine = Engine(tiny, max_num_batched_tokens=budget, max_num_seqs=8)
    for _ in range(decodes):
        engine.add_request([5], SamplingParams(max_tokens=60, ignore_eos=True))
    engine.step()
    for length in lengths:
        last = engine.add_request([5] * length, SamplingParams(max_tokens=1))
    engine.step()
    running = [each.remaining for each in engine.scheduler.running]
    waiting = [each.remaining for each in engine.scheduler.waiting]
    steps = predicted_ttft(running, waiting[:-1], waiting[-1], budget, 1.0)
    for _ in range(int(steps) - 1):
        assert last not in [output.request_id for output in engine.step()]
    assert last in [output.request_id for output in engine.step()]


def test_the_engine_serves_with_the_learners_order_as_with_its_own():
    assert served_in_order(flood(Random(5)), aged_order) is None


def test_the_flood_preempts_and_makes_the_patient_wait():
    """What the play is to show has to happen in it."""
    arrivals = flood(Random(5))
    trace, _ = serve(arrivals, partial(OwnScheduler, aged_order=aged_order, ageing=AGEING))
    first = {}
    for event in trace:
        if event.kind == "token":
            first.setdefault(event.request_id, event.step)
    patient = {i: arrival for i, arrival in enumerate(arrivals) if arrival.priority}
    assert any(event.kind == "preempted" for event in trace)
    for i, arrival in patient.items():
        ahead = [j for j, other in enumerate(arrivals) if first[str(j)] < first[str(i)]]
        assert any(arrivals[j].time > arrival.time for j in ahead), "nobody passed it"
        assert all(arrivals[j].time <= arrival.time + AGEING * arrival.priority for j in ahead), "it starves"


def test_an_order_that_is_wrong_only_in_the_engine_is_named():
    def shy(priorities, arrivals, now, ageing):
        """Right for all the cases that are written out, wrong as soon as more than six requests are there."""
        order = aged_order(priorities, arrivals, now, ageing)
        return order if len(order) <= 6 else order[::-1]

    said = served_in_order(flood(Random(0)), shy)
    assert said.startswith("first token number") and "8 steps of waiting make up for one level" in said


@pytest.mark.parametrize("answer", [[0, 0], [0], [0, 2], None, 3, ["a", "b"], [0.0, 1.0]])
def test_an_order_that_names_not_each_request_once_is_refused(tiny, answer):
    engine = Engine(tiny, scheduler=OwnScheduler, aged_order=lambda *_: answer, ageing=1.0)
    engine.add_request("O")
    engine.add_request("And")
    with pytest.raises(CourseError, match="of 2 requests the order must name each index 0 to 1 once"):
        engine.step()


def test_an_order_that_never_lets_anybody_finish_ends_with_a_sentence():
    """Turned round in every step, it takes the blocks of whoever got them in the step before."""
    turn = [0]

    def turning(priorities, arrivals, now, ageing):
        turn[0] += 1
        n = len(priorities)
        return [(i + turn[0]) % n for i in range(n)]

    arrivals = [Arrival(0.0, [5] * 12, SamplingParams(max_tokens=12, ignore_eos=True)) for _ in range(4)]
    with pytest.raises(CourseError, match="not done after 40 steps"):
        serve(arrivals, partial(OwnScheduler, aged_order=turning, ageing=1.0), limit=40)


def test_the_clock_of_a_play_counts_steps(tiny):
    engine = Engine(tiny)
    params = SamplingParams(max_tokens=3, ignore_eos=True)
    tokens = play_in_steps(engine, [Arrival(4.0, [5, 6], params), Arrival(0.0, [7], params, priority=1)])
    assert list(tokens) == ["0", "1"] and [len(each) for each in tokens.values()] == [3, 3]
    first, second = engine.metrics.requests
    assert (first.priority, first.times.arrival, first.times.token_times) == (1, 0.0, (0.0, 1.0, 2.0))
    assert (second.times.arrival, second.times.token_times) == (4.0, (4.0, 5.0, 6.0))
