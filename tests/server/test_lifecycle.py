"""Disconnects, overload, draining, a failing engine, metrics. The engine's steps are the test's, so nothing races."""

from __future__ import annotations

import json
import os
import re
import signal
import socket
import subprocess
import sys
import threading
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import openai
import pytest
from prometheus_client.parser import text_string_to_metric_families

from course_lib import SamplingParams
from course_lib.errors import CourseError
from course_lib.server import listen
from tests.server.conftest import PATIENCE_S, eventually
from tests.server.test_api import PROMPT
from tests.server.test_errors import is_openai_shaped

ROOT = Path(__file__).resolve().parent.parent.parent
LONG = dict(model="tiny", prompt=PROMPT, max_tokens=500, extra_body={"ignore_eos": True})


def samples(server) -> dict[str, float]:
    """Metrics by name and labels."""
    return {
        sample.name + "".join(f"[{value}]" for value in sample.labels.values()): sample.value
        for family in text_string_to_metric_families(server.get("/metrics").text)
        for sample in family.samples
    }


def in_use(server) -> int:
    return server.engine.manager.pool.total - server.engine.manager.available


def asking(server) -> socket.socket:
    """A connection over which LONG was sent, without waiting for an answer; closing it is hanging up."""
    body = json.dumps(LONG | LONG["extra_body"] | {"extra_body": None}).encode()
    head = f"POST /v1/completions HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\nContent-Length: {len(body)}"
    connection = socket.create_connection(server.url[len("http://") :].split(":"), timeout=PATIENCE_S)
    connection.sendall(head.encode() + b"\r\n\r\n" + body)
    return connection


def test_a_disconnected_stream_frees_its_blocks_within_a_step(start):
    server = start(braked=True)
    server.allow(3)
    stream = server.complete(**LONG, stream=True)
    next(iter(stream))
    eventually(lambda: server.entered == 4)
    stream.close()
    eventually(lambda: server.worker.held == 0)
    assert in_use(server) > 0
    server.allow(1)
    eventually(lambda: in_use(server) == 0)
    assert server.engine.steps == 4 and not server.engine.has_unfinished
    server.engine.manager.check_integrity()


@pytest.mark.parametrize("waits", [False, True], ids=["running", "waiting"])
def test_a_client_that_hangs_up_before_the_answer_is_cancelled(start, waits):
    server = start(braked=True, max_num_seqs=1)
    with ThreadPoolExecutor(1) as pool:
        if waits:
            other = pool.submit(server.complete, model="tiny", prompt="To be", max_tokens=4)
            eventually(lambda: server.worker.held == 1)
            server.allow(1)
            eventually(lambda: server.engine.steps == 1)
        with asking(server):
            eventually(lambda: server.worker.held == 1 + waits)
            server.allow(1)
            eventually(lambda: server.engine.steps == 1 + waits)
        eventually(lambda: server.worker.held == waits)
        server.allow(10)
        if waits:
            assert other.result(PATIENCE_S).choices
    eventually(lambda: samples(server).get("course_requests_total[abort]") == 1)
    assert in_use(server) == 0 and not server.engine.has_unfinished


def test_a_client_that_hangs_up_while_its_text_is_encoded_costs_no_step(start, monkeypatch):
    server = start(braked=True)
    encode, begun, go = server.llm.tokenizer.encode, threading.Event(), threading.Event()

    def held_up(*args):
        begun.set()
        assert go.wait(PATIENCE_S)
        return encode(*args)

    monkeypatch.setattr(server.llm.tokenizer, "encode", held_up)
    with asking(server):
        assert begun.wait(PATIENCE_S)
    eventually(lambda: not server.server.server_state.connections)
    go.set()
    eventually(lambda: not server.server.server_state.tasks)
    assert server.worker.held == 0 and server.entered == 0 and not server.engine.metrics.events


def test_a_client_that_hangs_up_before_the_engine_took_its_request_costs_no_step(start):
    """The engine is in a long step of another request; the seat is free before that step ends."""
    server = start(braked=True)
    with ThreadPoolExecutor(1) as pool:
        other = pool.submit(server.complete, model="tiny", prompt="To be", max_tokens=4)
        eventually(lambda: server.entered == 1)
        with asking(server):
            eventually(lambda: server.worker.held == 2)
        eventually(lambda: server.worker.held == 1)
        server.allow(4)
        assert other.result(PATIENCE_S).choices
    eventually(lambda: samples(server).get("course_requests_total[abort]") == 1)
    [(fed, _)] = Counter(
        event.request_id for event in server.engine.metrics.events if event.kind == "scheduled"
    ).items()
    assert fed == server.engine.metrics.events[0].request_id


def test_a_salt_keeps_what_is_cached_to_its_tenant(start):
    server = start()
    prompt = server.llm.tokenizer.encode(PROMPT) * 8  # 40 tokens: two whole blocks and a half
    for salt, hits in [("a", 0), ("b", 0), ("a", 32), (None, 32), (None, 64)]:
        server.complete(model="tiny", prompt=prompt, max_tokens=1, extra_body={"cache_salt": salt})
        eventually(lambda hits=hits: samples(server)["course_prefix_hit_tokens_total"] == hits)


def test_overload_is_429_with_retry_after_and_passes(start):
    server = start(braked=True, max_num_seqs=1, max_waiting=2)
    with ThreadPoolExecutor(3) as pool:
        running = [pool.submit(server.complete, model="tiny", prompt=PROMPT, max_tokens=2) for _ in range(3)]
        eventually(lambda: server.worker.held == 3)
        with pytest.raises(openai.RateLimitError) as caught:
            server.complete(model="tiny", prompt=PROMPT)
        assert int(caught.value.response.headers["Retry-After"]) >= 1
        assert caught.value.code == "overloaded" and "limit is 3" in caught.value.message
        server.allow(6)
        assert all(each.result(PATIENCE_S).choices for each in running)
    server.allow(2)
    assert server.complete(model="tiny", prompt=PROMPT, max_tokens=2).choices
    with pytest.raises(openai.BadRequestError, match="at most 3"):
        server.complete(model="tiny", prompt=[PROMPT] * 4)


def test_draining_refuses_new_requests_and_finishes_those_under_way(start):
    server = start(braked=True)
    server.allow(1)
    stream = server.complete(model="tiny", prompt=PROMPT, max_tokens=6, extra_body={"ignore_eos": True}, stream=True)
    assert server.get("/health").status_code == 200
    server.server.handle_exit(signal.SIGTERM, None)
    eventually(lambda: server.worker.draining)
    with pytest.raises(openai.InternalServerError) as caught:
        server.complete(model="tiny", prompt=PROMPT)
    assert caught.value.status_code == 503 and "shutting down" in caught.value.message
    health = server.get("/health")
    assert health.status_code == 503 and is_openai_shaped(health)
    assert server.thread.is_alive()
    server.allow(5)
    assert [choice.finish_reason for chunk in stream for choice in chunk.choices if choice.finish_reason] == ["length"]
    server.thread.join(PATIENCE_S)
    assert not server.thread.is_alive() and server.error is None


def test_the_drain_time_is_a_bound(start):
    server = start(braked=True, drain=0.1)
    server.allow(1)
    stream = server.complete(**LONG, stream=True)
    server.server.handle_exit(signal.SIGINT, None)
    with pytest.raises(openai.APIError, match="shut down before"):
        list(stream)
    server.allow(1)
    server.thread.join(PATIENCE_S)
    assert not server.thread.is_alive() and in_use(server) == 0


def test_a_failing_engine_ends_the_server_and_hangs_nobody(start, caplog):
    server = start(braked=True)
    server.allow(1)
    stream = server.complete(**LONG, stream=True)
    eventually(lambda: server.engine.steps == 1)

    def fail(*_):
        raise RuntimeError("out of paper")

    server.engine.scheduler.schedule = fail
    server.allow(1)
    with pytest.raises(openai.APIError, match="engine failed"):
        list(stream)
    server.thread.join(PATIENCE_S)
    assert isinstance(server.error, CourseError) and "out of paper" in str(server.error)
    assert "The engine failed, so the server ends: out of paper" in caplog.text


def test_metrics_parse_and_count(start):
    server = start(braked=True, max_num_seqs=1, blocks=64)
    before = samples(server)
    assert before["course_kv_blocks[free]"] == 64 and before["course_requests_running"] == 0
    prompt = server.llm.tokenizer.encode(PROMPT) * 8  # 40 tokens: two whole blocks and a half
    server.allow(1)
    ask = dict(model="tiny", prompt=prompt, max_tokens=4, extra_body={"ignore_eos": True})
    stream = server.complete(**ask, stream=True)
    next(iter(stream))
    eventually(lambda: samples(server)["course_kv_blocks[used]"] == 3)
    during = samples(server)
    assert during["course_requests_running"] == 1 and during["course_generation_tokens_total"] == 1
    with ThreadPoolExecutor(1) as pool:
        second = pool.submit(server.complete, **ask)
        eventually(lambda: server.worker.held == 2)
        server.allow(2)  # the second request reaches the engine after the first of them
        eventually(lambda: samples(server)["course_requests_waiting"] == 1)
        server.allow(6)
        second.result(PATIENCE_S)
        list(stream)
    eventually(lambda: samples(server)["course_kv_blocks[used]"] == 0)
    eventually(lambda: (now := samples(server))["course_kv_blocks[cached]"] + now["course_kv_blocks[free]"] == 64)
    after = samples(server)
    assert after["course_requests_total[length]"] == 2
    assert after["course_prompt_tokens_total"] == 80 and after["course_generation_tokens_total"] == 8
    assert after["course_prefix_hit_tokens_total"] == 32
    assert after["course_time_to_first_token_seconds_count"] == after["course_queue_time_seconds_count"] == 2
    assert after["course_time_per_output_token_seconds_count"] == 2


def test_the_format_of_the_cache_is_shown(start):
    server = start(kv_cache_dtype="int8")
    server.complete(model="tiny", prompt=PROMPT, max_tokens=1)
    eventually(lambda: samples(server).get("course_kv_cache_info[int8]") == 1)


def test_preemptions_are_counted_and_change_nothing(start):
    server = start(blocks=6)
    params = dict(max_tokens=50, temperature=0)
    with ThreadPoolExecutor(3) as pool:
        texts = list(
            pool.map(lambda _: server.complete(model="tiny", prompt=PROMPT, n=2, **params).choices[1].text, range(3))
        )
    [expected] = server.llm.generate(PROMPT, SamplingParams(**params))
    assert texts == [expected.outputs[0].text] * 3
    assert samples(server)["course_preemptions_total"] > 0


# --- the process ----------------------------------------------------------------------------------------------------


@pytest.mark.skipif(os.name == "nt", reason="Windows has no SIGTERM that a process could handle")
def test_sigterm_drains_the_process_which_exits_with_0(tmp_path, tiny):
    log = tmp_path / "log"
    command = [sys.executable, "-m", "course_lib.cli", "serve", "--model", "tiny", "--port", "0"]
    with log.open("w") as file:
        process = subprocess.Popen(command, cwd=ROOT, stderr=file, stdout=file)
    try:
        eventually(lambda: process.poll() is not None or "backend torch on http://127.0.0.1:" in log.read_text())
        [url] = re.findall(r"http://127\.0\.0\.1:\d+/v1", log.read_text())
        client = openai.OpenAI(base_url=url, api_key="none", max_retries=0, timeout=PATIENCE_S)
        stream = iter(client.completions.create(**LONG | {"temperature": 0}, stream=True))
        text = next(stream).choices[0].text
        process.send_signal(signal.SIGTERM)
        chunks = list(stream)
        text += "".join(chunk.choices[0].text for chunk in chunks)
        assert chunks[-1].choices[0].finish_reason == "length"
        assert process.wait(PATIENCE_S) == 0
    finally:
        process.kill()
    [expected] = tiny.generate(PROMPT, SamplingParams(temperature=0, max_tokens=500, ignore_eos=True))
    assert text == expected.outputs[0].text
    assert [line.split(" ")[0] for line in log.read_text().splitlines()] == ["Serving", "SIGTERM:"]


def test_a_second_server_on_a_port_ends_with_one_sentence():
    with listen("127.0.0.1", 0) as taken:
        port = str(taken.getsockname()[1])
        command = [sys.executable, "-m", "course_lib.cli", "serve", "--model", "tiny", "--port", port]
        ended = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=PATIENCE_S)
    assert ended.returncode == 1 and not ended.stdout
    assert ended.stderr == (
        f"course: port {port} of 127.0.0.1 is in use, perhaps by another server; stop it or choose another --port\n"
    )


@pytest.mark.parametrize("address", [("127.0.0.1", 80_000), ("no.such.host.invalid", 0)])
def test_an_address_that_cannot_be_had_is_one_sentence(address):
    with pytest.raises(CourseError, match="choose another --host or --port"):
        listen(*address)
