"""The helpers behind notebook 08: the memory simulation, recorded block maps, the figures and the explorer."""

from __future__ import annotations

import pytest

from course_lib.cache import BlockManager, HashIndex, RadixIndex
from course_lib.perf.fragmentation import Blocks, MemoryUse, Reservation, simulate
from course_lib.plots.block_history import Recorder, history
from course_lib.plots.block_map import block_map, index_structures, keys, runs
from course_lib.plots.paging import batch_gain, memory_use
from course_lib.widgets import block_map_explorer

INDEXES = {"none": None, "hash": HashIndex, "radix": RadixIndex}


def texts(figure) -> str:
    return "\n".join(t for axes in figure.axes for t in (axes.get_title("left"), *(x.get_text() for x in axes.texts)))


def shares(use: MemoryUse) -> tuple[float, ...]:
    return use.held, use.later, use.never, use.gaps


def test_reservation_worked_by_hand():
    """100 slots, 40 each: two requests of 10 + 10 run in step and hold 11 to 20 of their 40 slots, 15.5 on average."""
    use = simulate(Reservation(100, lambda prompt, answer: 40), [(10, 10)], memory=100, steps=10, warmup=0)
    assert shares(use) == pytest.approx((2 * 0.155, 2 * 0.045, 2 * 0.2, 0.2))
    assert (use.running, use.preempted) == (2, 0)


def test_blocks_worked_by_hand():
    """One request of 1 + 7 in blocks of 4: it holds 2 .. 8, in one block up to 4 and in two after; no other fits."""
    use = simulate(Blocks(8, 4), [(1, 7)], memory=8, steps=7, warmup=6)
    assert use.running == 1 and shares(use) == pytest.approx((1, 0, 0, 0))


def test_a_gap_is_used_only_where_the_request_fits():
    place = Reservation(10, lambda prompt, answer: prompt + answer)
    assert place.admit(0, 2, 1) and place.admit(1, 3, 1) and place.admit(2, 2, 1)
    place.free(1)
    assert not place.admit(3, 4, 1)  # 4 slots are free, between the others
    assert place.admit(3, 2, 2) and place.places[3] == (3, 4)


@pytest.mark.parametrize("block_size", [1, 4, 16])
def test_shares_add_up_and_blocks_waste_less_than_one_each(block_size):
    lengths = [(3 + 7 * i % 40, 1 + 11 * i % 60) for i in range(50)]
    use = simulate(Blocks(480, block_size), lengths, memory=480, steps=300, warmup=50)
    assert sum(shares(use)) == pytest.approx(1)
    assert use.later + use.never <= use.running * (block_size - 1) / 480
    assert use.preempted > 0  # requests outgrow the pool


def test_blocks_hold_more_than_any_reservation():
    lengths = [(3 + 7 * i % 40, 1 + 11 * i % 60) for i in range(50)]
    exact = simulate(Reservation(480, lambda prompt, answer: prompt + answer), lengths, 480, 300, 50)
    blocks = simulate(Blocks(480, 4), lengths, 480, 300, 50)
    assert exact.never == 0 and exact.later > 0.1
    assert blocks.held > 0.8 > exact.held


@pytest.mark.parametrize("make", INDEXES.values(), ids=INDEXES)
def test_every_step_of_the_course_of_events_counts_the_whole_pool(make):
    manager = BlockManager(12, 4, make and make())
    steps = history(manager)
    manager.check_integrity()
    for snapshot in steps:
        listed = [block for table in snapshot.tables.values() for block in table]
        for number, block in enumerate(snapshot.blocks):
            assert len(block.holders) == listed.count(number)
            assert not (block.cached and block.holders) and (block.indexed or not block.cached)
            assert bool(block.content) <= bool(block.holders or block.cached)


def test_the_course_of_events_shows_what_the_text_says():
    """Sharing, one copy-on-write, an evicted block, a hit on blocks that nobody holds; without an index a wait."""
    both = [history(BlockManager(12, 4, make())) for make in (HashIndex, RadixIndex)]
    assert [(s.event, s.tables, s.blocks) for s in both[0]] == [(s.event, s.tables, s.blocks) for s in both[1]]
    plain = history(BlockManager(12, 4))
    assert len(plain) == len(both[0]) == 19
    events = "\n".join(snapshot.event for snapshot in both[1])
    assert events.count("copy-on-write") == 1 and "waits" not in events
    assert plain[13].event == "allocate E: needs 5 blocks, 3 can be taken" and plain[14].event == "E waits"
    lost = {b.content for b in both[1][12].blocks if b.cached} - {b.content for b in both[1][13].blocks}
    assert lost == {"n? I"}
    assert both[1][17].event.endswith("12 of 14 tokens found") and not plain[-1].hit_tokens


def three_prompts(index):
    manager = BlockManager(16, 2, index)
    recorder = Recorder(manager, dict(enumerate("ABC")))
    for seq, text in enumerate(("abcdef", "abcdxy", "abqr")):
        tokens = [ord(letter) for letter in text]
        hit = manager.allocate(seq, tokens)
        manager.extend(seq, len(text) - hit)
        manager.commit(seq, tokens[hit:])
    return manager, recorder.record("three prompts")


def test_drawn_runs_are_the_nodes_of_the_radix_tree():
    manager, snapshot = three_prompts(RadixIndex())
    nodes, todo = [], list(manager.index._root.children.values())
    while todo:
        node = todo.pop()
        nodes.append(node.blocks)
        todo += node.children.values()
    assert sorted(run for _, run in runs(snapshot)) == sorted(nodes)
    assert len(nodes) == 5  # ab, cd, ef, xy, qr


def test_drawn_keys_are_the_keys_of_the_hash_index():
    manager, snapshot = three_prompts(HashIndex())
    assert keys(snapshot) == {block: entry[-1].hex()[:4] for block, entry in manager.index._entry.items()}
    written = texts(index_structures(snapshot))
    for block, key in keys(snapshot).items():
        assert f"{key}→{block}" in written


def test_the_block_map_shows_tables_counts_and_states():
    manager, snapshot = three_prompts(HashIndex())
    manager.free(2)
    recorder = Recorder(manager, dict(enumerate("ABC")))
    recorder.record("before")
    written = texts(block_map(snapshot))
    for text in ("A+B+C   refs 3", "A+B   refs 2", "free", "three prompts", "0 1 2", "chained hashes"):
        assert text in written
    assert "1 cached" in recorder.steps[-1].counts


def test_bars_and_the_curve_name_their_numbers():
    uses = {"limit": MemoryUse(0.2, 0.1, 0.6, 0.1, 7, 0), "blocks": MemoryUse(0.96, 0.02, 0.01, 0.01, 38, 0)}
    written = texts(memory_use(uses, {"blocks": 0.963}))
    for text in ("20% tokens", "60% never", "paper 96.3%", "38.0 requests at once"):
        assert text in written
    # weights 9, 1 per request: rate(1) = 1 / 10, rate(9) = 9 / 18, without end 1.
    written = texts(batch_gain(9, 1, {"few": 1, "many": 9}))
    for text in ("few: 1.0×", "many: 5.0×", "infinitely many requests: 10.0×"):
        assert text in written


def test_the_explorer_redraws_for_step_and_index():
    explorer = block_map_explorer(step=13)
    seen = {explorer.picture.value}
    for name, value in (("index", "none"), ("step", 5), ("index", "chained hashes")):
        explorer.controls[name].value = value
        assert explorer.message.value == "" and explorer.picture.value not in seen
        seen.add(explorer.picture.value)
    for step in range(explorer.controls["step"].max + 1):
        explorer.controls["step"].value = step
    assert explorer.message.value == ""
