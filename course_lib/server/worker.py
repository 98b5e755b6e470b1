"""The thread that owns the engine, and how requests of the event loop reach it.

The loop puts calls into an inbox; the thread performs them between steps. What a step yields goes back to the loop in
one `call_soon_threadsafe`, which puts each token into its request's asyncio queue. Neither side touches the other's
state: methods with a leading "_on_thread" run on the thread, all others on the loop.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import queue
import threading
from collections.abc import Callable
from functools import partial

from course_lib.engine import Engine, StepOutput
from course_lib.errors import RequestError
from course_lib.sampling import SamplingParams
from course_lib.server.errors import Overloaded, Unavailable
from course_lib.server.prometheus import Monitor
from course_lib.server.stream import Stream

log = logging.getLogger(__name__)


class EngineWorker:
    """max_waiting: most completions accepted beyond the engine's max_num_seqs. on_failure: called on the loop, once the
    thread has ended with an error, which is then in `failure`."""

    def __init__(self, engine: Engine, max_waiting: int):
        if max_waiting < 0:
            raise RequestError(f"max_waiting is {max_waiting}; it must be at least 0")
        self.engine = engine
        self.monitor = engine.metrics = Monitor()
        self.limit = engine.scheduler.max_num_seqs + max_waiting
        self.held = 0  # completions that run or wait, until their requests are answered
        self.draining = False
        self.failure: Exception | None = None
        self.on_failure: Callable[[], None] = lambda: None
        self._streams: set[Stream] = set()
        self._idle = asyncio.Event()
        self._inbox: queue.SimpleQueue[Callable[[], None]] = queue.SimpleQueue()
        self._owners: dict[str, tuple[Stream, int]] = {}  # engine's request -> its stream and first index; the thread's
        self._stopped = False  # the thread's
        self._thread = threading.Thread(target=self._on_thread, name="engine", daemon=True)

    def start(self) -> None:
        """Start the thread; call it on the event loop that will submit."""
        self.loop = asyncio.get_running_loop()
        self.monitor.observe(self.engine)
        self._idle.set()
        self._thread.start()

    async def stop(self, patience: float = 10.0) -> None:
        """End the thread after the step it is in; waits at most so many seconds."""
        self._inbox.put(self._on_thread_stop)
        await asyncio.to_thread(self._thread.join, patience)

    @property
    def unavailable(self) -> str | None:
        """Why no request is taken, a sentence; None where requests are."""
        if self.failure is not None:
            return "the engine has failed and the server ends; start it again"
        return "the server is shutting down; send the request to another one" if self.draining else None

    def check_room(self, prompts: int, n: int) -> None:
        """For n completions of so many prompts: raise RequestError where there never is room, Overloaded where there is
        none now, Unavailable where the server ends."""
        if reason := self.unavailable:
            raise Unavailable(reason)
        seats = prompts * n
        if seats > self.limit:
            raise RequestError(
                f"n is {n} and the prompts are {prompts}, which makes {seats} completions, and the server "
                f"holds at most {self.limit}; ask for fewer"
            )
        if self.held + seats > self.limit:
            raise Overloaded(f"{self.held} completions run or wait and the limit is {self.limit}; try again later")

    async def submit(self, prompts: list[list[int]], params: SamplingParams, receive: Callable, **settings) -> Stream:
        """Queue prompts (token ids) for params.n completions each; completion i of prompt p has index p * n + i.

        receive: as for `Stream.watch`. settings: of `Engine.add_request`. Raises as `check_room`, RequestError where a
        prompt can never be served, and Disconnected.
        """
        self.check_room(len(prompts), params.n)
        stream = Stream(self, len(prompts) * params.n)
        self._streams.add(stream)
        self.held += stream.seats
        self._idle.clear()
        self._inbox.put(partial(self._on_thread_add, stream, prompts, params, settings))
        stream.watch(receive)  # from now on: the thread may be in a long step before it accepts
        try:
            await stream.accepted
        except BaseException:
            stream.close()
            raise
        return stream

    def release(self, stream: Stream) -> None:
        """Abort what the stream has in the engine, and forget it."""
        if stream in self._streams:
            self._streams.remove(stream)
            self.held -= stream.seats
            self._inbox.put(partial(self._on_thread_release, stream))
            if not self._streams:
                self._idle.set()

    async def drain(self, patience: float) -> None:
        """Take no more requests; give those under way so many seconds to be answered, and fail the rest."""
        self.draining = True
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(self._idle.wait(), patience)
        self._fail_all("the server shut down before the request was finished")

    def _fail_all(self, message: str) -> None:
        for stream in self._streams:
            stream.fail(Unavailable(message))

    def _deliver(self, items: list[tuple[Stream, int, StepOutput]]) -> None:
        for stream, index, output in items:
            stream.put(index, output)

    def _failed(self, error: Exception) -> None:
        log.error("The engine failed, so the server ends: %s", error, exc_info=error)
        self.failure = error
        self._fail_all("the engine failed while it served the request")
        self.on_failure()

    def _on_thread(self) -> None:
        try:
            while True:
                self._on_thread_take()
                if self._stopped:
                    return
                if self.engine.has_unfinished:
                    outputs = self.engine.step()
                    self.monitor.stepped(outputs)
                    owned = [(*self._owners[output.request_id], output) for output in outputs]
                    self._on_loop(self._deliver, [(stream, first + out.index, out) for stream, first, out in owned])
                self.monitor.observe(self.engine)
        except Exception as error:
            self._on_loop(self._failed, error)

    def _on_loop(self, call: Callable, *arguments) -> None:
        with contextlib.suppress(RuntimeError):  # the loop was ended by force
            self.loop.call_soon_threadsafe(call, *arguments)

    def _on_thread_take(self) -> None:
        """Perform the calls in the inbox; where the engine has nothing to do, wait for one."""
        if not self.engine.has_unfinished:
            self._inbox.get()()
        with contextlib.suppress(queue.Empty):
            while True:
                self._inbox.get_nowait()()

    def _on_thread_add(self, stream: Stream, prompts: list[list[int]], params: SamplingParams, settings: dict) -> None:
        for i, prompt in enumerate(prompts):
            try:
                request = self.engine.add_request(prompt, params, **settings)
            except RequestError as error:
                self._on_thread_release(stream)
                self._on_loop(stream.fail, error)
                return
            self._owners[request] = (stream, i * params.n)
        self.monitor.accepted(sum(map(len, prompts)))
        self._on_loop(stream.accept)

    def _on_thread_release(self, stream: Stream) -> None:
        for request in [request for request, (owner, _) in self._owners.items() if owner is stream]:
            self.engine.abort(request)
            del self._owners[request]

    def _on_thread_stop(self) -> None:
        # What is unfinished has been failed, but its release may still be on its way.
        for request in self._owners:
            self.engine.abort(request)
        self._owners.clear()
        self._stopped = True
