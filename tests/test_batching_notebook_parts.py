"""The helpers behind notebooks 09 and 10: what the event trace says of each request, the figures and the explorer."""

from __future__ import annotations

import pytest

from course_lib import LLM, SamplingParams
from course_lib.engine import ChunkedPrefill, ContinuousBatching, Engine, Recompute, StaticBatching, Swap
from course_lib.plots.timeline import Span, spans, timeline


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
    for batching in (StaticBatching, ContinuousBatching):
        rows[batching] = list(spans(serve(llm, lengths, batching=batching(), max_num_seqs=2).metrics).values())
        assert states(rows[batching][0]) == [("prefill", 0, 1), ("decode", 1, 2)]
        assert states(rows[batching][1]) == [("prefill", 0, 1), ("decode", 1, 6)]
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
        name: serve(llm, [(4, 2), (4, 6), (4, 3)], batching=batching, max_num_seqs=2).metrics
        for name, batching in (("static", StaticBatching()), ("continuous", ContinuousBatching()))
    }
    figure = timeline(runs, names={"1": "the long one"})
    above, below = figure.axes
    assert [axes.get_title("left") for axes in figure.axes] == ["static", "continuous"]
    assert [text.get_text() for text in above.get_yticklabels()] == ["0", "the long one", "2"]
    assert [text.get_text() for text in above.get_legend().get_texts()] == ["waiting", "prefill", "decode"]
    assert above.get_xlim() == below.get_xlim() == (0, 9) and below.get_xlabel() == "steps"
