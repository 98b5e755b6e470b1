"""The load generator against fake servers that the test holds or scripts, and against the real one."""

from __future__ import annotations

import asyncio
import json
from itertools import count
from types import SimpleNamespace

import httpx
import pytest
import torch
import uvicorn
from rich.console import Console
from starlette.applications import Starlette
from starlette.responses import JSONResponse, PlainTextResponse, StreamingResponse
from starlette.routing import Route
from typer.testing import CliRunner

from course_lib import SamplingParams
from course_lib.bench import client, load, serve
from course_lib.bench.client import complete, connect, served_model
from course_lib.bench.load import VOCAB, Level, Load, closed_loop, open_loop
from course_lib.bench.serve import measure, remarks, show
from course_lib.cli import app
from course_lib.errors import CourseError
from course_lib.perf.service import Objectives, Sample, backlog_growth
from course_lib.perf.workload import Arrival, Lengths, poisson_times
from course_lib.server import listen
from tests.server.conftest import Running

PATIENCE_S = 120  # of every wait; nothing is asserted about times
END = ["data: [DONE]"]


def arrival(time: float = 0.0, tokens: int = 4) -> Arrival:
    return Arrival(time, [7, 8], SamplingParams(temperature=0, max_tokens=tokens, ignore_eos=True))


def chunk(text: str, finish: str | None = None) -> str:
    return "data: " + json.dumps({"choices": [{"index": 0, "text": text, "finish_reason": finish}], "usage": None})


def usage(tokens: int) -> str:
    return "data: " + json.dumps({"choices": [], "usage": {"prompt_tokens": 2, "completion_tokens": tokens}})


def stream(*lines: str) -> StreamingResponse:
    return StreamingResponse(iter([f"{line}\n\n" for line in lines]), media_type="text/event-stream")


WHOLE = [chunk("a"), chunk("b", "length"), usage(2), *END]


async def with_server(completions, use, models=("m",)):
    """What `use(url)` returns while a server of `completions`, a Starlette endpoint, listens in the same event loop."""

    async def listing(request):
        return JSONResponse({"data": [{"id": name, "max_model_len": 64} for name in models]})

    routes = [Route("/v1/models", listing), Route("/v1/completions", completions, methods=["POST"])]
    config = uvicorn.Config(Starlette(routes=routes), log_level="critical", lifespan="off", timeout_graceful_shutdown=1)
    with listen("127.0.0.1", 0) as listener:
        server = uvicorn.Server(config)
        task = asyncio.create_task(server.serve(sockets=[listener]))
        try:
            return await asyncio.wait_for(use(f"http://127.0.0.1:{listener.getsockname()[1]}"), PATIENCE_S)
        finally:
            server.should_exit = True
            await task


def against(completions, use, **options):
    """As `with_server`, `use` being called with a function that sends one request."""

    async def connected(url):
        async with connect(url) as http:
            return await use(lambda arrival, start: complete(http, "m", arrival, start))

    return asyncio.run(with_server(completions, connected, **options))


# --- loops --------------------------------------------------------------------------------------------------------


def test_an_open_loop_waits_for_no_answer():
    """41's kin, coordinated omission: the server answers nobody before all have asked; a client that waited for an
    answer, or for one of httpx's 100 connections, would never end."""
    everybody, all_there, asked = 150, asyncio.Event(), []

    async def completions(request):
        asked.append(await request.json())
        if len(asked) == everybody:
            all_there.set()
        await all_there.wait()
        return stream(*WHOLE)

    samples, lags = against(completions, lambda send: open_loop([arrival(i / 1000) for i in range(everybody)], send))
    assert [sample.failure for sample in samples] == [None] * everybody
    assert len(lags) == everybody and min(lags) >= 0
    assert asked[0] == {
        "model": "m",
        "prompt": [7, 8],
        "max_tokens": 4,
        "temperature": 0,
        "ignore_eos": True,
        "stream": True,
        "stream_options": {"include_usage": True},
    }


def test_a_closed_loop_keeps_its_users_busy_and_no_more():
    under_way, seen = 0, []

    async def send(arrival, due):
        nonlocal under_way
        under_way += 1
        seen.append(under_way)
        await asyncio.sleep(0)  # all users ask before one is answered
        under_way -= 1
        return Sample(start=due, first=due, end=due, tokens=1)

    samples = asyncio.run(closed_loop([arrival() for _ in range(23)], send, 5))
    assert seen == [1, 2, 3, 4, 5] + [5] * 18 and len(samples) == 23


def test_latency_counts_from_when_the_request_was_due(monkeypatch):
    """Each sleep takes 0.25 s too long; nothing else takes time."""
    now, sleep = 100.0, asyncio.sleep

    async def oversleep(seconds):
        nonlocal now
        await sleep(0)
        now += seconds + 0.25

    async def send(arrival, due):
        return Sample(start=due, first=now, end=now, tokens=1)

    monkeypatch.setattr(load, "perf_counter", lambda: now)
    monkeypatch.setattr(load, "asyncio", SimpleNamespace(sleep=oversleep, TaskGroup=asyncio.TaskGroup))
    samples, lags = asyncio.run(open_loop([arrival(1.0), arrival(2.0), arrival(5.0)], send))
    assert [sample.start for sample in samples] == [101.0, 102.0, 105.0]
    assert lags == [0.25] * 3 == [sample.ttft for sample in samples]


# --- one answer ---------------------------------------------------------------------------------------------------


def one(monkeypatch, response, tokens: int = 4) -> Sample:
    """The sample of one request that was due at 0, line i of its answer being read at second i."""
    ticks = count()
    monkeypatch.setattr(client, "perf_counter", lambda: float(next(ticks)))

    async def completions(request):
        return response

    return against(completions, lambda send: send(arrival(tokens=tokens), 0.0))


def test_times_and_tokens_of_an_answer(monkeypatch):
    """Lines with an event have even numbers. The first has no text yet, the third piece holds two tokens."""
    lines = [": comment", chunk(""), chunk("a"), chunk("bc"), chunk("", "length"), usage(5), *END]
    sample = one(monkeypatch, stream(*lines))
    assert sample == Sample(start=0.0, first=4.0, end=8.0, tokens=5, itl=(2.0,))
    assert (sample.ttft, sample.tpot, sample.e2e) == (4.0, 1.0, 8.0)


def test_an_answer_without_text_has_come_when_it_ended(monkeypatch):
    sample = one(monkeypatch, stream(chunk("", "stop"), usage(1), *END))
    assert sample == Sample(start=0.0, first=0.0, end=0.0, tokens=1)


OPENAI_ERROR = {"error": {"message": "64 wait; try again later", "type": "x", "param": None, "code": None}}


@pytest.mark.parametrize(
    ("response", "says"),
    [
        (lambda: JSONResponse(OPENAI_ERROR, 429, {"Retry-After": "1"}), "HTTP 429: 64 wait; try again later"),
        (lambda: PlainTextResponse("Bad gateway", 502), "HTTP 502: Bad gateway"),
        (lambda: stream(chunk("a"), "data: " + json.dumps(OPENAI_ERROR)), "broken off: 64 wait"),
        (lambda: stream(chunk("a")), "without [DONE]"),
        (lambda: stream(chunk("a", "length"), *END), "no usage"),
        (lambda: stream(usage(0), *END), "no choice"),
        (lambda: stream("data: {", *END), "not a stream of OpenAI's form"),
        (lambda: stream("data: []", *END), "not a stream of OpenAI's form"),
        (lambda: stream('data: {"choices": [{"delta": {}}]}', *END), "KeyError: 'text'"),
    ],
)
def test_what_goes_wrong_is_a_failed_sample(monkeypatch, response, says):
    sample = one(monkeypatch, response())
    assert says in sample.failure
    assert not Objectives().met_by(sample)


def test_a_server_that_breaks_the_connection_is_a_failed_sample():
    async def completions(request):
        async def broken():
            yield chunk("a") + "\n\n"
            raise OSError("gone")

        return StreamingResponse(broken())

    sample = against(completions, lambda send: send(arrival(), 0.0))
    assert sample.failure.startswith("RemoteProtocolError")


# --- a level ------------------------------------------------------------------------------------------------------


def test_a_level_counts_what_was_refused_beside_what_was_served():
    """Every third request is refused; the others get one token in time, or three."""
    asked = count(1)

    async def completions(request):
        if (number := next(asked)) % 3 == 0:
            return JSONResponse(OPENAI_ERROR, 429)
        return stream(chunk("a"), chunk("b", "length"), usage(1 if number % 3 == 1 else 3), *END)

    arrivals = [arrival(i / 1000) for i in range(12)]
    level = Level(rate=1000.0)
    result = against(completions, lambda send: measure(level, arrivals, Objectives(ttft=PATIENCE_S), send))
    found = result["summary"]
    assert (found["completed"], found["failed"]) == (8, 4)
    assert result["failures"] == {"HTTP 429: 64 wait; try again later": 4}
    assert found["attainment"] == 8 / 12 and found["goodput"] == found["requests_per_s"] == 8 / found["seconds"]
    assert found["output_tokens_per_s"] == pytest.approx((4 * 1 + 4 * 3) / found["seconds"])
    assert [sample["tokens"] for sample in result["samples"] if sample["failure"] is None].count(3) == 4
    assert json.loads(json.dumps(result)) == result
    assert remarks(result)[0] == "4 failed (HTTP 429: 64 wait; try again later)."


def level(**changes) -> dict:
    """A measured level with nothing to remark."""
    quiet = {"failures": {}, "backlog_growth": 0.0, "lag": {"p99": 0.001}, "client_busy": 0.1, "rate": 2.0}
    return quiet | {"concurrency": None, "summary": {"ttft": {"p50": 0.1}}} | changes


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({"backlog_growth": 0.5}, "unstable, the queue kept growing by 50%"),
        ({"lag": {"p99": 0.02}}, "fell behind its schedule, p99 20 ms"),
        ({"client_busy": 0.9}, "the client itself computed 90%"),
        ({"failures": {"HTTP 500: no": 3}}, "3 failed (HTTP 500: no)"),
    ],
)
def test_reasons_not_to_trust_a_level_are_said(changes, says):
    assert remarks(level()) == []
    assert remarks(level(rate=None, concurrency=3, lag=None, backlog_growth=None)) == []
    [remark] = remarks(level(**changes))
    assert says in remark


@pytest.mark.parametrize(("load", "least", "most"), [(0.5, 0, 2), (0.8, 0, 12), (2.0, 90, 100)])
def test_a_queue_that_grows_is_told_from_one_that_fluctuates(load, least, most):
    """M/M/1 queues, a hundred with 64 arrivals each: how many are called unstable."""
    generator, flagged = torch.Generator().manual_seed(0), 0
    for _ in range(100):
        free, run = 0.0, []
        services = torch.empty(64).exponential_(1 / load, generator=generator).tolist()
        for start, service in zip(poisson_times(1.0, 64, generator), services, strict=True):
            free = max(free, start) + service
            run.append(Sample(start=start, end=free))
        flagged += backlog_growth(run) > serve.GROWING
    assert least <= flagged <= most


def test_a_level_that_served_nobody_is_shown():
    async def completions(request):
        return JSONResponse(OPENAI_ERROR, 429)

    async def use(send):
        return [await measure(each, [arrival()], Objectives(), send) for each in (Level(2.0), Level(None, 3))]

    settings = {"requests": 1, "model": "m", "objectives": {"ttft": None, "tpot": None}}
    console = Console(record=True, width=120)
    console.print(show({"settings": settings, "levels": against(completions, use)}))
    shown = console.export_text()
    assert "0 / 1" in shown and "2 req/s: 1 failed (HTTP 429" in shown and "3 users: 1 failed" in shown


# --- what is sent -------------------------------------------------------------------------------------------------

LEVELS = [Level(rate=2.0), Level(rate=8.0), Level(concurrency=4)]


def test_levels_differ_in_one_loadonly_and_share_no_prompt():
    warmup, slow, fast, closed = Load(requests=30, warmup=3).arrivals(LEVELS, None)
    assert len(warmup) == 3 and len(slow) == len(fast) == len(closed) == 30
    for other in (fast, closed):
        assert [len(a.prompt) for a in other] == [len(a.prompt) for a in slow]
        assert [a.params for a in other] == [a.params for a in slow]
    assert [8 * a.time for a in fast] == pytest.approx([2 * a.time for a in slow])
    firsts = [a.prompt[0] for part in (warmup, slow, fast, closed) for a in part]
    assert len(set(firsts)) == len(firsts) and max(firsts) < VOCAB
    assert all(a.params.greedy and a.params.ignore_eos for a in slow)
    assert Load(requests=30, warmup=3).arrivals(LEVELS, None) == [warmup, slow, fast, closed]
    assert Load(requests=30, warmup=3, seed=1).arrivals(LEVELS, None)[1] != slow


def test_a_shared_prefix_stands_before_each_prompt():
    parts = Load(requests=5, prompt=Lengths(6, "fixed"), shared_prefix=40).arrivals(LEVELS, None)
    prompts = [a.prompt for part in parts for a in part]
    assert {len(prompt) for prompt in prompts} == {46}
    assert len({tuple(prompt[:40]) for prompt in prompts}) == 1
    assert len({prompt[40] for prompt in prompts}) == len(prompts)


def test_prompt_and_completion_fit_the_model():
    one_load = Load(requests=200, prompt=Lengths(50), output=Lengths(50), shared_prefix=20)
    sizes = [(len(a.prompt), a.params.max_tokens) for a in one_load.arrivals(LEVELS, 100)[1]]
    assert max(prompt for prompt, _ in sizes) == 60 and max(output for _, output in sizes) == 40
    assert Load(shared_prefix=28).arrivals(LEVELS, 30)
    with pytest.raises(CourseError, match="choose at most 28"):
        Load(shared_prefix=29).arrivals(LEVELS, 30)


@pytest.mark.parametrize(
    ("lengths", "values"),
    [(Lengths(9, "fixed"), {9}), (Lengths(9, "uniform"), set(range(1, 18))), (Lengths(9, sigma=0), {9})],
)
def test_shapes_of_lengths(lengths, values):
    drawn = lengths.draw(4000, 100, torch.Generator().manual_seed(0))
    # The standard error of the uniform one's mean is 0.9 % of it.
    assert set(drawn) == values and sum(drawn) / len(drawn) == pytest.approx(9, rel=0.04)


# --- errors and the real server -----------------------------------------------------------------------------------


def bench(*options: str):
    return CliRunner().invoke(app, ["bench", "serve", *options])


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ([], "one or more of --rate and --concurrency"),
        (["--rate", "0"], "a load of 0 req/s is not possible"),
        (["--concurrency", "-2"], "a load of -2 users is not possible"),
        (["--rate", "1", "--requests", "0"], "requests is 0"),
        (["--rate", "1", "--shared-prefix", "-1"], "shared_prefix is -1"),
        (["--rate", "1", "--prompt-lengths", "gamma"], "choose one of log-normal, uniform, fixed"),
        (["--rate", "1", "--output-mean", "0"], "mean 0"),
        (["--rate", "1", "--url", "http://127.0.0.1:9"], "no server answers at http://127.0.0.1:9"),
        (["--rate", "1", "--url", "127.0.0.1:8000"], "'127.0.0.1:8000' is no address"),
        (["--rate", "1", "--url", "http://127.0.0.1:80000"], "is no address"),
        (["--rate", "1", "--url", "http://[::"], "is no address"),
    ],
)
def test_a_users_mistake_is_one_sentence(options, says):
    outcome = bench(*options)
    assert outcome.exit_code == 1
    [line] = outcome.stderr.splitlines()
    assert line.startswith("course: ") and says in line


@pytest.mark.parametrize(
    ("models", "wanted", "says"),
    [
        (["m"], "gpt-9", "does not serve 'gpt-9'; choose one of these with --model: m"),
        (["m", "n"], None, "has several models; choose one of these with --model: m, n"),
    ],
)
def test_a_model_that_is_not_there_is_named(models, wanted, says):
    async def use(url):
        async with connect(f"{url}/v1/") as http:
            return await served_model(http, wanted)

    with pytest.raises(CourseError, match=says):
        asyncio.run(with_server(None, use, models=models))


def test_a_server_of_another_kind_is_named():
    async def use(url):
        async with connect(f"{url}/elsewhere") as http:
            return await served_model(http, None)

    with pytest.raises(CourseError, match=r"does not list its models under /v1/models \(HTTP 404\)"):
        asyncio.run(with_server(None, use))


SMALL = ["--requests", "6", "--prompt-mean", "8", "--output-mean", "6", "--warmup", "2"]


def test_the_real_server_at_two_levels(tiny, tmp_path):
    running, path = Running(tiny), tmp_path / "serve.json"
    try:
        outcome = bench("--url", f"{running.url}/v1", "--rate", "40", "--concurrency", "2", "--json", str(path), *SMALL)
    finally:
        running.end()
    assert outcome.exit_code == 0, outcome.output
    result = json.loads(path.read_text())
    assert result["settings"]["model"] == "tiny" and result["settings"]["max_model_len"] == tiny.max_model_len
    expected = Load(requests=6, prompt=Lengths(8), output=Lengths(6), warmup=2).arrivals(LEVELS[1:], None)[1]
    for level in result["levels"]:
        assert (level["summary"]["completed"], level["failures"]) == (6, {})
        tokens = sorted(sample["tokens"] for sample in level["samples"])
        assert tokens == sorted(a.params.max_tokens for a in expected)
        assert level["summary"]["concurrency"] <= 6
    assert "40 req/s" in outcome.output and "2 users" in outcome.output
    # No prompt was served from another's blocks.
    assert running.engine.manager.stats().hit_tokens == 0


def test_a_server_of_its_own_lives_as_long_as_the_run(tmp_path, monkeypatch):
    path, seen = tmp_path / "serve.json", []

    def noted(url):
        seen.append(url)
        return connect(url)

    monkeypatch.setattr(serve, "connect", noted)
    outcome = bench("--model", "tiny", "--rate", "50", "--json", str(path), *SMALL)
    assert outcome.exit_code == 0, outcome.output
    assert json.loads(path.read_text())["levels"][0]["summary"]["completed"] == 6
    with pytest.raises(httpx.ConnectError):
        httpx.get(f"{seen[0]}/health")


def test_a_server_that_does_not_start_says_why():
    outcome = bench("--model", "no-such-model", "--rate", "1")
    assert outcome.exit_code == 1
    assert "course: course serve did not start: " in outcome.stderr and "no-such-model" in outcome.stderr
