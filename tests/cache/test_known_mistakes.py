"""Mistakes that real engines made in paging, by their numbers: the right value, and that the wrong way is caught."""

from __future__ import annotations

import pytest
import torch

from course_lib.cache import BlockManager, HashIndex, RadixIndex
from course_lib.cache.paged import slot_numbers
from course_lib.errors import RequestError
from tests.cache.test_random_workloads import run_workload
from tests.cache.workload import INDEXES, computed

both_indexes = pytest.mark.parametrize("index", INDEXES.values(), ids=INDEXES)


def test_14_slots_are_int64():
    """In int32 the slot of the last block wraps."""
    tables, rows, positions = torch.tensor([[2**27]], dtype=torch.int32), torch.tensor([0]), torch.tensor([5])
    slots = slot_numbers(tables, rows, positions, 16)
    assert slots.dtype == torch.int64 and slots.tolist() == [2**31 + 5]
    assert (tables[0] * 16 + 5).item() < 0  # the planted mistake


def test_19_what_can_never_fit_is_refused_with_the_limit():
    """2 blocks of 4, prompt 8, 5 new tokens: not an assertion, and not waiting for ever."""
    manager = BlockManager(2, 4)
    message = (
        "^a prompt of 8 and 5 new tokens need 3 blocks of 4 and the pool has 2; ask for at most 9 tokens in all or "
        "make the pool larger$"
    )
    with pytest.raises(RequestError, match=message):
        manager.check_fits(8, 5)
    manager.check_fits(8, 1)
    manager.check_fits(4, 5)  # the last token is not fed back: 8 slots
    with pytest.raises(RequestError, match="a prompt of 9 and 1 new tokens need 3 blocks"):
        manager.allocate(0, list(range(9)))
    computed(manager, 0, list(range(8)))
    with pytest.raises(RequestError, match="sequence 0 would have 9 tokens and the pool holds 8; stop"):
        manager.extend(0, 1)


@both_indexes
def test_19_what_does_not_fit_now_is_an_answer(index):
    manager = BlockManager(3, 2, index())
    computed(manager, 0, [1, 2, 3])
    assert not manager.can_allocate([7, 8, 9]) and manager.allocate(1, [7, 8, 9]) is None
    computed(manager, 2, [7, 8])
    assert manager.extend(0, 2) is None and manager.extend(0, 1) == []
    manager.free(2)
    assert manager.extend(0, 2) == []
    manager.check_integrity()


@both_indexes
def test_20_a_hit_is_taken_off_before_blocks_are_counted(index):
    manager = BlockManager(8, 2, index())
    computed(manager, 0, [1, 2, 3, 4, 5])
    assert manager.allocate(1, [1, 2, 3, 4, 5, 6]) == 4
    assert len(manager.table(1).blocks) == 3 and manager.stats().in_use == 4
    with pytest.raises(RequestError, match="sequence 1 does not have blocks of its own for 10 tokens; call extend"):
        manager.check_writable(1, 6)  # all prompt tokens fed behind the hit: the planted mistake
    manager.check_writable(1, 2)


@both_indexes
def test_20_the_last_token_is_always_computed(index):
    """Its logits choose the first new token. A prompt that is cached to its end loses a whole block of the hit."""
    manager = BlockManager(8, 2, index())
    computed(manager, 0, [1, 2, 3, 4])
    assert manager.allocate(1, [1, 2, 3, 4]) == 2
    assert manager.allocate(2, [1, 2, 3, 4, 5]) == 4
    assert manager.allocate(3, [1]) == 0


@both_indexes
def test_21_a_reused_block_is_not_found_under_its_old_tokens(index):
    manager = BlockManager(2, 2, index())
    computed(manager, 0, [1, 2, 3, 4])
    manager.free(0)
    assert manager.stats().cached == 2
    computed(manager, 1, [5, 6, 7])  # takes both blocks
    assert manager.index.match([(1, 2)]) == [] and manager.index.match([(5, 6)]) != []
    manager.check_integrity()


@both_indexes
def test_21_blocks_are_indexed_after_they_are_computed(index):
    manager = BlockManager(8, 2, index())
    manager.allocate(0, [1, 2, 3, 4, 5])
    assert manager.allocate(1, [1, 2, 3, 4, 5]) == 0
    manager.extend(0, 3)
    manager.commit(0, [1, 2, 3])
    assert manager.allocate(2, [1, 2, 3, 4, 5]) == 2  # the second block is not full yet


@both_indexes
def test_24_a_matched_block_stays_the_last_one_included(index):
    manager = BlockManager(4, 2, index())
    computed(manager, 0, [1, 2, 3, 4, 5])
    manager.free(0)
    assert manager.allocate(1, [1, 2, 3, 4, 9]) == 4
    matched = manager.table(1).blocks[:2]
    assert manager.extend(1, 4) == [] and manager.available == 0  # all other blocks are taken
    assert len(set(manager.table(1).blocks)) == 4 and manager.table(1).blocks[:2] == matched
    assert manager.index.match([(1, 2), (3, 4)]) == list(matched)
    manager.check_integrity()


@both_indexes
def test_25_a_duplicate_is_given_up_only_by_its_own_table(index):
    """Two requests computed one prompt at the same time; a fork of the second still reads the duplicate."""
    manager = BlockManager(8, 4, index())
    for seq in (0, 1):
        manager.allocate(seq, [1, 2, 3, 4])
        manager.extend(seq, 4)
        manager.commit(seq, [1, 2, 3])
    manager.fork(1, 2)
    manager.commit(0, [4])
    copies = manager.extend(1, 1)
    [(shared, own)] = copies
    manager.commit(1, [4])
    assert manager.table(1).blocks == manager.table(0).blocks  # switched to the canonical block
    assert list(manager.table(2).blocks) == [shared] and manager.pool.refs[shared] == 1
    assert manager.pool.refs[own] == 0
    manager.check_integrity()
    manager.commit(2, [4])
    assert manager.table(2).blocks == manager.table(0).blocks and manager.stats().in_use == 1
    manager.check_integrity()


@both_indexes
def test_26_a_hit_is_not_counted_as_available_too(index):
    """3 blocks, 2 of them cached and matched: the request needs 4, so it does not fit, and nothing goes negative."""
    manager = BlockManager(3, 2, index())
    computed(manager, 0, [1, 2, 3, 4])
    manager.free(0)
    assert manager.available == 3
    assert manager.allocate(1, [1, 2, 3, 4, 5, 6]) == 4
    assert manager.available == 0 and manager.stats().cached == 0
    manager.free(1)
    manager.allocate(2, [8])
    assert manager.allocate(3, [1, 2, 3, 4, 5, 6]) is None
    manager.check_integrity()


@pytest.mark.parametrize("block_size", [1, 3, 4])
def test_27_a_sequence_fills_the_pool_and_not_one_token_more(block_size):
    manager = BlockManager(3, block_size)
    manager.allocate(0, [1])
    for _ in range(manager.capacity):
        assert manager.extend(0, 1) == []
        manager.commit(0, [1])
    assert len(manager.table(0).blocks) == 3 and manager.stats().waste == 0
    with pytest.raises(RequestError, match=f"would have {3 * block_size + 1} tokens and the pool holds"):
        manager.extend(0, 1)


class CountsBeforeTheHit(BlockManager):
    """20: blocks for all tokens behind the hit."""

    def _open(self, seq, blocks, tokens, indexed, salt):
        table = super()._open(seq, blocks, tokens, indexed, salt)
        if tokens and self.available:
            table.blocks.append(self._take())
        return table


class IndexesAtAllocation(BlockManager):
    """21: blocks are indexed before they are computed."""

    def allocate(self, seq, tokens, salt=""):
        hit = super().allocate(seq, tokens, salt)
        if hit is not None:
            table = self.table(seq)
            for i, content in enumerate(self._contents(tokens)):
                if i >= table.indexed:
                    self.index.insert(table.blocks[i - 1] if i else None, content, table.blocks[i], salt)
        return hit


class WritesInPlace(BlockManager):
    """No copy on write."""

    def _not_its_own(self, table):
        return None


class LocksAllButTheLast(BlockManager):
    """24."""

    def _open(self, seq, blocks, tokens, indexed, salt):
        table = super()._open(seq, blocks, tokens, indexed, salt)
        if blocks and blocks[-1] in self.index:
            self.index._unlocked[blocks[-1]] = None
        return table


class FreesDuplicates(BlockManager):
    """25: what a table gives up goes to the free list, whoever else holds it."""

    def _drop(self, block):
        if block not in self.index:
            self.pool.refs[block] = 1
        super()._drop(block)


class CountsHitsTwice(BlockManager):
    """26: a cached block that is matched counts as available too."""

    def _fits(self, tokens, hits):
        return self.blocks_needed(tokens) - len(hits) <= self.available


class UnlocksTooOften(BlockManager):
    """26: given up by one table, a block counts as evictable though another table holds it."""

    def _drop(self, block):
        super()._drop(block)
        if block in self.index:
            self.index.unlock(block)


class GivesUpFirstBlocksFirst(BlockManager):
    """The head of a sequence would be evicted before its tail."""

    def _shrink(self, table, blocks):
        while len(table.blocks) > blocks:
            self._drop(table.blocks.pop(blocks))


class StaleHash(HashIndex):
    """21: the key of an evicted block stays."""

    def _remove(self, block):
        del self._entry[block]


class StaleTree(RadixIndex):
    """21: the label of an evicted block stays."""

    def _remove(self, block):
        del self._place[block]


class UnchainedHash(HashIndex):
    """A block is named by its own tokens alone, whatever stands before it."""

    def insert(self, parent, content, block, salt=""):
        return super().insert(None, content, block, salt)

    def match(self, contents, salt=""):
        return [self._block[key] for c in contents if (key := self._key(c, salt)) in self._block]

    def _key(self, content, salt):
        from course_lib.cache.prefix_hash import block_key, root_key

        return block_key(root_key(salt), content)


class ForgetsTheSalt(RadixIndex):
    def match(self, contents, salt=""):
        return super().match(contents)

    def insert(self, parent, content, block, salt=""):
        return super().insert(parent, content, block)


MANAGERS = [
    CountsBeforeTheHit,
    IndexesAtAllocation,
    WritesInPlace,
    LocksAllButTheLast,
    FreesDuplicates,
    CountsHitsTwice,
    UnlocksTooOften,
    GivesUpFirstBlocksFirst,
]
WRONG = [(manager, index) for manager in MANAGERS for index in INDEXES.values()] + [
    (BlockManager, index) for index in (StaleHash, StaleTree, UnchainedHash, ForgetsTheSalt)
]


@pytest.mark.parametrize("manager, index", WRONG, ids=lambda wrong: wrong.__name__)
def test_the_random_workloads_catch_a_wrong_variant(manager, index):
    """By a failed check, or because a structure breaks. The right classes pass the same histories."""
    with pytest.raises((AssertionError, KeyError, IndexError)):
        for seed in range(60):
            run_workload(seed, manager=manager, indexes=[index])
