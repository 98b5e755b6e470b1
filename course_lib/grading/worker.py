"""The child: runs a submission's cells, then answers calls of its functions. It knows no case and no answer.

    python -m course_lib.grading.worker FD      (Windows: a shared socket on standard input)

Everything here is within the submission's reach and nothing here is believed: the grader reads only typed values
from the socket, checks each against its own, and kills the process when a limit is passed.
"""

from __future__ import annotations

import builtins
import linecache
import os
import socket
import sys
import types
from collections.abc import Callable
from typing import Any

import torch

import course_lib
from course_lib.grading.channel import Channel, ChannelClosed
from course_lib.grading.codec import CodecError, Remote
from course_lib.grading.limits import Limits, set_resource_limits
from course_lib.grading.sandbox import isolate

MAX_START_MESSAGE = 64_000_000
TEXT = 300  # characters of an error message that reach the report


def serve(sock: socket.socket) -> None:
    """Take limits, give up rights, then answer until the grader hangs up."""
    channel = Channel(sock, MAX_START_MESSAGE, trusted=True)
    limits = Limits.from_dict(channel.receive()["limits"])
    channel.send({"kind": "ready", "isolation": {**set_resource_limits(limits), **isolate()}})
    main = types.ModuleType("__main__")
    sys.modules["__main__"] = main
    _replace_checks()
    while True:
        try:
            request = channel.receive()
        except ChannelClosed:
            return
        if request["kind"] == "cells":
            reply = {"kind": "cells", "errors": _run_cells(request, main, channel)}
        else:
            reply = _call(request, main, channel)
        try:
            channel.send(reply)
        except CodecError as error:
            channel.send({"kind": "error", "type": "TooLarge", "message": str(error)})


def _run_cells(request: dict[str, Any], main: types.ModuleType, channel: Channel) -> list[dict | None]:
    """Run each [index, source] as Jupyter would, going on after one that raises; one error or None for each."""
    errors: list[dict | None] = []
    for index, source in request["sources"]:
        channel.send({"kind": "cell", "index": index})
        _fresh_output()
        name = f"cell {index}"
        linecache.cache[name] = (len(source), None, source.splitlines(True), name)  # Triton reads a kernel's source
        try:
            exec(compile(source, name, "exec"), main.__dict__)
            errors.append(None)
        except BaseException as error:  # SystemExit too: a cell that calls sys.exit must not end the grading
            errors.append(_describe(error))
    return errors


def _call(request: dict[str, Any], main: types.ModuleType, channel: Channel) -> dict[str, Any]:
    function = main.__dict__.get(request["name"])
    if not callable(function):
        return {"kind": "error", "type": "Missing", "message": ""}
    args = tuple(_stand_in(arg, channel) if type(arg) is Remote else arg for arg in request["args"])
    _fresh_output()
    try:
        value = function(*args)
    except BaseException as error:
        return {"kind": "error", **_describe(error)}
    # Tensors go back as well: a function that must write in place is judged by what it wrote.
    return {"kind": "result", "value": value, "args": [arg if type(arg) is torch.Tensor else None for arg in args]}


def _stand_in(remote: Remote, channel: Channel) -> Callable[..., Any]:
    """A function in the child that asks the grader, who runs the real one and keeps the record of the calls."""

    def call(*args: Any) -> Any:
        channel.send({"kind": "callback", "id": remote.id, "args": list(args)})
        reply = channel.receive()
        if reply["kind"] == "raise":
            raise getattr(builtins, reply["type"])(reply["message"])
        return reply["value"]

    return call


def _describe(error: BaseException) -> dict[str, str]:
    try:
        text = str(error)
    except BaseException:
        text = ""
    return {"type": type(error).__name__[:80], "message": text[:TEXT]}


def _fresh_output() -> None:
    """Empty the file behind standard output and error, so that the output limit counts for one cell or call."""
    os.ftruncate(1, 0)
    os.lseek(1, 0, os.SEEK_SET)
    sys.stdout = open(1, "w", buffering=1, errors="replace", closefd=False)
    sys.stderr = open(1, "w", buffering=1, errors="replace", closefd=False)


def _replace_checks() -> None:
    """`from course_lib.checks import check` works here and checks nothing: the cases stay with the grader."""
    checks = types.ModuleType("course_lib.checks")
    checks.check = lambda *args, **kwargs: None
    sys.modules["course_lib.checks"] = course_lib.checks = checks


def preload() -> None:
    """Import what notebooks use while files may still be written (matplotlib keeps a font cache)."""
    import matplotlib.pyplot  # noqa: F401

    torch.set_num_threads(1)


def main() -> None:
    if sys.platform == "win32":
        sock = socket.fromshare(sys.stdin.buffer.read())
    else:
        sock = socket.socket(fileno=int(sys.argv[1]))
    preload()
    serve(sock)


if __name__ == "__main__":
    main()
