"""The grader's end of a running submission: ask it to run cells and call functions, and survive whatever it does."""

from __future__ import annotations

import builtins
import math
import os
import signal
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import psutil

from course_lib.checks.core import Outcome
from course_lib.errors import CourseError
from course_lib.grading.channel import Channel, ChannelClosed
from course_lib.grading.codec import CodecError, Remote
from course_lib.grading.limits import Limits, MiB
from course_lib.grading.process import Process, Starter

TICK = 0.02  # seconds between two looks at a running child
START_SECONDS = 120.0  # for a cold import of torch from a slow disk
# What reading a message from a hostile child may raise when the message is not what the protocol says.
NONSENSE = (CodecError, KeyError, TypeError, IndexError, ValueError)


@dataclass(frozen=True)
class CellError:
    """A cell that did not run through. fatal: it ended the child, so a new child must leave it out."""

    index: int
    text: str
    fatal: bool = False


class Child:
    """One child process with a submission in it; of no more use once `alive` is False."""

    def __init__(self, starter: Starter, limits: Limits):
        self._limits = limits
        self._process: Process = starter.start()
        self._channel = Channel(self._process.sock, limits.message_bytes)
        self._why: str | None = None  # why the grader ended the child, or why it ended by itself
        self._base_memory = math.inf  # nothing is counted before the child is ready
        self.alive = True
        try:
            with self._watched(START_SECONDS):
                self._channel.send({"limits": limits.as_dict()})
                # Sent before a line of the submission has run, so this much can be believed.
                self.isolation: dict[str, str] = self._channel.receive()["isolation"]
        except ChannelClosed as error:
            raise CourseError(f"a process for the submission could not be started: {self._end(error)}") from None
        self._base_memory = self._used_memory()

    def run_cells(self, cells: Sequence[tuple[int, str]]) -> list[CellError]:
        """Run (index, source) cells in order; returns the errors, the last one fatal if the child did not survive."""
        running = cells[0][0] if cells else 0
        try:
            with self._watched(self._limits.cells_seconds):
                self._channel.send({"kind": "cells", "sources": [list(cell) for cell in cells]})
                while (message := self._channel.receive())["kind"] == "cell":
                    running = _expect(int, message["index"])
                errors = [error and ": ".join(filter(None, self._explain(error))) for error in message["errors"]]
        except (ChannelClosed, *NONSENSE) as error:
            return [CellError(running, self._end(error), fatal=True)]
        return [CellError(index, text) for (index, _), text in zip(cells, errors, strict=False) if text]

    def call(self, name: str, args: tuple[Any, ...]) -> Outcome:
        """Call the submission's function. Functions among `args` stay here: the child asks for their results.

        An error without a type name is the grader's own sentence, not an exception of the submission.
        """
        if not self.alive:
            return Outcome(error=("", self._why))
        functions = [arg for arg in args if callable(arg)]
        sent = [Remote(functions.index(arg)) if callable(arg) else arg for arg in args]
        calls: list[list[Any]] = []
        limits, before = self._limits, self._channel.received
        try:
            with self._watched(limits.call_seconds):
                self._channel.send({"kind": "call", "name": name, "args": sent})
                while (message := self._channel.receive())["kind"] == "callback":
                    if len(calls) == limits.callbacks or self._channel.received - before > limits.message_bytes:
                        raise CodecError("too many calls of a function it was given, or too much in them")
                    calls.append(_expect(list, message["args"]))
                    self._channel.send(_answer(functions[message["id"]], calls[-1]))
                if message["kind"] == "error":
                    return Outcome(args=args, calls=calls, error=self._explain(message))
                after = _expect(list, message["args"])
                if len(after) != len(args):
                    raise CodecError("the wrong number of arguments came back")
                return Outcome(message["value"], after, calls)
        except (ChannelClosed, *NONSENSE) as error:
            return Outcome(args=args, calls=calls, error=("", self._end(error)))

    def close(self) -> None:
        """End the child and wait for it."""
        if self.alive:
            self._end(ChannelClosed())
        self._channel.close()
        self._process.output.close()

    def _end(self, error: Exception) -> str:
        """Stop everything; returns why the conversation is over, in words for the report."""
        self.alive = False
        self._process.kill()
        status = self._process.reap()
        if self._why is None:
            if not isinstance(error, ChannelClosed):
                self._why = f"it sent the grader something that is not a result: {error}"
            elif hasattr(signal, "SIGXCPU") and status == -signal.SIGXCPU:
                self._why = f"it used more than the limit of {self._limits.cpu_seconds} s of CPU time"
            elif status < 0:
                self._why = f"its process was ended by signal {-status} ({signal.strsignal(-status)})"
            else:
                self._why = f"it ended the Python process with exit status {status}"
        return self._why

    def _explain(self, error: dict[str, Any]) -> tuple[str, str]:
        """(type name, text) of an error message from the child, in plain words where a limit was the cause."""
        kind, text = _clean(error["type"]), _clean(error["message"])
        limits = self._limits
        if kind == "Missing":
            return "", "the notebook defines no function of this name"
        if kind == "OSError" and "Errno 27" in text:
            return "", f"it printed or wrote more than the limit of {limits.output_bytes // MiB} MiB"
        if kind == "MemoryError" or "DefaultCPUAllocator" in text:
            return "", f"it asked for more than the limit of {limits.memory_bytes // MiB:,} MiB of memory"
        if kind in ("PermissionError", "BlockingIOError"):
            return "", f"it tried what the grader does not allow, a process, a connection or a file ({text})"
        if kind in ("SystemExit", "KeyboardInterrupt"):
            return "", f"it raised {kind}, which ends a program (sys.exit)"
        return kind, text

    def _watched(self, seconds: float) -> _Watch:
        deadline = time.monotonic() + seconds
        return _Watch(lambda: self._stop_if_over(deadline, seconds))

    def _stop_if_over(self, deadline: float, seconds: float) -> bool:
        """One look at the child, from the watching thread; True when a limit was passed and it was stopped."""
        limits, why = self._limits, None
        if time.monotonic() > deadline:
            why = f"it ran longer than the limit of {seconds:g} s"
        elif os.fstat(self._process.output.fileno()).st_size > limits.output_bytes:
            why = f"it printed more than the limit of {limits.output_bytes // MiB} MiB"
        elif self._used_memory() - self._base_memory > limits.memory_bytes:
            why = f"it used more than the limit of {limits.memory_bytes // MiB:,} MiB of memory"
        if why is None:
            return False
        self._why = why
        self._process.kill()
        self._channel.interrupt()  # also wakes the grader when a stray process keeps the socket open
        return True

    def _used_memory(self) -> int:
        """Resident bytes of the child and of what it started."""
        try:
            child = psutil.Process(self._process.pid)
            return sum(process.memory_info().rss for process in [child, *child.children(recursive=True)])
        except psutil.Error:
            return 0  # it has just ended, and the socket says so


class _Watch:
    """Calls `look` every TICK in a thread, inside a `with` block, until it answers True."""

    def __init__(self, look: Callable[[], bool]):
        self._look = look
        self._done = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)

    def _run(self) -> None:
        while not self._done.wait(TICK) and not self._look():
            pass

    def __enter__(self) -> None:
        self._thread.start()

    def __exit__(self, *exc: object) -> None:
        self._done.set()
        self._thread.join()


def _answer(function: Callable[..., Any], args: list[Any]) -> dict[str, Any]:
    """Run a function that was passed to the submission, on the arguments the submission chose."""
    try:
        return {"kind": "return", "value": function(*args)}
    except Exception as error:
        name = type(error).__name__
        return {"kind": "raise", "type": name if hasattr(builtins, name) else "ValueError", "message": str(error)}


def _expect(kind: type, value: Any) -> Any:
    if type(value) is not kind:
        raise CodecError(f"a {type(value).__name__} where a {kind.__name__} belongs")
    return value


def _clean(text: Any) -> str:
    """Text of the child, printable and on one line."""
    return "".join(c if c.isprintable() else " " for c in _expect(str, text))[:300]
