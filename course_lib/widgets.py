"""Interactive controls of the notebooks: a few ipywidgets over a function that draws a figure.

The picture is an Image widget that gets new PNG bytes when a control moves, which every front end shows. The same
picture, as it stands, is the fallback for readers of the page who have no kernel.
"""

from __future__ import annotations

import base64
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

import ipywidgets
from matplotlib.figure import Figure

from course_lib import facts
from course_lib.bench.batching import POLICIES
from course_lib.cache import BlockManager, HashIndex, RadixIndex
from course_lib.errors import CourseError
from course_lib.llm import LLM
from course_lib.perf.kv_record import KVRecord
from course_lib.plots.block_history import history
from course_lib.plots.block_map import block_map
from course_lib.plots.gqa_planner import planner_setting
from course_lib.plots.kernel_explorer import LENGTHS, decode_setting
from course_lib.plots.kv_memory import KV_FORMATS, budget_setting
from course_lib.plots.kv_outliers import VIEWS, outlier_setting
from course_lib.plots.load import batching_run
from course_lib.plots.prefill_decode import FORMATS, roofline_setting
from course_lib.plots.scheduling_explorer import ORDERS, PREEMPTIONS, scheduling_setting
from course_lib.plots.start import next_token
from course_lib.plots.style import png
from course_lib.sampling import SamplingParams, probabilities

NAMES = {"description_width": "110px"}  # room for the name of a control


class Explorer(ipywidgets.VBox):
    """Controls above a picture that `draw(**values)` makes of their values, redrawn when one of them changes."""

    def __init__(self, draw: Callable[..., Figure], controls: Mapping[str, ipywidgets.ValueWidget]):
        self.draw, self.controls = draw, dict(controls)
        self.picture = ipywidgets.Image(format="png", layout=ipywidgets.Layout(max_width="100%"))
        self.message = ipywidgets.HTML()
        for control in self.controls.values():
            control.observe(self._redraw, names="value")
        box = ipywidgets.Layout(display="flex", flex_flow="row wrap")
        super().__init__([ipywidgets.Box(list(self.controls.values()), layout=box), self.message, self.picture])
        self._redraw()

    def _redraw(self, _change: Any = None) -> None:
        try:
            self.picture.value = png(self.draw(**{name: control.value for name, control in self.controls.items()}))
            self.message.value = ""
        except CourseError as error:  # a setting that has no answer: say why and keep the last picture
            self.message.value = str(error)

    def _repr_mimebundle_(self, **kwargs: Any) -> dict[str, Any]:
        bundle = super()._repr_mimebundle_(**kwargs)
        return bundle | {"image/png": base64.b64encode(self.picture.value).decode()}


def choice(name: str, options: Any, value: Any) -> ipywidgets.Dropdown:
    """A drop-down list."""
    return ipywidgets.Dropdown(
        options=options, value=value, description=name, style=NAMES, layout=ipywidgets.Layout(width="260px")
    )


def powers(name: str, low: int, high: int, value: int) -> ipywidgets.SelectionSlider:
    """A slider over the powers of two from low to high, which must be powers of two themselves."""
    options = [(f"{2**e:,}", 2**e) for e in range(low.bit_length() - 1, high.bit_length())]
    size = ipywidgets.Layout(width="360px")
    return ipywidgets.SelectionSlider(options=options, value=value, description=name, style=NAMES, layout=size)


def roofline_explorer(model: str = "Llama-3.1-8B", device: str = "H100") -> Explorer:
    """Where prefill and decode of a model lie under the roof of a device, for a batch, a context and two formats.

    Weights of 8 or 4 bits are taken to be expanded to 16 bits for the arithmetic, so the compute roof stays.
    """
    dense = [name for name, shape in facts.models().items() if shape.architecture]
    known = [name for name, entry in facts.devices().items() if entry.flops]
    return Explorer(
        roofline_setting,
        {
            "model": choice("model", dense, model),
            "device": choice("device", known, device),
            "weights": choice("weights", list(FORMATS), "16 bit"),
            "kv": choice("KV cache", list(FORMATS), "16 bit"),
            "batch": powers("batch", 1, 1024, 1),
            "context": powers("context", 128, 131072, 4096),
        },
    )


def kv_calculator(model: str = "Llama-3.1-8B", device: str = "H100") -> Explorer:
    """How many sequences fit beside the weights of a model, and what the cache of a given number takes."""
    known = [name for name, entry in facts.devices().items() if entry.memory]
    return Explorer(
        budget_setting,
        {
            "model": choice("model", list(facts.models()), model),
            "weights": choice("weights", list(FORMATS), "16 bit"),
            "device": choice("device", known, device),
            "devices": choice("devices", [1, 2, 4, 8], 1),
            "kv": choice("KV cache", list(KV_FORMATS), "16 bit"),
            "context": powers("context n", 512, 131072, 8192),
            "sequences": powers("sequences B", 1, 1024, 64),
        },
    )


def kv_planner(model: str = "Llama-3.1-8B", device: str = "H100") -> Explorer:
    """What other KV heads, windows or a latent would change: longest context and most sequences, for a load."""
    known = [name for name, entry in facts.devices().items() if entry.memory]
    return Explorer(
        planner_setting,
        {
            "model": choice("model", list(facts.models()), model),
            "weights": choice("weights", list(FORMATS), "16 bit"),
            "device": choice("device", known, device),
            "devices": choice("devices", [1, 2, 4, 8], 1),
            "kv": choice("KV cache", list(KV_FORMATS), "16 bit"),
            "window": powers("window w", 128, 8192, 4096),
            "context": powers("context n", 512, 131072, 32768),
            "sequences": powers("sequences B", 1, 1024, 16),
        },
    )


def block_map_explorer(step: int = 0, index: str = "radix tree") -> Explorer:
    """A pool of 12 blocks through one course of events, without a prefix index and with either of the two."""
    makers = {"none": lambda: None, "chained hashes": HashIndex, "radix tree": RadixIndex}
    courses = {name: history(BlockManager(12, 4, make())) for name, make in makers.items()}
    last = min(len(steps) for steps in courses.values()) - 1
    size = ipywidgets.Layout(width="480px")
    return Explorer(
        lambda step, index: block_map(courses[index][step]),
        {
            "step": ipywidgets.IntSlider(value=step, min=0, max=last, description="step", style=NAMES, layout=size),
            "index": choice("prefix index", list(makers), index),
        },
    )


def batching_explorer(llm: LLM, requests: int = 20, mean_output: int = 12) -> Explorer:
    """Serve requests on the engine, as they come at a rate per step, and draw their timeline and each step's tokens.

    With whole prompts, the budget must admit the longest of 60 tokens; the message says so where it does not.
    """
    size = ipywidgets.Layout(width="360px")
    seed = ipywidgets.IntSlider(value=9, min=0, max=20, description="seed", style=NAMES, layout=size)
    return Explorer(
        partial(batching_run, llm, requests, mean_output),
        {
            "rate": choice("requests / step", [0.05, 0.1, 0.2, 0.3, 0.4, 0.6, 1.0], 0.3),
            "policy": choice("policy", list(POLICIES), "continuous"),
            "seats": powers("seats B", 1, 16, 4),
            "budget": powers("budget C", 8, 128, 64),
            "seed": seed,
        },
    )


def scheduling_explorer(order: str = "priority with ageing", load: float = 1.2, blocks: int = 20) -> Explorer:
    """Two classes of requests through the engine's scheduler, by order, ageing, pool, way back and load."""
    return Explorer(
        scheduling_setting,
        {
            "order": choice("order", ORDERS, order),
            "ageing": powers("ageing, steps", 2, 256, 16),
            "blocks": choice("blocks", [16, 20, 24, 32, 48, 64], blocks),
            "preemption": choice("preemption", list(PREEMPTIONS), "recompute"),
            "load": decimal("load", 0.5, 2.0, load),
        },
    )


def decode_kernel_explorer(sequences: int = 1, longest: int = 10_000, lengths: str = "equal") -> Explorer:
    """Paged decode attention on a GPU: how many programs there are, how long they run, which slots stay idle."""
    keys = [(f"{n:,}", n) for n in (100, 300, 1_000, 3_000, 10_000, 30_000, 100_000)]
    return Explorer(
        decode_setting,
        {
            "sequences": powers("sequences S", 1, 128, sequences),
            "longest": choice("longest, keys", keys, longest),
            "lengths": choice("lengths", LENGTHS, lengths),
            "kv_heads": choice("KV heads K", [1, 2, 4, 8], 8),
            "splits": powers("splits", 1, 64, 1),
            "tile": choice("tile, keys", [16, 32, 64, 128], 64),
            "per_sm": choice("programs / SM", [1, 2, 4], 1),
        },
    )


def outlier_explorer(records: Sequence[KVRecord]) -> Explorer:
    """Magnitudes of a head's keys or values, and what each scheme changes in its output; of every recorded head."""
    heads, views = {}, list(VIEWS)
    for seen in records:
        count = seen.values.shape[2]
        for layer in seen.layers:
            for head in range(count):
                name = f"{seen.model}, layer {layer}" + (f", head {head}" if count > 1 else "")
                heads[name] = seen.head(layer, head)
    return Explorer(
        lambda head, view: outlier_setting(heads[head], view),
        {"head": choice("KV head", list(heads), next(iter(heads))), "view": choice("show", views, views[0])},
    )


def next_token_explorer(llm: LLM, prompt: str, shown: int = 12) -> Explorer:
    """The next token's probabilities after a prompt, as temperature and top-p shape them."""
    logits = llm.model(llm.tokenizer.encode(prompt))[-1]
    plain = logits.softmax(dim=-1)
    top = plain.topk(shown).indices
    names = [llm.tokenizer.decode([int(token)]) for token in top]

    def draw(temperature: float, top_p: float) -> Figure:
        drawn = probabilities(logits, SamplingParams(temperature=temperature, top_p=top_p))
        left = int((drawn > 0).sum())
        title = f"{prompt} ...   {left:,} of {len(drawn):,} tokens can be drawn"
        return next_token(names, plain[top].tolist(), drawn[top].tolist(), title)

    return Explorer(
        draw,
        {
            "temperature": decimal("temperature", 0.0, 2.0, 1.0),
            "top_p": decimal("top-p", 0.05, 1.0, 0.9),
        },
    )


def decimal(name: str, low: float, high: float, value: float) -> ipywidgets.FloatSlider:
    """A slider over decimal numbers in steps of 0.05."""
    size = ipywidgets.Layout(width="360px")
    return ipywidgets.FloatSlider(value=value, min=low, max=high, step=0.05, description=name, style=NAMES, layout=size)
