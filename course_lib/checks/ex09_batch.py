"""Exercise 09, fourth part: lay a step out as the flat, ragged batch that the model gets."""

from __future__ import annotations

from collections.abc import Callable
from random import Random

from course_lib.batch import Batch
from course_lib.checks.core import Case, Mistake, Problem, members

Feed = tuple[list[int], int, int]  # known tokens, how many of them are computed, how many are fed now
Lists = tuple[list[int], list[int], list[int], list[int]]
PARTS = ("token_ids", "positions", "query_lens", "last")


def ragged_batch(feeds: list[Feed]) -> Lists:
    batch = Batch.build([known[c : c + n] for known, c, n in feeds], [c for _, c, _ in feeds], range(len(feeds)))
    return batch.token_ids.tolist(), batch.positions.tolist(), list(batch.query_lens), batch.last


def _laid_out(
    tokens: Callable[[list[int], int, int], list[int]] = lambda known, c, n: known[c : c + n],
    positions: Callable[[int, int], range] = lambda c, n: range(c, c + n),
) -> Callable[[list[Feed]], Lists]:
    """`ragged_batch` with the tokens of a request, or their positions, replaced by wrong ones."""

    def wrong(feeds: list[Feed]) -> Lists:
        rows = [tokens(*feed) for feed in feeds]
        places = [place for (_, c, _), row in zip(feeds, rows, strict=True) for place in positions(c, len(row))]
        lens = [len(row) for row in rows]
        return sum(rows, []), places, lens, [sum(lens[: i + 1]) - 1 for i in range(len(lens))]

    return wrong


def _with(**changed: Callable[[list[Feed], Lists], list[int]]) -> Callable[[list[Feed]], Lists]:
    """`ragged_batch` with whole parts replaced; each function gets the feeds and the right lists."""

    def wrong(feeds: list[Feed]) -> Lists:
        right = ragged_batch(feeds)
        return tuple(
            changed[name](feeds, right) if name in changed else part for name, part in zip(PARTS, right, strict=True)
        )

    return wrong


def _padded(feeds: list[Feed]) -> Lists:
    longest = max(n for _, _, n in feeds)
    rows = [known[c : c + n] + [0] * (longest - n) for known, c, n in feeds]
    places = [c + i for _, c, _ in feeds for i in range(longest)]
    return sum(rows, []), places, [longest] * len(feeds), [(i + 1) * longest - 1 for i in range(len(feeds))]


def random_feeds(rng: Random, decodes: int, chunks: int) -> list[Feed]:
    """Requests that decode, then prompts of which a chunk is fed."""
    feeds = []
    for i in range(decodes + chunks):
        known = [rng.randrange(100) for _ in range(rng.randint(8, 12))]
        computed = len(known) - 1 if i < decodes else rng.randint(2, 4)
        feeds.append((known, computed, 1 if i < decodes else rng.randint(2, 4)))
    return feeds


DECODE = ([5, 6, 7], 2, 1)
CHUNK = ([40, 41, 42, 43, 44, 45], 1, 3)
FIRST = ([90, 91], 0, 2)

RAGGED_BATCH = Problem(
    name="ragged_batch",
    arguments=("feeds",),
    reference=ragged_batch,
    view=members(*PARTS),
    public=lambda rng: [
        # A decode of token 7 at position 2, a chunk from the middle of a prompt, and a prompt from its start.
        Case(
            "worked example",
            ([DECODE, CHUNK, FIRST],),
            {
                "the result": (None,) * 4,
                "token_ids": [7, 41, 42, 43, 90, 91],
                "positions": [2, 1, 2, 3, 0, 1],
                "query_lens": [1, 3, 2],
                "last": [0, 3, 5],
            },
        ),
        Case("edge case", ([DECODE],)),
        Case("edge case", ([FIRST],)),
        Case("edge case", ([([8], 0, 1), DECODE, DECODE],)),
        Case("reference", (random_feeds(rng, decodes=3, chunks=2),)),
    ],
    hidden=lambda rng: [
        Case("reference", (random_feeds(rng, decodes, chunks),)) for decodes, chunks in ((2, 3), (5, 1), (0, 2))
    ],
    mistakes=(
        Mistake(
            "chunk-positions-from-zero",
            "A chunk continues the count of its sequence: its first token stands at position `computed`, not at 0.",
            _laid_out(positions=lambda c, n: range(n)),
        ),
        Mistake(
            "position-one-too-far",
            "Positions count from 0, so behind `computed` tokens the next stands at `computed`, not one further.",
            _laid_out(positions=lambda c, n: range(c + 1, c + n + 1)),
        ),
        Mistake(
            "positions-across-the-batch",
            "A position is a token's place in its own sequence; the flat batch must not number its rows instead.",
            _with(positions=lambda feeds, right: list(range(len(right[1])))),
        ),
        Mistake(
            "tokens-from-the-start",
            "The first `computed` tokens are in the cache already: the next n begin at index `computed`.",
            _laid_out(tokens=lambda known, c, n: known[:n]),
        ),
        Mistake(
            "tokens-from-the-end",
            "The tokens fed are the next n behind `computed`; in a chunk from the middle they are not the last n.",
            _laid_out(tokens=lambda known, c, n: known[-n:]),
        ),
        Mistake(
            "whole-rest",
            "Feed n tokens, not all that remain: the plan cut the prompt to the budget.",
            _laid_out(tokens=lambda known, c, n: known[c:]),
        ),
        Mistake(
            "computed-fed-again",
            "The `computed` tokens were fed again; their keys and values are in the cache.",
            _laid_out(tokens=lambda known, c, n: known[: c + n], positions=lambda c, n: range(n)),
        ),
        Mistake(
            "last-one-past",
            "`last` is the index of a sequence's last row. Its end, the sum of the lengths so far, is one too far.",
            _with(last=lambda feeds, right: [end + 1 for end in right[3]]),
        ),
        Mistake(
            "last-within-the-sequence",
            "`last` counts rows of the flat batch: add the lengths of the sequences before.",
            _with(last=lambda feeds, right: [n - 1 for n in right[2]]),
        ),
        Mistake(
            "first-for-last",
            "The logits of a sequence's last row choose the next token; these are the indices of the first rows.",
            _with(last=lambda feeds, right: [end - n + 1 for end, n in zip(right[3], right[2], strict=True)]),
        ),
        Mistake(
            "context-for-query-lens",
            "`query_lens` counts the tokens that are fed; the cached ones have no row in the batch.",
            _with(query_lens=lambda feeds, right: [c + n for _, c, n in feeds]),
        ),
        Mistake(
            "padded",
            "No padding: the sequences lie end to end, each with as many rows as it feeds tokens.",
            _padded,
        ),
    ),
)
