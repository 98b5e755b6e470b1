"""The helpers behind notebook 04: recorded heads, fake quantisation, sweeps, and their figures."""

from __future__ import annotations

import copy
import json
from functools import partial

import pytest
import torch

from course_lib import facts
from course_lib.attention import attend
from course_lib.backend import TorchBackend
from course_lib.cache.eight_bit import EightBit
from course_lib.cache.kivi import Kivi
from course_lib.model import Decoder
from course_lib.perf.fake_quantize import FakeQuantized, eight_bit, output_error, per_channel, per_token
from course_lib.perf.kv_record import KVRecord, record, shipped
from course_lib.perf.kv_sweeps import (
    attention_mass,
    axis_formats,
    format_sweep,
    from_json,
    measure,
    precision_formats,
    recorded,
    window_sweep,
)
from course_lib.perf.perplexity import score
from course_lib.perf.timing import Timing
from course_lib.plots.kv_formats import axis_costs, perplexity_by_bits, step_times
from course_lib.plots.kv_outliers import VIEWS, outlier_channels, outlier_setting
from course_lib.plots.kv_windows import attention_places, ring_slots, trimmed_chunks, which_layers, window_cost
from course_lib.widgets import outlier_explorer
from tests.conftest import sharpen, small_config


@pytest.fixture(scope="module")
def model() -> Decoder:
    return sharpen(Decoder.random(small_config(), backend="torch"))


@pytest.fixture(scope="module")
def seen(model) -> KVRecord:
    return record(model, range(64), "random")


def texts(figure) -> str:
    return "\n".join(text.get_text() for text in figure.findobj(lambda artist: hasattr(artist, "get_text")))


# --- recorded heads ---


def test_what_is_recorded_gives_the_output_of_attention(model, seen):
    outputs = {}

    def watch(query, layer, *rest):
        outputs[layer] = attend(query, layer, *rest)
        return outputs[layer]

    reader = copy.copy(model)
    reader.backend = TorchBackend(watch)
    cache = reader.new_cache(1, 64)
    reader(range(64), cache)
    torch.testing.assert_close(seen.keys, cache.keys.view_as(seen.keys))
    group = model.config.group
    for layer, want in outputs.items():
        p = seen.probabilities(layer)  # [H, n, n]
        values = seen.values[layer].transpose(0, 1).repeat_interleave(group, dim=0)
        torch.testing.assert_close((p @ values).transpose(0, 1), want)


def test_a_head_has_the_queries_that_share_it(seen):
    group = seen.queries.shape[2] // seen.values.shape[2]
    part = seen.head(1, 1)
    torch.testing.assert_close(part.probabilities(1), seen.probabilities(1)[group : 2 * group])
    assert part.layers == (1,) and part.values.shape == (1, 64, 1, 16)


def test_the_shipped_heads_show_what_the_notebook_says_of_them():
    """Outlier channels in keys, none in values; and which axis is better for which of the two."""
    real = shipped()
    for layer in real.layers:
        head = real.head(layer, 0)
        means = {view: getattr(head, view)[0, :, 0].abs().mean(0) for view in ("raw_keys", "keys", "values")}
        peaks = {view: float(mean.max() / mean.median()) for view, mean in means.items()}
        assert peaks["raw_keys"] > 10 and peaks["keys"] > 10 and peaks["values"] < 2.5
        for bits, factor in ((2, 2.5), (4, 2)):
            per = {axis: partial(axis, bits=bits) for axis in (per_token, per_channel)}
            keys = {axis: output_error(head, scheme, "keys") for axis, scheme in per.items()}
            values = {axis: output_error(head, scheme, "values") for axis, scheme in per.items()}
            assert keys[per_token] > factor * keys[per_channel]
            assert values[per_token] < values[per_channel]


# --- fake quantisation ---


def test_per_token_and_per_channel_are_one_scheme_along_two_axes():
    torch.manual_seed(3)
    x = torch.randn(32, 1, 32)
    swapped = x.permute(2, 1, 0).contiguous()
    torch.testing.assert_close(per_channel(x, 2), per_token(swapped, 2).permute(2, 1, 0))


def test_an_outlier_channel_costs_the_others_nothing_per_channel():
    torch.manual_seed(4)
    x = torch.rand(32, 1, 32)
    x[:, :, 5] *= 100
    others = [c for c in range(32) if c != 5]
    step = 1 / 15  # at most, of numbers within 0 .. 1 in 4 bits
    assert (per_channel(x, 4) - x)[..., others].abs().max() <= step / 2 + 2**-9
    assert (per_token(x, 4) - x)[..., others].abs().max() > step


def test_tokens_of_an_incomplete_group_stay_as_they_are():
    x = torch.randn(2, 40, 1, 16)
    y = per_channel(x, 2)
    assert torch.equal(y[:, 32:], x[:, 32:]) and not torch.equal(y[:, :32], x[:, :32])
    assert torch.equal(per_channel(x[:, :20], 2), x[:, :20])


def test_fake_formats_read_what_the_real_ones_store(model):
    pairs = [
        (
            FakeQuantized(keys=partial(per_channel, bits=2), values=partial(per_token, bits=2)),
            Kivi(bits=2, residual=64),
        ),
        (FakeQuantized(keys=_int8, values=_int8), EightBit(dtype=torch.int8)),
    ]
    for fake, real in pairs:
        logits = [model.forward(range(64), model.new_cache(1, 64, kv_format)) for kv_format in (fake, real)]
        torch.testing.assert_close(*logits)
    assert not torch.allclose(logits[0], model.forward(range(64)), atol=1e-6)


def _int8(x: torch.Tensor) -> torch.Tensor:
    return eight_bit(x, torch.int8)


def test_output_error_is_zero_where_nothing_changes_and_before_rope_rotates_afterwards(seen):
    head = seen.head(0, 0)
    for what, before in (("keys", False), ("keys", True), ("values", False)):
        assert output_error(head, lambda x: x, what, before) < 1e-6
        assert output_error(head, torch.zeros_like, what, before) > 0.01
    assert output_error(head, torch.zeros_like, "values") == pytest.approx(1)


# --- sweeps ---


def test_attention_mass_of_uniform_attention_is_counted():
    n, sinks, window = 12, 2, 4
    flat = torch.zeros(1, n, 1, 8)
    seen = KVRecord("flat", (0,), flat, flat, flat, torch.stack((torch.ones(n, 1, 8), torch.zeros(n, 1, 8))))
    share = [1 / (p + 1) for p in range(sinks + window, n)]
    mean = sum(share) / len(share)
    torch.testing.assert_close(attention_mass(seen, sinks, window), torch.tensor([[sinks * mean, window * mean]]))


def test_sweeps_score_each_case(model):
    text = [int(token) for token in torch.randint(97, (1024,), generator=torch.Generator().manual_seed(5))]
    wide = sharpen(Decoder.random(small_config(context=512), backend="torch"))
    plain = score(wide, text).perplexity
    windows = window_sweep(wide, text, visible=(8, 512))
    assert set(windows) == {(w, s) for w in (8, 512) for s in (0, 1, 4)}
    assert all(windows[512, s] == pytest.approx(plain) for s in (0, 1, 4)) and windows[8, 0] != pytest.approx(plain)
    axes = format_sweep(wide, text, axis_formats(2))
    mixed = format_sweep(wide, text, precision_formats())
    assert len(axes) == 4 and len(mixed) == 8
    for keys in ("per token", "per channel"):
        assert axes[keys, "per token"] == mixed[keys, 2, 2]


def test_what_is_shipped_is_what_a_measurement_writes():
    wide = Decoder.random(small_config(context=512), backend="torch")
    text = [int(token) for token in torch.randint(97, (512,), generator=torch.Generator().manual_seed(6))]
    here, there = from_json(json.loads(json.dumps(measure(wide, text, "random", 512)))), recorded()
    for name in ("windows", "axes", "precisions", "formats"):
        assert list(getattr(here, name)) == list(getattr(there, name))
    assert here.plain == pytest.approx(score(wide, text).perplexity) and here.mass.shape == (2, 2)


def test_the_recorded_model_shows_what_the_notebook_says_of_it():
    there = recorded()
    assert there.windows[64, 0] > 2 * there.plain > 1.5 * there.windows[64, 1]
    assert all(there.windows[w, 1] < there.windows[w, 0] for w in (16, 32, 64, 128, 256))
    best, worst = (choose(there.axes, key=there.axes.get) for choose in (min, max))
    assert best == ("per channel", "per token") and worst == ("per token", "per channel")
    assert there.axes[best] == pytest.approx(there.precisions["per channel", 2, 2])
    assert there.mass[12:, 0].mean() > 0.3 and float(there.mass.sum(1).max()) <= 1 + 1e-6


# --- figures ---


def costs() -> dict:
    cases = {(w, s): 20 + 100 / w * (s == 0) for w in (16, 64) for s in (0, 1, 4)}
    return {"a": (20.0, cases), "b": (4.0, cases)}


FIGURES = {
    "which_layers": lambda: which_layers([facts.model("Gemma-3-27B"), facts.model("Llama-2-7B")], 32_768),
    "ring_slots": lambda: ring_slots([torch.tensor([0]), torch.tensor([0, 1]), torch.tensor([0, 2])], 1),
    "window_cost": lambda: window_cost(costs()),
    "attention_places": lambda: attention_places({"a": torch.tensor([[0.3, 0.3], [0.1, 0.8]])}, 4, 64),
    "trimmed_chunks": lambda: trimmed_chunks([8, 64], [15.0, 15.0], [15.1, 90.0]),
    "axis_costs": lambda: axis_costs({"a": (10.0, dict.fromkeys(axis_formats(2), 12.5))}, 2),
    "perplexity_by_bits": lambda: perplexity_by_bits(
        {"a": {"float": (16.0, 10.0), "int8": (8.25, 9.99), "kivi2": (3.0, 12.0), "nuq4": (4.5, 10.1)}}
    ),
    "step_times": lambda: step_times(
        [100, 200], {"float": [Timing((0.01, 0.02, 0.03))] * 2}, [1024, 4096], {"16 bit": [0.005, 0.01]}, "bound"
    ),
}
SAID = {
    "which_layers": ("Gemma-3-27B  w 1,024", "3.12 GB, not 16.64", "Llama-2-7B  no window", "17.18 GB"),
    "ring_slots": ("sinks: stay",),
    "window_cost": ("no window: 20.00", "no window: 4.00", "window alone"),
    "attention_places": ("a: first 4 tokens 20.0%", "the last 64"),
    "trimmed_chunks": ("trimmed before\nattending",),
    "axis_costs": ("12.50\n+25%", "a: 10.00 in float"),
    "perplexity_by_bits": ("int8: -0.10%", "kivi2", "a: 10.00 in float"),
    "step_times": ("16 bit: 10 ms", "bound", "measured, this CPU"),
}


@pytest.mark.parametrize("name", FIGURES)
def test_figures_say_what_they_were_given_and_are_small(name):
    figure = FIGURES[name]()
    said = texts(figure)
    assert all(text in said for text in SAID[name]), said
    assert len(figure._repr_png_()) < 100_000


def test_outlier_figures_show_each_view_of_a_head(seen):
    head = seen.head(0, 0)
    assert all(view in texts(outlier_channels(head)) for view in VIEWS)
    for view in VIEWS:
        said = texts(outlier_setting(head, view))
        assert view in said and "2 bits, per channel" in said and "random, layer 0" in said


def test_the_explorer_offers_every_recorded_head_and_redraws(seen):
    explorer = outlier_explorer([shipped(), seen])
    names = explorer.controls["head"].options
    assert len(names) == 2 + 4 and "random, layer 1, head 1" in names
    before = explorer.picture.value
    explorer.controls["view"].value = "values"
    assert explorer.picture.value != before
    explorer.controls["head"].value = "random, layer 1, head 1"
    assert explorer.message.value == ""
