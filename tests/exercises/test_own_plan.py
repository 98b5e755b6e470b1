"""A learner's `plan_step` in the engine: right plans are the engine's own, wrong ones get a sentence."""

from __future__ import annotations

import dataclasses
import random
from functools import partial

import pytest

from course_lib import SamplingParams
from course_lib.cache import HashIndex
from course_lib.checks.core import Failure, Play
from course_lib.checks.ex09_engine import broken_rule, crowd, random_visits, serve
from course_lib.checks.ex09_plan import PLAN_STEP, plan_step
from course_lib.checks.ex09_rate import prefill_chunks
from course_lib.checks.ex09_steps import LENGTHS, LONG_LAST, continuous_steps, static_steps
from course_lib.checks.own_plan import PlannedScheduler, PlanStep, plan_fault
from course_lib.checks.run import local_call, run
from course_lib.engine import ContinuousBatching, Engine, StaticBatching
from course_lib.errors import CourseError, RequestError
from tests.exercises.conftest import failures, with_function

WRONG = {mistake.key: mistake.wrong for mistake in PLAN_STEP.mistakes}
# First come, first served never puts a prompt before a decode, so this mistake does no harm under that order.
HARMLESS = "running-as-listed"
PLANNED = partial(PlannedScheduler, plan_step=plan_step)


def greedy(tokens: int) -> SamplingParams:
    return SamplingParams(temperature=0, max_tokens=tokens, ignore_eos=True)


def trace(engine: Engine) -> list[tuple]:
    return [(event.step, event.kind, event.request_id, event.tokens) for event in engine.metrics.events]


def add(engine: Engine, prompts: list[int], answers: list[int]) -> None:
    for i, (prompt, answer) in enumerate(zip(prompts, answers, strict=True)):
        engine.add_request([i + 1] * prompt, greedy(answer))


def finish(engine: Engine) -> None:
    while engine.has_unfinished:
        engine.step()
        engine.manager.check_integrity()


def run_plays(function: PlanStep) -> Failure | None:
    """Judge by the plays alone, without the cases on lists before them; the first failure, with its hint."""
    plays = [play for play in PLAN_STEP.public(random.Random(0)) if isinstance(play, Play)]
    problem = dataclasses.replace(PLAN_STEP, public=lambda rng: plays)
    return run(problem, local_call(function)).failure


def test_the_reference_schedules_as_the_engine_does(tiny):
    rng, traces = random.Random(0), []
    prompts, answers = [rng.randint(1, 40) for _ in range(12)], [rng.randint(1, 8) for _ in range(12)]
    for settings in ({}, {"scheduler": PLANNED}):
        engine = Engine(tiny, max_num_seqs=4, max_num_batched_tokens=11, **settings)
        add(engine, prompts, answers)
        finish(engine)
        traces.append(trace(engine))
    assert traces[0] == traces[1]


def test_steps_are_the_steps_of_the_engine(tiny):
    lengths = [*LENGTHS, *LONG_LAST]
    for batching, steps in ((StaticBatching(), static_steps), (ContinuousBatching(), continuous_steps)):
        engine = Engine(tiny, batching=batching, max_num_seqs=3)
        add(engine, [4] * len(lengths), lengths)
        finish(engine)
        assert len(engine.metrics.steps) == steps(lengths, 3)


def test_chunks_are_the_chunks_of_the_engine(tiny):
    engine = Engine(tiny, scheduler=PLANNED, max_num_seqs=8, max_num_batched_tokens=16)
    add(engine, [2] * 4, [40] * 4)
    engine.step()
    request = engine.add_request([9] * 75, greedy(2))
    finish(engine)
    fed = [tokens for _, kind, name, tokens in trace(engine) if (kind, name) == ("scheduled", request)]
    assert fed == [*prefill_chunks(75, 4, 16), 1]


@pytest.mark.parametrize("key", [key for key in WRONG if key != HARMLESS])
def test_the_engine_alone_uncovers_every_mistake(key):
    """Known mistakes 22, 23 and 28 among them. That this test ends is part of it: no plan can hang the engine."""
    failure = run_plays(WRONG[key])
    assert failure and failure.stage == "in the engine" and failure.hint, failure


def test_the_harmless_mistake_is_harmless():
    assert run_plays(WRONG[HARMLESS]) is None


@pytest.mark.parametrize("seed", range(3))
def test_right_plans_keep_every_rule(seed):
    rng = random.Random(seed)
    assert serve(plan_step, random_visits(rng), budget=rng.randint(8, 30), max_seqs=rng.randint(2, 6)) is None


STOPS = """
def plan_step(running, waiting, budget, max_seqs):
    if len(waiting) > 40:
        return []
    queue = [p for p in running if p[1] == 1] + [p for p in running if p[1] > 1] + waiting[: max_seqs - len(running)]
    plan = []
    for request, remaining in queue:
        if budget:
            plan.append((request, min(remaining, budget)))
            budget -= plan[-1][1]
    return plan
"""


def test_the_grader_plays_with_a_submission_in_its_child(grade_notebook):
    """A plan that passes every case on lists and would keep the engine waiting for ever."""
    grade = grade_notebook(with_function("plan_step", STOPS, "09"))
    assert grade.points == grade.max_points - 8
    said = failures(grade)
    assert list(said) == ["plan_step"]
    assert said["plan_step"].startswith(
        "plan_step fed nobody (running: 1, waiting: 50); the next step would be the same"
    )


def test_a_starved_request_is_named():
    said = serve(WRONG["prompts-first"], crowd(50), budget=16, max_seqs=8)
    assert said.startswith("request 0 was generating and got no token in step 2, which gave 6 to request 1, 6 to")


def test_rules_are_judged_from_records_alone(tiny):
    engine = Engine(tiny, batching=StaticBatching(), max_num_seqs=2, max_num_batched_tokens=16)
    add(engine, [3, 3, 3], [2, 6, 2])
    finish(engine)
    said = broken_rule(engine.metrics, {"0": 3, "1": 3, "2": 3}, budget=16, max_seqs=2)
    assert said == "step 2 fed 1 of 16 tokens with 1 of 2 seats taken, while 3 tokens of request 2 waited to be fed"


@pytest.mark.parametrize(
    "feeds,said",
    [
        (None, "must return a list of pairs"),
        ({0: 1}, "must return a list of pairs"),
        ([(0, 1.0)], "must return a list of pairs"),
        ([0, 1], "must return a list of pairs"),
        ([(0, True)], "must return a list of pairs"),
        ([], "fed nobody (running: 2, waiting: 2)"),
        ([(7, 1)], "fed request 7, which is neither running nor waiting"),
        ([(0, 1), (1, 2), (1, 2)], "fed request 1 twice"),
        ([(0, 0)], "gave request 0 0 tokens; leave out"),
        ([(0, -1)], "gave request 0 -1 tokens; leave out"),
        ([(0, 2)], "gave request 0 2 tokens; its remaining is 1"),
        ([(0, 1), (1, 6), (2, 10)], "fed 17 tokens in one step; the budget is 16"),
        ([(0, 1), (1, 6), (2, 4), (3, 5)], "let 4 requests run at once; max_seqs is 3"),
    ],
    ids=str,
)
def test_plans_that_cannot_be_performed(feeds, said):
    fault = plan_fault(feeds, [(0, 1), (1, 6)], [(2, 20), (3, 5)], 16, 3)
    assert fault.startswith("plan_step ") and said in fault


def test_a_fault_reaches_the_one_who_steps_the_engine(tiny):
    engine = Engine(tiny, scheduler=PlannedScheduler, plan_step=lambda *lists: [(99, 1)])
    add(engine, [3], [2])
    with pytest.raises(CourseError, match="fed request 99, which is neither running nor waiting"):
        engine.step()


def test_lists_may_be_used_up(tiny):
    def greedy_hands(running, waiting, budget, max_seqs):
        plan = plan_step(running, waiting, budget, max_seqs)
        running.clear(), waiting.clear()
        return plan

    engine = Engine(tiny, scheduler=PlannedScheduler, plan_step=greedy_hands, max_num_seqs=2, max_num_batched_tokens=8)
    add(engine, [9, 9, 9], [3, 3, 3])
    finish(engine)
    assert len(engine.metrics.requests) == 3


def test_a_prefix_hit_is_not_fed_again(tiny):
    engine = Engine(tiny, scheduler=PLANNED, index=HashIndex(), block_size=4)
    first, second = (engine.generate([[5] * 30], greedy(4))[0] for _ in range(2))
    assert first.outputs[0].token_ids == second.outputs[0].token_ids
    assert engine.metrics.requests[1].cached_tokens == 28


def test_a_full_pool_names_the_way_out(tiny):
    engine = Engine(tiny, scheduler=PLANNED, blocks=4, block_size=4)
    add(engine, [7, 7], [9, 9])
    with pytest.raises(CourseError, match="the pool of 4 blocks is full .* more blocks or lower max_num_seqs"):
        finish(engine)


def test_several_completions_are_refused(tiny):
    with pytest.raises(RequestError, match="n is 2; .* use n = 1"):
        Engine(tiny, scheduler=PLANNED).add_request([1, 2], SamplingParams(n=2))
