"""Text to token ids and back, with the `tokenizers` library; chat templates with Jinja, as Hugging Face does it."""

from __future__ import annotations

import hashlib
import json
import os
from datetime import datetime
from pathlib import Path
from typing import Any, Sequence

import platformdirs
import tokenizers
from jinja2 import TemplateError
from jinja2.sandbox import ImmutableSandboxedEnvironment
from tokenizers import AddedToken, Regex, decoders, models, normalizers, pre_tokenizers
from tokenizers.decoders import DecodeStream

from course_lib.errors import ModelError, RequestError
from course_lib.weights.sources import GGUFFile, read_json

Messages = Sequence[dict[str, str]]


class Tokenizer:
    """Encodes, decodes and renders chats for one model."""

    def __init__(self, inner: tokenizers.Tokenizer, bos: str | None, eos: str | None, chat_template: str | None):
        self.inner = inner
        self.bos, self.eos = bos, eos
        self.chat_template = chat_template

    @classmethod
    def from_folder(cls, folder: Path) -> Tokenizer:
        """Read tokenizer.json and tokenizer_config.json of a Hugging Face folder."""
        path = folder / "tokenizer.json"
        if not path.exists():
            raise ModelError(f"{path} is missing; save the tokenizer in its fast form (tokenizer.json) into the folder")
        try:
            inner = tokenizers.Tokenizer.from_file(str(path))
        except Exception as error:  # the library raises bare Exception
            raise ModelError(f"{path} is not a readable tokenizer ({error}); download it again") from None
        config_path = folder / "tokenizer_config.json"
        config = read_json(config_path) if config_path.exists() else {}
        template = config.get("chat_template")
        if isinstance(template, list):  # several named templates
            template = next((entry["template"] for entry in template if entry["name"] == "default"), None)
        if (folder / "chat_template.jinja").exists():
            template = (folder / "chat_template.jinja").read_text(encoding="utf-8")
        return cls(inner, _content(config.get("bos_token")), _content(config.get("eos_token")), template)

    @classmethod
    def from_gguf(cls, path: Path) -> Tokenizer:
        """Build the tokenizer from a GGUF file's metadata. Parsing takes seconds, so the result is kept on disk."""
        stamp = f"{path.resolve()} {path.stat().st_size} {path.stat().st_mtime_ns}"
        folder = cache_dir() / "tokenizers" / hashlib.sha256(stamp.encode()).hexdigest()[:16]
        if not (folder / "tokenizer.json").exists():
            _convert_gguf(path, folder)
        return cls.from_folder(folder)

    def encode(self, text: str, special: bool = True) -> list[int]:
        """Token ids of a text. special: add the tokens the model expects around a plain prompt (such as BOS)."""
        return self.inner.encode(text, add_special_tokens=special).ids

    def decode(self, ids: Sequence[int]) -> str:
        """Text of token ids, special tokens left out."""
        return self.inner.decode(list(ids), skip_special_tokens=True)

    def render_chat(self, messages: Messages, add_generation_prompt: bool = True) -> str:
        """The prompt text of a conversation, by the model's own template. Raises RequestError where it has none."""
        if not self.chat_template:
            raise RequestError(
                "this model has no chat template: it continues text; use generate(prompt), or smollm2-135m"
            )
        env = ImmutableSandboxedEnvironment(trim_blocks=True, lstrip_blocks=True)
        env.filters["tojson"] = lambda value, **options: json.dumps(value, ensure_ascii=False, **options)
        env.globals.update(raise_exception=_raise, strftime_now=lambda form: datetime.now().strftime(form))
        try:
            return env.from_string(self.chat_template).render(
                messages=list(messages),
                add_generation_prompt=add_generation_prompt,
                bos_token=self.bos or "",
                eos_token=self.eos or "",
            )
        except TemplateError as error:
            raise RequestError(f"the model's chat template refused the messages: {error}") from None

    def stream(self) -> TextStream:
        """A decoder that takes one token at a time."""
        return TextStream(self)


class TextStream:
    """Decodes a growing sequence: each `push` returns the text that became certain.

    A character may span several tokens; its text is held back until it is whole. All pieces together equal
    `Tokenizer.decode` of all ids.
    """

    def __init__(self, tokenizer: Tokenizer):
        self._tokenizer = tokenizer
        self._stream = DecodeStream(skip_special_tokens=True)
        self._ids: list[int] = []
        self.text = ""

    def push(self, token: int) -> str:
        self._ids.append(token)
        piece = self._stream.step(self._tokenizer.inner, token) or ""
        self.text += piece
        return piece

    def flush(self) -> str:
        """The rest: bytes of a character that was never finished, shown as U+FFFD."""
        piece = self._tokenizer.decode(self._ids)[len(self.text) :]
        self.text += piece
        return piece


def cache_dir() -> Path:
    """Where the course keeps what it fetched or converted: COURSE_CACHE, else the user's cache folder."""
    return Path(os.environ.get("COURSE_CACHE") or platformdirs.user_cache_dir("llm-inference-course"))


def _raise(message: str):
    raise TemplateError(message)


def _content(token: Any) -> str | None:
    return token.get("content") if isinstance(token, dict) else token


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


def _convert_gguf(path: Path, folder: Path) -> None:
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
