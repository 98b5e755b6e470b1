"""Start and stop child processes: forked from a warm zygote on Linux, spawned one by one elsewhere."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import IO, Protocol

import psutil

import course_lib
from course_lib.errors import CourseError

WORD = 8  # bytes of a number on the zygote's control socket


@dataclass
class Process:
    """A running child. `sock` talks to it, `output` is the file behind its standard output and error."""

    pid: int
    sock: socket.socket
    output: IO[bytes]
    reap: Callable[[], int]  # waits for its end; the exit status, negative for a signal

    def kill(self) -> None:
        """End the child and everything it started."""
        try:
            parent = psutil.Process(self.pid)
            family = [*parent.children(recursive=True), parent]
        except psutil.NoSuchProcess:
            return
        for process in family:
            try:
                process.kill()
            except psutil.NoSuchProcess:
                pass


class Starter(Protocol):
    """Makes children; a context manager."""

    def start(self) -> Process: ...

    def __enter__(self) -> Starter: ...

    def __exit__(self, *exc: object) -> None: ...


def starter() -> Starter:
    """Forking where it is safe: not on macOS, whose frameworks forbid it, nor where a child could kill the zygote."""
    return Zygote() if sys.platform == "linux" and find_spec("pyseccomp") else Spawner()


def _python(module: str, folder: str, *args: str, **options) -> subprocess.Popen:
    """A Python with a bare environment: no secrets, no GPU, one thread, nothing from the current folder."""
    keep = ("PATH", "SYSTEMROOT", "LANG", "LC_ALL")
    env = {name: os.environ[name] for name in keep if name in os.environ} | {
        "HOME": folder,
        "TMPDIR": folder,
        "MPLCONFIGDIR": folder,
        "MPLBACKEND": "Agg",
        "PYTHONPATH": str(Path(course_lib.__file__).parent.parent),
        "PYTHONDONTWRITEBYTECODE": "1",
        "OMP_NUM_THREADS": "1",
        "OPENBLAS_NUM_THREADS": "1",
        "CUDA_VISIBLE_DEVICES": "",
        "HF_HUB_OFFLINE": "1",
    }
    return subprocess.Popen([sys.executable, "-P", "-s", "-m", module, *args], cwd=folder, env=env, **options)


class Spawner:
    """A new interpreter for each child: about two seconds each."""

    def __enter__(self) -> Spawner:
        self._folder = tempfile.TemporaryDirectory(prefix="course-grade-", ignore_cleanup_errors=True)
        return self

    def __exit__(self, *exc: object) -> None:
        self._folder.cleanup()

    def start(self) -> Process:
        ours, theirs = socket.socketpair()
        output = tempfile.TemporaryFile()
        files = {"stdout": output, "stderr": output}
        if sys.platform == "win32":
            child = _python("course_lib.grading.worker", self._folder.name, stdin=subprocess.PIPE, **files)
            child.stdin.write(theirs.share(child.pid))
            child.stdin.close()
        else:
            child = _python(
                "course_lib.grading.worker", self._folder.name, str(theirs.fileno()),
                stdin=subprocess.DEVNULL, pass_fds=[theirs.fileno()], start_new_session=True, **files,
            )  # fmt: skip
        theirs.close()
        return Process(child.pid, ours, output, child.wait)


class Zygote:
    """One interpreter with torch imported, from which children fork in milliseconds. It starts with the first child."""

    def __enter__(self) -> Zygote:
        self._process: subprocess.Popen | None = None
        return self

    def __exit__(self, *exc: object) -> None:
        if self._process:
            self._control.close()  # the zygote ends when its control socket does
            self._process.wait()
            self._folder.cleanup()

    def _launch(self) -> None:
        self._folder = tempfile.TemporaryDirectory(prefix="course-grade-", ignore_cleanup_errors=True)
        self._control, theirs = socket.socketpair()
        self._process = _python(
            "course_lib.grading.zygote", self._folder.name, str(theirs.fileno()),
            stdin=subprocess.DEVNULL, pass_fds=[theirs.fileno()], start_new_session=True,
        )  # fmt: skip
        theirs.close()

    def start(self) -> Process:
        if self._process is None:
            self._launch()
        ours, theirs = socket.socketpair()
        output = tempfile.TemporaryFile()
        with theirs:
            socket.send_fds(self._control, [b"F"], [theirs.fileno(), output.fileno()])
            pid = self._answer()
        return Process(pid, ours, output, lambda: self._reap(pid))

    def _reap(self, pid: int) -> int:
        self._control.sendall(b"R" + pid.to_bytes(WORD, "big"))
        return os.waitstatus_to_exitcode(self._answer())

    def _answer(self) -> int:
        data = self._control.recv(WORD, socket.MSG_WAITALL)
        if len(data) < WORD:
            raise CourseError("the grader's helper process ended; run `course doctor` to see whether torch imports")
        return int.from_bytes(data, "big")
