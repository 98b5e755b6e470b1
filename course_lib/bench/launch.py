"""A `course serve` that lives as long as a measurement."""

from __future__ import annotations

import contextlib
import os
import re
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator

from course_lib.errors import CourseError


@contextlib.contextmanager
def own_server(model: str | None, threads: int) -> Iterator[str]:
    """Start the server on a free port of this machine and give its address; it ends with the context.

    model: None for the default. Raises CourseError where it does not start, with its reason.
    """
    command = [sys.executable, "-m", "course_lib.cli", "serve", "--port", "0", *(["--model", model] if model else [])]
    environment = os.environ | {"OMP_NUM_THREADS": str(threads)}
    with tempfile.TemporaryFile("a+") as log:  # "a": the server appends, wherever this process reads
        process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=log, stderr=log, env=environment)
        try:
            while not (found := re.search(r"on (http://\S+)/v1", _content(log))):
                if process.poll() is not None:
                    reason = _content(log).strip().rpartition("\n")[2].removeprefix("course: ")
                    raise CourseError(f"course serve did not start: {reason}")
                time.sleep(0.05)
            yield found[1]
        finally:
            process.terminate()
            process.wait()


def _content(log) -> str:
    log.seek(0)
    return log.read()
