"""Exercise 09, at its end: a learner's `plan_step` schedules the engine; its records say which rules were kept."""

from __future__ import annotations

from collections import defaultdict, deque
from random import Random
from typing import NamedTuple

from course_lib import SamplingParams
from course_lib.checks.core import Play
from course_lib.checks.embedded import embedded_llm
from course_lib.checks.own_plan import PlannedScheduler, PlanStep
from course_lib.engine import Engine, Metrics

TEXT = """In the beginning God created the heaven and the earth. And the earth was without form, and void; and
darkness was upon the face of the deep. And the Spirit of God moved upon the face of the waters."""


class Visit(NamedTuple):
    """A request: the step before which it comes, tokens of its prompt and of its answer."""

    step: int
    prompt: int
    answer: int


def serve(plan_step: PlanStep, visits: list[Visit], budget: int, max_seqs: int) -> str | None:
    """Serve the visits, in order, with `plan_step` as the engine's scheduler; the rule that was broken, or None.

    It always ends: each plan feeds a token, or CourseError is raised.
    """
    llm = embedded_llm()
    ids = llm.tokenizer.encode(TEXT)
    prompts = [[ids[(i + j) % len(ids)] for j in range(visit.prompt)] for i, visit in enumerate(visits)]
    params = [SamplingParams(temperature=0, max_tokens=visit.answer, ignore_eos=True) for visit in visits]
    engine = Engine(
        llm, scheduler=PlannedScheduler, plan_step=plan_step, max_num_seqs=max_seqs, max_num_batched_tokens=budget
    )
    to_come, answers = deque(zip(visits, prompts, params, strict=True)), {}
    while to_come or engine.has_unfinished:
        while to_come and (to_come[0][0].step <= engine.steps or not engine.has_unfinished):
            _, *request = to_come.popleft()
            answers[engine.add_request(*request)] = []
        for output in engine.step():
            answers[output.request_id].append(output.token_id)
    if wrong := broken_rule(engine.metrics, dict(zip(answers, map(len, prompts), strict=True)), budget, max_seqs):
        return wrong
    for (request, tokens), alone in zip(answers.items(), llm.generate(prompts, params), strict=True):
        if tokens != alone.outputs[0].token_ids:
            return f"request {request} got other tokens than LLM.generate gives for its prompt"
    return None


def broken_rule(metrics: Metrics, prompts: dict[str, int], budget: int, max_seqs: int) -> str | None:
    """The first rule of first-come continuous batching that a run broke, from its records, in one sentence.

    prompts: tokens of each request's prompt, in order of arrival. For runs without preemption or prefix hits.
    """
    events: dict[str, dict[int, dict[str, int]]] = defaultdict(lambda: defaultdict(dict))
    for event in metrics.events:
        events[event.kind][event.step][event.request_id] = event.tokens
    left, present, decoding = dict(prompts), [], []
    for record in metrics.steps:
        step, fed = record.step, events["scheduled"][record.step]
        present += events["arrival"][step]
        # Every decode in every step.
        if skipped := next((request for request in decoding if request not in fed), None):
            return f"request {skipped} was generating and got no token in step {step}, which gave {_said(fed)}"
        # First come, first served.
        short = None  # the first whose prompt is still incomplete
        for request in [request for request in present if left[request]]:
            left[request] -= fed.get(request, 0)
            if short and request in fed:
                return (
                    f"step {step} fed the prompt of request {request}, while {left[short]} tokens of request {short}, "
                    "which came before it, waited to be fed"
                )
            short = short or (request if left[request] else None)
        # No budget is left while somebody who has a seat, or could have one, needs it.
        total, seated = sum(fed.values()), short and left[short] < prompts[short]
        if short and total < budget and (seated or record.running < max_seqs):
            return (
                f"step {step} fed {total} of {budget} tokens with {record.running} of {max_seqs} seats taken, while "
                f"{left[short]} tokens of request {short} waited to be fed"
            )
        decoding = [request for request in events["token"][step] if request not in events["finished"][step]]
    return None


def _said(fed: dict[str, int]) -> str:
    return ", ".join(f"{n} to request {request}" for request, n in fed.items())


def crowd(queued: int) -> list[Visit]:
    """A request that generates for long, and prompts that all come before step 2."""
    return [Visit(0, 4, 30)] + [Visit(2, 6, 2)] * queued


def random_visits(rng: Random) -> list[Visit]:
    steps = sorted(rng.randint(0, 40) for _ in range(16))
    return [Visit(step, rng.randint(1, 40), rng.randint(1, 12)) for step in steps]


def public_plays() -> list[Play]:
    return [
        Play("50 prompts queue up behind a running request", lambda plan_step: serve(plan_step, crowd(50), 16, 8)),
        Play(
            "a prompt of 90 tokens, a budget of 16",
            lambda plan_step: serve(plan_step, [Visit(0, 3, 20), Visit(1, 90, 4), Visit(1, 5, 4)], 16, 4),
        ),
        Play("6 requests for 2 seats", lambda plan_step: serve(plan_step, [Visit(0, 20, 5)] * 6, 16, 2)),
    ]


def hidden_plays(rng: Random) -> list[Play]:
    visits, budget, max_seqs = random_visits(rng), rng.randint(8, 30), rng.randint(2, 6)
    return [Play("16 requests of any length", lambda plan_step: serve(plan_step, visits, budget, max_seqs))]
