"""`course bench ...`"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

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
    prompt_mean: int = 128,
    output_mean: int = 128,
    sigma: Annotated[float, typer.Option(help="Of the logarithm of the lengths; 0 makes them equal.")] = 1.0,
    max_num_seqs: int = 16,
    threads: int = 2,
    repeats: int = 1,
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
