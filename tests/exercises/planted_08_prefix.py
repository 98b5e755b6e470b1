"""Wrong solutions of exercise 08: keys of blocks and the longest cached prefix."""

from __future__ import annotations

from tests.exercises.planting import planted

# --- block_keys ---


@planted("block_keys", "parent-left-out")
def own_tokens_only(tokens, block_size, salt, key):
    return [key("", tokens[i * block_size : (i + 1) * block_size]) for i in range(len(tokens) // block_size)]


@planted("block_keys", "salt-for-parent")
def salted_blocks(tokens, block_size, salt, key):
    return [key(salt, tokens[i * block_size : (i + 1) * block_size]) for i in range(len(tokens) // block_size)]


@planted("block_keys", "salt-left-out")
def unsalted(tokens, block_size, salt, key):
    keys = []
    for i in range(len(tokens) // block_size):
        keys.append(key(keys[-1] if keys else "", tokens[i * block_size : (i + 1) * block_size]))
    return keys


@planted("block_keys", "partial-block-hashed")
def hashes_the_rest(tokens, block_size, salt, key):
    keys, parent = [], salt
    for start in range(0, len(tokens), block_size):
        parent = key(parent, tokens[start : start + block_size])
        keys.append(parent)
    return keys


@planted("block_keys", "one-step-back")
def two_blocks_in_a_key(tokens, block_size, salt, key):
    blocks = [tokens[i * block_size : (i + 1) * block_size] for i in range(len(tokens) // block_size)]
    return [key(key(salt, blocks[i - 1]) if i else salt, block) for i, block in enumerate(blocks)]


@planted("block_keys", "prefix-hashed-again")
def whole_prefixes(tokens, block_size, salt, key):
    return [key(salt, tokens[: (i + 1) * block_size]) for i in range(len(tokens) // block_size)]


@planted("block_keys", "blocks-overlap")
def sliding(tokens, block_size, salt, key):
    keys, parent = [], salt
    for start in range(len(tokens) - block_size + 1):
        parent = key(parent, tokens[start : start + block_size])
        keys.append(parent)
    return keys


@planted("block_keys", "last-key-only")
def final_key(tokens, block_size, salt, key):
    parent, keys = salt, []
    while len(tokens) >= block_size:
        parent, tokens = key(parent, tokens[:block_size]), tokens[block_size:]
        keys = [parent]
    return keys


# --- longest_prefix ---


@planted("longest_prefix", "whole-prompt-matched")
def nothing_left_to_feed(keys, index, length, block_size):
    blocks = []
    while len(blocks) < len(keys) and keys[len(blocks)] in index:
        blocks.append(index[keys[len(blocks)]])
    return blocks


@planted("longest_prefix", "one-block-short")
def always_drops_the_last(keys, index, length, block_size):
    blocks = []
    for key in keys[: length // block_size - 1]:
        if key not in index:
            return blocks
        blocks.append(index[key])
    return blocks


@planted("longest_prefix", "goes-on-after-a-miss")
def all_known_blocks(keys, index, length, block_size):
    blocks = [index.get(key) for key in keys[: (length - 1) // block_size]]
    return [block for block in blocks if block is not None]


@planted("longest_prefix", "searched-from-the-end")
def last_known_key(keys, index, length, block_size):
    keys = keys[: (length - 1) // block_size]
    while keys and keys[-1] not in index:
        keys = keys[:-1]
    return [index[key] for key in keys]


def _known(keys, index, length, block_size):
    known = []
    for key in keys[: (length - 1) // block_size]:
        if key not in index:
            break
        known.append(key)
    return known


@planted("longest_prefix", "keys-for-blocks")
def gives_keys(keys, index, length, block_size):
    return _known(keys, index, length, block_size)


@planted("longest_prefix", "tokens-for-blocks")
def counts_tokens(keys, index, length, block_size):
    return len(_known(keys, index, length, block_size)) * block_size


@planted("longest_prefix", "last-block-only")
def deepest_block(keys, index, length, block_size):
    known = _known(keys, index, length, block_size)
    return [index[known[-1]]] if known else []
