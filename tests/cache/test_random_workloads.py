"""Whatever the order of operations: nothing leaks, nothing shared is overwritten, and both indexes answer alike."""

from __future__ import annotations

import random
from collections.abc import Collection

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from course_lib.cache import BlockManager
from tests.cache.workload import INDEXES, Workload, random_step

TOKENS = st.lists(st.integers(0, 1), min_size=1, max_size=12)  # two token ids: prefixes meet and part often
PICK = st.integers(0, 99)


class PagingMachine(RuleBasedStateMachine):
    """Hypothesis drives one manager; a failing history is shortened to the operations that matter."""

    index: type | None

    @initialize(blocks=st.integers(2, 9), block_size=st.integers(1, 4))
    def build(self, blocks, block_size):
        self.load = Workload(BlockManager(blocks, block_size, self.index and self.index()))

    def running(self, pick: int) -> int:
        return list(self.load.tokens)[pick % len(self.load.tokens)]

    @rule(prompt=TOKENS, salt=st.sampled_from(["", "tenant"]))
    def allocate(self, prompt, salt):
        self.load.allocate(prompt[: self.load.manager.capacity], salt)

    @precondition(lambda self: self.load.tokens)
    @rule(pick=PICK, new=TOKENS)
    def feed(self, pick, new):
        self.load.feed(self.running(pick), new)

    @precondition(lambda self: self.load.tokens)
    @rule(pick=PICK)
    def fork(self, pick):
        self.load.fork(self.running(pick))

    @precondition(lambda self: self.load.tokens)
    @rule(pick=PICK, length=PICK)
    def truncate(self, pick, length):
        seq = self.running(pick)
        self.load.truncate(seq, length % (len(self.load.tokens[seq]) + 1))

    @precondition(lambda self: self.load.tokens)
    @rule(pick=PICK)
    def free(self, pick):
        self.load.free(self.running(pick))

    @invariant()
    def holds(self):
        self.load.check()

    def teardown(self):
        if hasattr(self, "load"):
            self.load.drain()


@pytest.mark.parametrize("index", [None, *INDEXES.values()], ids=["none", *INDEXES])
def test_state_machine(index):
    machine = type("Machine", (PagingMachine,), {"index": index})
    case = machine.TestCase
    case.settings = settings(max_examples=120, stateful_step_count=30, deadline=None)
    case().runTest()


def run_workload(
    seed: int,
    manager: type[BlockManager] = BlockManager,
    indexes: Collection[type] = INDEXES.values(),
    check_every: int = 1,
) -> None:
    """20 random operations on all indexes at once. They find the same prefixes and even use the same blocks."""
    rng = random.Random(seed)
    blocks, size = rng.randint(2, 12), rng.randint(1, 4)
    loads = [Workload(manager(blocks, size, index())) for index in indexes]
    for step in range(20):
        answers = random_step(rng, loads)
        assert all(answer == answers[0] for answer in answers), f"seed {seed}"
        if step % check_every == 0:
            for load in loads:
                load.check()
    states = [load.state() for load in loads]
    assert all(state == states[0] for state in states), f"seed {seed}"
    for load in loads:
        load.drain()


def test_both_indexes_agree_on_random_histories():
    for seed in range(300):
        run_workload(seed)


@pytest.mark.slow
@pytest.mark.parametrize("part", range(4))
def test_twenty_thousand_workloads(part):
    """A fault in the state lasts, so a check after every fourth operation is enough here and saves half of the time."""
    for seed in range(5_000 * part, 5_000 * (part + 1)):
        run_workload(seed, check_every=4)


@pytest.mark.parametrize("kind", INDEXES)
def test_hits_are_the_longest_prefix_ever_committed_while_nothing_is_evicted(kind):
    """Against the plainest model: a set of all prefixes of whole blocks."""
    rng = random.Random(7)
    for _ in range(40):
        load = Workload(BlockManager(400, 2, INDEXES[kind]()))
        known: set[tuple] = set()
        for _ in range(25):
            prompt, salt = [rng.randrange(2) for _ in range(rng.randint(1, 14))], rng.choice(["", "b"])
            want = 0
            while want + 2 <= len(prompt) - 1 and (salt, *prompt[: want + 2]) in known:
                want += 2
            assert load.allocate(prompt, salt) == want
            seq = max(load.tokens)
            load.feed(seq, prompt)
            load.feed(seq, [rng.randrange(2) for _ in range(3)])
            tokens = load.tokens[seq]
            known |= {(salt, *tokens[:end]) for end in range(2, len(tokens) + 1, 2)}
            if rng.random() < 0.5:
                load.free(seq)
            load.check()
