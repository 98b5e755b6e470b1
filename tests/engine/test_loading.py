"""Every way a model file can be wrong gives one sentence that names the file and what is wrong in it."""

from __future__ import annotations

import json
import shutil

import pytest
import torch
from safetensors.torch import load_file, save_file

from course_lib import load_model, load_tokenizer
from course_lib.config import ModelConfig
from course_lib.errors import ModelError
from course_lib.weights.loading import ASSETS


@pytest.fixture
def folder(tmp_path):
    """A copy of tiny-draft to damage."""
    return shutil.copytree(ASSETS / "tiny-draft", tmp_path / "model")


def edit_config(folder, **changes):
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps(config | changes))


def edit_tensors(folder, change):
    tensors = load_file(folder / "model.safetensors")
    change(tensors)
    save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})


def fails(folder, *parts):
    with pytest.raises(ModelError) as caught:
        load_model(str(folder), device="cpu")
    message = str(caught.value)
    assert "\n" not in message
    for part in parts:
        assert part in message, message


def test_the_copy_loads(folder):
    ids = list(range(30))
    assert torch.equal(load_model(str(folder), device="cpu")(ids), load_model("tiny-draft", device="cpu")(ids))


def test_truncated_file(folder):
    path = folder / "model.safetensors"
    path.write_bytes(path.read_bytes()[:1000])
    fails(folder, "model.safetensors is damaged or cut short", "download it again")


def test_missing_weights(folder):
    (folder / "model.safetensors").unlink()
    fails(folder, "model.safetensors is missing")


def test_missing_shard(folder):
    names = load_file(folder / "model.safetensors").keys()
    index = {"weight_map": dict.fromkeys(names, "model-00001-of-00002.safetensors")}
    (folder / "model.safetensors.index.json").write_text(json.dumps(index))
    fails(folder, "model-00001-of-00002.safetensors is missing")


def test_missing_tensor(folder):
    edit_tensors(folder, lambda tensors: tensors.pop("model.layers.0.mlp.up_proj.weight"))
    fails(folder, "model.layers.0.mlp.up_proj.weight", "is missing")


def test_wrong_shape(folder):
    key = "model.layers.1.self_attn.k_proj.weight"
    edit_tensors(folder, lambda tensors: tensors.update({key: tensors[key][:-1].contiguous()}))
    fails(folder, key, "has shape", "expected")


def test_unknown_architecture(folder):
    edit_config(folder, architectures=["MambaForCausalLM"])
    fails(folder, "config.json", "MambaForCausalLM is not supported", "LlamaForCausalLM")


def test_unknown_rope_scaling(folder):
    edit_config(folder, rope_scaling={"rope_type": "yarn", "factor": 4.0}, rope_parameters=None)
    fails(folder, "RoPE scaling 'yarn' is not supported")


def test_quantised_checkpoint(folder):
    edit_config(folder, quantization_config={"quant_method": "gptq"})
    fails(folder, "quantised checkpoints are not supported")


def test_missing_config_entry(folder):
    config = json.loads((folder / "config.json").read_text())
    del config["intermediate_size"]
    (folder / "config.json").write_text(json.dumps(config))
    fails(folder, "config.json", "'intermediate_size' is missing")


def test_broken_config(folder):
    (folder / "config.json").write_text("{")
    fails(folder, "config.json is not valid JSON")


def test_folder_without_config(tmp_path):
    fails(tmp_path, "config.json is missing")


def test_missing_tokenizer(folder):
    (folder / "tokenizer.json").unlink()
    with pytest.raises(ModelError, match="tokenizer.json is missing"):
        load_tokenizer(str(folder))


def test_unknown_name():
    fails("tinny", "there is no model 'tinny'", "tiny-draft", "smollm2-135m")


def test_file_that_is_no_model(tmp_path):
    (tmp_path / "weights.bin").write_bytes(b"x")
    fails(tmp_path / "weights.bin", "neither a folder nor a .gguf file")


def test_hub_without_network_says_what_to_do(monkeypatch):
    import huggingface_hub

    def offline(*args, **kwargs):
        raise ConnectionError("no route")

    monkeypatch.setattr(huggingface_hub, "snapshot_download", offline)
    fails("Qwen/Qwen3-0.6B", "could not be fetched from the Hugging Face hub", "ConnectionError", "tiny")


def test_hub_id_loads_the_fetched_folder(folder, monkeypatch):
    import huggingface_hub

    monkeypatch.setattr(huggingface_hub, "snapshot_download", lambda name, **_: str(folder))
    assert load_model("someone/some-model", device="cpu").config == load_model("tiny-draft", device="cpu").config


@pytest.mark.skipif(torch.cuda.is_available(), reason="this machine has an NVIDIA GPU")
def test_cuda_without_a_gpu():
    with pytest.raises(ModelError, match="torch sees no NVIDIA GPU; use device='cpu'"):
        load_model("tiny-draft", device="cuda")


def test_other_devices_are_refused():
    with pytest.raises(ModelError, match="the device 'mps' is not supported; use 'cpu' or"):
        load_model("tiny-draft", device="mps")


def test_head_dim_is_read_not_derived():
    """12: Qwen3-32B has 64 heads of 128 on a hidden size of 5,120, not 80."""
    hf = dict(
        architectures=["Qwen3ForCausalLM"],
        num_hidden_layers=64,
        hidden_size=5120,
        num_attention_heads=64,
        num_key_value_heads=8,
        head_dim=128,
        intermediate_size=25600,
        vocab_size=151936,
        max_position_embeddings=40960,
        rope_theta=1e6,
    )
    config = ModelConfig.from_hf(hf)
    assert config.head_dim == 128 and config.parameters() == 32_762_123_264 and config.rope_theta == 1e6


def test_llama3_frequencies_are_read_in_both_spellings():
    """9: Llama 3 with theta 10,000, or without its frequency scaling, degrades silently."""
    scaling = dict(
        rope_type="llama3",
        factor=8.0,
        low_freq_factor=1.0,
        high_freq_factor=4.0,
        original_max_position_embeddings=8192,
    )
    hf = dict(
        architectures=["LlamaForCausalLM"],
        num_hidden_layers=2,
        hidden_size=64,
        num_attention_heads=4,
        intermediate_size=64,
        vocab_size=64,
        max_position_embeddings=131072,
    )
    old = ModelConfig.from_hf(hf | dict(rope_theta=500000.0, rope_scaling=scaling))
    new = ModelConfig.from_hf(hf | dict(rope_parameters=scaling | dict(rope_theta=500000.0)))
    assert old == new and old.rope_theta == 500_000 and old.rope_scaling.factor == 8


def test_end_tokens_come_from_the_generation_config(folder):
    (folder / "generation_config.json").write_text(json.dumps({"eos_token_id": [3, 5]}))
    assert load_model(str(folder), device="cpu").config.eos_ids == (3, 5)
