"""Prefix index by chained block hashes, as in vLLM (docs.vllm.ai, design/prefix_caching).

A block's key is a hash of its parent's key and its own tokens. One key thus names the whole prefix, and a lookup is one
dictionary access per block.
"""

from __future__ import annotations

import hashlib
import struct
from collections.abc import Iterable

from course_lib.cache.blocks import ensure
from course_lib.cache.prefix import Content, PrefixIndex


def root_key(salt: str) -> bytes:
    """The key that stands before a sequence's first block."""
    return hashlib.sha256(salt.encode(errors="surrogatepass")).digest()  # any string that JSON can carry


def block_key(parent: bytes, content: Content) -> bytes:
    """SHA-256 of the parent's key and the token ids as little-endian int64.

    A hit hands one request's keys and values to another, so two prefixes with one key would leak and corrupt. Python's
    `hash` can be made to collide; no collision of SHA-256 is known, so a hit needs no comparison of tokens. SHA-256 is
    vLLM's default too. The fixed byte order gives every process the same key.
    """
    return hashlib.sha256(parent + struct.pack(f"<{len(content)}q", *content)).digest()


class HashIndex(PrefixIndex):
    """Implements `PrefixIndex` with two dictionaries: key to block, and block to (parent's key, tokens, key)."""

    def __init__(self):
        super().__init__()
        self._block: dict[bytes, int] = {}
        self._entry: dict[int, tuple[bytes, Content, bytes]] = {}  # the first two for the check only

    def match(self, contents: Iterable[Content], salt: str = "") -> list[int]:
        key, blocks = root_key(salt), []
        for content in contents:
            key = block_key(key, content)
            if key not in self._block:
                break
            blocks.append(self._block[key])
        return blocks

    def insert(self, parent: int | None, content: Content, block: int, salt: str = "") -> int:
        before = root_key(salt) if parent is None else self._entry[parent][-1]
        key = block_key(before, content)
        canonical = self._block.setdefault(key, block)
        if canonical == block:
            self._entry[block] = before, content, key
        return canonical

    def __contains__(self, block: int) -> bool:
        return block in self._entry

    def _remove(self, block: int) -> None:
        del self._block[self._entry.pop(block)[-1]]

    def _parents(self) -> dict[int, int | None]:
        ensure(len(self._block) == len(self._entry), "a key has no block, or a block no key")
        for block, (before, content, key) in self._entry.items():
            ensure(self._block.get(key) == block, f"block {block} is not found under its key")
            ensure(block_key(before, content) == key, f"the key of block {block} does not match its tokens")
        return {block: self._block.get(before) for block, (before, _, _) in self._entry.items()}
