"""Prefill and decode of one request: this engine against transformers, interleaved in one process.

Both generate greedily from the same prompt and the same float32 weights, each through its public entry, and both are
timed token by token. Decode is compared with the bytes it must read: weights and KV cache over the memory bandwidth.
"""

from __future__ import annotations

import statistics
import time

import torch
from rich.console import Console
from rich.progress import track
from rich.table import Table

from course_lib import LLM, SamplingParams
from course_lib.bench.peers import Clock, as_transformers
from course_lib.bench.report import conditions
from course_lib.perf.counts import decode_cost
from course_lib.perf.probe import probe


def bench_decode(
    model: str = "smollm2-135m",
    threads: tuple[int, ...] = (1, 2),
    prompt_tokens: int = 256,
    new_tokens: int = 64,
    repeats: int = 7,
    seed: int = 0,
) -> dict:
    """Raw times of prefill (TTFT) and decode (TPOT), in seconds, for each engine and number of threads."""
    llm = LLM(model, device="cpu", dtype=torch.float32)
    twin = as_transformers(llm.model)
    prompt = torch.randint(0, llm.model.config.vocab, (prompt_tokens,), generator=torch.Generator().manual_seed(seed))
    with torch.inference_mode():
        difference = float((llm.model(prompt) - twin(prompt[None]).logits[0]).abs().max())

    engines = {
        "course": lambda: _ours(llm, prompt, new_tokens),
        "transformers": lambda: _theirs(twin, prompt, new_tokens),
    }
    before, runs = torch.get_num_threads(), []
    try:
        for count in threads:
            torch.set_num_threads(count)
            machine = probe("cpu")
            samples = {name: {"ttft": [], "tpot": []} for name in engines}
            for repeat in track(range(-1, repeats), f"{count} thread{'s' * (count > 1)}", console=Console(stderr=True)):
                for name, run in engines.items():
                    ttft, tpot = run()
                    if repeat >= 0:  # the first round warms up
                        samples[name]["ttft"].append(ttft)
                        samples[name]["tpot"].append(tpot)
            runs.append({"threads": count, "read_bandwidth": machine.bandwidth, "samples": samples})
    finally:
        torch.set_num_threads(before)
    cost = decode_cost(llm.model.config, 1, prompt_tokens + new_tokens // 2, 4, 4)
    return conditions(
        benchmark="decode",
        model=model,
        dtype="float32",
        backend=llm.model.backend.name,
        prompt_tokens=prompt_tokens,
        new_tokens=new_tokens,
        repeats=repeats,
        seed=seed,
    ) | {"largest_logit_difference": difference, "bytes_per_decode_step": cost.bytes, "runs": runs}


def _ours(llm: LLM, prompt: torch.Tensor, new_tokens: int) -> tuple[float, float]:
    params = SamplingParams(temperature=0, max_tokens=new_tokens, ignore_eos=True)
    metrics = llm.generate([prompt.tolist()], params)[0].metrics
    return metrics.ttft, metrics.tpot


def _theirs(twin, prompt: torch.Tensor, new_tokens: int) -> tuple[float, float]:
    clock, start = Clock(), time.perf_counter()
    ids = prompt[None]
    twin.generate(
        ids,
        attention_mask=torch.ones_like(ids),
        do_sample=False,
        max_new_tokens=new_tokens,
        min_new_tokens=new_tokens,
        pad_token_id=0,
        streamer=clock,
    )
    return clock.times[0] - start, (clock.times[-1] - clock.times[0]) / (len(clock.times) - 1)


def show(result: dict) -> Table:
    """The medians as a table, with the ratio of each pair of neighbouring samples' medians and the bandwidth used."""
    table = Table(
        title="One request, float32: {model}, {prompt_tokens} + {new_tokens} tokens".format(**result["settings"])
    )
    for column in ("threads", "engine", "prefill tok/s", "decode tok/s", "read GB/s", "of measured", "decode ratio"):
        table.add_column(column, justify="right")
    n = result["settings"]["prompt_tokens"]
    for run in result["runs"]:
        medians = {
            engine: {key: statistics.median(values) for key, values in samples.items()}
            for engine, samples in run["samples"].items()
        }
        for engine, at in medians.items():
            rate = result["bytes_per_decode_step"] / at["tpot"]
            table.add_row(
                str(run["threads"]),
                engine,
                f"{n / at['ttft']:.0f}",
                f"{1 / at['tpot']:.1f}",
                f"{rate / 1e9:.1f}",
                f"{rate / run['read_bandwidth']:.0%}",
                f"{medians['transformers']['tpot'] / at['tpot']:.2f}x",
            )
    return table
