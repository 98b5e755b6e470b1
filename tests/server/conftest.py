"""A real server on a free port of 127.0.0.1, in a thread, its engine steppable by the test."""

from __future__ import annotations

import shutil
import threading
import time
from collections.abc import Callable
from pathlib import Path

import httpx
import openai
import pytest

import course_lib
from course_lib import LLM
from course_lib.errors import CourseError
from course_lib.server import Server, build_engine, listen

PATIENCE_S = 60  # of every wait; nothing is asserted about times
TEMPLATE = (
    "{% for m in messages %}{{ m.role }}: {{ m.content }}\n{% endfor %}{% if add_generation_prompt %}answer:{% endif %}"
)


def eventually(condition: Callable[[], object]) -> None:
    """Wait until the condition holds; fails where it does not for long."""
    deadline = time.monotonic() + PATIENCE_S
    while not condition():
        assert time.monotonic() < deadline, "waited in vain"
        time.sleep(0.005)


class Running:
    """A server in a thread. braked: the engine makes only the steps that `allow` names."""

    def __init__(self, llm, *, braked: bool = False, max_waiting: int = 64, drain: float = PATIENCE_S, **engine):
        self.llm = llm
        self.engine = build_engine(llm, **engine)
        self.entered = 0  # steps that stood before the brake
        self._steps = threading.Semaphore(0)
        if braked:
            self._free_step, self.engine.step = self.engine.step, self._braked_step
        listener = listen("127.0.0.1", 0)
        self.url = f"http://127.0.0.1:{listener.getsockname()[1]}"
        self.server = Server(self.engine, listener, max_waiting=max_waiting, drain=drain)
        self.worker = self.server.worker
        self.error: CourseError | None = None
        self.thread = threading.Thread(target=self._serve, daemon=True)
        self.thread.start()
        eventually(lambda: self.server.started)
        self.client = openai.OpenAI(base_url=f"{self.url}/v1", api_key="none", max_retries=0, timeout=PATIENCE_S)
        self.complete = self.client.completions.create
        self.chat = self.client.chat.completions.create

    def _serve(self) -> None:
        try:
            self.server.serve_until_ended()
        except CourseError as error:
            self.error = error

    def _braked_step(self):
        self.entered += 1
        assert self._steps.acquire(timeout=PATIENCE_S)
        return self._free_step()

    def allow(self, steps: int) -> None:
        self._steps.release(steps)

    def get(self, path: str) -> httpx.Response:
        return httpx.get(self.url + path, timeout=PATIENCE_S)

    def post(self, path: str, **body) -> httpx.Response:
        return httpx.post(self.url + path, timeout=PATIENCE_S, **body)

    def end(self) -> None:
        self.allow(10_000)
        self.server.should_exit = True
        self.thread.join(PATIENCE_S)
        assert not self.thread.is_alive()


@pytest.fixture
def start(tiny):
    """Start a server with other settings; it ends with the test."""
    started = []

    def one(llm=tiny, **settings) -> Running:
        started.append(Running(llm, **settings))
        return started[-1]

    yield one
    for running in started:
        running.end()


@pytest.fixture(scope="module")
def shared(tiny):
    """One server for all tests of a module that leave it as it was."""
    running = Running(tiny)
    yield running
    running.end()


@pytest.fixture(scope="module")
def chatty(tmp_path_factory):
    """A server of `tiny` with a chat template."""
    folder = tmp_path_factory.mktemp("model") / "tiny-chat"
    shutil.copytree(Path(course_lib.__file__).parent / "assets" / "tiny", folder)
    (folder / "chat_template.jinja").write_text(TEMPLATE)
    running = Running(LLM(str(folder), device="cpu"))
    yield running
    running.end()
