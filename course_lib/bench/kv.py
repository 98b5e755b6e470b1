"""What smaller KV caches cost: perplexity against bits per element, and under windows with and without sinks.

Non-overlapping windows of the course's held-out text, the first token of each not scored, fed in chunks. Every query
reads every key through the cache, those of its own chunk too.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from rich.console import Console
from rich.progress import track
from rich.table import Table

from course_lib import LLM
from course_lib.bench.report import conditions
from course_lib.cache.eight_bit import EightBit
from course_lib.cache.formats import FORMATS
from course_lib.cache.kivi import Kivi
from course_lib.cache.per_token import Int4
from course_lib.cache.store import FLOAT, KVFormat
from course_lib.calibration import fit_codebook
from course_lib.model import Decoder
from course_lib.perf.perplexity import score
from course_lib.weights.loading import ASSETS
from course_lib.windowed import windowed


def bench_kv(
    model: str = "tiny",
    windows: int = 16,
    window: int = 512,
    chunk: int = 32,
    visible: Sequence[int] = (16, 64, 128, 256),
    threads: int = 2,
) -> dict:
    """Perplexity and bytes of each format, and of each number of visible tokens with 0, 1 and 4 sinks."""
    before = torch.get_num_threads()
    torch.set_num_threads(threads)
    try:
        llm = LLM(model, device="cpu", dtype=torch.float32, backend="torch")
        text = llm.tokenizer.encode((ASSETS / "heldout.txt").read_text(encoding="utf-8"))
        tokens, calibration = text[: windows * window], text[-min(1024, llm.model.config.context) :]
        quality = _formats(llm.model, tokens, calibration, window, chunk)
        seen = _visible(llm.model, tokens, window, chunk, visible)
    finally:
        torch.set_num_threads(before)
    return conditions(
        benchmark="kv",
        model=model,
        dtype="float32",
        backend=llm.model.backend.name,
        text="the first tokens of heldout.txt, windows without overlap, first token of each not scored",
        calibration=f"the last {len(calibration)} tokens of heldout.txt, for codebooks",
        windows=windows,
        window=window,
        chunk=chunk,
        scored_tokens=windows * (window - 1),
        threads=threads,
    ) | {"formats": quality, "visible": seen}


def formats(model: Decoder, calibration: Sequence[int]) -> dict[str, KVFormat]:
    """Every format, and before RoPE those that are sensitive to it; a codebook is fitted to the calibration tokens."""
    d = model.config.head_dim
    return {
        "float": FLOAT,
        **{name: each for name, each in FORMATS.items() if isinstance(each, EightBit)},
        "int4, one group a head": Int4(group=d),
        "int4, groups of 16": Int4(group=16),
        "int4, before RoPE": Int4(group=d, before_rope=True),
        "nuq4": fit_codebook(model, calibration),
        "nuq4, before RoPE": fit_codebook(model, calibration, before_rope=True),
        "kivi4": Kivi(bits=4),
        "kivi2": Kivi(bits=2),
        "kivi2, before RoPE": Kivi(bits=2, before_rope=True),
    }


def _formats(model: Decoder, tokens: list[int], calibration: list[int], window: int, chunk: int) -> list[dict]:
    results = []
    for name, kv_format in track(formats(model, calibration).items(), "formats", console=Console(stderr=True)):
        result = score(model, tokens, window, chunk, lambda rows, n, f=kv_format: model.new_cache(rows, n, f))
        cache, floats = (model.new_cache(1, window, each) for each in (kv_format, FLOAT))
        results.append(
            {
                "format": name,
                "bits_per_element": 8 * kv_format.bytes_per_element(model.config.head_dim, torch.float16),
                "bytes": cache.nbytes,  # of one window, a float residual included
                "float32_bytes": floats.nbytes,
                "perplexity": result.perplexity,
            }
        )
    return results


def _visible(model: Decoder, tokens: list[int], window: int, chunk: int, visible: Sequence[int]) -> list[dict]:
    cases = [(n, sinks) for n in visible for sinks in (0, 1, 4)]
    results = []
    for n, sinks in track(cases, "windows", console=Console(stderr=True)):
        twin = windowed(model, n, sinks)
        results.append(
            {
                "window": n,
                "sinks": sinks,
                "bytes": twin.new_cache(1, window).nbytes,
                "perplexity": score(twin, tokens, window, chunk).perplexity,
            }
        )
    return results


def show(result: dict) -> list[Table]:
    """Two tables: formats, windows."""
    base = result["formats"][0]
    title = "{model}: {scored_tokens:,} tokens scored in windows of {window}".format(**result["settings"])
    quality = Table("format", "bits", "bytes of a window", "perplexity", "change", title=title)
    for row in result["formats"]:
        change = row["perplexity"] / base["perplexity"] - 1
        share = row["bytes"] / row["float32_bytes"]
        size = f"{row['bits_per_element']:.2f}", f"{share:.1%} of float32"
        quality.add_row(row["format"], *size, f"{row['perplexity']:.2f}", f"{change:+.2%}")
    seen = Table("window", "sinks", "bytes", "perplexity", title="Windows imposed on every layer")
    for row in result["visible"]:
        share = row["bytes"] / base["float32_bytes"]
        seen.add_row(str(row["window"]), str(row["sinks"]), f"{share:.1%} of float32", f"{row['perplexity']:.2f}")
    return [quality, seen]
