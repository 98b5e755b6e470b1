"""Exercise 08, third part: a key that names a block's whole prefix, and the longest prefix that is cached.

Letters: b tokens per block, n tokens of a prompt.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from random import Random

from course_lib.checks.core import Case, Mistake, Problem

Key = Callable[[str, list[int]], str]

# --- block_keys ---


def joined(parent: str, tokens: list[int]) -> str:
    """A key that can be read: the parent's, a bar, the tokens."""
    return f"{parent}|{','.join(map(str, tokens))}"


def hashed(parent: str, tokens: list[int]) -> str:
    """A key as an engine has it, cut to 12 digits."""
    return hashlib.sha256(joined(parent, tokens).encode()).hexdigest()[:12]


def block_keys(tokens: list[int], block_size: int, salt: str, key: Key) -> list[str]:
    return _keys(tokens, block_size, salt, key)


def _full(tokens: list[int], block_size: int) -> list[list[int]]:
    return [tokens[i : i + block_size] for i in range(0, len(tokens) - block_size + 1, block_size)]


def _with_last(tokens: list[int], block_size: int) -> list[list[int]]:
    return [tokens[i : i + block_size] for i in range(0, len(tokens), block_size)]


def _keys(
    tokens, block_size, salt, key, *, cut=_full, parent=lambda keys, salt: keys[-1] if keys else salt
) -> list[str]:
    """The chain, with one part replaced by a wrong one."""
    keys: list[str] = []
    for content in cut(tokens, block_size):
        keys.append(key(parent(keys, salt), content))
    return keys


def _one_step_back(tokens: list[int], block_size: int, salt: str, key: Key) -> list[str]:
    alone = [key(salt, content) for content in _full(tokens, block_size)]
    return [key(before, content) for before, content in zip([salt, *alone], _full(tokens, block_size), strict=False)]


def _prompt(rng: Random, n: int) -> list[int]:
    return [rng.randrange(500) for _ in range(n)]


BLOCK_KEYS = Problem(
    name="block_keys",
    arguments=("tokens", "block_size", "salt", "key"),
    reference=block_keys,
    public=lambda rng: [
        # The fifth token begins a block that is not full yet, so it has no key.
        Case("worked example", ([7, 8, 9, 4, 5], 2, "s", joined), {"the result": ["s|7,8", "s|7,8|9,4"]}),
        Case("edge case", ([7, 8, 7, 8], 2, "", joined)),  # the same tokens twice: two keys
        Case("edge case", ([7, 8, 9, 4, 1, 2], 2, "tenant", joined)),  # no block is partly filled
        Case("edge case", ([7], 2, "s", joined), {"the result": []}),
        Case("edge case", ([7, 8, 9], 1, "s", joined)),
        Case("reference", (_prompt(rng, 27), 4, "tenant", hashed)),
    ],
    hidden=lambda rng: [
        Case("reference", (_prompt(rng, rng.randint(b + 1, 60)), b, rng.choice(("", "a", "b")), hashed))
        for b in (1, 4, rng.randint(5, 16))
    ],
    mistakes=(
        Mistake(
            "parent-left-out",
            "Equal tokens after different text have other keys and values in every layer: hash the parent's key too.",
            lambda tokens, b, salt, key: _keys(tokens, b, salt, key, parent=lambda keys, salt: ""),
        ),
        Mistake(
            "salt-for-parent",
            "Only the first block follows the salt; each later one follows the block before it.",
            lambda tokens, b, salt, key: _keys(tokens, b, salt, key, parent=lambda keys, salt: salt),
        ),
        Mistake(
            "salt-left-out",
            "The salt stands before the first block; without it, tenants that must not share find each other's blocks.",
            lambda tokens, b, salt, key: _keys(tokens, b, "", key),
        ),
        Mistake(
            "partial-block-hashed",
            "A block that is not full still changes, so it gets no key.",
            lambda tokens, b, salt, key: _keys(tokens, b, salt, key, cut=_with_last),
        ),
        Mistake(
            "one-step-back",
            "A key must name the whole prefix: its parent is the previous block's own chained key.",
            _one_step_back,
        ),
        Mistake(
            "prefix-hashed-again",
            "Hash the parent's key and the block's own b tokens: hashing the whole prefix each time is quadratic work.",
            lambda tokens, b, salt, key: [key(salt, tokens[:i]) for i in range(b, len(tokens) + 1, b)],
        ),
        Mistake(
            "blocks-overlap",
            "Blocks do not overlap: the next one starts b tokens later, not one.",
            lambda tokens, b, salt, key: _keys(
                tokens, b, salt, key, cut=lambda tokens, b: [tokens[i : i + b] for i in range(len(tokens) - b + 1)]
            ),
        ),
        Mistake(
            "last-key-only",
            "Return the keys of all full blocks: a shorter common prefix is found by an earlier one.",
            lambda tokens, b, salt, key: _keys(tokens, b, salt, key)[-1:],
        ),
    ),
)


# --- longest_prefix ---

Index = dict[str, int]


def longest_prefix(keys: list[str], index: Index, length: int, block_size: int) -> list[int]:
    return _match(keys[: (length - 1) // block_size], index)


def _match(keys: list[str], index: Index) -> list[int]:
    blocks: list[int] = []
    for key in keys:
        if key not in index:
            break
        blocks.append(index[key])
    return blocks


def _after_the_last_match(keys: list[str], index: Index, length: int, block_size: int) -> list[int]:
    """From the end: the last key that is known, and all before it."""
    for i in range((length - 1) // block_size, 0, -1):
        if keys[i - 1] in index:
            return [index[key] for key in keys[:i]]
    return []


def _random_lookup(rng: Random, b: int, blocks: int, known: int, extra: int) -> tuple[list[str], Index, int, int]:
    """A prompt of `blocks` full blocks and `extra` tokens; of its keys only the one after `known` blocks is missing."""
    keys = block_keys(_prompt(rng, blocks * b), b, "", hashed)
    numbers = rng.sample(range(100), blocks)
    index = dict(zip(keys, numbers, strict=True))
    for key in keys[known : known + 1]:
        del index[key]
    return keys, index, blocks * b + extra, b


LONGEST_PREFIX = Problem(
    name="longest_prefix",
    arguments=("keys", "index", "length", "block_size"),
    reference=longest_prefix,
    public=lambda rng: [
        # 14 tokens in blocks of 4 have three full blocks; the first two are known.
        Case("worked example", (["k0", "k1", "k2"], {"k0": 5, "k1": 2, "x": 7}, 14, 4), {"the result": [5, 2]}),
        Case("edge case", (["k0", "k1", "k2"], {"x": 5}, 14, 4), {"the result": []}),
        # The whole prompt is known, but one token must be fed, so one block is computed again.
        Case("edge case", (["k0", "k1", "k2"], {"k0": 5, "k1": 2, "k2": 9}, 12, 4), {"the result": [5, 2]}),
        # One more token: now all three full blocks can be taken.
        Case("edge case", (["k0", "k1", "k2"], {"k0": 5, "k1": 2, "k2": 9}, 13, 4), {"the result": [5, 2, 9]}),
        # k1 is gone: k2 cannot be used, because the tokens of k1 would be missing before it.
        Case("edge case", (["k0", "k1", "k2"], {"k0": 5, "k2": 9}, 14, 4), {"the result": [5]}),
        Case("edge case", (["k0"], {"k0": 5}, 1, 1), {"the result": []}),
        Case("edge case", ([], {"k0": 5}, 3, 4), {"the result": []}),
        Case("reference", _random_lookup(rng, 16, 9, 6, 3)),
    ],
    hidden=lambda rng: [
        Case("reference", _random_lookup(rng, rng.randint(2, 16), blocks, known, extra))
        for blocks, known, extra in ((8, 8, 0), (9, rng.randint(1, 7), 1), (5, 5, 1))
    ],
    mistakes=(
        Mistake(
            "whole-prompt-matched",
            "At least one token must be left to feed: its logits choose the first new token, and they are not cached.",
            lambda keys, index, n, b: _match(keys, index),
        ),
        Mistake(
            "one-block-short",
            "The last full block can be taken where tokens follow it: the limit is (length - 1) // b blocks.",
            lambda keys, index, n, b: _match(keys[:-1], index),
        ),
        Mistake(
            "goes-on-after-a-miss",
            "Stop at the first miss: the blocks behind it follow tokens whose keys and values are not there.",
            lambda keys, index, n, b: [index[key] for key in keys[: (n - 1) // b] if key in index],
        ),
        Mistake(
            "searched-from-the-end",
            "That a later block is known does not mean that the earlier ones still are: walk from the start.",
            _after_the_last_match,
        ),
        Mistake(
            "keys-for-blocks",
            "Return the numbers of the blocks, index[key], not their keys.",
            lambda keys, index, n, b: keys[: len(longest_prefix(keys, index, n, b))],
        ),
        Mistake(
            "tokens-for-blocks",
            "Return the list of blocks; how many tokens they hold follows from it.",
            lambda keys, index, n, b: b * len(longest_prefix(keys, index, n, b)),
        ),
        Mistake(
            "last-block-only",
            "A table needs every block of the prefix, not the last one only.",
            lambda keys, index, n, b: longest_prefix(keys, index, n, b)[-1:],
        ),
    ),
)
