"""The tokenizer: round trips, streaming of split characters, chat templates, conversion from GGUF."""

from __future__ import annotations

import gguf
import pytest
import tokenizers
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import decoders

from course_lib import load_tokenizer
from course_lib.errors import ModelError, RequestError
from course_lib.tokenizer import Tokenizer

TINY = load_tokenizer("tiny")


@given(st.text(max_size=60))
@settings(max_examples=200, deadline=None)
def test_any_text_survives(text):
    assert TINY.decode(TINY.encode(text)) == text


@given(st.text(max_size=30))
@settings(max_examples=100, deadline=None)
def test_stream_adds_up_and_never_shows_half_a_character(text):
    stream = TINY.stream()
    pieces = [stream.push(token) for token in TINY.encode(text)]
    assert "".join(pieces) + stream.flush() == text
    if "\ufffd" not in text:
        assert not any("\ufffd" in piece for piece in pieces)


@given(st.text(max_size=30))
@settings(max_examples=100, deadline=None)
def test_bytes_of_tokens_add_up_to_the_text(text):
    assert b"".join(TINY.token_bytes(token) for token in TINY.encode(text)) == text.encode()


def test_tokens_as_text():
    """Half a character is escaped as OpenAI does it, a special token has a name but no bytes, padding has neither."""
    half = TINY.encode("\N{EURO SIGN}")[0]
    assert (TINY.token_bytes(half), TINY.token_text(half)) == (b"\xe2", "\\xe2")
    assert (TINY.token_bytes(0), TINY.token_text(0)) == (None, "<|endoftext|>")
    assert (TINY.token_bytes(10**6), TINY.token_text(10**6)) == (None, "")


def test_bytes_of_sentencepiece_tokens():
    pieces = ["<unk>", "\u2581the", "<0xE2>", "\u20ac", "<tool>"]
    inner = tokenizers.Tokenizer(tokenizers.models.BPE(vocab={p: i for i, p in enumerate(pieces[:-1])}, merges=[]))
    inner.decoder = decoders.Sequence([decoders.Replace("\u2581", " "), decoders.ByteFallback(), decoders.Fuse()])
    inner.add_tokens([tokenizers.AddedToken("<tool>", special=False)])
    tokenizer = Tokenizer(inner, None, None, None)
    assert [tokenizer.token_bytes(i) for i in range(1, 5)] == [b" the", b"\xe2", b"\xe2\x82\xac", b"<tool>"]


def test_pair_shares_one_vocabulary():
    assert TINY.inner.get_vocab() == load_tokenizer("tiny-draft").inner.get_vocab()


def test_chat_template_is_rendered_like_hugging_face_and_sandboxed():
    tokenizer = load_tokenizer("tiny")
    tokenizer.chat_template = (
        "{% for m in messages %}\n[{{ m.role }}] {{ m.content | tojson }}\n{% endfor %}\n"
        "{% if add_generation_prompt %}>{% endif %}"
    )
    assert tokenizer.render_chat([{"role": "user", "content": 'a"b'}]) == '[user] "a\\"b"\n>'
    tokenizer.chat_template = "{{ raise_exception('roles must alternate') }}"
    with pytest.raises(RequestError, match="roles must alternate"):
        tokenizer.render_chat([])
    tokenizer.chat_template = "{{ messages.__class__.__mro__ }}"
    with pytest.raises(RequestError, match="chat template refused"):
        tokenizer.render_chat([])


def write_vocabulary(path, model="gpt2", pre="gpt-2") -> None:
    writer = gguf.GGUFWriter(path, "llama")
    for key in ("block_count", "embedding_length", "feed_forward_length", "context_length", "attention.head_count"):
        writer.add_uint32(f"llama.{key}", 2)
    writer.add_float32("llama.attention.layer_norm_rms_epsilon", 1e-5)
    writer.add_tokenizer_model(model)
    writer.add_tokenizer_pre(pre)
    vocabulary = sorted(TINY.inner.get_vocab(), key=TINY.inner.get_vocab().get)
    writer.add_token_list(vocabulary)
    writer.add_token_types([3 if i == 0 else 1 for i in range(len(vocabulary))])
    import json

    merges = json.loads(TINY.inner.to_str())["model"]["merges"]
    writer.add_token_merges([" ".join(merge) for merge in merges])
    writer.add_bos_token_id(0)
    writer.add_eos_token_id(0)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.close()


def test_gguf_vocabulary_becomes_the_same_tokenizer_and_is_kept(tmp_path, monkeypatch):
    monkeypatch.setenv("COURSE_CACHE", str(tmp_path / "cache"))
    write_vocabulary(tmp_path / "m.gguf")
    tokenizer = load_tokenizer(str(tmp_path / "m.gguf"))
    text = "And it came to pass, that 12 men; <|endoftext|>"
    assert tokenizer.encode(text) == TINY.encode(text)
    monkeypatch.setattr("course_lib.weights.gguf_tokenizer._convert", None)  # the second time needs no conversion
    assert load_tokenizer(str(tmp_path / "m.gguf")).encode(text) == TINY.encode(text)


@pytest.mark.parametrize(
    "settings, says",
    [
        (dict(model="llama"), "the tokenizer kind 'llama' is not supported"),
        (dict(pre="tekken"), "the pre-tokenizer 'tekken' is not supported"),
    ],
)
def test_unsupported_gguf_vocabularies_say_what_to_do(settings, says, tmp_path, monkeypatch):
    monkeypatch.setenv("COURSE_CACHE", str(tmp_path / "cache"))
    write_vocabulary(tmp_path / "m.gguf", **settings)
    with pytest.raises(ModelError, match=says + ".*safetensors folder"):
        load_tokenizer(str(tmp_path / "m.gguf"))
