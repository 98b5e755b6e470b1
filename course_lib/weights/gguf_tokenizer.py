"""A tokenizer from GGUF metadata (byte-level BPE), for files that come without a tokenizer.json."""

from __future__ import annotations

import hashlib
import json
import os
from pathlib import Path

import tokenizers
from tokenizers import AddedToken, Regex, decoders, models, normalizers, pre_tokenizers

from course_lib.errors import ModelError
from course_lib.files import cache_dir
from course_lib.tokenizer import Tokenizer
from course_lib.weights.sources import GGUFFile


def gguf_tokenizer(path: Path) -> Tokenizer:
    """Build the tokenizer of a GGUF file. Parsing takes seconds, so the result is kept on disk, per file."""
    stamp = f"{path.resolve()} {path.stat().st_size} {path.stat().st_mtime_ns}"
    folder = cache_dir() / "tokenizers" / hashlib.sha256(stamp.encode()).hexdigest()[:16]
    if not (folder / "tokenizer.json").exists():
        _convert(path, folder)
    return Tokenizer.from_folder(folder)


# Which pieces of text BPE may merge within, by the name llama.cpp gives the rule (llama-vocab.cpp).
_CONTRACTIONS = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)"
_WORDS = r"|[^\r\n\p{L}\p{N}]?\p{L}+|%s| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
_SPLITS = {
    "llama-bpe": _CONTRACTIONS + _WORDS % r"\p{N}{1,3}",
    "qwen2": _CONTRACTIONS + _WORDS % r"\p{N}",
}
_CONTROL = 3  # gguf.TokenType.CONTROL
_USER_DEFINED = 4


def _pre_tokenizer(kind: str, path: Path) -> pre_tokenizers.PreTokenizer:
    if kind in ("smollm", "gpt-2"):
        digits = [pre_tokenizers.Digits(individual_digits=True)] if kind == "smollm" else []
        return pre_tokenizers.Sequence([*digits, pre_tokenizers.ByteLevel(add_prefix_space=False)])
    if kind in _SPLITS:
        split = pre_tokenizers.Split(Regex(_SPLITS[kind]), behavior="isolated")
        return pre_tokenizers.Sequence([split, pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)])
    raise ModelError(
        f"{path}: the pre-tokenizer '{kind}' is not supported; supported are smollm, gpt-2, {', '.join(_SPLITS)}; "
        "use the model's safetensors folder, which brings its tokenizer.json"
    )


def _convert(path: Path, folder: Path) -> None:
    """Write tokenizer.json and tokenizer_config.json from GGUF metadata (byte-level BPE only)."""
    meta = GGUFFile(path).metadata
    if meta.get("tokenizer.ggml.model") != "gpt2":
        raise ModelError(
            f"{path}: the tokenizer kind '{meta.get('tokenizer.ggml.model')}' is not supported, only byte-level BPE "
            "('gpt2'); use the model's safetensors folder, which brings its tokenizer.json"
        )
    tokens: list[str] = meta["tokenizer.ggml.tokens"]
    merges = [tuple(merge.split(" ")) for merge in meta["tokenizer.ggml.merges"]]
    inner = tokenizers.Tokenizer(models.BPE(vocab={token: i for i, token in enumerate(tokens)}, merges=merges))
    kind = meta.get("tokenizer.ggml.pre", "gpt-2")
    inner.pre_tokenizer = _pre_tokenizer(kind, path)
    if kind == "qwen2":
        inner.normalizer = normalizers.NFC()
    inner.decoder = decoders.ByteLevel()
    kinds = meta["tokenizer.ggml.token_type"]
    inner.add_special_tokens([AddedToken(t, special=True) for t, k in zip(tokens, kinds, strict=True) if k == _CONTROL])
    inner.add_tokens([AddedToken(t) for t, k in zip(tokens, kinds, strict=True) if k == _USER_DEFINED])

    def name(key: str) -> str | None:
        token = meta.get(f"tokenizer.ggml.{key}_token_id")
        return None if token is None else tokens[token]

    bos, eos = name("bos"), name("eos")
    if meta.get("tokenizer.ggml.add_bos_token") and bos:
        inner.post_processor = tokenizers.processors.TemplateProcessing(
            single=f"{bos} $A", pair=f"{bos} $A $B", special_tokens=[(bos, inner.token_to_id(bos))]
        )
    folder.mkdir(parents=True, exist_ok=True)
    config = {"bos_token": bos, "eos_token": eos, "chat_template": meta.get("tokenizer.chat_template")}
    (folder / "tokenizer_config.json").write_text(json.dumps(config), encoding="utf-8")
    # tokenizer.json comes last and in one step: its presence says that the folder is complete.
    inner.save(str(folder / "tokenizer.json.part"), pretty=False)
    os.replace(folder / "tokenizer.json.part", folder / "tokenizer.json")
