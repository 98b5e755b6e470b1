"""Queries, keys and values of a model on a text, as arrays to look at.

Run as a module it writes the recording of smollm2-135m that the course ships, `smollm2_kv.safetensors`, so that a page
can show a real model's keys on a machine that has only `tiny`.
"""

from __future__ import annotations

import copy
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from safetensors import safe_open
from safetensors.torch import save_file
from torch import Tensor

from course_lib.attention import attend
from course_lib.backend import TorchBackend
from course_lib.cache import ContiguousCache
from course_lib.cache.store import Float
from course_lib.model import Decoder
from course_lib.rope import Rope
from course_lib.weights.loading import ASSETS, load_model, load_tokenizer

SHIPPED = ASSETS / "smollm2_kv.safetensors"
PARTS = ("queries", "raw_keys", "values", "rotation")


@dataclass(frozen=True)
class KVRecord:
    """What attention saw in some layers of a model: one sequence of n tokens, float32 on the CPU.

    layers: the numbers of the L layers in the model. queries: [L, n, H, d], after RoPE. raw_keys: [L, n, K, d], before
    it. values: [L, n, K, d]. rotation: [2, n, 1, d], what `Rope.rotate` takes.
    """

    model: str
    layers: tuple[int, ...]
    queries: Tensor
    raw_keys: Tensor
    values: Tensor
    rotation: Tensor

    def rotate(self, raw_keys: Tensor) -> Tensor:
        """Keys [..., n, K, d] after RoPE."""
        return Rope.rotate(raw_keys, tuple(self.rotation))

    @property
    def keys(self) -> Tensor:
        """[L, n, K, d], after RoPE."""
        return self.rotate(self.raw_keys)

    def head(self, layer: int, kv_head: int) -> KVRecord:
        """One KV head of one layer, `layer` being its number in the model, with the queries that share it."""
        i, group = self.layers.index(layer), self.queries.shape[2] // self.values.shape[2]
        one = slice(kv_head, kv_head + 1), slice(kv_head * group, (kv_head + 1) * group)
        queries, raw, values = self.queries[[i], :, one[1]], self.raw_keys[[i], :, one[0]], self.values[[i], :, one[0]]
        return KVRecord(self.model, (layer,), queries, raw, values, self.rotation)

    def probabilities(self, layer: int, keys: Tensor | None = None) -> Tensor:
        """Softmax(q k^T / sqrt(d)) under the causal mask, [H, n, n]; rows are queries. keys: [n, K, d]."""
        i = self.layers.index(layer)
        keys = self.rotate(self.raw_keys[i]) if keys is None else keys
        q, k = self.queries[i].transpose(0, 1), keys.transpose(0, 1)
        scores = q @ k.repeat_interleave(len(q) // len(k), dim=0).mT / q.shape[-1] ** 0.5
        hidden = torch.ones(scores.shape[1:], dtype=torch.bool).triu(1)
        return scores.masked_fill(hidden, -torch.inf).softmax(-1)


@torch.inference_mode()
def record(model: Decoder, tokens: Sequence[int], name: str = "") -> KVRecord:
    """Record every layer in one pass over the tokens. name: of the model, for titles."""
    config, n = model.config, len(tokens)
    queries: dict[int, Tensor] = {}

    def watch(query: Tensor, layer: int, *rest) -> Tensor:
        queries[layer] = query.float().cpu()
        return attend(query, layer, *rest)

    reader = copy.copy(model)  # another backend, and the same weights
    reader.backend = TorchBackend(watch)
    cache = ContiguousCache(config, 1, n, model.dtype, model.device, kv_format=Float(before_rope=True))
    reader(tokens, cache)
    raw, values = (each[:, :n].float().cpu() for each in (cache.keys, cache.values))
    rotation = torch.stack(Rope(config).tables(torch.arange(n)))
    layers = tuple(range(config.layers))
    return KVRecord(name, layers, torch.stack([queries[layer] for layer in layers]), raw, values, rotation)


def shipped() -> KVRecord:
    """One KV head in each of two layers of smollm2-135m on 256 tokens of `heldout.txt`; rounded to float16."""
    with safe_open(SHIPPED, "pt") as file:
        about = file.metadata()
        parts = {name: file.get_tensor(name).float() for name in PARTS}
    return KVRecord(about["model"], tuple(map(int, about["layers"].split(","))), **parts)


def main(heads: Sequence[tuple[int, int]] = ((12, 1), (20, 0)), tokens: int = 256) -> None:
    """Record the KV heads, each (layer, head), and write them."""
    name = "smollm2-135m"
    text = load_tokenizer(name).encode((ASSETS / "heldout.txt").read_text(encoding="utf-8"))
    whole = record(load_model(name, device="cpu", dtype=torch.float32, backend="torch"), text[:tokens], name)
    chosen = [whole.head(*head) for head in heads]
    parts = {part: torch.cat([getattr(each, part) for each in chosen]).half() for part in PARTS[:3]}
    parts["rotation"] = whole.rotation
    about = {
        "model": name,
        "layers": ",".join(str(layer) for layer, _ in heads),
        "heads": ",".join(str(head) for _, head in heads),
        "text": f"heldout.txt, its first {tokens} tokens",
    }
    save_file(
        {name: part.contiguous() for name, part in (parts | {"rotation": whole.rotation}).items()}, SHIPPED, about
    )


if __name__ == "__main__":
    main()
