"""Text to token ids and back, with the `tokenizers` library; chat templates with Jinja, as Hugging Face does it."""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from datetime import datetime
from functools import cached_property
from pathlib import Path
from typing import Any

import tokenizers
from jinja2 import TemplateError
from jinja2.sandbox import ImmutableSandboxedEnvironment
from tokenizers.decoders import DecodeStream
from tokenizers.pre_tokenizers import ByteLevel

from course_lib.errors import ModelError, RequestError
from course_lib.files import read_json

Messages = Sequence[dict[str, str]]


def _byte_alphabet() -> dict[str, int]:
    """The byte that each character of a byte-level vocabulary stands for, as GPT-2 chose them: a printable byte is
    written as itself, the others, in order, as the characters from 256 on."""
    characters = ByteLevel.alphabet()
    moved = [byte for byte in range(256) if chr(byte) not in characters]
    return {char: ord(char) if ord(char) < 256 else moved[ord(char) - 256] for char in characters}


BYTE_OF = _byte_alphabet()


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

    def encode(self, text: str, special: bool = True) -> list[int]:
        """Token ids of a text. special: add the tokens the model expects around a plain prompt (such as BOS)."""
        return self.inner.encode(text, add_special_tokens=special).ids

    def decode(self, ids: Sequence[int]) -> str:
        """Text of token ids, special tokens left out."""
        return self.inner.decode(list(ids), skip_special_tokens=True)

    def token_bytes(self, token: int) -> bytes | None:
        """What the token adds to the UTF-8 bytes of a text; they need not be whole characters.

        None for a special token, as its text is left out, and for an id without a token: models pad their vocabulary.
        """
        if token in self._added:
            added = self._added[token]
            return None if added.special else added.content.encode()
        piece = self.inner.id_to_token(token)
        if piece is None:
            return None
        if self._byte_level:
            codes = [BYTE_OF.get(char) for char in piece]
            return piece.encode() if None in codes else bytes(codes)
        if byte := re.fullmatch("<0x([0-9A-F]{2})>", piece):  # SentencePiece's token for a single byte
            return bytes.fromhex(byte[1])
        return piece.replace("\u2581", " ").encode()

    def token_text(self, token: int) -> str:
        """The token alone: bytes that are not whole characters as \\xNN, a special token by its name."""
        known = self.token_bytes(token)
        return (self.inner.id_to_token(token) or "") if known is None else known.decode(errors="backslashreplace")

    @cached_property
    def _added(self) -> dict[int, tokenizers.AddedToken]:
        return self.inner.get_added_tokens_decoder()

    @cached_property
    def _byte_level(self) -> bool:
        return "ByteLevel(" in repr(self.inner.decoder)

    def render_chat(self, messages: Messages, add_generation_prompt: bool = True) -> str:
        """The prompt text of a conversation, by the model's own template. Raises RequestError where it has none."""
        if not self.chat_template:
            raise RequestError(
                "this model has no chat template: it continues text; give it a plain prompt (generate, "
                "/v1/completions), or use smollm2-135m"
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
        self.tokenizer = tokenizer
        self._stream = DecodeStream(skip_special_tokens=True)
        self._ids: list[int] = []
        self.text = ""

    def push(self, token: int) -> str:
        self._ids.append(token)
        piece = self._stream.step(self.tokenizer.inner, token) or ""
        self.text += piece
        return piece

    def flush(self) -> str:
        """The rest: bytes of a character that was never finished, shown as U+FFFD."""
        piece = self.tokenizer.decode(self._ids)[len(self.text) :]
        self.text += piece
        return piece


def _raise(message: str):
    raise TemplateError(message)


def _content(token: Any) -> str | None:
    return token.get("content") if isinstance(token, dict) else token
