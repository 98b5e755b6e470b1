"""`course bench ...`"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from course_lib.errors import CourseError

app = typer.Typer(help="Measure the engine beside its peers, in one run.", no_args_is_help=True)


@app.command()
def decode(
    json: Annotated[Path | None, typer.Option(help="Write raw samples and conditions to this file.")] = None,
    model: Annotated[str, typer.Option(help="A Llama-shaped model.")] = "smollm2-135m",
    threads: Annotated[list[int], typer.Option(help="Numbers of threads to measure with.")] = (1, 2),  # noqa: B006
    prompt_tokens: int = 256,
    new_tokens: int = 64,
    repeats: int = 7,
    seed: int = 0,
) -> None:
    """Prefill and decode of one request in float32 on the CPU, against transformers' generate."""
    from rich.console import Console

    from course_lib.bench.decode import bench_decode, show
    from course_lib.bench.report import write_json

    result = bench_decode(model, tuple(threads), prompt_tokens, new_tokens, repeats, seed)
    if json:
        write_json(json, result)
    Console().print(show(result))


@app.command()
def batching(
    json: Annotated[Path | None, typer.Option(help="Write raw samples and conditions to this file.")] = None,
    model: Annotated[str, typer.Option(help="Any model that `load_model` takes.")] = "smollm2-135m",
    requests: int = 64,
    prompt_mean: int = 32,
    output_mean: int = 96,
    sigma: Annotated[float, typer.Option(help="Of the logarithm of the lengths; 0 makes them equal.")] = 1.2,
    max_num_seqs: int = 8,
    threads: int = 2,
    repeats: Annotated[int, typer.Option(help="Each with lengths and prompts of its own.")] = 3,
    seed: int = 0,
) -> None:
    """Static against continuous batching on the serving engine, the same requests, on the CPU in float32."""
    from rich.console import Console

    from course_lib.bench.batching import bench_batching, show
    from course_lib.bench.report import write_json

    result = bench_batching(model, requests, prompt_mean, output_mean, sigma, max_num_seqs, threads, repeats, seed)
    if json:
        write_json(json, result)
    Console().print(show(result))


@app.command()
def steps(
    json: Annotated[Path | None, typer.Option(help="Write raw samples and conditions to this file.")] = None,
    model: Annotated[str, typer.Option(help="Any model that `load_model` takes.")] = "smollm2-135m",
    batch: Annotated[list[int], typer.Option(help="Decode so many sequences together.")] = (1, 2, 4, 8, 16, 64, 256),  # noqa: B006
    sequences: Annotated[list[int], typer.Option(help="Schedule these, without a model.")] = (16, 64, 256, 1024),  # noqa: B006
    prompt_tokens: int = 48,
    steps: int = 16,
    threads: int = 2,
    seed: int = 0,
) -> None:
    """What a decode step costs as its batch grows, and what the scheduler and block manager take of it."""
    from rich.console import Console

    from course_lib.bench.report import write_json
    from course_lib.bench.steps import bench_steps, show

    result = bench_steps(model, tuple(batch), tuple(sequences), prompt_tokens, steps, threads, seed)
    if json:
        write_json(json, result)
    Console().print(show(result))


@app.command()
def kv(
    json: Annotated[Path | None, typer.Option(help="Write results and conditions to this file.")] = None,
    model: Annotated[str, typer.Option(help="Any model that `load_model` takes.")] = "tiny",
    windows: Annotated[int, typer.Option(help="Of the held-out text.", min=1)] = 16,
    window: Annotated[int, typer.Option(help="Tokens of one.", min=2)] = 512,
    chunk: Annotated[int, typer.Option(help="Tokens of one forward pass.", min=1)] = 32,
    visible: Annotated[list[int], typer.Option(help="Impose windows of so many tokens.")] = (16, 64, 128, 256),  # noqa: B006
    threads: int = 2,
) -> None:
    """Perplexity of the formats of the KV cache against their bits, and of windows with and without sinks."""
    from rich.console import Console

    from course_lib.bench.kv import bench_kv, show
    from course_lib.bench.report import write_json

    result = bench_kv(model, windows, window, chunk, tuple(visible), threads)
    if json:
        write_json(json, result)
    for table in show(result):
        Console().print(table)


@app.command()
def kv_decode(
    json: Annotated[Path | None, typer.Option(help="Write raw samples and conditions to this file.")] = None,
    context: Annotated[list[int], typer.Option(help="Time a step at these contexts.")] = (256, 1024, 4096),  # noqa: B006
    batch: int = 4,
    repeats: int = 15,
    threads: int = 2,
    seed: int = 0,
) -> None:
    """Time of a decode step against its context, for each ratio H / K and for an 8-bit cache, on the CPU."""
    from rich.console import Console

    from course_lib.bench.kv_decode import bench_kv_decode, show
    from course_lib.bench.report import write_json

    result = bench_kv_decode(tuple(context), batch, repeats, threads, seed)
    if json:
        write_json(json, result)
    Console().print(show(result))


@app.command()
def serve(
    url: Annotated[str | None, typer.Option(help="A server with OpenAI's API; default: starts course serve.")] = None,
    model: Annotated[str | None, typer.Option(help="Default: the only one that the server has.")] = None,
    rate: Annotated[list[float], typer.Option(help="Open loop: Poisson arrivals per second; give several.")] = (),  # noqa: B006
    concurrency: Annotated[list[int], typer.Option(help="Closed loop: users at once; give several.")] = (),  # noqa: B006
    requests: Annotated[int, typer.Option(help="At each rate and concurrency.")] = 64,
    prompt_lengths: Annotated[str, typer.Option(help="log-normal, uniform or fixed.")] = "log-normal",
    prompt_mean: int = 128,
    output_lengths: Annotated[str, typer.Option(help="log-normal, uniform or fixed.")] = "log-normal",
    output_mean: int = 64,
    sigma: Annotated[float, typer.Option(help="Of the logarithm of log-normal lengths.")] = 1.0,
    longest: Annotated[int, typer.Option(help="Lengths are cut to this.")] = 512,
    shared_prefix: Annotated[int, typer.Option(help="Tokens that all prompts begin with, before their own.")] = 0,
    warmup: Annotated[int, typer.Option(help="Requests before the first level, not counted.")] = 4,
    ttft_objective: Annotated[float | None, typer.Option(help="Seconds, for the goodput.")] = None,
    tpot_objective: Annotated[float | None, typer.Option(help="Seconds, for the goodput.")] = None,
    threads: Annotated[int, typer.Option(help="Of the server that is started.", min=1)] = 1,
    seed: int = 0,
    json: Annotated[Path | None, typer.Option(help="Write raw samples and conditions to this file.")] = None,
) -> None:
    """Latency, throughput and goodput of a server over HTTP, at each --rate and --concurrency."""
    from rich.console import Console

    from course_lib.bench.load import Level, Load
    from course_lib.bench.report import write_json
    from course_lib.perf.service import Objectives
    from course_lib.perf.workload import Lengths

    try:
        from course_lib.bench.serve import bench_serve, show
    except ModuleNotFoundError as error:
        raise CourseError(
            f"the package {error.name} is missing; python3 course.py bench serve installs it, or pip install '.[serve]'"
        ) from error

    load = Load(
        requests=requests,
        prompt=Lengths(prompt_mean, prompt_lengths, sigma),
        output=Lengths(output_mean, output_lengths, sigma),
        longest=longest,
        shared_prefix=shared_prefix,
        warmup=warmup,
        seed=seed,
    )
    levels = [*(Level(rate=each) for each in rate), *(Level(concurrency=each) for each in concurrency)]
    result = bench_serve(url, model, levels, load, Objectives(ttft_objective, tpot_objective), threads)
    if json:
        write_json(json, result)
    Console().print(show(result))
