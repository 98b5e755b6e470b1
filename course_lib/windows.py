"""Sliding windows in numbers: what a layer keeps of a sequence, and which layers of a published model have one."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from course_lib.errors import ModelError

# Families with a full layer every so often, where their configs do not list the layers.
HYBRIDS = {"Gemma2ForCausalLM": 2, "Gemma3ForCausalLM": 6, "GptOssForCausalLM": 2}


def kept_tokens(tokens: int, window: int | None, sinks: int = 0) -> int:
    """How many of a sequence's tokens a layer has to keep: all, or with a window W the last W and the first `sinks`.

    It is also how many keys the last query of the sequence sees.
    """
    return tokens if window is None else min(tokens, window + sinks)


def hf_windows(config: Mapping[str, Any]) -> tuple[int | None, ...]:
    """Window of each layer, None = full attention, from a Hugging Face `config.json` (a mapping).

    Mistral has one window in every layer, Qwen 2 and 3 from some layer on and only where `use_sliding_window` says so,
    Llama none. Gemma 2, Gemma 3 (5 : 1) and gpt-oss (1 : 1) are hybrids: windows with a full layer every so often.
    `layer_types` lists the layers in newer configs. Works too for models that `Decoder` cannot run.
    Raises ModelError where `num_hidden_layers` and `layer_types` disagree.
    """
    name, layers = (config.get("architectures") or ["missing"])[0], config["num_hidden_layers"]
    window, kinds = config.get("sliding_window"), config.get("layer_types")
    # Qwen configs carry a window that is off unless use_sliding_window says so; Llama has none.
    if not window or name.startswith("Llama") or (name.startswith("Qwen") and not config.get("use_sliding_window")):
        return (None,) * layers
    if kinds and len(kinds) != layers:
        raise ModelError(f"layer_types lists {len(kinds)} layers and num_hidden_layers is {layers}; mend config.json")
    if kinds:
        return tuple(window if kind == "sliding_attention" else None for kind in kinds)
    if name in HYBRIDS:
        period = config.get("sliding_window_pattern") or HYBRIDS[name]
        return tuple(window if (layer + 1) % period else None for layer in range(layers))
    first = config.get("max_window_layers", 0) if name.startswith("Qwen") else 0
    return tuple(window if layer >= first else None for layer in range(layers))
