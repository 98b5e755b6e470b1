"""The block manager's work is O(1) per block: counted in executed lines of the paging modules, never timed."""

from __future__ import annotations

import sys
from collections import Counter

import pytest

from course_lib.cache import BlockManager, block_manager, blocks, prefix, prefix_hash, prefix_radix
from tests.cache.workload import INDEXES

PAGING = {module.__file__ for module in (block_manager, blocks, prefix, prefix_hash, prefix_radix)}
both_indexes = pytest.mark.parametrize("index", INDEXES.values(), ids=INDEXES)
SIZE = 4


def work(action) -> Counter[str]:
    """Lines of the paging modules that the action runs, and calls of each of their functions."""
    counts: Counter[str] = Counter()

    def trace(frame, event, _):
        if frame.f_code.co_filename not in PAGING:
            return None
        counts["lines" if event == "line" else f"{event} {frame.f_code.co_qualname}"] += 1
        return trace

    before = sys.gettrace()
    sys.settrace(trace)
    try:
        action()
    finally:
        sys.settrace(before)
    return counts


def running(index: type, sequences: int, length: int, blocks: int | None = None) -> BlockManager:
    """A manager with so many sequences of that length, no two of them equal."""
    manager = BlockManager(blocks or sequences * (length // SIZE + 2), SIZE, index())
    for seq in range(sequences):
        manager.allocate(seq, [seq] * length)
        manager.commit(seq, [seq] * length)
    return manager


def decoding(manager: BlockManager) -> Counter[str]:
    """The work of one token for each of the first 16 sequences, SIZE times: each of them fills one block."""

    def decode():
        for _ in range(SIZE):
            for seq in range(16):
                assert manager.extend(seq, 1) == []
                manager.commit(seq, [seq])

    return work(decode)


@both_indexes
def test_a_decoded_token_costs_the_same_whatever_runs_beside_it(index):
    """16, 64, 256 and 1,024 running sequences, and sequences ten times as long."""
    want = decoding(running(index, 16, 8))
    assert want["call BlockManager.extend"] == want["call BlockManager.commit"] == 16 * SIZE
    assert want["call BlockPool.take"] == want[f"call {index.__name__}.insert"] == 16
    for sequences, length in ((64, 8), (256, 8), (1024, 8), (16, 80)):
        assert decoding(running(index, sequences, length)) == want, f"{sequences} sequences of {length}"


@both_indexes
def test_a_block_taken_from_the_cache_costs_the_same_in_any_pool(index):
    """All blocks cached, so each one taken is an eviction."""

    def evicting(sequences):
        manager = running(index, sequences, 2 * SIZE, blocks=2 * sequences)
        for seq in range(sequences):
            manager.free(seq)
        assert manager.pool.free == 0 and manager.index.evictable == 2 * sequences
        return work(lambda: manager.allocate(-1, [-1] * 8 * SIZE))

    want = evicting(8)
    assert want["call PrefixIndex.evict"] == 8
    assert evicting(64) == evicting(512) == want


@both_indexes
def test_a_request_costs_in_proportion_to_its_own_blocks(index):
    """A hit of n blocks, and giving them up again: equal steps for equal steps of n."""

    def cost(n):
        manager = running(index, 4, 40 * SIZE)

        def request():
            assert manager.allocate(9, [0] * (n * SIZE) + [1]) == n * SIZE
            manager.free(9)

        return work(request)["lines"]

    assert cost(20) - cost(10) == cost(30) - cost(20) == 10 * (cost(11) - cost(10))


@both_indexes
def test_the_count_sees_a_loop_over_the_pool(index):
    """The planted mistake: a search for a free block by looking at all of them."""

    class Searching(blocks.BlockPool):
        def take(self):
            for block in self._free:
                if self.refs[block]:
                    break
            return super().take()

    def searched(sequences):
        manager = running(index, sequences, 8)
        manager.pool.__class__ = Searching
        return decoding(manager)["lines"]

    PAGING.add(__file__)
    try:
        assert searched(64) > searched(16)
    finally:
        PAGING.discard(__file__)
