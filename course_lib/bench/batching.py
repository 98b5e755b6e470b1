"""Static against continuous batching on the serving engine: the same requests, one run, output tokens per second.

All requests are there at the start (a closed experiment of throughput). Prompts are distinct, so a prefix cache could
not flatter; lengths are log-normal. Each policy serves all of them once per repeat, policies interleaved.
"""

from __future__ import annotations

import statistics
import time

import torch
from rich.console import Console
from rich.progress import track
from rich.table import Table

from course_lib import LLM, SamplingParams
from course_lib.bench.report import conditions
from course_lib.engine import ChunkedPrefill, ContinuousBatching, Engine, StaticBatching
from course_lib.perf.probe import probe
from course_lib.perf.workload import log_normal_lengths

POLICIES = {"static": StaticBatching, "continuous": ContinuousBatching, "chunked prefill": ChunkedPrefill}
BLOCK_SIZE = 16


def bench_batching(
    model: str = "smollm2-135m",
    requests: int = 64,
    prompt_mean: int = 128,
    output_mean: int = 128,
    sigma: float = 1.0,
    max_num_seqs: int = 16,
    threads: int = 2,
    repeats: int = 1,
    seed: int = 0,
) -> dict:
    """Raw times and step records' sums for each policy. The pool holds `max_num_seqs` of the longest sequences."""
    llm = LLM(model, device="cpu", dtype=torch.float32)
    generator, vocab = torch.Generator().manual_seed(seed), llm.model.config.vocab
    limit = min(512, llm.max_model_len // 2)
    prompts = [
        torch.randint(vocab, (n,), generator=generator).tolist()
        for n in log_normal_lengths(prompt_mean, sigma, requests, limit, generator)
    ]
    outputs = log_normal_lengths(output_mean, sigma, requests, limit, generator)
    params = [SamplingParams(temperature=0, max_tokens=n, ignore_eos=True) for n in outputs]
    blocks = max_num_seqs * -(-2 * limit // BLOCK_SIZE)

    before, runs = torch.get_num_threads(), {name: [] for name in POLICIES}
    torch.set_num_threads(threads)
    try:
        rounds = [(repeat, name) for repeat in range(repeats) for name in POLICIES]
        for _, name in track(rounds, "serving", console=Console(stderr=True)):
            engine = Engine(
                llm,
                blocks=blocks,
                block_size=BLOCK_SIZE,
                batching=POLICIES[name](),
                max_num_seqs=max_num_seqs,
                # Room for the longest prompt beside all decodes: whole prompts would else wait for the batch to drain.
                max_num_batched_tokens=limit + max_num_seqs,
            )
            runs[name].append(_serve(engine, prompts, params))
        bandwidth = probe("cpu").bandwidth
    finally:
        torch.set_num_threads(before)
    return conditions(
        benchmark="batching",
        model=model,
        dtype="float32",
        requests=requests,
        prompt_mean=prompt_mean,
        output_mean=output_mean,
        sigma=sigma,
        max_num_seqs=max_num_seqs,
        block_size=BLOCK_SIZE,
        threads=threads,
        repeats=repeats,
        seed=seed,
    ) | {
        "prompt_tokens": sum(map(len, prompts)),
        "output_tokens": sum(outputs),
        "longest_over_mean_output": max(outputs) / statistics.mean(outputs),
        "read_bandwidth": bandwidth,
        "runs": runs,
    }


def _serve(engine: Engine, prompts: list[list[int]], params: list[SamplingParams]) -> dict:
    start = time.perf_counter()
    engine.generate(prompts, params)
    seconds = time.perf_counter() - start
    steps = engine.metrics.steps
    in_use = sum(step.blocks.in_use for step in steps) * engine.manager.block_size  # slot-steps
    return {
        "seconds": seconds,
        "steps": len(steps),
        "mean_running": statistics.mean(step.running for step in steps),
        "waste": sum(step.blocks.waste for step in steps) / in_use,
        "scheduling_share": sum(step.scheduling_s for step in steps) / seconds,
        "forward_share": sum(step.forward_s for step in steps) / seconds,
        "ttft": [record.times.ttft for record in engine.metrics.requests],
        "tpot": [record.times.tpot for record in engine.metrics.requests],
    }


def show(result: dict) -> Table:
    """Medians over the repeats; the ratio is to static batching."""
    settings = result["settings"]
    table = Table(
        title="{requests} requests, {model}, at most {max_num_seqs} at once, {threads} threads".format(**settings)
    )
    columns = ("policy", "output tok/s", "ratio", "steps", "running", "KV waste", "scheduling", "mean TTFT")
    for column in columns:
        table.add_column(column, justify="right")
    seconds = {name: statistics.median(run["seconds"] for run in runs) for name, runs in result["runs"].items()}
    for name, runs in result["runs"].items():
        last = runs[-1]
        table.add_row(
            name,
            f"{result['output_tokens'] / seconds[name]:.1f}",
            f"{seconds['static'] / seconds[name]:.2f}x",
            str(last["steps"]),
            f"{last['mean_running']:.1f}",
            f"{last['waste']:.1%}",
            f"{last['scheduling_share']:.1%}",
            f"{statistics.mean(last['ttft']):.2f} s",
        )
    return table
