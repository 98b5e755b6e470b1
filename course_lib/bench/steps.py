"""What a decode step costs as more sequences run in it: matrix products, the rest of the model, drawing, scheduling.

The engine runs the step at each batch. Its linear layers are then timed alone on as many rows: what the CPU's matrix
product takes of the step. The scheduler and block manager run the same step without a model, with commits to the prefix
index, so that they can be timed at numbers of sequences whose cache would not fit in memory.
"""

from __future__ import annotations

import statistics
import time

import torch
from rich.console import Console
from rich.progress import track
from rich.table import Table
from torch import nn

from course_lib import LLM, SamplingParams
from course_lib.bench.report import conditions
from course_lib.cache import HashIndex
from course_lib.engine import Engine
from course_lib.linear import PackedLinear
from course_lib.model import Decoder
from course_lib.perf.simulation import SimulatedEngine
from course_lib.perf.timing import measure
from course_lib.perf.workload import Arrival, random_prompts

BLOCK_SIZE = 16


def bench_steps(
    model: str = "smollm2-135m",
    batches: tuple[int, ...] = (1, 2, 4, 8, 16, 64, 256),
    sequences: tuple[int, ...] = (16, 64, 256, 1024),
    prompt_tokens: int = 48,
    steps: int = 16,
    threads: int = 2,
    seed: int = 0,
) -> dict:
    """Seconds of each decode step: of the engine at each batch, of its bookkeeping at each number of sequences."""
    llm = LLM(model, device="cpu", dtype=torch.float32)
    before, runs = torch.get_num_threads(), {}
    torch.set_num_threads(threads)
    try:
        for batch in track(batches, "decode steps", console=Console(stderr=True)):
            products = _products(llm.model, batch)
            runs[batch] = _decode(llm, batch, prompt_tokens, steps, seed) | {"products_s": products}
        bookkeeping = {count: _bookkeeping(count, prompt_tokens, steps, seed) for count in sequences}
    finally:
        torch.set_num_threads(before)
    return conditions(
        benchmark="steps",
        model=model,
        dtype="float32",
        backend=llm.model.backend.name,
        prompt_tokens=prompt_tokens,
        steps=steps,
        block_size=BLOCK_SIZE,
        threads=threads,
        seed=seed,
    ) | {"batches": runs, "bookkeeping": bookkeeping}


def _arrivals(count: int, prompt_tokens: int, steps: int, seed: int) -> list[Arrival]:
    generator = torch.Generator().manual_seed(seed)
    params = SamplingParams(temperature=0, max_tokens=steps + 2, ignore_eos=True)
    # The ids of the smallest vocabulary serve every model.
    return [Arrival(0.0, prompt, params) for prompt in random_prompts(1024, [prompt_tokens] * count, generator)]


def _settings(count: int, prompt_tokens: int, steps: int) -> dict:
    """All prompts fit in one step, so that every later one is a decode of all sequences."""
    return dict(
        blocks=count * -(-(prompt_tokens + steps + 2) // BLOCK_SIZE),
        block_size=BLOCK_SIZE,
        index=HashIndex(),
        max_num_seqs=count,
        max_num_batched_tokens=count * prompt_tokens,
    )


def _decode(llm: LLM, batch: int, prompt_tokens: int, steps: int, seed: int) -> dict[str, list[float]]:
    engine = Engine(llm, **_settings(batch, prompt_tokens, steps))
    for arrival in _arrivals(batch, prompt_tokens, steps, seed):
        engine.add_request(arrival.prompt, arrival.params)
    while engine.has_unfinished:
        engine.step()
    records = [step for step in engine.metrics.steps if step.decode_tokens == batch][1:]  # the first warms up
    return {part: [getattr(step, part) for step in records] for part in ("scheduling_s", "forward_s", "sampling_s")}


def _products(model: Decoder, rows: int) -> list[float]:
    """Seconds of all linear layers of a forward pass with that many tokens, and of nothing else."""
    layers = [module for module in model.modules() if isinstance(module, (nn.Linear, PackedLinear))]
    inputs = {layer.in_features: torch.randn(rows, layer.in_features) for layer in layers}
    with torch.inference_mode():
        return list(measure(lambda: [layer(inputs[layer.in_features]) for layer in layers]).samples)


def _bookkeeping(count: int, prompt_tokens: int, steps: int, seed: int) -> list[float]:
    """Seconds of each decode step without a model: all that is left is the work of the scheduler and block manager, of
    appending the tokens and of the metrics."""
    engine = SimulatedEngine(**_settings(count, prompt_tokens, steps))
    engine.run(_arrivals(count, prompt_tokens, steps, seed), until=1)  # the prefill
    samples = []
    while engine.has_unfinished:
        start = time.perf_counter()
        engine.step()
        samples.append(time.perf_counter() - start)
    return samples[1:-1]  # the last one retires everybody


def show(result: dict) -> Table:
    """Medians. Times in ms, where nothing else is said; share: of the bookkeeping in a step with a model."""
    settings, median = result["settings"], statistics.median
    table = Table(title="Decode steps of {model}, float32, {threads} threads, ms".format(**settings))
    for column in ("batch", "step", "products", "tok/s", "ratio", "schedule", "us/seq", "share"):
        table.add_column(column, justify="right")
    first = None
    for batch in sorted(result["batches"].keys() | result["bookkeeping"].keys()):
        cells = dict.fromkeys(("step", "products", "tok/s", "ratio", "schedule", "us/seq", "share"), "")
        step = schedule = None
        if run := result["batches"].get(batch):
            step = sum(median(run[part]) for part in ("scheduling_s", "forward_s", "sampling_s"))
            first = first or batch / step
            cells |= {"step": f"{1e3 * step:.1f}", "products": f"{1e3 * median(run['products_s']):.1f}"}
            cells |= {"tok/s": f"{batch / step:.1f}", "ratio": f"{batch / step / first:.2f}x"}
        if samples := result["bookkeeping"].get(batch):
            schedule = median(samples)
            cells |= {"schedule": f"{1e3 * schedule:.2f}", "us/seq": f"{1e6 * schedule / batch:.2f}"}
        if step and schedule:
            cells["share"] = f"{schedule / (schedule + step):.2%}"
        table.add_row(str(batch), *cells.values())
    return table
