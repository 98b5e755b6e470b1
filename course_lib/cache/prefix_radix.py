"""Prefix index as a compressed radix tree, as in SGLang (arXiv 2312.07104, section 3; its `radix_cache.py`).

A node stands for a run of blocks without a branch; it is split where two sequences part. Tokens are compared, no hash
stands for them. Two things are one level finer than in SGLang. It locks nodes, from the last one matched up to the
root, that one included; here each block of this path is locked, so a match needs no split. It evicts whole leaves; here
a leaf loses its last block. As there, a node left with one child is not merged with it.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

from course_lib.cache.blocks import ensure
from course_lib.cache.prefix import Content, PrefixIndex

Label = tuple[int | str, ...]
"""A block's content; before that of a sequence's first block stands the salt."""


@dataclass(eq=False)
class _Node:
    """labels and blocks run in parallel. depth: number of blocks before them on the path from the root."""

    parent: _Node | None
    depth: int
    labels: list[Label] = field(default_factory=list)
    blocks: list[int] = field(default_factory=list)
    children: dict[Label, _Node] = field(default_factory=dict)  # by their first label


class RadixIndex(PrefixIndex):
    """Implements `PrefixIndex` with the tree, and a directory: block to (its node, its depth)."""

    def __init__(self):
        super().__init__()
        self._root = _Node(None, 0)
        self._place: dict[int, tuple[_Node, int]] = {}

    def match(self, contents: Iterable[Content], salt: str = "") -> list[int]:
        node, at, blocks = self._root, 0, []  # at: labels of `node` that are matched
        for content in contents:
            label = content if blocks else (salt, *content)
            if at == len(node.labels) and label in node.children:
                node, at = node.children[label], 0
            if at == len(node.labels) or node.labels[at] != label:
                break
            blocks.append(node.blocks[at])
            at += 1
        return blocks

    def insert(self, parent: int | None, content: Content, block: int, salt: str = "") -> int:
        label = (salt, *content) if parent is None else content
        node, before = (self._root, -1) if parent is None else self._place[parent]
        at = before + 1 - node.depth
        if at < len(node.labels):
            if node.labels[at] == label:
                return node.blocks[at]
            node = self._split(node, at)
        elif label in node.children:
            return node.children[label].blocks[0]
        if node is self._root or node.children:  # a new branch; without one, the leaf is prolonged
            node.children[label] = node = _Node(node, before + 1)
        node.labels.append(label)
        node.blocks.append(block)
        self._place[block] = node, before + 1
        return block

    def _split(self, node: _Node, at: int) -> _Node:
        """Cut the node before its label `at`; returns the upper part, which is new.

        The caller has walked through the upper part's blocks one by one, so to place them anew is O(1) for each.
        """
        upper = _Node(node.parent, node.depth, node.labels[:at], node.blocks[:at])
        upper.parent.children[upper.labels[0]] = upper
        del node.labels[:at], node.blocks[:at]
        node.parent, node.depth = upper, node.depth + at
        upper.children[node.labels[0]] = node
        for i, block in enumerate(upper.blocks):
            self._place[block] = upper, upper.depth + i
        return upper

    def __contains__(self, block: int) -> bool:
        return block in self._place

    def _remove(self, block: int) -> None:
        node, _ = self._place.pop(block)
        ensure(node.blocks[-1] == block and not node.children, f"block {block} is not the end of a leaf")
        node.blocks.pop()
        label = node.labels.pop()
        if not node.blocks:
            del node.parent.children[label]

    def _parents(self) -> dict[int, int | None]:
        parents: dict[int, int | None] = {}
        stack: list[tuple[_Node, int | None]] = [(self._root, None)]  # a node, and the block before it
        while stack:
            node, before = stack.pop()
            ensure(len(node.labels) == len(node.blocks), "a node has not one label per block")
            ensure(bool(node.blocks) != (node is self._root), "a node is empty, or the root is not")
            for i, block in enumerate(node.blocks):
                ensure(self._place.get(block) == (node, node.depth + i), f"block {block} is recorded elsewhere")
                parents[block], before = before, block
            for label, child in node.children.items():
                ensure(child.parent is node and child.labels[0] == label, "a child is filed under a wrong label")
                ensure(child.depth == node.depth + len(node.labels), "a child does not start where its parent ends")
                stack.append((child, before))
        ensure(parents.keys() == self._place.keys(), "the tree and its directory list different blocks")
        return parents
