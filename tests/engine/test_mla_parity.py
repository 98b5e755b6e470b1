"""DeepSeek V2 and V3 of dense layers: logits equal those of transformers, in both forms; planted mistakes do not."""

from __future__ import annotations

import functools
from unittest import mock

import pytest
import torch
import torch.nn.functional as F
import transformers
from torch import nn

from course_lib import load_model
from course_lib.backend.torch_backend import TorchStep
from course_lib.config import ModelConfig
from course_lib.errors import ModelError
from course_lib.mla import LatentAttention
from course_lib.model import Decoder
from course_lib.rope import Rope
from tests.serving.test_engine import ids

TOLERANCE = 1e-4
FORMS = ("plain", "absorbed", None)
COMMON = dict(
    hidden_size=48,
    intermediate_size=96,
    num_hidden_layers=3,
    num_attention_heads=4,
    num_key_value_heads=4,
    vocab_size=97,
    max_position_embeddings=256,
    rms_norm_eps=1e-3,  # far from that of the latents' norms, so that taking one for the other shows
    kv_lora_rank=24,
    q_lora_rank=20,
    qk_nope_head_dim=16,
    qk_rope_head_dim=8,
    v_head_dim=12,
    first_k_dense_replace=3,
    n_routed_experts=2,
    n_group=1,
    topk_group=1,
)
CASES = {
    "v2": (transformers.DeepseekV2Config, {}),
    "v2-lite": (transformers.DeepseekV2Config, dict(q_lora_rank=None)),
    "v3": (transformers.DeepseekV3Config, {}),
    "v3-half-split": (transformers.DeepseekV3Config, dict(rope_interleave=False)),
}


@functools.cache
def peer(kind: str) -> transformers.PreTrainedModel:
    """A random DeepSeek of dense layers, every parameter away from its default."""
    config_class, changes = CASES[kind]
    config = config_class(**(COMMON | changes), attn_implementation="eager")
    with torch.random.fork_rng():
        torch.manual_seed(0)
        model = transformers.AutoModelForCausalLM.from_config(config).float().eval()
        with torch.no_grad():
            for parameter in model.parameters():
                parameter.add_(torch.randn_like(parameter) * 0.2)
    return model


@pytest.fixture
def twins(request, tmp_path):
    """(transformers' logits of 80 tokens, our model, the tokens)"""
    theirs = peer(request.param)
    theirs.save_pretrained(tmp_path)
    tokens = ids(80, seed=1)
    with torch.no_grad():
        want = theirs(torch.tensor([tokens])).logits[0]
    assert want.std() > 0.1  # a model whose logits are all alike would pass any comparison
    return want, load_model(str(tmp_path), device="cpu"), tokens


def set_form(model: Decoder, form: str | None) -> Decoder:
    for block in model.blocks:
        block.attention.form = form
    return model


@pytest.mark.parametrize("twins", CASES, indirect=True)
@pytest.mark.parametrize("form", FORMS)
def test_logits_equal_transformers(twins, form):
    want, model, tokens = twins
    torch.testing.assert_close(set_form(model, form)(tokens), want, atol=TOLERANCE, rtol=0)


@pytest.mark.parametrize("twins", ["v2-lite", "v3"], indirect=True)
def test_prompt_chunk_and_decodes_equal_transformers(twins):
    """Forms alternate between the passes; what they leave in the cache is the same."""
    want, model, tokens = twins
    cache, parts = model.new_cache(capacity=80), []
    for i, n in enumerate([30, 5, 20, *[1] * 25]):
        start = cache.lengths[0]
        parts.append(set_form(model, FORMS[i % 3])(tokens[start : start + n], cache))
    torch.testing.assert_close(torch.cat(parts), want, atol=TOLERANCE, rtol=0)


@pytest.mark.parametrize("kind", CASES)
def test_parameters_are_counted(kind, tmp_path):
    peer(kind).save_pretrained(tmp_path)
    assert load_model(str(tmp_path), device="cpu").config.parameters() == peer(kind).num_parameters()


def unnormalised(attention: LatentAttention) -> None:
    attention.kv_norm = nn.Identity()


def scale_of_the_nope_part(attention: LatentAttention) -> None:
    attention.scale = attention.shape.qk_nope_head_dim**-0.5


def scale_of_the_stored_key(attention: LatentAttention) -> None:
    attention.scale = attention.shape.entry**-0.5


def no_rope_part_in_the_product(attention: LatentAttention) -> None:
    """What is left if W_UK^T q meets the latent only."""
    absorbed, width = attention.absorbed, attention.shape.qk_rope_head_dim
    attention.absorbed = attention.plain = lambda query, entries, mask: absorbed(
        query, F.pad(entries[..., :-width], (0, width)), mask
    )


def values_of_the_raw_latent(attention: LatentAttention) -> None:
    """Keys of the latent after its norm, values of the latent before it."""
    raw, sizes = [], (attention.shape.qk_nope_head_dim, attention.shape.v_head_dim)
    attention.kv_norm.register_forward_pre_hook(lambda module, inputs: raw.append(inputs[0]))

    def mixed(query, entries, mask):
        w_uk, w_uv = attention.kv_up.unflatten(0, (attention.heads, -1)).split(sizes, dim=1)
        nope, rope = query.tensor_split((sizes[0],), dim=-1)
        latent, rope_key = entries.tensor_split((attention.rank,), dim=-1)
        scores = torch.einsum("stha,har,snr->shtn", nope, w_uk, latent) + torch.einsum("sthp,snp->shtn", rope, rope_key)
        weights = (scores * attention.scale).masked_fill(~mask, -torch.inf).softmax(-1)
        return torch.einsum("shtn,snr,hvr->sthv", weights, raw[-1][None], w_uv)

    attention.plain = attention.absorbed = mixed


def w_uk_and_w_uv_swapped(attention: LatentAttention) -> None:
    parts = attention.kv_up.unflatten(0, (attention.heads, -1)).split(
        (attention.shape.qk_nope_head_dim, attention.shape.v_head_dim), dim=1
    )
    attention.kv_up = nn.Parameter(torch.cat(parts[::-1], dim=1).flatten(0, 1), requires_grad=False)


PLANTED = [
    unnormalised,
    scale_of_the_nope_part,
    scale_of_the_stored_key,
    no_rope_part_in_the_product,
    values_of_the_raw_latent,
    w_uk_and_w_uv_swapped,
]


@pytest.mark.parametrize("twins", ["v3"], indirect=True)
@pytest.mark.parametrize("plant", PLANTED)
@pytest.mark.parametrize("form", ["plain", "absorbed"])
def test_planted_mistakes_are_far_from_transformers(twins, plant, form):
    want, model, tokens = twins
    set_form(model, form)
    for block in model.blocks:
        plant(block.attention)
    assert (model(tokens) - want).abs().max() > 100 * TOLERANCE


@pytest.mark.parametrize("twins", ["v3"], indirect=True)
def test_rope_on_the_first_elements_is_far_from_transformers(twins):
    """They are those of the latent and of its share of the query."""
    want, model, tokens = twins

    def rotate_first(step, x, elements):
        turned, fixed = x.tensor_split((elements,), dim=-1)
        return torch.cat((Rope.rotate(turned, step.rotation), fixed), dim=-1)

    with mock.patch.object(TorchStep, "_rotate_last", rotate_first):
        assert (model(tokens) - want).abs().max() > 100 * TOLERANCE


def test_interleaved_weights_taken_as_they_are_stored_are_far_from_transformers(tmp_path):
    """8: the rope rows of queries and of the shared key."""
    peer("v3").save_pretrained(tmp_path)
    tokens = ids(80, seed=1)
    right = load_model(str(tmp_path), device="cpu")
    with mock.patch("course_lib.weights.sources.half_split", lambda config: lambda name, tensor: tensor):
        wrong = load_model(str(tmp_path), device="cpu")
    assert (right(tokens) - wrong(tokens)).abs().max() > 100 * TOLERANCE


@pytest.mark.parametrize("changes, sentence", [
    (dict(first_k_dense_replace=2), "mixtures of experts are not supported; DeepSeek models run with dense"),
    (dict(attention_bias=True), "latent attention with biases"),
    (dict(kv_lora_rank=None), "the entry 'kv_lora_rank' is missing"),
    (dict(rope_scaling=dict(type="yarn", factor=40)), "RoPE scaling 'yarn' is not supported"),
])  # fmt: skip
def test_a_checkpoint_that_the_decoder_cannot_run_is_one_sentence(changes, sentence):
    config = COMMON | dict(architectures=["DeepseekV3ForCausalLM"]) | changes
    with pytest.raises(ModelError, match=sentence):
        ModelConfig.from_hf(config)
