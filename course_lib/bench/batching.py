"""Static against continuous batching on the serving engine: the same requests, one run, output tokens per second.

All requests are there at the start (a closed experiment of throughput). Prompts are distinct, so a prefix cache could
not flatter; lengths are log-normal. A repeat draws its own lengths and prompts, and each policy serves them once.
"""

from __future__ import annotations

import statistics
import time

import torch
from rich.console import Console
from rich.progress import Progress
from rich.table import Table

from course_lib import LLM, SamplingParams
from course_lib.bench.report import conditions
from course_lib.engine import ChunkedPrefill, ContinuousBatching, Engine, StaticBatching
from course_lib.perf.probe import probe
from course_lib.perf.workload import log_normal_lengths, random_prompts

POLICIES = {"static": StaticBatching, "continuous": ContinuousBatching, "chunked prefill": ChunkedPrefill}
BLOCK_SIZE = 16


def bench_batching(
    model: str = "smollm2-135m",
    requests: int = 64,
    prompt_mean: int = 32,
    output_mean: int = 96,
    sigma: float = 1.2,
    max_num_seqs: int = 8,
    threads: int = 2,
    repeats: int = 3,
    seed: int = 0,
) -> dict:
    """Raw times and step records' sums for each repeat and policy. The pool holds `max_num_seqs` of the longest
    sequences. Repeat i draws with seed + i."""
    llm = LLM(model, device="cpu", dtype=torch.float32)
    limit = min(512, llm.max_model_len // 2)
    before, rounds = torch.get_num_threads(), []
    torch.set_num_threads(threads)
    try:
        with Progress(console=Console(stderr=True)) as progress:
            bar = progress.add_task("serving", total=repeats * len(POLICIES))
            for number in range(seed, seed + repeats):
                prompts, params = _draw(llm, requests, (prompt_mean, output_mean), sigma, limit, number)
                runs = {}
                for name, policy in POLICIES.items():
                    engine = Engine(
                        llm,
                        blocks=max_num_seqs * -(-2 * limit // BLOCK_SIZE),
                        block_size=BLOCK_SIZE,
                        batching=policy(),
                        max_num_seqs=max_num_seqs,
                        # Room for the longest prompt beside all decodes, or whole prompts wait for the batch to drain.
                        max_num_batched_tokens=limit + max_num_seqs,
                    )
                    runs[name] = _serve(engine, prompts, params)
                    progress.advance(bar)
                outputs = [each.max_tokens for each in params]
                rounds.append(
                    {
                        "seed": number,
                        "prompt_tokens": sum(map(len, prompts)),
                        "output_tokens": sum(outputs),
                        "longest_over_mean_output": max(outputs) / statistics.mean(outputs),
                        "runs": runs,
                    }
                )
        bandwidth = probe("cpu").bandwidth
    finally:
        torch.set_num_threads(before)
    return conditions(
        benchmark="batching",
        model=model,
        dtype="float32",
        backend=llm.model.backend.name,
        requests=requests,
        prompt_mean=prompt_mean,
        output_mean=output_mean,
        sigma=sigma,
        max_num_seqs=max_num_seqs,
        block_size=BLOCK_SIZE,
        threads=threads,
        repeats=repeats,
        seed=seed,
    ) | {"read_bandwidth": bandwidth, "rounds": rounds}


def _draw(
    llm: LLM, requests: int, means: tuple[int, int], sigma: float, limit: int, seed: int
) -> tuple[list[list[int]], list[SamplingParams]]:
    """Prompts, and how many tokens to generate for each."""
    generator = torch.Generator().manual_seed(seed)
    prompt_lengths, outputs = (log_normal_lengths(mean, sigma, requests, limit, generator) for mean in means)
    prompts = random_prompts(llm.model.config.vocab, prompt_lengths, generator)
    return prompts, [SamplingParams(temperature=0, max_tokens=n, ignore_eos=True) for n in outputs]


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
    """Medians over the repeats. The ratio is to static batching on the same requests, with its range."""
    settings, median = result["settings"], statistics.median
    table = Table(
        title="{requests} requests, {model}, at most {max_num_seqs} at once, {threads} threads".format(**settings)
    )
    columns = ("policy", "output tok/s", "to static", "steps", "KV waste", "mean TTFT")
    for column in columns:
        table.add_column(column, justify="right")
    for name in POLICIES:
        runs = [each["runs"][name] for each in result["rounds"]]
        speeds = [each["output_tokens"] / run["seconds"] for each, run in zip(result["rounds"], runs, strict=True)]
        ratios = [each["runs"]["static"]["seconds"] / each["runs"][name]["seconds"] for each in result["rounds"]]
        table.add_row(
            name,
            f"{median(speeds):.1f}",
            f"{median(ratios):.2f}x ({min(ratios):.2f}-{max(ratios):.2f})",
            f"{median(run['steps'] for run in runs):.0f}",
            f"{median(run['waste'] for run in runs):.1%}",
            f"{median(statistics.mean(run['ttft']) for run in runs):.2f} s",
        )
    return table
