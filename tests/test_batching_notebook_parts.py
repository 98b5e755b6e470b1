"""The helpers behind notebooks 09 and 10: what the event trace says of each request, the figures and the explorer."""

from __future__ import annotations

import pytest

from course_lib import LLM, SamplingParams
from course_lib.engine import ChunkedPrefill, ContinuousBatching, Engine, Recompute, StaticBatching, Swap
from course_lib.perf.replay import replay_steps
from course_lib.perf.timing import Timing
from course_lib.perf.workload import Arrival
from course_lib.plots import batching, load
from course_lib.plots.timeline import Span, spans, timeline
from course_lib.widgets import batching_explorer


@pytest.fixture(scope="module")
def llm():
    return LLM("tiny", device="cpu")


def serve(llm, lengths, **settings):
    """Run requests of (prompt, output) tokens that all arrive before step 0; the engine when it is done."""
    engine = Engine(llm, **settings)
    params = [SamplingParams(temperature=0, max_tokens=n, ignore_eos=True) for _, n in lengths]
    engine.generate([[7] * n for n, _ in lengths], params)
    return engine


def states(row):
    return [(span.state, span.start, span.end) for span in row]


def test_static_batching_lets_the_third_wait_for_the_longest_and_continuous_for_the_shortest(llm):
    lengths = [(4, 2), (4, 6), (4, 3)]
    rows = {}
    for policy in (StaticBatching, ContinuousBatching):
        rows[policy] = list(spans(serve(llm, lengths, batching=policy(), max_num_seqs=2).metrics).values())
        assert states(rows[policy][0]) == [("prefill", 0, 1), ("decode", 1, 2)]
        assert states(rows[policy][1]) == [("prefill", 0, 1), ("decode", 1, 6)]
    assert states(rows[StaticBatching][2]) == [("waiting", 0, 6), ("prefill", 6, 7), ("decode", 7, 9)]
    assert states(rows[ContinuousBatching][2]) == [("waiting", 0, 2), ("prefill", 2, 3), ("decode", 3, 5)]


def test_a_chunked_prompt_is_prefill_until_it_is_computed(llm):
    engine = serve(llm, [(2, 5), (9, 2)], batching=ChunkedPrefill(), max_num_seqs=2, max_num_batched_tokens=4)
    first, second = spans(engine.metrics).values()
    assert states(first) == [("prefill", 0, 1), ("decode", 1, 5)]
    # Chunks of 2, 3, 3 and 1 tokens beside the first one's decodes; the last gives the first token.
    assert states(second) == [("prefill", 0, 4), ("decode", 4, 5)]


@pytest.mark.parametrize(("preemption", "again"), [(Recompute(), "prefill"), (Swap(), "decode")])
def test_a_preempted_request_shows_its_gap_and_how_it_comes_back(llm, preemption, again):
    """4 blocks of 4: two prompts of 7 fill them, and the first to need a ninth slot takes the blocks of the second."""
    engine = serve(llm, [(7, 5), (7, 5)], blocks=4, block_size=4, preemption=preemption)
    first, second = spans(engine.metrics).values()
    assert states(first) == [("prefill", 0, 1), ("decode", 1, 5)]
    assert states(second)[:3] == [("prefill", 0, 1), ("decode", 1, 2), ("preempted", 2, 5)]
    assert states(second)[3][0] == again and second[-1] == Span("decode", second[-1].start, 8)


def test_in_seconds_rows_have_no_gaps_and_end_with_the_last_token(llm):
    engine = serve(llm, [(4, 3), (20, 6), (3, 1)], max_num_seqs=2, max_num_batched_tokens=8)
    origin = engine.metrics.events[0].time
    records = {record.request_id: record for record in engine.metrics.requests}
    for (request_id, _), row in spans(engine.metrics, "seconds").items():
        times = records[request_id].times
        assert row[0].start == times.arrival - origin and row[-1].end == times.token_times[-1] - origin
        assert all(a.end == b.start and a.state != b.state for a, b in zip(row, row[1:], strict=False))
        assert all(span.start < span.end for span in row)


def test_requests_that_have_not_ended_or_were_aborted_are_drawn_up_to_there(llm):
    engine = Engine(llm)
    aborted, open_, late = (engine.add_request([7] * 3, SamplingParams(max_tokens=9, seed=1, n=n)) for n in (1, 2, 1))
    engine.step()
    engine.step()
    engine.abort(aborted)
    engine.abort(late)
    new = engine.add_request([7], SamplingParams(max_tokens=2))
    table = spans(engine.metrics)
    assert states(table[aborted, 0]) == states(table[open_, 0]) == [("prefill", 0, 1), ("decode", 1, 2)]
    assert states(table[open_, 1]) == [("waiting", 0, 1), ("decode", 1, 2)]  # forked when its prompt was computed
    assert table[new, 0] == []
    seconds = spans(engine.metrics, "seconds")
    at = next(event.time for event in engine.metrics.events if event.kind == "aborted")
    assert seconds[aborted, 0][-1].end == at - engine.metrics.events[0].time
    assert spans(Engine(llm).metrics) == {}


def test_the_timeline_has_a_panel_for_each_run_and_a_name_for_each_row(llm):
    runs = {
        name: serve(llm, [(4, 2), (4, 6), (4, 3)], batching=policy, max_num_seqs=2).metrics
        for name, policy in (("static", StaticBatching()), ("continuous", ContinuousBatching()))
    }
    figure = timeline(runs, names={"1": "the long one"})
    above, below = figure.axes
    assert [axes.get_title("left") for axes in figure.axes] == ["static", "continuous"]
    assert [text.get_text() for text in above.get_yticklabels()] == ["0", "the long one", "2"]
    assert [text.get_text() for text in above.get_legend().get_texts()] == ["waiting", "prefill", "decode"]
    assert above.get_xlim() == below.get_xlim() == (0, 9) and below.get_xlabel() == "steps"


def arrivals(*requests):
    """(time, prompt tokens, output tokens) each."""
    return [
        Arrival(time, [7] * prompt, SamplingParams(temperature=0, max_tokens=tokens, ignore_eos=True))
        for time, prompt, tokens in requests
    ]


def test_replay_by_steps_adds_requests_before_the_step_that_is_due_and_skips_idle_time(llm):
    engine = Engine(llm)
    engine.generate(
        [[7]], SamplingParams(temperature=0, max_tokens=3, ignore_eos=True)
    )  # steps are counted from the call
    metrics = replay_steps(engine, arrivals((100, 4, 1), (1.2, 4, 3), (0, 4, 2)))
    rows = [[span.start - 3 for span in row] for row in list(spans(metrics).values())[1:]]
    # The first at 0 and 1, the second joins step 2 (it came at 1.2) and runs to 4, the third follows at once.
    assert rows == [[0, 1], [2, 3], [5]]
    assert len(metrics.steps) == 3 + 6


def labels(axes):
    return [text.get_text() for text in axes.texts]


def test_the_ragged_batch_shows_rows_keys_and_one_product():
    [axes] = batching.ragged_batch([("x1", 3, 1), ("x2", 0, 3)]).axes
    assert {"x1, position 3", "x2, position 0", "x2, position 2", "1 × 4 keys", "3 × 3 keys"} < set(labels(axes))
    assert "4 rows" in labels(axes)[-1]
    cells = [tuple(patch.get_facecolor()) for patch in axes.patches]
    assert len(cells) == 4 + (1 + 2 + 3) and len(set(cells)) == 3 and cells.count(cells[0]) == 3  # cached


def test_busy_seats_counts_what_is_idle(llm):
    metrics = serve(llm, [(4, 2), (4, 6), (4, 3)], batching=StaticBatching(), max_num_seqs=2).metrics
    [axes] = batching.busy_seats({"static": metrics}, seats=2).axes
    assert [patch.get_height() for patch in axes.patches] == [2, 2, 1, 1, 1, 1, 1, 1, 1]
    assert labels(axes) == ["9 steps,\n39% idle"]  # 11 tokens in 18 seat-steps


def test_the_lines_of_the_gain_are_the_closed_forms():
    counted = {"uniform": [1.3, 1.8], "exponential": [1.5, 2.7], "log-normal": [1.5, 3.0]}
    [axes] = batching.static_gain([2, 8], counted).axes
    uniform, _, exponential, _, drawn, _, _ = axes.lines
    assert uniform.get_ydata()[7] == pytest.approx(16 / 9)
    assert exponential.get_ydata()[7] == pytest.approx(sum(1 / i for i in range(1, 9)))
    assert drawn.get_ydata()[[0, 7]] == pytest.approx([1, 3.08], rel=0.02)  # 3.08: mean maximum of 8, by simulation


def test_step_times_are_relative_to_a_batch_of_one_and_names_do_not_collide():
    timings = [Timing((seconds,) * 3) for seconds in (2.0, 3.0, 4.0)]
    [axes] = batching.step_time([1, 2, 4], timings, {"flat": [5, 5, 5], "also flat": [3, 3, 3]}).axes
    assert axes.lines[0].get_ydata().tolist() == [1, 1.5, 2]
    places = sorted(text.xy[1] for text in axes.texts)
    assert len(places) == 4 and all(high >= 1.3 * low for low, high in zip(places, places[1:], strict=False))


def test_rates_of_one_user_and_of_all():
    [axes] = batching.users_and_total({"here": [(1, 0.5), (8, 1.0)]}).axes
    assert axes.lines[0].get_xydata().tolist() == [[2, 2], [1, 8]]
    assert labels(axes) == ["B = 1", "B = 8"]


def test_figures_of_load_and_stalls_show_the_values_they_are_given():
    [axes] = load.in_system([0, 1, 3], [1, 2, 0], mean=5 / 3).axes
    assert labels(axes) == ["mean N = 1.67"]
    left, right = load.load_curves(
        [1, 2], {"static": [(1, 0.1, 0.2), (1.2, 3, 5)], "continuous": [(1, 0.1, 0.1)] * 2}
    ).axes
    assert left.lines[1].get_ydata().tolist() == [1, 1.2] and right.lines[1].get_ydata().tolist() == [0.2, 5]
    whole, cut = load.token_gaps({"whole": ([1, 2], [0.1, 0.9], 2), "cut": ([1, 2], [0.3, 0.2], 3)}, "768 tokens").axes
    assert labels(whole) == ["first token: 2 s", "900 ms"] and labels(cut) == ["first token: 3 s", "300 ms"]
    assert whole.get_ylim() == cut.get_ylim()
    [axes] = load.chunk_price({"here": ([8, 16], [0.1, 0.2], [0.4, 0.3], 9.2)}).axes
    assert [line.get_ydata().tolist() for line in axes.lines[1:]] == [[0.4, 0.3], [0.1, 0.2]]
    assert labels(axes)[0] == "B* = 9"


def test_one_run_stacks_the_tokens_of_each_step(llm):
    engine = serve(llm, [(2, 3), (9, 2)], batching=ChunkedPrefill(), max_num_seqs=2, max_num_batched_tokens=8)
    _, below = load.one_run(engine.metrics, budget=8).axes
    decodes, prompts = below.containers
    assert [bar.get_height() for bar in decodes] == [0, 1, 2] and [bar.get_height() for bar in prompts] == [8, 3, 0]


def test_the_batching_explorer_runs_the_engine_again_and_says_what_a_budget_cannot_serve(llm):
    explorer = batching_explorer(llm, requests=6, mean_output=4)
    seen = {explorer.picture.value}
    for name, value in (("policy", "static"), ("seed", 2), ("rate", 0.1), ("seats", 2)):
        explorer.controls[name].value = value
        assert explorer.message.value == "" and explorer.picture.value not in seen
        seen.add(explorer.picture.value)
    explorer.controls["budget"].value = 8
    assert "feeds prompts whole" in explorer.message.value
    explorer.controls["policy"].value = "chunked prefill"
    assert explorer.message.value == "" and explorer.picture.value not in seen
