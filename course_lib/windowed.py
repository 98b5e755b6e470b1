"""Give a model windows and attention sinks that it was not trained with, to see what that costs."""

from __future__ import annotations

import copy
from collections.abc import Iterable
from dataclasses import replace

from torch import nn

from course_lib.errors import RequestError
from course_lib.model import Decoder


def windowed(model: Decoder, window: int, sinks: int = 0, layers: Iterable[int] | None = None) -> Decoder:
    """The model with a sliding window in these layers (default: all); it shares every weight with the original.

    sinks: the first tokens of a sequence, which stay visible from everywhere. A window alone can break a model that was
    trained without: heads lay the attention that they have no use for on the first tokens, and these are gone once the
    window has left them. With four of them kept, the models of StreamingLLM stay themselves (arXiv 2309.17453, sections
    3.1 and 3.2). How much it takes differs; `perf.perplexity.score` tells: smollm2-135m breaks, tiny hardly notices.

    Positions are those of the text, as trained, so the model's context stays the limit. StreamingLLM counts positions
    within the cache instead: it keeps keys as they were before RoPE and rotates them anew in every step, which lets it
    run on past the context. gpt-oss has another thing of the same name, a learned number per head that joins the
    softmax as the score of a key without a value; it needs no token to stay, and it is not implemented here.

    Raises RequestError where a layer does not exist, ModelError for an impossible window or where the model's backend
    cannot do it.
    """
    config = model.config
    chosen = set(range(config.layers) if layers is None else layers)
    if missing := chosen - set(range(config.layers)):
        raise RequestError(f"there is no layer {min(missing)}; the model's layers are 0 to {config.layers - 1}")
    windows = tuple(window if layer in chosen else before for layer, before in enumerate(config.windows))
    changed = replace(config, windows=windows, sinks=sinks)
    model.backend.check(changed, model.dtype)
    twin = _shell(model)
    twin.config, twin.blocks = changed, nn.ModuleList(_shell(block) for block in model.blocks)
    for block, size in zip(twin.blocks, windows, strict=True):
        block.attention = _shell(block.attention)
        block.attention.window, block.attention.sinks = size, sinks
    return twin


def _shell(module: nn.Module) -> nn.Module:
    """A module with the same settings, parameters and children; settings and children can be replaced in it alone."""
    twin = copy.copy(module)
    twin._modules = dict(module._modules)
    return twin
