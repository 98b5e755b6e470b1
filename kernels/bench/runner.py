"""Runs entries in a child process, so that one that crashes, hangs or loses the GPU costs that entry only."""

from __future__ import annotations

import gc
import multiprocessing
import time
import traceback
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from multiprocessing.connection import Connection
from typing import Any

import torch

START_S = 120  # PyTorch's first import from a cold disk takes long
FAREWELL_S = 5


class Skipped(Exception):
    """Raised by an entry that this machine cannot run, with the reason."""


@dataclass(frozen=True)
class Entry:
    """One thing to check or measure. run returns what goes into the JSON."""

    section: str
    name: str
    run: Callable[[], dict]


def run_entries(
    make: Callable[..., Sequence[Entry]], arguments: tuple, deadlines: dict[str, float], entry_s: float
) -> Iterator[dict]:
    """Run `make(*arguments)`, in order, and yield a record of each: its section, its name and a status.

    deadlines: seconds from now for each section, after which none of its entries is started. entry_s: seconds after
    which an entry is given up. Statuses: "done", with what the entry returned; "failed", "skipped" and "not measured",
    with the reason as `why`, and `traceback` where there is one.
    make and arguments are pickled: the child makes its own entries.
    """
    started = time.perf_counter()
    worker: _Worker | None = None
    try:
        for index, entry in enumerate(make(*arguments)):
            name = {"section": entry.section, "name": entry.name}
            left = deadlines[entry.section] - (time.perf_counter() - started)
            if left <= 0:
                yield name | {"status": "not measured", "why": "the section's time was spent"}
                continue
            worker = worker or _Worker(make, arguments)
            record, usable = worker.run(index, entry_s)
            if not usable:
                worker.kill()
                worker = None
            yield name | record
    finally:
        if worker:
            worker.close()


class _Worker:
    """The child, as the parent sees it."""

    def __init__(self, make: Callable, arguments: tuple):
        context = multiprocessing.get_context("spawn")  # a forked child cannot use the parent's CUDA
        self.connection, theirs = context.Pipe()
        self.process = context.Process(target=_serve, args=(theirs, make, arguments), daemon=True)
        self.process.start()
        theirs.close()
        self.ready = False

    def run(self, index: int, seconds: float) -> tuple[dict, bool]:
        """(the entry's record, whether the child can go on)."""
        try:
            if not self.ready:
                self.ready = self._answer(START_S)
            self.connection.send(index)
            return self._answer(seconds)
        except TimeoutError as error:
            why = str(error)
        except (EOFError, OSError):
            self.process.join()
            why = f"the process ended with status {self.process.exitcode}"
        return {"status": "failed", "why": why}, False

    def _answer(self, seconds: float) -> Any:
        if not self.connection.poll(seconds):
            raise TimeoutError(f"no answer within {seconds:g} s")
        return self.connection.recv()

    def kill(self) -> None:
        self.process.kill()
        self.process.join()
        self.connection.close()

    def close(self) -> None:
        """Let it end by itself, if it can."""
        self.connection.close()
        self.process.join(FAREWELL_S)
        self.kill()


def _serve(connection: Connection, make: Callable, arguments: tuple) -> None:
    """The child: runs the entries that the parent asks for by number."""
    entries = make(*arguments)
    connection.send(True)
    with suppress(EOFError):  # the parent has gone
        while True:
            connection.send(_record(entries[connection.recv()]))


def _record(entry: Entry) -> tuple[dict, bool]:
    try:
        record = {"status": "done"} | entry.run()
    except Skipped as reason:
        record = {"status": "skipped", "why": str(reason)}
    except Exception as error:
        why = f"{type(error).__name__}: {error}"
        record = {"status": "failed", "why": why, "traceback": traceback.format_exc()}
    return record, _device_works()


def _device_works() -> bool:
    """False once an illegal access or a failed assertion has ended this process's use of the GPU. Frees its memory."""
    if not torch.cuda.is_initialized():
        return True
    gc.collect()  # the frames of a failed entry hold its tensors
    try:
        torch.cuda.synchronize()
        torch.cuda.empty_cache()
    except RuntimeError:
        return False
    return True
