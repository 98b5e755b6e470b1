"""A plain model of what paging must do, run beside a `BlockManager`: a list of tokens per sequence and a fake memory.

A slot of the fake memory holds a value that depends on the token and on all tokens before it, as keys and values do. A
block that was shared, reused, copied or indexed wrongly then shows as a wrong value.
"""

from __future__ import annotations

import random

from course_lib.cache import BlockManager, HashIndex, RadixIndex

INDEXES = {"hash": HashIndex, "radix": RadixIndex}


def computed(manager: BlockManager, seq: int, tokens: list[int], salt: str = "") -> int:
    """Allocate and compute a whole sequence; returns the prefix hit."""
    hit = manager.allocate(seq, tokens, salt)
    assert manager.extend(seq, len(tokens) - hit) == []
    manager.commit(seq, tokens[hit:])
    return hit


class Workload:
    """Every operation checks its answer; `check` compares the whole state."""

    def __init__(self, manager: BlockManager):
        self.manager = manager
        self.memory: list[int | None] = [None] * manager.capacity
        self.tokens: dict[int, list[int]] = {}  # computed, per sequence
        self.prompts: dict[int, list[int]] = {}  # what is still to be fed of each prompt
        self.salts: dict[int, str] = {}
        self.ended: list[list[int]] = []  # tokens of freed sequences, for prompts that hit
        self._next = 0

    def allocate(self, prompt: list[int], salt: str = "") -> int | None:
        seq, self._next = self._next, self._next + 1
        could, before = self.manager.can_allocate(prompt, salt), self.state()
        hit = self.manager.allocate(seq, prompt, salt)
        assert (hit is not None) == could
        if hit is None:
            assert self.state() == before
            return None
        assert hit % self.manager.block_size == 0 and hit < len(prompt)
        assert len(self.manager.table(seq).blocks) == self.manager.blocks_needed(len(prompt))
        self.tokens[seq], self.prompts[seq], self.salts[seq] = prompt[:hit], prompt[hit:], salt
        return hit

    def feed(self, seq: int, new: list[int]) -> list[tuple[int, int]] | None:
        """One forward pass: as many tokens as `new` has, from the prompt as long as it lasts."""
        rest = self.prompts[seq]
        new = rest[: len(new)] or new
        if len(self.tokens[seq]) + len(new) > self.manager.capacity:
            return None
        before = self.state()
        copies = self.manager.extend(seq, len(new))
        if copies is None:
            assert self.state() == before
            return None
        size = self.manager.block_size
        for source, target in copies:
            self.memory[target * size : (target + 1) * size] = self.memory[source * size : (source + 1) * size]
        start = len(self.tokens[seq])
        self.tokens[seq].extend(new)
        self.prompts[seq] = rest[len(new) :]
        values = self._values(seq)
        for position in range(start, start + len(new)):
            self.memory[self._slot(seq, position)] = values[position]
        self.compute(seq, new, copies)
        return copies

    def compute(self, seq: int, new: list[int], copies: list[tuple[int, int]]) -> None:
        """What the forward pass does; a subclass with a model overrides it."""
        self.manager.commit(seq, new)

    def fork(self, parent: int) -> int:
        child, self._next = self._next, self._next + 1
        available = self.manager.available
        self.manager.fork(parent, child)
        assert self.manager.available == available
        for mine in (self.tokens, self.prompts):
            mine[child] = list(mine[parent])
        self.salts[child] = self.salts[parent]
        return child

    def truncate(self, seq: int, length: int) -> None:
        self.manager.truncate(seq, length)
        del self.tokens[seq][length:]
        self.prompts[seq] = []

    def free(self, seq: int) -> None:
        self.manager.free(seq)
        self.ended.append(self.tokens[seq])
        for mine in (self.tokens, self.prompts, self.salts):
            del mine[seq]

    def check(self) -> None:
        manager = self.manager
        manager.check_integrity()
        stats = manager.stats()
        assert stats.free + stats.cached + stats.in_use == stats.total
        assert min(stats.free, stats.cached, stats.in_use, stats.waste) >= 0
        used = set()
        for seq, tokens in self.tokens.items():
            assert manager.table(seq).tokens == tokens
            slots = [self._slot(seq, position) for position in range(len(tokens))]
            assert [self.memory[slot] for slot in slots] == self._values(seq), f"sequence {seq} reads wrong values"
            used.update(slots)
        assert stats.waste == stats.in_use * manager.block_size - len(used)

    def drain(self) -> None:
        """Free everything; then all must be free or cached, and one sequence must be able to have all of it."""
        for seq in list(self.tokens):
            self.free(seq)
        self.check()
        stats = self.manager.stats()
        assert stats.in_use == stats.waste == 0 and stats.free + stats.cached == stats.total
        assert self.allocate([-1] * self.manager.capacity) == 0
        self.check()
        if self.manager.index is not None:
            assert self.manager.index.check() == (set(), set())

    def _slot(self, seq: int, position: int) -> int:
        block, offset = divmod(position, self.manager.block_size)
        return self.manager.table(seq).blocks[block] * self.manager.block_size + offset

    def _values(self, seq: int) -> list[int]:
        value, values = hash(self.salts[seq]), []
        for token in self.tokens[seq]:
            value = hash((value, token))
            values.append(value)
        return values

    def state(self):
        """Everything that an operation without effect must leave as it is."""
        manager = self.manager
        tables = {seq: list(table.blocks) for seq, table in manager.tables.items()}
        return tables, list(manager.pool.refs), manager.stats()


def random_step(rng: random.Random, workloads: list[Workload]) -> list:
    """One random operation, the same on each of the workloads; returns what each answered."""
    first = workloads[0]
    running = list(first.tokens)
    kind = rng.choices(["allocate", "feed", "fork", "truncate", "free"], [4, 9, 2, 1, 3])[0]
    size = first.manager.block_size
    if not running or kind == "allocate":
        known = rng.choice([[], *first.tokens.values(), *first.ended[-3:]])
        prompt = known + [rng.randrange(2) for _ in range(rng.randint(1, 2 * size))]
        salt = rng.choice(["", "", "", "b"])
        return [w.allocate(prompt[: first.manager.capacity], salt) for w in workloads]
    seq = rng.choice(running)
    if kind == "feed":
        new = [rng.randrange(2) for _ in range(rng.randint(1, size + 1))]
        return [w.feed(seq, new) for w in workloads]
    if kind == "fork":
        return [w.fork(seq) for w in workloads]
    if kind == "truncate":
        length = rng.randint(0, len(first.tokens[seq]))
        return [w.truncate(seq, length) for w in workloads]
    return [w.free(seq) for w in workloads]
