"""Exercise 08, first part: how many blocks a sequence needs, and where its tokens lie.

Letters: b tokens per block, n tokens of a sequence, m entries of a block table, t positions asked for.
"""

from __future__ import annotations

from random import Random

import torch
from torch import Tensor

from course_lib.checks.core import Case, Mistake, Outcome, Problem, Property, members

# --- block_count ---


def block_count(tokens: int, block_size: int) -> tuple[int, int]:
    blocks = -(-tokens // block_size)
    return blocks, blocks * block_size - tokens


blocks_and_empty = members("the blocks", "the empty slots")


def _counted(blocks: int, empty: int) -> dict:
    return blocks_and_empty(Outcome((blocks, empty)))


BLOCK_COUNT = Problem(
    name="block_count",
    arguments=("tokens", "block_size"),
    reference=block_count,
    public=lambda rng: [
        # 10 tokens in blocks of 4: 4 + 4 + 2, and two slots of the third block are empty.
        Case("worked example", (10, 4), _counted(3, 2)),
        Case("edge case", (8, 4), _counted(2, 0)),
        Case("edge case", (9, 4), _counted(3, 3)),
        Case("edge case", (7, 4), _counted(2, 1)),
        Case("edge case", (0, 16), _counted(0, 0)),
        Case("edge case", (5, 1), _counted(5, 0)),
        Case("reference", (4097, 16)),
    ],
    hidden=lambda rng: [
        Case("reference", (b * rng.randint(1, 90) + extra, b))
        for b, extra in ((16, 0), (rng.randint(5, 40), 1), (32, rng.randint(2, 31)))
    ],
    view=blocks_and_empty,
    mistakes=(
        Mistake(
            "ceil-missing",
            "A partly filled block is a whole block of memory: round up, not down.",
            lambda n, b: (n // b, n // b * b - n),
        ),
        Mistake(
            "ceil-missing-in-count",
            "The empty slots are right; the blocks are not: a partly filled block is a whole block, so round up.",
            lambda n, b: (n // b, -n % b),
        ),
        Mistake(
            "rounded-to-nearest",
            "Rounding to the nearest leaves the tokens of a block that is less than half full no place: round up.",
            lambda n, b: (round(n / b), -n % b),
        ),
        Mistake(
            "always-one-more",
            "n // b + 1 is one block too many where the last block is exactly full: use -(-n // b).",
            lambda n, b: (n // b + 1, (n // b + 1) * b - n),
        ),
        Mistake(
            "full-block-called-empty",
            "Where b divides n the last block is full: 0 slots are empty, not b.",
            lambda n, b: (-(-n // b), b - n % b),
        ),
        Mistake(
            "filled-for-empty",
            "n % b is how many slots of the last block are filled; the empty ones are blocks * b - n.",
            lambda n, b: (-(-n // b), n % b),
        ),
        Mistake(
            "waste-in-every-block",
            "Only the last block can have empty slots; all blocks before it are full.",
            lambda n, b: (-(-n // b), -(-n // b) * (-n % b)),
        ),
        Mistake(
            "blocks-only",
            "Return two things: the number of blocks, and how many of their slots are empty.",
            lambda n, b: -(-n // b),
        ),
    ),
)


# --- slots ---


def slots(table: Tensor, positions: Tensor, block_size: int) -> Tensor:
    return table[positions // block_size].long() * block_size + positions % block_size


def _table(*blocks: int) -> Tensor:
    return torch.tensor(blocks, dtype=torch.int32)


def _random_slots(rng: Random, block_size: int, blocks: int) -> tuple[Tensor, Tensor, int]:
    """A shuffled table, padded with 0 as a batch's tables are, and positions from all over the sequence."""
    positions = sorted(rng.sample(range(blocks * block_size), min(20, blocks * block_size)))
    table = _table(*rng.sample(range(1, 4 * blocks), blocks), 0, 0)
    return table, torch.tensor(positions), block_size


def _in_order(views: list[dict[str, Tensor]]) -> str | None:
    chunk = torch.cat([view["the result"] for view in views[:2]])
    same = chunk.equal(views[2]["the result"])
    return None if same else f"{chunk.tolist()} and {views[2]['the result'].tolist()}"


SLOTS = Problem(
    name="slots",
    arguments=("table", "positions", "block_size"),
    reference=slots,
    public=lambda rng: [
        # Positions 3, 4, 9 in blocks of 4: entries 0, 1, 2, blocks 7, 2, 5, offsets 3, 0, 1.
        Case(
            "worked example", (_table(7, 2, 5), torch.tensor([3, 4, 9]), 4), {"the result": torch.tensor([31, 8, 21])}
        ),
        Case("edge case", (_table(6), torch.tensor([0]), 16)),
        Case("edge case", (_table(3, 0, 0), torch.tensor([2]), 4)),  # a table that is padded with 0
        Case("edge case", (_table(4, 9), torch.tensor([], dtype=torch.int64), 4)),
        Property(
            "the slots of a chunk and of the chunk behind it are the slots of both together",
            tuple((_table(7, 2, 5), torch.arange(*ends), 4) for ends in ((0, 5), (5, 11), (0, 11))),
            _in_order,
        ),
        Case("reference", _random_slots(rng, 16, 8)),
        # A large pool: slot 4,294,967,301 of an int32 product is slot 5, another sequence's.
        Case("edge case", (_table(1 << 28), torch.tensor([5]), 16), {"the result": torch.tensor([(1 << 32) + 5])}),
    ],
    hidden=lambda rng: [
        Case("reference", _random_slots(rng, b, rng.randint(3, 30))) for b in (1, 16, rng.randint(3, 13))
    ],
    mistakes=(
        Mistake(
            "entry-for-block",
            "p // b is the place in the table; the block is the entry that stands there: table[p // b].",
            lambda table, p, b: p // b * b + p % b,
        ),
        Mistake(
            "offset-left-out",
            "Add the offset in the block, p % b: a block has b slots.",
            lambda table, p, b: table[p // b].long() * b,
        ),
        Mistake(
            "restarts-in-every-block",
            "The slots start again in every block: the block's first slot, block * b, is missing.",
            lambda table, p, b: p % b,
        ),
        Mistake(
            "block-for-slot",
            "A block has b slots, so its first one is block * b, not block.",
            lambda table, p, b: table[p // b].long() + p % b,
        ),
        Mistake(
            "position-for-offset",
            "Add the offset in the block, p % b, not the position p: the table entry has counted the earlier blocks.",
            lambda table, p, b: table[p // b].long() * b + p,
        ),
        Mistake(
            "table-length-for-block-size",
            "A block has b slots; the length of the table is something else.",
            lambda table, p, b: table[p // b].long() * len(table) + p % b,
        ),
        Mistake(
            "one-block-for-all",
            "Each position has its own table entry; here all use the first position's block.",
            lambda table, p, b: table[p // b][:1].long() * b + p % b,
        ),
        Mistake(
            "int32-product",
            "block * b was computed in int32 and wrapped: convert the table entry to int64 before the product.",
            lambda table, p, b: table[p // b] * b + p % b,
        ),
        Mistake(
            "int32-result",
            "Slots are int64: in a pool of a few GB, slot * K * d passes 2**31.",
            lambda table, p, b: slots(table, p, b).int(),
        ),
        Mistake(
            "list-for-tensor",
            "The cache is indexed with a tensor of slots, int64 [t], not with a list.",
            lambda table, p, b: slots(table, p, b).tolist(),
        ),
    ),
)
