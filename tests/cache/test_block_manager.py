"""The block manager by hand: what a full pool allows, what is evicted first, what is shared, how a tree splits."""

from __future__ import annotations

import pytest

from course_lib.cache import BlockManager, RadixIndex
from tests.cache.workload import INDEXES, computed

both_indexes = pytest.mark.parametrize("index", INDEXES.values(), ids=INDEXES)


@both_indexes
def test_freed_blocks_are_found_until_they_are_taken_and_the_oldest_goes_first(index):
    manager = BlockManager(6, 2, index())
    for seq, token in enumerate((1, 2)):
        computed(manager, seq, [token] * 6)
        manager.free(seq)
    stats = manager.stats()
    assert (stats.free, stats.cached, stats.in_use) == (0, 6, 0)
    assert computed(manager, 2, [1] * 5) == 4  # takes the end of the older sequence, and makes its beginning younger
    assert manager.allocate(3, [3] * 4) == 0  # takes the two oldest, both of the other sequence
    manager.free(2)
    assert len(manager.index.match([(1, 1)] * 3)) == 2 and len(manager.index.match([(2, 2)] * 3)) == 1
    assert (manager.stats().hit_tokens, manager.stats().asked_tokens) == (4, 6 + 6 + 5 + 4)
    manager.check_integrity()


@both_indexes
def test_a_sequence_loses_its_end_before_its_beginning(index):
    manager = BlockManager(4, 2, index())
    computed(manager, 0, [1, 2, 3, 4, 5, 6, 7, 8])
    manager.free(0)
    for taken in range(1, 5):
        manager.allocate(taken, [9])
        assert len(manager.index.match([(1, 2), (3, 4), (5, 6), (7, 8)])) == 4 - taken


@both_indexes
def test_a_salt_keeps_equal_prompts_apart(index):
    manager = BlockManager(8, 2, index())
    computed(manager, 0, [1, 2, 3], salt="tenant a")
    assert manager.allocate(1, [1, 2, 3], salt="tenant b") == 0
    assert manager.allocate(2, [1, 2, 3]) == 0
    assert manager.allocate(3, [1, 2, 3], salt="tenant a") == 2


@both_indexes
def test_a_cut_sequence_goes_on_in_a_pool_without_a_free_block(index):
    """Its cut block is indexed. It is given up and taken again, and nothing needs to be copied."""
    manager = BlockManager(2, 4, index())
    computed(manager, 0, [1, 2, 3, 4, 5, 6, 7, 8])
    manager.truncate(0, 6)
    before = list(manager.table(0).blocks)
    assert manager.available == 0 and manager.extend(0, 2) == []
    assert list(manager.table(0).blocks) == before and before[1] not in manager.index
    manager.commit(0, [9, 9])
    assert manager.index.match([(1, 2, 3, 4), (5, 6, 9, 9)]) == before
    manager.check_integrity()


def test_a_copy_needs_a_block_even_where_slots_are_reserved():
    """A fork during prefill: the parent has empty blocks of its own, but may not write into the one that is shared."""
    manager = BlockManager(3, 2)
    manager.allocate(0, [1, 2, 3, 4, 5, 6])
    manager.commit(0, [1])
    manager.fork(0, 1)
    assert manager.available == 0 and len(manager.table(1).blocks) == 1
    assert manager.extend(0, 1) is None
    manager.free(1)
    assert manager.extend(0, 5) == []
    manager.check_integrity()


def test_a_fork_copies_only_when_one_writes_and_the_last_holder_writes_in_place():
    manager = BlockManager(8, 4)
    computed(manager, 0, [1, 2, 3, 4, 5])
    manager.fork(0, 1)
    manager.fork(0, 2)
    first, second = manager.table(0).blocks
    [(source, target)] = manager.extend(1, 1)
    assert source == second and list(manager.table(1).blocks) == [first, target]
    assert len(manager.extend(2, 1)) == 1 and manager.extend(0, 1) == []
    assert list(manager.table(0).blocks) == [first, second] and manager.pool.refs[first] == 3
    assert manager.stats().in_use == 4 and manager.stats().waste == 3 * 3
    manager.check_integrity()


def test_the_radix_tree_is_compressed():
    """A run of blocks without a branch is one node; where sequences part, it is split."""
    manager = BlockManager(40, 1, RadixIndex())

    def edges():
        nodes = {id(node): node.blocks for node, _ in manager.index._place.values()}
        return sorted(len(blocks) for blocks in nodes.values())

    computed(manager, 0, list(range(10)))
    assert edges() == [10]
    computed(manager, 1, [0, 1, 2, 3, 99, 98])
    assert edges() == [2, 4, 6]
    computed(manager, 2, [0, 97])
    assert edges() == [1, 1, 2, 3, 6]
    computed(manager, 3, [*range(10), 96])
    assert edges() == [1, 1, 2, 3, 7]
    manager.check_integrity()
