"""How long a decode step takes as its context grows, for each ratio H / K and for an 8-bit cache, on the CPU.

One random model for all, but for its KV heads. The variants of a context take turns, so that a busy moment meets them
all. A step reads the cache once: where it waits for memory, a cache of an eighth is read in an eighth of the time.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import torch
from rich.console import Console
from rich.progress import track
from rich.table import Table

from course_lib.bench.report import conditions
from course_lib.cache.formats import FORMATS
from course_lib.config import ModelConfig
from course_lib.model import Decoder
from course_lib.perf.passes import decode_pass
from course_lib.perf.probe import probe
from course_lib.perf.timing import measure

# 8 heads of 64 in narrow layers, so that the cache is what a step at a long context costs.
SHAPE = ModelConfig(
    architecture="llama", layers=4, hidden=256, heads=8, kv_heads=8, head_dim=64, ffn=512, vocab=1024, context=16384
)
VARIANTS = ((1, "auto"), (1, "int8"), (2, "auto"), (4, "auto"), (8, "auto"))  # H / K and format


def bench_kv_decode(
    contexts: Sequence[int] = (256, 1024, 4096),
    batch: int = 4,
    repeats: int = 15,
    threads: int = 2,
    seed: int = 0,
) -> dict:
    """Raw times, in seconds, of a decode step of `batch` sequences at each context, and the bytes of their cache."""
    before = torch.get_num_threads()
    torch.set_num_threads(threads)
    try:
        machine = probe("cpu")
        steps = []
        for context in track(contexts, "decode", console=Console(stderr=True)):
            steps += _context(context, batch, repeats, seed)
    finally:
        torch.set_num_threads(before)
    return conditions(
        benchmark="kv-decode",
        shape=f"L {SHAPE.layers}, h {SHAPE.hidden}, H {SHAPE.heads}, d {SHAPE.head_dim}, f {SHAPE.ffn}",
        dtype="float32",
        backend="torch",
        batch=batch,
        repeats=repeats,
        threads=threads,
        seed=seed,
    ) | {"read_bandwidth": machine.bandwidth, "steps": steps}


def _context(context: int, batch: int, repeats: int, seed: int) -> list[dict]:
    models = {
        ratio: Decoder.random(replace(SHAPE, kv_heads=SHAPE.heads // ratio), seed, backend="torch")
        for ratio, _ in VARIANTS
    }
    passes = [decode_pass(models[ratio], batch, context, FORMATS[name]) for ratio, name in VARIANTS]
    samples = [[] for _ in passes]
    for _ in range(repeats):
        for run, times in zip(passes, samples, strict=True):
            times += measure(run, repeats=1, warmup=1).samples
    return [
        {
            "ratio": ratio,
            "format": name,
            "context": context,
            "cache_bytes": models[ratio].new_cache(batch, context, FORMATS[name]).nbytes,
            "samples": times,
        }
        for (ratio, name), times in zip(VARIANTS, samples, strict=True)
    ]


def show(result: dict) -> Table:
    """The medians, beside the time that reading the cache alone would take."""
    title = "A decode step of {batch} sequences, {threads} threads; {shape}".format(**result["settings"])
    columns = "H / K", "format", "context", "cache", "median step", "10 % to 90 %", "reading the cache"
    table = Table(*columns, title=title)
    for row in result["steps"]:
        low, median, high = np.quantile(row["samples"], (0.1, 0.5, 0.9)) * 1e3
        size = f"{row['cache_bytes'] / 1e6:.1f} MB"
        bound = f"{row['cache_bytes'] / result['read_bandwidth'] * 1e3:.2f} ms"
        times = f"{median:.2f} ms", f"{low:.2f} to {high:.2f}", bound
        table.add_row(str(row["ratio"]), row["format"], f"{row['context']:,}", size, *times)
    return table
