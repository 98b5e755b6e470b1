"""The scheduler by hand-worked cases. Numbers in docstrings refer to the mistakes of real engines."""

from __future__ import annotations

import ast
from collections.abc import Callable
from pathlib import Path

import pytest

import course_lib.engine
from course_lib.cache import BlockManager, HashIndex, RadixIndex
from course_lib.engine import (
    ChunkedPrefill,
    ContinuousBatching,
    EarliestDeadline,
    Fcfs,
    Plan,
    Priority,
    Recompute,
    Scheduler,
    State,
    StaticBatching,
    Swap,
)
from course_lib.engine.plan import CopyBlock, SwapIn, SwapOut
from course_lib.errors import RequestError
from tests.serving.simulation import Simulation


def simulation(blocks=100, block_size=4, index=None, **settings) -> Simulation:
    return Simulation(Scheduler(BlockManager(blocks, block_size, index), **settings), eos_ids=())


def prompt(n: int) -> list[int]:
    return [1 + i % 9 for i in range(n)]


def step_until(sim: Simulation, happened: Callable[[Plan], bool]) -> Plan:
    """The first plan of which that is true; fails where all requests end before."""
    while sim.unfinished:
        if happened(plan := sim.step()):
            return plan
    raise AssertionError("it never happened")


def lengths(plan) -> list[int]:
    return [n for _, n in plan.feeds]


@pytest.mark.parametrize("module", ["request", "plan", "policies", "scheduler", "metrics"])
def test_the_scheduler_touches_no_tensors(module):
    """Neither torch nor the tensor side of the cache is named in these files."""
    tree = ast.parse((Path(course_lib.engine.__file__).parent / f"{module}.py").read_text())
    names = [alias.name for node in ast.walk(tree) if isinstance(node, ast.Import) for alias in node.names]
    names += [node.module for node in ast.walk(tree) if isinstance(node, ast.ImportFrom)]
    assert names and not [name for name in names if name.startswith("torch") or name == "course_lib.cache.paged"]


def test_what_the_pool_can_never_hold_is_refused():
    """19: 2 blocks of 4, prompt 8, 5 new tokens: neither an assertion nor waiting for ever."""
    sim = simulation(blocks=2)
    with pytest.raises(RequestError, match="the pool has 2; ask for at most 9 tokens in all"):
        sim.add(prompt(8), 5)
    assert not sim.scheduler.waiting
    sim.add(prompt(8), 1)
    sim.run()


def test_the_longest_request_is_not_rounded_up_past_the_pool():
    """27: 3 blocks of 4 hold 12 tokens, and the last one generated needs no slot: 5 + 8 fit exactly, 5 + 9 do not."""
    sim = simulation(blocks=3)
    request = sim.add(prompt(5), 8)
    sim.run()
    assert len(request.seq.output) == 8
    with pytest.raises(RequestError, match="at most 13 tokens"):
        sim.add(prompt(5), 9)


def test_only_tokens_after_the_prefix_hit_are_fed():
    """20: of a prompt of 10, two blocks of 4 are cached: 2 tokens are fed from position 8, and only 2 are counted."""
    sim = simulation(index=HashIndex(), max_num_seqs=2, max_num_batched_tokens=10)
    sim.add(prompt(10), 1)
    sim.run()
    again, other = sim.add(prompt(10), 1), sim.add([9] * 8, 1)
    plan = sim.scheduler.schedule(sim.now)
    assert plan.feeds == [(again, 2), (other, 8)]
    assert again.computed == again.cached == 8
    assert len(sim.manager.table(again.id).blocks) == 3


@pytest.mark.parametrize("batching", [ContinuousBatching, ChunkedPrefill])
def test_a_queue_of_prompts_does_not_starve_a_running_request(batching):
    """22: 50 prompts are queued behind a running request; it still gets a token in every step."""
    sim = simulation(batching=batching(), max_num_seqs=64, max_num_batched_tokens=64)
    first = sim.add(prompt(4), 40)
    sim.step()
    for _ in range(50):
        sim.add(prompt(30), 2)
    while not first.seq.finished:
        before = len(first.seq.output)
        assert sim.step().tokens <= 64
        assert len(first.seq.output) == before + 1


def test_a_prompt_longer_than_the_budget_is_fed_in_chunks():
    """23: prompt 10, budget 4: no empty batch, but chunks of 4, 4 and 2."""
    sim = simulation(max_num_seqs=1, max_num_batched_tokens=4)
    sim.add(prompt(10), 2)
    assert [lengths(sim.step()) for _ in range(4)] == [[4], [4], [2], [1]]


@pytest.mark.parametrize("batching", [ContinuousBatching, StaticBatching])
def test_a_policy_that_cannot_cut_refuses_a_prompt_longer_than_the_budget(batching):
    """23: in one sentence, when the request is added."""
    sim = simulation(batching=batching(), max_num_seqs=1, max_num_batched_tokens=4)
    with pytest.raises(RequestError, match="has 5 tokens and .* at most 4 tokens; shorten it, raise"):
        sim.add(prompt(5), 2)
    sim.add(prompt(4), 2)
    sim.run()


def test_a_preempted_request_that_outgrew_the_budget_comes_back():
    """23, a relative: recomputing needs more tokens at once than a step has, though the prompt did not."""
    sim = simulation(blocks=6, block_size=2, batching=ContinuousBatching(), max_num_seqs=2, max_num_batched_tokens=4)
    requests = [sim.add([1, 2, 3], 8), sim.add([4, 5, 6], 8)]
    sim.run()
    assert requests[1].preemptions
    assert [len(request.seq.output) for request in requests] == [8, 8]


def test_blocks_add_up_to_the_total_in_every_step():
    """26: free + cached + in use = total, with preemption, prefix hits and copy-on-write."""
    sim = simulation(blocks=8, block_size=2, index=HashIndex(), max_num_seqs=4, max_num_batched_tokens=8)
    requests = [sim.add([1, 2, 3, i], 6, n=2) for i in range(1, 5)]
    while sim.unfinished:
        sim.step()
        stats = sim.manager.stats()
        assert min(stats.free, stats.cached, stats.in_use) >= 0
        assert stats.free + stats.cached + stats.in_use == stats.total == 8
    assert any(request.preemptions for request in requests) and any(request.cached for request in requests)


def test_every_token_counts_in_the_budget():
    """28: two prompts of 6 and a budget of 8: 6 + 2, then the first one's decode and the other 4."""
    sim = simulation(max_num_seqs=2, max_num_batched_tokens=8)
    sim.add(prompt(6), 3)
    sim.add(prompt(6), 3)
    assert [lengths(sim.step()) for _ in range(3)] == [[6, 2], [1, 4], [1, 1]]


@pytest.mark.parametrize("budget", [8, 16])
def test_static_batching_waits_for_the_last(budget):
    """Two seats; the short one's stays empty until the long one is done, also where the budget is spent at first."""
    sim = simulation(batching=StaticBatching(), max_num_seqs=2, max_num_batched_tokens=budget)
    short, long, third = sim.add(prompt(4), 1), sim.add(prompt(4), 5), sim.add(prompt(4), 1)
    steps = [[request for request, _ in sim.step().feeds] for _ in range(6)]
    assert steps == [[short, long], [long], [long], [long], [long], [third]]


def test_a_static_batch_is_filled_over_several_steps_where_prompts_exceed_the_budget():
    sim = simulation(batching=StaticBatching(), max_num_seqs=3, max_num_batched_tokens=8)
    for _ in range(4):
        sim.add(prompt(6), 5)
    assert [lengths(sim.step()) for _ in range(4)] == [[6], [1, 6], [1, 1, 6], [1, 1, 1]]


def test_continuous_batching_fills_a_seat_at_once():
    sim = simulation(batching=ContinuousBatching(), max_num_seqs=2, max_num_batched_tokens=16)
    short, long, third = sim.add(prompt(4), 1), sim.add(prompt(4), 3), sim.add(prompt(4), 1)
    assert [[request for request, _ in sim.step().feeds] for _ in range(2)] == [[short, long], [long, third]]


def admitted(sim: Simulation) -> list[int]:
    """Ids in the order of admission, with one seat."""
    order = []
    while sim.unfinished:
        order += [request.id for request in sim.step().admitted]
    return order


def test_orders():
    """Fcfs by arrival, Priority by level, EarliestDeadline by the TTFT objective."""
    for order, want in [(Fcfs(), [0, 1, 2]), (Priority(ageing=100), [1, 2, 0]), (EarliestDeadline(50), [2, 0, 1])]:
        sim = simulation(order=order, max_num_seqs=1)
        for priority, ttft in [(5, None), (-1, 60.0), (0, 3.0)]:
            sim.add(prompt(4), 2, priority=priority, ttft=ttft)
        assert admitted(sim) == want


def test_a_running_request_falls_back_by_its_tpot_objective_with_each_token():
    """Both arrive at 0 with a TTFT of 10 s. After 3 tokens the next is due at 10 + 3 * 5 and at 10 + 3 * 1 seconds."""
    order = EarliestDeadline(ttft=10.0)
    sim = simulation(order=order, max_num_seqs=2)
    relaxed, strict = sim.add(prompt(4), 8, tpot=5.0), sim.add(prompt(4), 8, tpot=1.0)
    for _ in range(3):
        sim.step()
    assert (order.key(relaxed), order.key(strict)) == (25.0, 13.0)
    assert sim.step().feeds == [(strict, 1), (relaxed, 1)]


@pytest.mark.parametrize(("ageing", "place"), [(3.0, 3), (1000.0, 10)])
def test_ageing_lets_a_low_priority_request_through(ageing, place):
    """An urgent request comes every step. One level weighs `ageing` seconds: only those within that time overtake."""
    sim = simulation(order=Priority(ageing), max_num_seqs=1)
    low, order = sim.add(prompt(2), 2, priority=1), []
    for _ in range(10):
        sim.add(prompt(2), 2, priority=0)
        order += sim.step().admitted
    while sim.unfinished:
        order += sim.step().admitted
    assert order.index(low) == place


@pytest.mark.parametrize("order", [Fcfs(), Priority(), EarliestDeadline()])
def test_the_victim_is_the_last_in_order(order):
    """The first is admitted last; when it needs a block, one that came before it and is less urgent gives its up."""
    sim = simulation(blocks=5, block_size=2, order=order, max_num_seqs=3)
    sim.add([1, 2], 6, priority=2, ttft=300.0)
    sim.add([3, 4], 6, priority=1, ttft=200.0)
    sim.add([5, 6], 6, priority=0, ttft=100.0)
    expected = sorted(sim.scheduler.waiting, key=order.key)[-1]
    plan = step_until(sim, lambda plan: plan.preempted)
    assert plan.preempted[0] is expected
    sim.run()


def test_swapping_copies_out_before_the_blocks_are_taken_and_back_without_what_is_cached():
    sim = simulation(blocks=6, block_size=2, index=HashIndex(), preemption=Swap(), max_num_seqs=2)
    sim.add([1, 2, 3, 4], 5)
    second = sim.add([5, 6, 7, 8], 5)
    memory, states = [], set()
    while sim.unfinished:
        memory += sim.step().memory
        states.add(second.state)
    [out, back] = [operation for operation in memory if not isinstance(operation, CopyBlock)]
    assert isinstance(out, SwapOut) and isinstance(back, SwapIn) and out.request == back.request == second.id
    assert back.first + len(back.blocks) == len(out.blocks)
    assert State.SWAPPED in states and second.preemptions == 1


def test_a_full_host_falls_back_to_recomputing_until_it_has_room_again():
    """Three requests of 2 blocks, room for 2 on the host: the last in order is swapped, the one before it is not."""
    sim = simulation(blocks=6, block_size=2, preemption=Swap(host_blocks=2), max_num_seqs=3)
    first, second, third = [sim.add([i, i, i], 9) for i in (1, 2, 3)]
    assert step_until(sim, lambda plan: plan.swapped_out).swapped_out == [third]
    assert sim.host_blocks == 2
    assert step_until(sim, lambda plan: plan.preempted).preempted == [second]
    assert (second.state, third.state) == (State.WAITING, State.SWAPPED)
    step_until(sim, lambda plan: plan.swapped_in)
    assert sim.host_blocks == 0
    sim.add([4, 4, 4], 9)
    step_until(sim, lambda plan: plan.swapped_out)
    sim.run()


def test_a_cancelled_request_gives_its_room_on_the_host_back():
    sim = simulation(blocks=4, block_size=2, preemption=Swap(host_blocks=2), max_num_seqs=2)
    sim.add([1, 1, 1], 6)
    gone = sim.add([2, 2, 2], 6)
    step_until(sim, lambda plan: plan.swapped_out)
    assert gone.state is State.SWAPPED
    sim.abort(gone)
    again = sim.add([3, 3, 3], 6)
    sim.add([4, 4, 4], 6)
    step_until(sim, lambda plan: plan.swapped_out)
    sim.run()
    assert again.seq.finished


def test_host_memory_cannot_be_negative():
    with pytest.raises(RequestError, match="host_blocks is -1; it must be at least 0, or None"):
        Swap(host_blocks=-1)


@pytest.mark.parametrize("index", [HashIndex, RadixIndex])
def test_requests_with_different_salts_share_nothing(index):
    """Not even while they run together; the second time, each salt finds its own blocks."""
    sim = simulation(index=index(), max_num_seqs=4)
    for cached in (0, 8):
        requests = [sim.add(prompt(9), 2, cache_salt=salt) for salt in ("", "a", "b", "\ud800")]
        sim.step()
        assert sim.manager.stats().in_use == 4 * 3
        sim.run()
        assert [request.cached for request in requests] == [cached] * 4


def test_recomputing_feeds_prompt_and_output_again():
    sim = simulation(blocks=6, block_size=2, preemption=Recompute(), max_num_seqs=2)
    sim.add([1, 2, 3, 4], 5)
    second = sim.add([5, 6, 7, 8], 5)
    step_until(sim, lambda plan: plan.preempted)
    assert second.state is State.WAITING and second.computed == 0 and second.known > 4
    known = second.known
    plan = step_until(sim, lambda plan: second in plan.admitted)
    assert dict(plan.feeds)[second] == known
    sim.run()


def test_n_completions_share_the_prompt_and_copy_one_block_each_but_the_last():
    """A prompt of 6 in blocks of 4 is fed once; each completion but the last to write copies the half-filled block."""
    sim = simulation(max_num_seqs=3)
    request = sim.add(prompt(6), 3, n=3)
    assert sim.step().feeds == [(request, 6)]
    assert sim.manager.stats().in_use == 2
    plan = sim.step()
    assert lengths(plan) == [1, 1, 1]
    assert len(plan.memory) == 2 and sim.manager.stats().in_use == 4
    sim.run()


def test_n_completions_need_n_seats():
    sim = simulation(max_num_seqs=3)
    with pytest.raises(RequestError, match="n is 4 and max_num_seqs is 3"):
        sim.add(prompt(4), 2, n=4)
    sim.add(prompt(4), 2)
    waits = sim.add(prompt(4), 2, n=3)
    assert waits not in sim.step().admitted
    sim.run()


@pytest.mark.parametrize("limits", [(0, 8), (9, 8)])
def test_limits_that_contradict_each_other_are_refused(limits):
    with pytest.raises(RequestError, match="1 <= max_num_seqs <= max_num_batched_tokens"):
        simulation(max_num_seqs=limits[0], max_num_batched_tokens=limits[1])


def test_ageing_must_be_positive():
    with pytest.raises(RequestError, match="above 0"):
        Priority(ageing=0)
