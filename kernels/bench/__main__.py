"""`python -m course_kernels.bench`, see the package's docstring."""

from __future__ import annotations

import sys
import time
from pathlib import Path
from typing import Annotated

import torch
import typer
from rich.console import Console

from course_kernels.interpreter import interpret
from course_lib.bench.report import conditions, write_json
from course_lib.errors import CourseError

ENTRY_S = 60  # of one entry
WIDTH = 160  # of the tables, where they go to a file


def main(
    json: Annotated[Path | None, typer.Option(help="Write raw samples and conditions to this file.")] = None,
    small: Annotated[
        bool, typer.Option(help="Tiny shapes in Triton's interpreter: tests the benchmark itself.")
    ] = False,
    seconds: Annotated[float, typer.Option(help="What is not begun by then is listed as not measured.")] = 290,
    seed: int = 0,
) -> None:
    """Check every kernel on this GPU, and measure kernels and a model against what the GPU can do."""
    _prepare(small)
    from course_kernels.bench.plan import deadlines, plan
    from course_kernels.bench.report import line, show
    from course_kernels.bench.runner import run_entries
    from course_kernels.bench.summary import judge, problems

    result = conditions(benchmark="kernels", small=small, seconds=seconds, entry_seconds=ENTRY_S, seed=seed)
    result["machine"]["device"] = None if small else device_properties()
    records, started = [], time.perf_counter()
    try:
        for record in run_entries(plan, (small, seed), deadlines(seconds), ENTRY_S):
            records.append(record)
            typer.echo(f"{time.perf_counter() - started:5.0f} s  {line(record)}", err=True)
    finally:
        result |= {"run_seconds": time.perf_counter() - started} | judge(records, small)
        if json:
            write_json(json, result)
    Console(width=None if sys.stdout.isatty() else WIDTH).print(show(result))
    if problems(records):
        raise typer.Exit(1)


def _prepare(small: bool) -> None:
    """Have Triton interpret or compile. Raises CourseError where this machine, or its settings, forbid it."""
    if not small and not torch.cuda.is_available():
        raise CourseError(
            "the benchmark needs an NVIDIA GPU and torch sees none; --small runs it on tiny shapes in the interpreter"
        )
    if interpret(always=small) and not small:
        raise CourseError("TRITON_INTERPRET is set, so no kernel would run on the GPU; unset it, or give --small")


def device_properties() -> dict:
    """What the driver and PyTorch tell about the GPU."""
    found = torch.cuda.get_device_properties(0)
    names = ("name", "major", "minor", "multi_processor_count", "total_memory", "L2_cache_size")
    return {name: getattr(found, name) for name in names} | {
        "cuda": torch.version.cuda,
        "driver": _driver(),
    }


def _driver() -> str | None:
    """The driver's version, from NVML where its Python package is there."""
    try:
        import pynvml

        pynvml.nvmlInit()
        return pynvml.nvmlSystemGetDriverVersion()
    except Exception:  # the package or the library is missing: a field of the report, no reason to stop
        return None


if __name__ == "__main__":
    app = typer.Typer(add_completion=False, pretty_exceptions_enable=False)
    app.command()(main)
    try:
        app()
    except CourseError as error:
        typer.echo(f"course_kernels.bench: {error}", err=True)
        raise SystemExit(1) from error
