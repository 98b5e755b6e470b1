"""GGUF: permuted Llama weights, block formats, bad files, and SmolLM2 against transformers' own GGUF reader."""

from __future__ import annotations

from dataclasses import replace

import gguf
import numpy as np
import pytest
import torch
from gguf import GGMLQuantizationType as Q

from course_lib import load_model, load_tokenizer
from course_lib.errors import ModelError
from course_lib.fetch import smollm2_path
from course_lib.model import Decoder
from course_lib.weights import names
from tests.conftest import small_config

SMOLLM2 = smollm2_path()
needs_smollm2 = pytest.mark.skipif(
    SMOLLM2 is None, reason="smollm2-135m is not here; `python3 course.py fetch` gets it"
)


def permute(rows: torch.Tensor, heads: int) -> torch.Tensor:
    """What llama.cpp's converter does to Llama's q and k, as its source states it."""
    return rows.reshape(heads, 2, rows.shape[0] // heads // 2, *rows.shape[1:]).swapaxes(1, 2).reshape(rows.shape)


def write_gguf(path, model: Decoder, kind: Q = Q.F32, skip: str = "", cut: str = "", meta: dict | None = None) -> None:
    """A GGUF file of the model; `skip` leaves a tensor out, `cut` drops one of its rows, `meta` overrides entries."""
    c = model.config
    writer = gguf.GGUFWriter(path, c.architecture)
    numbers = {
        "block_count": c.layers,
        "context_length": c.context,
        "embedding_length": c.hidden,
        "feed_forward_length": c.ffn,
        "attention.head_count": c.heads,
        "attention.head_count_kv": c.kv_heads,
        "attention.key_length": c.head_dim,
        "vocab_size": c.vocab,
    }
    for key, value in (numbers | (meta or {})).items():
        writer.add_uint32(f"{c.architecture}.{key}", value)
    writer.add_float32(f"{c.architecture}.rope.freq_base", c.rope_theta)
    writer.add_float32(f"{c.architecture}.attention.layer_norm_rms_epsilon", c.norm_eps)
    state = model.state_dict()
    for ours, theirs in names.GGUF.entries(c):
        sizes = [names.source_shape(ours, name, c)[0] for name in theirs]
        for name, tensor in zip(theirs, state[ours].contiguous().split(sizes), strict=True):
            if name == skip:
                continue
            if c.architecture == "llama" and (".attn_q." in name or ".attn_k." in name):
                tensor = permute(tensor, c.heads if ".attn_q." in name else c.kv_heads)
            data = tensor[: -1 if name == cut else None].numpy()
            quantise = kind != Q.F32 and data.ndim > 1
            writer.add_tensor(
                name, gguf.quants.quantize(data, kind) if quantise else data, raw_dtype=kind if quantise else None
            )
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


@pytest.mark.parametrize(
    "changes",
    [
        dict(architecture="llama"),
        dict(architecture="llama", tied_embeddings=True),
        dict(architecture="qwen2", qkv_bias=True),
        dict(architecture="qwen3", qk_norm=True),
    ],
    ids=lambda c: "-".join(map(str, c.values())),
)
def test_a_written_model_reads_back(changes, tmp_path):
    """8: Llama's q and k come permuted for interleaved RoPE and must be put back; others must not be touched."""
    model = Decoder.random(small_config(**changes), seed=3)
    write_gguf(tmp_path / "m.gguf", model)
    loaded = load_model(str(tmp_path / "m.gguf"), device="cpu")
    # GGUF keeps the norm's epsilon as float32, so it comes back with seven digits.
    assert loaded.config.norm_eps == pytest.approx(model.config.norm_eps, rel=1e-7)
    assert replace(loaded.config, norm_eps=model.config.norm_eps) == model.config
    assert torch.equal(loaded(range(40)), model(range(40)))


@pytest.mark.parametrize("kind", [Q.Q4_0, Q.Q4_1, Q.Q5_0, Q.Q8_0, Q.F16])
def test_block_formats_are_expanded(kind, tmp_path):
    """The loaded weight equals gguf-py's own quantise-dequantise, element by element (32: nibble order)."""
    model = Decoder.random(small_config(hidden=64, ffn=96), seed=4)
    write_gguf(tmp_path / "m.gguf", model, kind)
    got = load_model(str(tmp_path / "m.gguf"), device="cpu").state_dict()["blocks.1.ffn.down.weight"]
    original = model.state_dict()["blocks.1.ffn.down.weight"].contiguous().numpy()
    want = gguf.quants.dequantize(gguf.quants.quantize(original, kind), kind)
    np.testing.assert_array_equal(got.numpy(), want)
    assert not np.array_equal(want, original)


def test_bad_files_are_named(tmp_path):
    model = Decoder.random(small_config(), seed=5)
    path = tmp_path / "m.gguf"

    def fails(*parts: str):
        with pytest.raises(ModelError) as caught:
            load_model(str(path), device="cpu")
        for part in ("m.gguf", *parts):
            assert part in str(caught.value)
        assert "\n" not in str(caught.value)

    write_gguf(path, model, skip="blk.1.ffn_up.weight")
    fails("blk.1.ffn_up.weight", "is missing")
    write_gguf(path, model, cut="blk.0.attn_k.weight")
    fails("blk.0.attn_k.weight", "has shape (31, 48), expected (32, 48)")
    write_gguf(path, model, meta={"feed_forward_length": 97})
    fails("blk.0.ffn_gate.weight", "has shape")
    write_gguf(path, model)
    whole = path.read_bytes()
    for length in (0, 3, 100, len(whole) // 2, len(whole) - 1):
        path.write_bytes(whole[:length])
        fails("cut short")
    path.write_bytes(b"not a model at all" * 100)
    fails("not a readable GGUF file")


def test_unknown_architecture(tmp_path):
    writer = gguf.GGUFWriter(tmp_path / "m.gguf", "mamba")
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.close()
    with pytest.raises(ModelError, match="architecture mamba is not supported"):
        load_model(str(tmp_path / "m.gguf"), device="cpu")


@needs_smollm2
@pytest.mark.slow
def test_smollm2_equals_transformers_own_gguf_loading():
    from transformers import AutoModelForCausalLM, GgufConfig

    theirs = AutoModelForCausalLM.from_pretrained(
        SMOLLM2.parent,
        gguf_file=SMOLLM2.name,
        quantization_config=GgufConfig(dequantize=True),
        dtype=torch.float32,
    ).eval()
    ours = load_model("smollm2-135m", device="cpu")
    ids = torch.randint(0, ours.config.vocab, (64,), generator=torch.Generator().manual_seed(0))
    with torch.no_grad():
        want = theirs(ids[None]).logits[0]
    torch.testing.assert_close(ours(ids), want, atol=1e-4, rtol=0)


@needs_smollm2
def test_smollm2_tokenizer_and_chat_template():
    tokenizer = load_tokenizer("smollm2-135m")
    prompt = tokenizer.render_chat([{"role": "user", "content": "Hi 123"}])
    assert prompt.startswith("<|im_start|>system\n") and prompt.endswith(
        "<|im_start|>user\nHi 123<|im_end|>\n<|im_start|>assistant\n"
    )
    ids = tokenizer.encode(prompt, special=False)
    assert ids[0] == 1 and ids.count(2) == 2  # <|im_start|> and <|im_end|> are single tokens
    assert len(tokenizer.encode("123")) == 3  # digits stand alone in this vocabulary
    text = "naïve café — 東京 🙂\n\tdef f(x): return x"
    assert tokenizer.decode(tokenizer.encode(text)) == text
