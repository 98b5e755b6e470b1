"""Logits against transformers, in float32, for random tiny models of every supported architecture."""

from __future__ import annotations

import pytest
import torch
import transformers

from course_lib import load_model
from course_lib.weights.loading import ASSETS

TOLERANCE = 1e-4
COMMON = dict(
    hidden_size=48,
    intermediate_size=96,
    num_hidden_layers=3,
    num_attention_heads=4,
    num_key_value_heads=2,
    vocab_size=97,
    max_position_embeddings=256,
    rms_norm_eps=1e-5,
)
LLAMA3 = dict(
    rope_type="llama3",
    rope_theta=500_000.0,
    factor=8.0,
    low_freq_factor=1.0,
    high_freq_factor=4.0,
    original_max_position_embeddings=64,
)
FIVE_TO_ONE = ["sliding_attention"] * 5 + ["full_attention", "sliding_attention"]  # Gemma 3's pattern
CASES = {
    "llama": (transformers.LlamaConfig, dict(tie_word_embeddings=False)),
    "llama-tied": (transformers.LlamaConfig, dict(tie_word_embeddings=True)),
    "llama-mha": (transformers.LlamaConfig, dict(num_key_value_heads=4)),
    "llama-mqa": (transformers.LlamaConfig, dict(num_key_value_heads=1)),
    "llama-free-head-dim": (transformers.LlamaConfig, dict(head_dim=32)),
    "llama3-rope": (transformers.LlamaConfig, dict(rope_parameters=LLAMA3)),
    "mistral-window": (transformers.MistralConfig, dict(sliding_window=7)),
    "mistral-full": (transformers.MistralConfig, dict(sliding_window=None)),
    "qwen2-bias": (transformers.Qwen2Config, {}),
    "qwen2-window": (
        transformers.Qwen2Config,
        dict(use_sliding_window=True, sliding_window=7, max_window_layers=1),
    ),
    "qwen3-hybrid": (
        transformers.Qwen3Config,
        dict(num_hidden_layers=7, use_sliding_window=True, sliding_window=5, layer_types=FIVE_TO_ONE),
    ),
    "qwen3-qk-norm": (transformers.Qwen3Config, dict(head_dim=32, tie_word_embeddings=True)),
}


def save_random(kind: str, folder) -> transformers.PreTrainedModel:
    """A random model of the kind, with every parameter (norms and biases too) away from its default, saved."""
    config_class, changes = CASES[kind]
    torch.manual_seed(0)
    config = config_class(**(COMMON | changes), attn_implementation="eager")
    model = transformers.AutoModelForCausalLM.from_config(config).float().eval()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(torch.randn_like(parameter) * 0.1)
    model.save_pretrained(folder)
    return model


@pytest.mark.parametrize("kind", CASES)
def test_logits_equal_transformers(kind, tmp_path):
    theirs = save_random(kind, tmp_path)
    ours = load_model(str(tmp_path), device="cpu")
    ids = torch.randint(0, 97, (80,), generator=torch.Generator().manual_seed(1))
    with torch.no_grad():
        want = theirs(ids[None]).logits[0]
    assert want.std() > 0.1  # a model whose logits are all alike would pass any comparison
    torch.testing.assert_close(ours(ids), want, atol=TOLERANCE, rtol=0)


@pytest.mark.filterwarnings(
    "ignore:`past_key_values` is deprecated"
)  # its new name is not in the oldest version allowed
@pytest.mark.parametrize("kind", ["llama", "mistral-window", "qwen3-hybrid", "qwen3-qk-norm"])
def test_decode_equals_transformers_with_its_cache(kind, tmp_path):
    """Prefill 5, then one token at a time: position len - 1, against transformers' own cached decode."""
    theirs = save_random(kind, tmp_path)
    ours = load_model(str(tmp_path), device="cpu")
    ids = torch.randint(0, 97, (24,), generator=torch.Generator().manual_seed(2))
    cache = ours.new_cache(capacity=32)
    with torch.no_grad():
        step = theirs(ids[None, :5], use_cache=True)
        torch.testing.assert_close(ours(ids[:5], cache), step.logits[0], atol=TOLERANCE, rtol=0)
        for i in range(5, len(ids)):
            step = theirs(ids[None, i : i + 1], past_key_values=step.past_key_values, use_cache=True)
            torch.testing.assert_close(ours(ids[i : i + 1], cache), step.logits[0], atol=TOLERANCE, rtol=0)


@pytest.mark.parametrize("name", ["tiny", "tiny-draft", "tiny-mha"])
def test_embedded_models_equal_transformers(name):
    theirs = transformers.AutoModelForCausalLM.from_pretrained(ASSETS / name, dtype=torch.float32).eval()
    ours = load_model(name, device="cpu")
    ids = torch.randint(0, ours.config.vocab, (200,), generator=torch.Generator().manual_seed(3))
    with torch.no_grad():
        want = theirs(ids[None]).logits[0]
    torch.testing.assert_close(ours(ids), want, atol=TOLERANCE, rtol=0)
    assert theirs.num_parameters() == ours.config.parameters()


def test_sharded_folder_loads_like_a_whole_one(tmp_path):
    model = save_random("llama", tmp_path / "whole")
    model.save_pretrained(tmp_path / "sharded", max_shard_size="50KB")
    assert len(list((tmp_path / "sharded").glob("*.safetensors"))) > 1
    ids = list(range(20))
    whole, sharded = (load_model(str(tmp_path / kind), device="cpu") for kind in ("whole", "sharded"))
    assert torch.equal(whole(ids), sharded(ids))


def test_bfloat16_stays_near_float32(tmp_path):
    """Norm, softmax and rotation accumulate in float32, so bf16 logits differ only by rounding of 8 bits."""
    theirs = save_random("llama", tmp_path)
    ours = load_model(str(tmp_path), device="cpu", dtype=torch.bfloat16)
    ids = torch.arange(64) % 97
    with torch.no_grad():
        exact = theirs(ids[None]).logits[0]
        peer = theirs.bfloat16()(ids[None]).logits[0].float()
    scale = exact.std()
    assert (ours(ids) - exact).std() / scale < 1.5 * (peer - exact).std() / scale
