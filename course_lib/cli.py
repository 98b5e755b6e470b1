"""The `course` command. `python3 course.py COMMAND` runs it inside the course's environment.

torch is imported inside the commands that need it, so that `course --help` answers at once.
"""

from __future__ import annotations

import typer
from typer.core import TyperGroup

from course_lib.errors import CourseError


class OneSentence(TyperGroup):
    """Commands whose `CourseError` ends the program with its one sentence on stderr and exit status 1."""

    def invoke(self, ctx):
        try:
            return super().invoke(ctx)
        except CourseError as error:
            typer.echo(f"course: {error}", err=True)
            raise typer.Exit(1) from error


app = typer.Typer(
    cls=OneSentence,
    help="Run the course's engine and tools from the terminal.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
)


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


if __name__ == "__main__":
    app()
