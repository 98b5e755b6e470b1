"""The `course` command. `python3 course.py COMMAND` runs it inside the course's environment.

torch is imported inside the commands that need it, so that `course --help` answers at once.
"""

from __future__ import annotations

import contextlib
import logging
import os
from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer
from typer.core import TyperGroup

from course_lib.bench.cli import app as bench_app
from course_lib.errors import CourseError


class OneSentence(TyperGroup):
    """Commands whose `CourseError` ends the program with its one sentence on stderr and exit status 1."""

    def invoke(self, ctx):
        try:
            return super().invoke(ctx)
        except CourseError as error:
            typer.echo(f"course: {error}", err=True)
            raise typer.Exit(1) from error


Model = Annotated[
    str | None,
    typer.Option(help="tiny, smollm2-135m, a folder, a .gguf file or a Hub id; default COURSE_MODEL, else tiny."),
]
MaxTokens = Annotated[int, typer.Option(help="Most tokens of one answer.")]
Temperature = Annotated[float, typer.Option(help="0 = always the most probable token.")]
TopP = Annotated[float, typer.Option(help="Draw from the most probable tokens that hold this share.")]
Seed = Annotated[int | None, typer.Option(help="Makes the draws repeatable.")]

app = typer.Typer(
    cls=OneSentence,
    help="Run the course's engine and tools from the terminal.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
)
app.add_typer(bench_app, name="bench")


@app.command()
def doctor() -> None:
    """Report what this machine has for the course, and what each missing part costs."""
    from course_lib import doctor

    typer.echo(doctor.show())


@app.command()
def fetch() -> None:
    """Get the chat model smollm2-135m (93 MB, once) unless it is there."""
    from course_lib.fetch import FILE, smollm2_path

    if smollm2_path() is None:
        typer.echo(f"Getting the chat model {FILE} (93 MB).")
        smollm2_path(download=True)
    typer.echo("The chat model smollm2-135m is there.")


@app.command()
def generate(
    prompt: str,
    model: Model = None,
    max_tokens: MaxTokens = 128,
    temperature: Temperature = 0.0,
    top_p: TopP = 1.0,
    seed: Seed = None,
) -> None:
    """Continue PROMPT, as plain text, and print the continuation as it grows."""
    from course_lib import LLM, SamplingParams

    params = SamplingParams(temperature=temperature, top_p=top_p, seed=seed, max_tokens=max_tokens)
    for piece in LLM(model).stream(prompt, params):
        typer.echo(piece, nl=False)
    typer.echo()


@app.command()
def chat(
    model: Annotated[str | None, typer.Option(help="As for generate; default COURSE_MODEL, else smollm2-135m.")] = None,
    max_tokens: MaxTokens = 256,
    temperature: Temperature = 0.2,
    top_p: TopP = 0.9,
    seed: Seed = None,
) -> None:
    """Talk with a model. An empty line or the end of the input ends the conversation."""
    from course_lib import LLM, SamplingParams

    params = SamplingParams(temperature=temperature, top_p=top_p, seed=seed, max_tokens=max_tokens)
    llm, messages = LLM(model or os.environ.get("COURSE_MODEL") or "smollm2-135m"), []
    with contextlib.suppress(EOFError):
        while question := input("you> ").strip():
            messages.append({"role": "user", "content": question})
            answer = ""
            for piece in llm.stream_chat(messages, params):
                typer.echo(piece, nl=False)
                answer += piece
            typer.echo()
            messages.append({"role": "assistant", "content": answer})


class PrefixCache(StrEnum):
    """Prefix index of the server's engine."""

    HASH = "hash"
    RADIX = "radix"
    NONE = "none"


@app.command()
def serve(
    model: Model = None,
    host: Annotated[str, typer.Option(help="Address to listen on; 0.0.0.0 opens the server to the network.")] = (
        "127.0.0.1"
    ),
    port: Annotated[int, typer.Option(help="0 takes a free one.")] = 8000,
    max_num_seqs: Annotated[int, typer.Option(help="Most completions that run at once.")] = 64,
    max_waiting: Annotated[int, typer.Option(help="Most completions beyond these; then requests get 429.")] = 64,
    blocks: Annotated[int, typer.Option(help="KV cache, in blocks.")] = 512,
    block_size: Annotated[int, typer.Option(help="Tokens per block.")] = 16,
    kv_cache_dtype: Annotated[str, typer.Option(help="How keys and values are stored: auto, int8 or fp8.")] = "auto",
    prefix_cache: Annotated[PrefixCache, typer.Option(help="How shared prefixes are found.")] = PrefixCache.HASH,
    drain: Annotated[float, typer.Option(help="Seconds that running requests have after SIGTERM or Ctrl-C.")] = 30.0,
) -> None:
    """Serve a model over HTTP with OpenAI's API, until SIGTERM or Ctrl-C."""
    try:
        from course_lib.server import run
    except ModuleNotFoundError as error:
        raise CourseError(
            f"the package {error.name} is missing; python3 course.py serve installs it, or pip install '.[serve]'"
        ) from error

    logging.basicConfig(format="%(message)s")
    logging.getLogger("course_lib.server").setLevel(logging.INFO)
    run.serve(
        model,
        host,
        port,
        max_waiting=max_waiting,
        drain=drain,
        kv_cache_dtype=kv_cache_dtype,
        prefix_cache=prefix_cache.value,
        max_num_seqs=max_num_seqs,
        blocks=blocks,
        block_size=block_size,
    )


@app.command()
def grade(
    paths: Annotated[list[Path], typer.Argument(help="Notebooks, or folders of notebooks.")],
    json: Annotated[Path | None, typer.Option(help="Write all results to this file as JSON.")] = None,
    html: Annotated[Path | None, typer.Option(help="Write a page for people to this file.")] = None,
) -> None:
    """Grade exercise notebooks with the public and the hidden cases, each in a child process with limits."""
    from course_lib.grading.cli import grade_command

    raise typer.Exit(grade_command(paths, json, html))


if __name__ == "__main__":
    app()
