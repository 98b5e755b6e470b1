"""Which layers of a published model have a window, read from its config, and what that does to the cache's bytes."""

from __future__ import annotations

import pytest
import transformers

from course_lib import facts
from course_lib.config import ModelConfig
from course_lib.errors import ModelError
from course_lib.windows import hf_windows, kept_tokens
from tests.conftest import small_config

HYBRIDS = {
    "Gemma2ForCausalLM": (transformers.Gemma2Config, "Gemma-2-27B"),
    "Gemma3ForCausalLM": (transformers.Gemma3TextConfig, "Gemma-3-27B"),
    "GptOssForCausalLM": (transformers.GptOssConfig, "gpt-oss-20b"),
}


@pytest.mark.parametrize("name", HYBRIDS)
@pytest.mark.parametrize("listed", [True, False], ids=["layer_types", "period"])
def test_hybrid_patterns_equal_transformers_and_the_published_tables(name, listed):
    """Newer configs list their layers, older ones leave the pattern to the family."""
    config_class, model = HYBRIDS[name]
    shape = facts.model(model)
    window = shape.windows[0]
    config = config_class(num_hidden_layers=shape.layers, sliding_window=window)
    theirs = tuple(window if kind == "sliding_attention" else None for kind in config.layer_types)
    entries = config.to_dict() | dict(architectures=[name])
    if not listed:
        del entries["layer_types"]
    assert hf_windows(entries) == theirs == shape.layer_windows
    with pytest.raises(ModelError, match=f"{name} cannot be run, as the decoder lacks its norms"):
        ModelConfig.from_hf(entries)


def test_a_pattern_of_its_own_goes_before_the_family_s():
    entries = dict(architectures=["Gemma3ForCausalLM"], num_hidden_layers=4, sliding_window=8)
    assert hf_windows(entries) == (8, 8, 8, 8)
    assert hf_windows(entries | dict(sliding_window_pattern=2)) == (8, None, 8, None)
    with pytest.raises(ModelError, match="layer_types lists 2 layers and num_hidden_layers is 4; mend config.json"):
        hf_windows(entries | dict(layer_types=["full_attention"] * 2))


def test_families_without_a_hybrid_pattern():
    """Llama has no window whatever its config says; Qwen's is off unless it is switched on."""
    entries = dict(num_hidden_layers=3, sliding_window=8, max_window_layers=2)
    wants = {"LlamaForCausalLM": (None,) * 3, "MistralForCausalLM": (8,) * 3, "Qwen2ForCausalLM": (None,) * 3}
    assert {name: hf_windows(entries | dict(architectures=[name])) for name in wants} == wants
    on = entries | dict(use_sliding_window=True)
    assert hf_windows(on | dict(architectures=["Qwen3ForCausalLM"])) == (None, None, 8)


def test_kept_tokens_and_the_bytes_of_a_hybrid():
    """Until the window is full every token is kept; sinks come on top of it."""
    assert [kept_tokens(n, 4, 2) for n in (3, 6, 7, 100)] == [3, 6, 6, 6]
    assert kept_tokens(100, None, 2) == 100
    config = small_config(layers=3, windows=(4, None, 8), sinks=2)
    per_layer = 2 * config.kv_heads * config.head_dim * 2
    assert config.kv_bytes(5) == 3 * 5 * per_layer == 5 * config.kv_bytes_per_token()
    assert config.kv_bytes(20) == (6 + 20 + 10) * per_layer


@pytest.mark.parametrize("changes", [dict(windows=(0, None)), dict(sinks=-1)])
def test_impossible_windows_are_refused(changes):
    with pytest.raises(ModelError, match="a window is at least 1, or None, sinks 0"):
        small_config(**changes)
