"""`course serve`: the socket, the process's signals, and the end."""

from __future__ import annotations

import asyncio
import errno
import logging
import signal
import socket

import uvicorn

from course_lib.cache.prefix_hash import HashIndex
from course_lib.cache.prefix_radix import RadixIndex
from course_lib.engine import Engine, Priority
from course_lib.errors import CourseError
from course_lib.llm import LLM
from course_lib.server.app import build_app
from course_lib.server.worker import EngineWorker

log = logging.getLogger(__name__)
INDEXES = {"hash": HashIndex, "radix": RadixIndex, "none": lambda: None}
FLUSH_S = 5  # how long uvicorn waits for clients to read the end of their answers


class Server(uvicorn.Server):
    """Serves one engine. SIGTERM or SIGINT drains and ends with status 0; a second signal ends at once."""

    def __init__(self, engine: Engine, listener: socket.socket, *, max_waiting: int = 64, drain: float = 30.0):
        self.worker = EngineWorker(engine, max_waiting)
        self.worker.on_failure = self._end
        self._listener, self._drain_s = listener, drain
        self._drain: asyncio.Task | None = None
        super().__init__(
            uvicorn.Config(
                build_app(self.worker),
                log_level="warning",
                access_log=False,
                timeout_graceful_shutdown=FLUSH_S,
            )
        )

    def serve_until_ended(self) -> None:
        """Serve until a signal. Raises CourseError where the engine failed."""
        self.run(sockets=[self._listener])
        if self.worker.failure is not None:
            raise CourseError(f"the engine failed: {self.worker.failure}") from self.worker.failure

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(sockets=sockets)
        host, port = self._listener.getsockname()[:2]
        host = f"[{host}]" if ":" in host else host
        log.info("Serving %r on http://%s:%d/v1", self.worker.engine.llm, host, port)

    def handle_exit(self, sig: int, frame) -> None:
        # uvicorn's own closes the socket at once, and raises the signal again at the end: a status that is not 0.
        if self.started and self._drain is None:
            self.worker.loop.call_soon_threadsafe(self._start_drain, sig)
        else:
            self.force_exit = self._drain is not None
            self._end()

    def _start_drain(self, sig: int) -> None:
        if self._drain is None:  # two signals may arrive at once
            log.info("%s: no new requests; those under way have %g s", signal.Signals(sig).name, self._drain_s)
            self._drain = asyncio.create_task(self._drain_and_end())

    async def _drain_and_end(self) -> None:
        await self.worker.drain(self._drain_s)
        self._end()

    def _end(self) -> None:
        self.should_exit = True


def listen(host: str, port: int) -> socket.socket:
    """A listening socket; port 0 takes a free one. Raises CourseError where the address cannot be had."""
    try:
        family = socket.AF_INET6 if ":" in host else socket.AF_INET
        return socket.create_server((host, port), family=family)
    except (OSError, OverflowError) as error:
        if getattr(error, "errno", None) == errno.EADDRINUSE:
            sentence = f"port {port} of {host} is in use, perhaps by another server; stop it or choose another --port"
            raise CourseError(sentence) from None
        raise CourseError(f"cannot listen on {host} port {port} ({error}); choose another --host or --port") from None


def build_engine(llm: LLM, prefix_cache: str = "hash", **settings) -> Engine:
    """The engine of a server: requests come in the order of their priority. prefix_cache: hash, radix or none."""
    return Engine(llm, index=INDEXES[prefix_cache](), order=Priority(), **settings)


def serve(
    model: str | None, host: str, port: int, *, max_waiting: int, drain: float, kv_cache_dtype: str = "auto", **engine
) -> None:
    """Load the model and serve it until SIGTERM or SIGINT. engine: settings of `build_engine`.

    Raises CourseError where something is in the way.
    """
    with listen(host, port) as listener:
        engine = build_engine(LLM(model, kv_cache_dtype=kv_cache_dtype), **engine)
        Server(engine, listener, max_waiting=max_waiting, drain=drain).serve_until_ended()
