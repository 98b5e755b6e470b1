"""Published shapes of models and ceilings of devices: what the course computes about hardware it does not have.

`models.json` and `hardware.json` hold the figures with the source of each. Figures without a second, independent
source say so wherever they are printed (`Device.label`). `uptraining.json` is a measurement of the course's own.
"""

from __future__ import annotations

import difflib
import json
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from importlib.resources import files
from typing import Any

from course_lib.config import ModelConfig, kv_bytes_per_token
from course_lib.errors import CourseError, ModelError
from course_lib.mla_shape import MlaShape
from course_lib.windows import kept_tokens


@dataclass(frozen=True)
class Source:
    """Where a person can read a figure. `url` is None for figures that only secondary tables give."""

    title: str
    url: str | None


@dataclass(frozen=True)
class ModelShape:
    """The published shape of a model: enough to count its parameters, FLOPs and cache bytes, not to run it."""

    name: str
    layers: int  # L
    hidden: int  # h
    heads: int  # H
    vocab: int  # V
    context: int
    sources: tuple[Source, ...]
    architecture: str | None = None  # None: not a dense decoder (mixture of experts, latent attention)
    kv_heads: int | None = None  # K; None with latent attention
    head_dim: int | None = None  # d
    ffn: int | None = None  # f, of one expert in a mixture of experts
    windows: tuple[int | None, ...] = (None,)  # repeated over the layers, None = full attention
    tied_embeddings: bool = False
    qkv_bias: bool = False
    qk_norm: bool = False
    norms_per_layer: int = 2
    mla: MlaShape | None = None  # latent attention
    experts: int | None = None
    experts_per_token: int | None = None
    total_params: int | None = None  # published total where the shape alone does not give it
    active_params: int | None = None  # published, of a mixture of experts
    published_params: int | None = None  # the rounded number the model is known by
    note: str = ""

    @property
    def config(self) -> ModelConfig:
        """The shape as a `ModelConfig`. RoPE settings are not recorded: count with it, do not run it.

        Raises ModelError for a model that is not a dense decoder.
        """
        if self.architecture is None:
            raise ModelError(
                f"{self.name} is not a dense decoder, so it has no ModelConfig; its KV bytes and parameters are known"
            )
        return ModelConfig(
            architecture=self.architecture,
            layers=self.layers,
            hidden=self.hidden,
            heads=self.heads,
            kv_heads=self.kv_heads,
            head_dim=self.head_dim,
            ffn=self.ffn,
            vocab=self.vocab,
            context=self.context,
            windows=self.layer_windows,
            qkv_bias=self.qkv_bias,
            qk_norm=self.qk_norm,
            tied_embeddings=self.tied_embeddings,
        )

    @property
    def params(self) -> int:
        """All parameters: exact from the shape of a dense decoder, else the published total."""
        if self.total_params is not None:
            return self.total_params
        more_norms = (self.norms_per_layer - 2) * self.layers * self.hidden
        return self.config.parameters() + more_norms

    @property
    def layer_windows(self) -> tuple[int | None, ...]:
        """The sliding window of each of the L layers, None = full attention."""
        return tuple(self.windows[layer % len(self.windows)] for layer in range(self.layers))

    def kv_bytes_per_token(self, bytes_per_element: float = 2) -> float:
        """Cache bytes that one token adds while it is inside every window, over all layers; the engine's formula."""
        return kv_bytes_per_token(self.layers, self.kv_heads, self.head_dim, bytes_per_element, self.mla)

    def kv_bytes(
        self, tokens: int, batch: int = 1, bytes_per_element: float = 2, ignore_windows: bool = False
    ) -> float:
        """Cache bytes of `batch` sequences of `tokens` tokens: a layer with window W keeps min(tokens, W) of them.

        That holds for an engine that frees what left the window; `ignore_windows` gives the size for one that does not.
        """
        per_layer = self.kv_bytes_per_token(bytes_per_element) / self.layers
        kept = [kept_tokens(tokens, None if ignore_windows else window) for window in self.layer_windows]
        return batch * per_layer * sum(kept)


@dataclass(frozen=True)
class Device:
    """The data-sheet ceilings of one accelerator. FLOP/s are dense, of 16-bit matrix products."""

    name: str
    bandwidth: float  # bytes/s
    confirmed: bool  # False: only secondary sources give these figures
    sources: tuple[Source, ...]
    flops: float | None = None  # FLOP/s; None where no source was good enough
    measured_flops: float | None = None  # FLOP/s of the best bfloat16 matmul that a source measured
    memory: float | None = None  # bytes
    note: str = ""

    @property
    def label(self) -> str:
        """The name, marked where the figures are not confirmed."""
        return self.name if self.confirmed else f"{self.name} (secondary source)"

    @property
    def ridge(self) -> float:
        """FLOP/byte at which the two ceilings meet, F / BW (Williams, Waterman, Patterson, CACM 52(4), 2009).

        Raises CourseError where the peak FLOP/s is not known.
        """
        if self.flops is None:
            raise CourseError(f"no confirmed peak FLOP/s is known for {self.name}, so it has no ridge point")
        return self.flops / self.bandwidth


@cache
def models() -> Mapping[str, ModelShape]:
    """Every model of the course's tables, by name."""
    data = _load("models.json")
    shapes = {}
    for entry in data["models"]:
        known = dict(entry, total_params=entry.get("params"), sources=_sources(entry, data))
        known.pop("params", None)
        known["windows"] = tuple(entry.get("windows", (None,)))
        known["mla"] = MlaShape(**entry["mla"]) if "mla" in entry else None
        shapes[entry["name"]] = ModelShape(**known)
    return shapes


def model(name: str) -> ModelShape:
    """The shape of one model; case does not matter. Raises ModelError that lists the closest names."""
    return _find(models(), name, "model", ModelError)


@cache
def devices() -> Mapping[str, Device]:
    """Every device of the course's tables, by name."""
    data = _load("hardware.json")
    found = {}
    for entry in data["devices"]:
        found[entry["name"]] = Device(
            name=entry["name"],
            bandwidth=entry["bandwidth_gbps"] * 1e9,
            confirmed=entry["confirmed"],
            sources=_sources(entry, data),
            flops=_scaled(entry.get("tflops"), 1e12),
            measured_flops=_scaled(entry.get("measured_tflops"), 1e12),
            memory=_scaled(entry.get("memory_gb"), 1e9),
            note=entry.get("note", ""),
        )
    return found


def device(name: str) -> Device:
    """One device; case does not matter. Raises CourseError that lists the closest names."""
    return _find(devices(), name, "device", CourseError)


@cache
def uptraining() -> Mapping[str, Any]:
    """What fewer KV heads cost `tiny-mha`: settings, the sweep of learning rates and the "runs", a mapping for each.

    Each run has "kv_heads", "how" ("mean", "first" and "random" of `training.convert_heads`, or "from scratch"),
    "share" of the model's steps that followed the merge, "seed", "steps", "tokens", "held_out_loss" in nats per token
    and "perplexity". `python -m course_lib.training.uptrain` measures them.
    """
    return _load("uptraining.json")


def _load(file: str) -> dict[str, Any]:
    return json.loads(files(__package__).joinpath(file).read_text(encoding="utf-8"))


def _sources(entry: Mapping[str, Any], data: Mapping[str, Any]) -> tuple[Source, ...]:
    return tuple(Source(**data["sources"][key]) for key in entry["sources"])


def _scaled(value: float | None, unit: float) -> float | None:
    return None if value is None else value * unit


def _find(table: Mapping[str, Any], name: str, kind: str, error: type[CourseError]) -> Any:
    by_lower = {key.lower(): key for key in table}
    key = by_lower.get(name.lower())
    if key is None:
        close = difflib.get_close_matches(name.lower(), by_lower, n=4, cutoff=0.4)
        names = ", ".join(by_lower[match] for match in close) or ", ".join(table)
        raise error(f"no {kind} is called '{name}' in the course's tables; close names: {names}")
    return table[key]
