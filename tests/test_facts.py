"""The tables of models and devices: anchors from papers, exact parameter counts, honest marks."""

import pytest

from course_lib import facts
from course_lib.config import ModelConfig
from course_lib.errors import CourseError, ModelError

# Bytes per token in 16 bits: 2 * L * K * d * 2, or L * (512 + 64) * 2 for DeepSeek. Qwen3-8B has the cache of Qwen3-4B.
KV_PER_TOKEN = {
    "Llama-2-7B": 524_288,
    "Llama-2-13B": 819_200,
    "Llama-2-70B": 327_680,
    "LLaMA-65B": 2_621_440,
    "Llama-3.1-8B": 131_072,
    "Qwen3-8B": 147_456,
    "Qwen2.5-0.5B": 12_288,
    "DeepSeek-V2": 69_120,
    "DeepSeek-V3": 70_272,
}

# Exact sums over the tensors of the released checkpoints.
PARAMETERS = {
    "Llama-2-7B": 6_738_415_616,
    "Llama-2-70B": 68_976_648_192,
    "Llama-3.1-8B": 8_030_261_248,
    "Llama-3.1-405B": 405_853_388_800,
    "Mistral-7B-v0.1": 7_241_732_096,
    "Qwen2.5-0.5B": 494_032_768,
    "Qwen2.5-7B": 7_615_616_512,
    "Qwen3-0.6B": 596_049_920,
    "Qwen3-32B": 32_762_123_264,
    "Gemma-2-27B": 27_227_718_144,
    "Gemma-3-270M": 268_098_176,
    "Gemma-3-27B": 27_009_002_240,
    "SmolLM2-135M": 134_515_008,
}


@pytest.mark.parametrize(("name", "want"), KV_PER_TOKEN.items())
def test_kv_bytes_per_token(name, want):
    assert facts.model(name).kv_bytes_per_token() == want


def test_one_formula_counts_the_cache_of_every_model():
    """`ModelConfig`, from which the engine reserves, and `ModelShape` agree; with latent attention K and d are its."""
    mixtures = 0
    for shape in facts.models().values():
        if shape.architecture:
            assert shape.config.kv_bytes_per_token(1) == shape.kv_bytes_per_token(1) > 0, shape.name
            continue
        mixtures += 1  # no `ModelConfig` runs them, but their attention is one that it knows
        dense = dict(layers=shape.layers, hidden=shape.hidden, heads=shape.heads, ffn=1, vocab=1, context=1)
        heads, d = (shape.heads, shape.mla.qk_head_dim) if shape.mla else (shape.kv_heads, shape.head_dim)
        config = ModelConfig(architecture="any", kv_heads=heads, head_dim=d, mla=shape.mla, **dense)
        assert config.kv_bytes_per_token(1) == shape.kv_bytes_per_token(1) > 0, shape.name
    assert mixtures == 5


def test_latent_attention_is_stored_once_for_all_heads():
    """13: 512 + 64 elements, where 128 heads of 192 for the key and 128 for the value would be 40,960."""
    v3 = facts.model("DeepSeek-V3")
    assert v3.mla.entry == 576 and v3.mla.qk_head_dim == 192
    assert v3.kv_bytes_per_token(1) == 61 * 576
    # Queries down and up, the entry, keys and values up, the output.
    assert v3.mla.matrix_parameters(7168, 128) == (
        7168 * 1536 + 1536 * 24_576 + 7168 * 576 + 512 * 32_768 + 16_384 * 7168
    )


def test_kv_bytes_of_32768_tokens_at_32_layers_8_kv_heads():
    assert facts.model("Llama-3.1-8B").kv_bytes(32_768) == 4_294_967_296
    assert facts.model("Llama-3.1-8B").kv_bytes(32_768, batch=3) == 3 * 4_294_967_296
    assert facts.model("Llama-3.1-8B").kv_bytes(32_768, bytes_per_element=1) == 4_294_967_296 / 2


@pytest.mark.parametrize(
    ("name", "tokens", "windowed", "full"),
    [
        ("Gemma-3-27B", 32_768, 3_120_562_176, 16_642_998_272),
        ("Gemma-2-27B", 8_192, 2_315_255_808, 3_087_007_744),
        ("gpt-oss-20b", 131_072, 3_224_371_200, 6_442_450_944),
        ("Mistral-7B-v0.1", 32_768, 536_870_912, 4_294_967_296),
    ],
)
def test_sliding_windows_bound_the_cache(name, tokens, windowed, full):
    shape = facts.model(name)
    assert shape.kv_bytes(tokens) == windowed
    assert shape.kv_bytes(tokens, ignore_windows=True) == full
    assert shape.kv_bytes(100) == 100 * shape.kv_bytes_per_token(), "inside every window nothing is dropped"


@pytest.mark.parametrize(("name", "want"), PARAMETERS.items())
def test_parameters_are_exact(name, want):
    assert facts.model(name).params == want


def test_computed_parameters_agree_with_the_published_names():
    checked = 0
    for shape in facts.models().values():
        if shape.published_params and shape.architecture:
            # Names are rounded: "7B" is 6.74e9, "70B" is 68.98e9 and 70.55e9.
            assert shape.params == pytest.approx(shape.published_params, rel=0.04), shape.name
            checked += 1
    assert checked >= 10


def test_mixture_of_experts_total_and_active_parameters_follow_from_the_shape():
    shape = facts.model("Mixtral-8x7B")
    kv = shape.kv_heads * shape.head_dim
    attention = 2 * shape.hidden * shape.hidden + 2 * shape.hidden * kv
    expert, router = 3 * shape.hidden * shape.ffn, shape.experts * shape.hidden
    rest = 2 * shape.vocab * shape.hidden + shape.hidden + shape.layers * (attention + router + 2 * shape.hidden)
    assert shape.params == rest + shape.layers * shape.experts * expert
    assert shape.active_params == rest + shape.layers * shape.experts_per_token * expert


def test_head_dim_is_not_hidden_over_heads():
    shape = facts.model("Qwen3-32B")
    assert shape.heads * shape.head_dim == 8_192 != shape.hidden
    assert shape.config.head_dim == 128


def test_only_dense_decoders_have_a_config():
    for name in ("DeepSeek-V3", "Mixtral-8x7B"):
        with pytest.raises(ModelError, match=f"{name} is not a dense decoder"):
            _ = facts.model(name).config
    config = facts.model("Gemma-3-27B").config
    assert config.windows.count(None) == 10 and config.windows.count(1024) == 52


def test_unknown_names_list_the_close_ones():
    assert facts.model("llama-2-7b") is facts.model("Llama-2-7B")
    with pytest.raises(ModelError, match="'Llama-3-8B'.*Llama-3.1-8B"):
        facts.model("Llama-3-8B")
    with pytest.raises(CourseError, match="'A100'.*A100-80GB"):
        facts.device("A100")


@pytest.mark.parametrize(
    ("name", "ridge"),
    [("A100-80GB", 153), ("H100", 295), ("H200", 206), ("L4", 403), ("RTX 4090", 164), ("T4", 203), ("B200", 281)],
)
def test_ridge_points(name, ridge):
    assert facts.device(name).ridge == pytest.approx(ridge, abs=0.6)


def test_unconfirmed_figures_are_marked():
    assert facts.device("RTX 4090").label == "RTX 4090 (secondary source)"
    assert facts.device("H100").label == "H100"
    with pytest.raises(CourseError, match="Apple M2"):
        _ = facts.device("Apple M2").ridge
    for device in facts.devices().values():
        assert device.sources and device.bandwidth > 1e10, device.name
        # A data sheet's sparse figure would put the ridge far above every real one.
        assert device.flops is None or 50 < device.ridge < 450, device.name
        if device.measured_flops:
            assert device.measured_flops < device.flops, "a measured matmul stays under the dense peak"
