"""Merging KV heads: which heads, what of them, and that the decoder reads the result as the paper means it."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from course_lib.errors import ModelError
from course_lib.model import Decoder
from course_lib.training.convert_heads import pool_heads, pool_kv_heads, pool_projections
from tests.conftest import latent_config, sharpen, small_config

TOKENS = [5, 17, 3, 80, 41, 9, 9, 62]


@pytest.fixture(scope="module")
def mha() -> Decoder:
    return sharpen(Decoder.random(small_config(heads=4, kv_heads=4), seed=3))


def split(model: Decoder, layer: int = 0):
    """q, k and v of one layer's projection, each [heads, d, h]."""
    config = model.config
    weight = model.state_dict()[f"blocks.{layer}.attention.qkv.weight"].view(-1, config.head_dim, config.hidden)
    return weight.split([config.heads, config.kv_heads, config.kv_heads])


@pytest.mark.parametrize("kv_heads", [4, 2, 1])
def test_the_new_model_is_smaller_by_its_keys_and_values_only(mha, kv_heads):
    new = pool_kv_heads(mha, kv_heads)
    assert new.config == replace(mha.config, kv_heads=kv_heads)
    assert new.config.kv_bytes_per_token() * 4 == mha.config.kv_bytes_per_token() * kv_heads
    q, k, v = split(new)
    assert k.shape == v.shape == (kv_heads, 16, 48)
    assert torch.equal(q, split(mha)[0])
    mine, theirs = new.state_dict(), mha.state_dict()
    assert all(torch.equal(mine[name], theirs[name]) for name in mine if "qkv" not in name)
    assert new.forward(TOKENS).shape == (len(TOKENS), 97)


def test_means_of_neighbours_worked_by_hand():
    """Four heads of d = 2 on h = 1: the rows of heads 0 and 1 meet, and those of heads 2 and 3."""
    weight = torch.tensor([[1.0], [2.0], [3.0], [6.0], [10.0], [20.0], [50.0], [0.0]])
    assert pool_heads(weight, 4, 2).flatten().tolist() == [2.0, 4.0, 30.0, 10.0]
    assert pool_heads(weight, 4, 1).flatten().tolist() == [16.0, 7.0]
    assert pool_heads(weight, 4, 2, "first").flatten().tolist() == [1.0, 2.0, 10.0, 20.0]
    assert pool_heads(weight, 4, 1, "first").flatten().tolist() == [1.0, 2.0]
    assert pool_heads(weight[:, 0], 4, 2).tolist() == [2.0, 4.0, 30.0, 10.0]  # a bias


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32, torch.float64])
@pytest.mark.parametrize("how", ["mean", "first"])
def test_as_many_heads_as_before_is_the_identity_to_the_last_bit(dtype, how):
    weight = torch.randn(12, 5, dtype=torch.float64, generator=torch.Generator().manual_seed(1)).to(dtype)
    pooled = pool_heads(weight, 3, 3, how)
    assert pooled.dtype == dtype and torch.equal(pooled, weight)


def test_a_mean_of_half_precision_heads_does_not_overflow():
    assert pool_heads(torch.full((4, 1), 60_000.0, dtype=torch.float16), 4, 1).item() == 60_000


@pytest.mark.parametrize("kv_heads", [1, 2])
@pytest.mark.parametrize("how", ["mean", "first"])
@pytest.mark.parametrize("arch", ["llama", "qwen2"])
def test_merging_heads_that_are_equal_changes_no_logit(kv_heads, how, arch):
    """A grouped model written out with a copy of its head for every query head: merging finds the groups again."""
    config = small_config(architecture=arch, heads=4, kv_heads=kv_heads, qkv_bias=arch == "qwen2")
    grouped = sharpen(Decoder.random(config, seed=7))
    state = grouped.state_dict()
    for name in state:
        if ".qkv." in name:
            if name.endswith("bias"):
                state[name] = torch.randn(state[name].shape, generator=torch.Generator().manual_seed(2))
            q, k, v = state[name].unflatten(0, (-1, config.head_dim)).split([4, kv_heads, kv_heads])
            k, v = (part.repeat_interleave(4 // kv_heads, 0) for part in (k, v))
            state[name] = torch.cat((q, k, v)).flatten(0, 1)
    written_out = Decoder.random(replace(config, kv_heads=4))
    written_out.load_state_dict(state)
    want = written_out.forward(TOKENS)
    torch.testing.assert_close(pool_kv_heads(written_out, kv_heads, how).forward(TOKENS), want, rtol=0, atol=1e-5)


def test_the_merged_model_caches_the_mean_of_the_old_keys_and_values(mha):
    """RoPE is linear, so the mean of the projections gives the mean of the rotated keys (without a norm on keys)."""
    caches = []
    for model in (mha, pool_kv_heads(mha, 2)):
        caches.append(model.new_cache())
        model.forward(TOKENS, caches[-1])
    for old, new in zip(*(cache.read(0, 0, 1, len(TOKENS)) for cache in caches), strict=True):
        torch.testing.assert_close(new[0], old[0].unflatten(1, (2, 2)).mean(2), rtol=0, atol=1e-5)


def test_random_heads_forget_the_old_ones_and_follow_the_seed(mha):
    once, again, other = (pool_kv_heads(mha, 2, "random", seed) for seed in (1, 1, 2))
    for i in (1, 2):
        drawn = split(once)[i]
        assert torch.equal(drawn, split(again)[i]) and not torch.equal(drawn, split(other)[i])
        assert 0.018 < drawn.std() < 0.022
        assert not torch.equal(drawn, split(once, layer=1)[i])
    assert not torch.equal(split(once)[1], split(once)[2])


def test_the_training_names_are_merged_alike(mha):
    q, k, v = (part.flatten(0, 1) for part in split(mha))
    layer = "model.layers.0.self_attn."
    state = {f"{layer}q_proj.weight": q, f"{layer}k_proj.weight": k, f"{layer}v_proj.weight": v}
    pooled = pool_projections(state, 4, 2)
    for name, want in zip("qkv", split(pool_kv_heads(mha, 2)), strict=True):
        assert torch.equal(pooled[f"{layer}{name}_proj.weight"], want.flatten(0, 1))


@pytest.mark.parametrize("kv_heads", [0, 3, 8, -1])
def test_an_impossible_number_of_heads_is_one_sentence(mha, kv_heads):
    sentence = f"^4 KV heads cannot become {kv_heads}; ask for a number that divides 4$"
    with pytest.raises(ModelError, match=sentence):
        pool_kv_heads(mha, kv_heads)


def test_an_unknown_way_of_merging_is_one_sentence(mha):
    with pytest.raises(ModelError, match="^KV heads cannot be merged by 'median'; use one of mean, first, random$"):
        pool_kv_heads(mha, 2, "median")


def test_latent_attention_has_no_heads_to_merge():
    with pytest.raises(ModelError, match="^latent attention caches one vector for all heads, so none can be merged"):
        pool_kv_heads(Decoder.random(latent_config()), 2)
