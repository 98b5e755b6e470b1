"""What lies in every block of a small pool, step by step, as a block manager's calls change it (notebook 08).

Tokens are characters here (their code points), so that a block can be read.
"""

from __future__ import annotations

from dataclasses import dataclass

from course_lib.cache import BlockManager, HashIndex, RadixIndex


@dataclass(frozen=True)
class BlockState:
    """content: tokens in the block, as text. holders: names of the sequences whose tables have it."""

    content: str
    holders: tuple[str, ...]
    cached: bool
    parent: int | None  # where the prefix index knows the block: the block before it
    indexed: bool


@dataclass(frozen=True)
class Snapshot:
    """The pool after one event. tables: block table of each running sequence. index: "hash", "radix" or "" for none."""

    event: str
    block_size: int
    blocks: tuple[BlockState, ...]
    tables: dict[str, tuple[int, ...]]
    index: str
    hit_tokens: int
    asked_tokens: int

    @property
    def counts(self) -> str:
        free = sum(not (block.holders or block.cached) for block in self.blocks)
        cached = sum(block.cached for block in self.blocks)
        total = len(self.blocks)
        hits = f";  {self.hit_tokens} of {self.asked_tokens} prompt tokens found" if self.index else ""
        return f"{free} free + {cached} cached + {total - free - cached} in use = {total}{hits}"


class Recorder:
    """Takes a snapshot of a manager after each event. names: sequence id to the name in the picture."""

    def __init__(self, manager: BlockManager, names: dict[int, str]):
        self.manager, self.names = manager, names
        self.steps: list[Snapshot] = []
        self._content = [""] * manager.pool.total  # stays while a block is cached, when no table names it
        self._parent: dict[int, int | None] = {}

    def record(self, event: str) -> Snapshot:
        manager, size = self.manager, self.manager.block_size
        holders: list[list[str]] = [[] for _ in range(manager.pool.total)]
        for seq, table in manager.tables.items():
            for i, block in enumerate(table.blocks):
                holders[block].append(self.names[seq])
                text = "".join(map(chr, table.tokens[i * size : (i + 1) * size]))
                # A fork shorter than its parent shares the block: the longest content is what lies in it.
                self._content[block] = text if len(holders[block]) == 1 else max(text, self._content[block], key=len)
            for i in range(table.indexed):
                self._parent[table.blocks[i]] = table.blocks[i - 1] if i else None
        states = []
        for block, names in enumerate(holders):
            indexed = manager.index is not None and block in manager.index
            content = self._content[block] if names or indexed else ""
            parent = self._parent.get(block) if indexed else None
            states.append(BlockState(content, tuple(names), indexed and not names, parent, indexed))
        stats = manager.stats()
        kind = {HashIndex: "hash", RadixIndex: "radix"}.get(type(manager.index), "")
        tables = {self.names[seq]: tuple(table.blocks) for seq, table in manager.tables.items()}
        counts = stats.hit_tokens, stats.asked_tokens
        self.steps.append(Snapshot(event, size, tuple(states), tables, kind, *counts))
        return self.steps[-1]


def history(manager: BlockManager) -> list[Snapshot]:
    """One course of events on an empty manager of 12 blocks of 4 tokens; what does not fit is shown as waiting.

    Requests share a system prompt, one is forked and copies a block on write, a long one needs what the others left.
    """
    recorder = Recorder(manager, dict(enumerate("ABCDEF")))

    def arrive(seq: int, prompt: str) -> None:
        name, tokens = recorder.names[seq], [ord(letter) for letter in prompt]
        hit = manager.allocate(seq, tokens)
        if hit is None:
            needed = manager.blocks_needed(len(tokens))
            recorder.record(f"allocate {name}: needs {needed} blocks, {manager.available} can be taken")
            recorder.record(f"{name} waits")
            return
        recorder.record(f"allocate {name}: “{prompt}”, {hit} of {len(prompt)} tokens found")
        write(seq, prompt[hit:], "prefill")

    def write(seq: int, text: str, kind: str) -> None:
        name = recorder.names[seq]
        copies = manager.extend(seq, len(text))
        manager.commit(seq, [ord(letter) for letter in text])
        how = "".join(f", copy-on-write {source} → {target}" for source, target in copies)
        recorder.record(f"extend, commit {name}: {kind} “{text}”{how}")

    def free(seq: int) -> None:
        manager.free(seq)
        recorder.record(f"free {recorder.names[seq]}")

    recorder.record("an empty pool")
    arrive(0, "Be kind. Who?")
    write(0, " I", "decode")
    arrive(1, "Be kind. When?")
    manager.fork(1, 2)
    recorder.record("fork B → C: a second answer to the same prompt, no block is taken")
    write(1, " As", "decode")
    write(2, " In", "decode")
    free(0)
    free(2)
    arrive(3, "Be kind. Who?")
    arrive(4, "A quite other one")
    free(1)
    free(3)
    arrive(5, "Be kind. When?")
    return recorder.steps
