"""What a request waits for on the event loop while the engine's thread serves it."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from typing import TYPE_CHECKING

from course_lib.engine import StepOutput
from course_lib.server.errors import Disconnected

if TYPE_CHECKING:
    from course_lib.server.worker import EngineWorker


class Stream:
    """The completions of one API request, on the event loop. Iterate it once, and `close` it whatever happens."""

    def __init__(self, worker: EngineWorker, seats: int):
        self.seats = seats
        self.accepted: asyncio.Future[None] = worker.loop.create_future()
        self._worker, self._open = worker, seats
        self._items: asyncio.Queue[tuple[int, StepOutput] | Exception] = asyncio.Queue()
        self._watch: asyncio.Task | None = None

    async def __aiter__(self) -> AsyncIterator[tuple[int, StepOutput]]:
        """(index of the completion, what it got), until all are finished. Raises what `fail` was given."""
        while self._open:
            item = await self._items.get()
            if isinstance(item, Exception):
                raise item
            self._open -= item[1].finish_reason is not None
            yield item

    def put(self, index: int, output: StepOutput) -> None:
        """Hand over what a completion got."""
        self._items.put_nowait((index, output))

    def fail(self, error: Exception) -> None:
        """End the wait for acceptance, or the iteration, with an error."""
        if self.accepted.done():
            self._items.put_nowait(error)
        else:
            self.accepted.set_exception(error)

    def accept(self) -> None:
        """All prompts are in the engine."""
        if not self.accepted.done():
            self.accepted.set_result(None)

    def watch(self, receive: Callable) -> None:
        """Close when `receive`, the ASGI channel of a request whose body was read, says that the client has gone."""
        self._watch = asyncio.create_task(self._close_when_gone(receive))

    def close(self) -> None:
        """Abort what is not finished and give the seats back. May be called again."""
        if self._watch is not None:
            self._watch.cancel()
        self._worker.release(self)

    async def _close_when_gone(self, receive: Callable) -> None:
        while (await receive())["type"] != "http.disconnect":
            pass
        self._worker.release(self)
        self.fail(Disconnected())
