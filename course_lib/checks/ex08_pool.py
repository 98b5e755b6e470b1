"""The block pool of exercise 08, as three lists that go in and come back.

refs[b]: how many block tables hold block b. free: blocks that nobody needs, taken from the end. cached: blocks without
a holder whose content the prefix index knows, the one released longest ago first.
"""

from __future__ import annotations

from random import Random
from typing import Any

Lists = tuple[list[int], ...]


def recount(views: list[dict[str, Any]]) -> str | None:
    """Every block without a holder is free or cached, once."""
    for view in views:
        idle = [block for block, count in enumerate(view["refs"]) if count == 0]
        found = sorted(view["free"] + view["cached"])
        if idle != found:
            return f"blocks with 0 references {idle}, free and cached blocks {found}"
    return None


def random_pool(rng: Random, total: int) -> tuple[Lists, list[int]]:
    """(refs, free, cached) of a pool with blocks of each kind, and the blocks that are held."""
    order = rng.sample(range(total), total)
    held, cached, free = order[: total // 2], order[total // 2 : 3 * total // 4], order[3 * total // 4 :]
    refs = [rng.randint(1, 3) if block in held else 0 for block in range(total)]
    return (refs, free, cached), held
