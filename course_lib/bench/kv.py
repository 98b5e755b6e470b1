"""What smaller KV caches cost and gain: perplexity against bits per element, windows with and without sinks, and the
time of a decode step as the context grows.

Perplexity: non-overlapping windows of the course's held-out text, the first token of each not scored, fed in chunks.
Every query reads every key through the cache, those of its own chunk too. Times: one decode step of a random model,
all variants of a context taken in turns, so that a busy moment meets them all.
"""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from dataclasses import replace

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
from course_lib.cache.store import FLOAT, Float, KVFormat
from course_lib.calibration import fit_codebook
from course_lib.config import ModelConfig
from course_lib.model import Decoder
from course_lib.perf.passes import decode_pass
from course_lib.perf.perplexity import score
from course_lib.perf.timing import measure
from course_lib.weights.loading import ASSETS
from course_lib.windowed import windowed

# One shape for all ratios H / K: 8 heads of 64, narrow layers, so that the cache is what a long context costs.
SHAPE = ModelConfig(
    architecture="llama", layers=4, hidden=256, heads=8, kv_heads=8, head_dim=64, ffn=512, vocab=1024, context=8192
)


def bench_kv(
    model: str = "tiny",
    windows: int = 16,
    window: int = 512,
    chunk: int = 32,
    visible: Sequence[int] = (16, 64, 128, 256),
    contexts: Sequence[int] = (256, 1024, 4096),
    batch: int = 4,
    repeats: int = 7,
    threads: int = 2,
    seed: int = 0,
) -> dict:
    """Perplexity of each format and of each visible window; raw times, in seconds, of each ratio H / K and of int8."""
    before = torch.get_num_threads()
    torch.set_num_threads(threads)
    try:
        llm = LLM(model, device="cpu", dtype=torch.float32, backend="torch")
        text = llm.tokenizer.encode((ASSETS / "heldout.txt").read_text(encoding="utf-8"))
        tokens, calibration = text[: windows * window], text[-min(1024, llm.model.config.context) :]
        quality = _quality(llm.model, tokens, calibration, window, chunk)
        seen = _windows(llm.model, tokens, window, chunk, visible)
        speed = _speed(contexts, batch, repeats, seed)
    finally:
        torch.set_num_threads(before)
    return conditions(
        benchmark="kv",
        model=model,
        dtype="float32",
        backend=llm.model.backend.name,
        text="heldout.txt, windows without overlap, first token of each not scored",
        windows=windows,
        window=window,
        chunk=chunk,
        scored_tokens=windows * (window - 1),
        batch=batch,
        repeats=repeats,
        threads=threads,
        seed=seed,
    ) | {"formats": quality, "visible": seen, "decode": speed}


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


def _quality(model: Decoder, tokens: list[int], calibration: list[int], window: int, chunk: int) -> list[dict]:
    results = []
    for name, kv_format in track(formats(model, calibration).items(), "formats", console=Console(stderr=True)):
        result = score(model, tokens, window, chunk, lambda rows, n, f=kv_format: model.new_cache(rows, n, f))
        cache, floats = model.new_cache(1, window, kv_format), model.new_cache(1, window, Float())
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


def _windows(model: Decoder, tokens: list[int], window: int, chunk: int, visible: Sequence[int]) -> list[dict]:
    cases = [(n, sinks) for n in visible for sinks in (0, 4)]
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


def _speed(contexts: Sequence[int], batch: int, repeats: int, seed: int) -> list[dict]:
    """Seconds of a decode step of `batch` sequences, for H / K = 1, 2, 4, 8 in float32 and for H / K = 1 in int8."""
    results = []
    for context in track(contexts, "decode", console=Console(stderr=True)):
        passes = {}
        for ratio in (1, 2, 4, 8):
            model = Decoder.random(replace(SHAPE, kv_heads=SHAPE.heads // ratio), seed, backend="torch")
            passes[f"{ratio}, float32"] = model, decode_pass(model, batch, context), FLOAT
            if ratio == 1:
                int8 = FORMATS["int8"]
                passes["1, int8"] = model, decode_pass(model, batch, context, int8), int8
        samples = {name: [] for name in passes}
        for _ in range(repeats):
            for name, (_, run, _) in passes.items():
                samples[name] += measure(run, repeats=1, warmup=1).samples
        for name, (model, _, kv_format) in passes.items():
            size = batch * model.new_cache(1, context, kv_format).nbytes
            results.append({"ratio": name, "context": context, "cache_bytes": size, "samples": samples[name]})
    return results


def show(result: dict) -> list[Table]:
    """Three tables: formats, windows, decode steps."""
    base = result["formats"][0]
    title = "{model}: {scored_tokens:,} tokens scored in windows of {window}".format(**result["settings"])
    quality = Table("format", "bits", "bytes of a window", "perplexity", "change", title=title)
    for row in result["formats"]:
        change = row["perplexity"] / base["perplexity"] - 1
        share = row["bytes"] / row["float32_bytes"]
        cells = (
            f"{row['bits_per_element']:.2f}",
            f"{share:.1%} of float32",
            f"{row['perplexity']:.2f}",
            f"{change:+.2%}",
        )
        quality.add_row(row["format"], *cells)
    seen = Table("window", "sinks", "bytes", "perplexity", title="Windows imposed on every layer")
    for row in result["visible"]:
        share = row["bytes"] / base["float32_bytes"]
        seen.add_row(str(row["window"]), str(row["sinks"]), f"{share:.1%} of float32", f"{row['perplexity']:.2f}")
    speed = Table(
        "H / K", "context", "cache", "median step", title="A decode step of {batch}".format(**result["settings"])
    )
    for row in result["decode"]:
        step = f"{1e3 * statistics.median(row['samples']):.2f} ms"
        speed.add_row(row["ratio"], f"{row['context']:,}", f"{row['cache_bytes'] / 1e6:.1f} MB", step)
    return [quality, seen, speed]
