"""The measurements of notebook 04: what windows and quantised caches cost in perplexity, where attention goes.

Run as a module it measures smollm2-135m as the notebook measures the session's model, and writes what the course ships:
`facts/kv_smollm2.json`, so that a page can show a real model's numbers on a machine that has only `tiny`.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from importlib.resources import files
from pathlib import Path

import torch
from torch import Tensor

from course_lib import facts
from course_lib.cache.formats import FORMATS
from course_lib.cache.kivi import Kivi
from course_lib.cache.store import FLOAT, KVFormat
from course_lib.calibration import fit_codebook
from course_lib.model import Decoder
from course_lib.perf.fake_quantize import FakeQuantized, Scheme, per_channel, per_token
from course_lib.perf.kv_record import KVRecord, record
from course_lib.perf.perplexity import score
from course_lib.weights.loading import ASSETS, load_model, load_tokenizer
from course_lib.windowed import windowed

RECORDED = "kv_smollm2.json"
VISIBLE, SINKS = (16, 32, 64, 128, 256), (0, 1, 4)
AXES = {"per token": per_token, "per channel": per_channel}


def window_sweep(model: Decoder, tokens: Sequence[int], visible: Sequence[int] = VISIBLE) -> dict[tuple, float]:
    """{(window, sinks): perplexity} of the model with that window in every layer, for each number of SINKS."""
    cases = [(window, sinks) for sinks in SINKS for window in visible]
    return {case: score(windowed(model, *case), tokens).perplexity for case in cases}


def format_sweep(model: Decoder, tokens: Sequence[int], formats: Mapping, chunk: int | None = None) -> dict:
    """{name: perplexity} of the model through each format of {name: KVFormat}. chunk: as in `score`."""

    def measured(kv_format: KVFormat) -> float:
        return score(model, tokens, chunk=chunk, new_cache=lambda *size: model.new_cache(*size, kv_format)).perplexity

    return {name: measured(kv_format) for name, kv_format in formats.items()}


def axis_formats(bits: int) -> dict[tuple[str, str], FakeQuantized]:
    """{(axis of the keys' groups, axis of the values'): format} for all four pairs of AXES."""
    groups = {name: _in_bits(scheme, bits) for name, scheme in AXES.items()}
    return {(k, v): FakeQuantized(keys=groups[k], values=groups[v]) for k in AXES for v in AXES}


def precision_formats() -> dict[tuple[str, int, int], FakeQuantized]:
    """{(axis of the keys' groups, bits of the keys, bits of the values): format}, 4 and 2 bits, values per token."""
    return {
        (name, k, v): FakeQuantized(keys=_in_bits(axis, k), values=_in_bits(per_token, v))
        for name, axis in AXES.items()
        for k in (4, 2)
        for v in (4, 2)
    }


def formats_of(model: Decoder, calibration: Sequence[int]) -> dict[str, KVFormat]:
    """Every format of the engine, and before RoPE those whose keys are per channel."""
    return {
        "float": FLOAT,
        **{name: kv_format for name, kv_format in FORMATS.items() if kv_format != FLOAT},
        "kivi2, before RoPE": Kivi(bits=2, before_rope=True),
        "nuq4": fit_codebook(model, calibration),
        "nuq4, before RoPE": fit_codebook(model, calibration, before_rope=True),
    }


def attention_mass(seen: KVRecord, sinks: int, window: int) -> Tensor:
    """Mean probability, [L, 2], that falls on the first `sinks` tokens, and on the last `window` that are none of them.

    Over the heads, and over the queries from position sinks + window on: those for which something lies between.
    """
    n = seen.values.shape[1]
    query, key = torch.arange(n)[:, None], torch.arange(n)
    near = (key > query - window) & (key <= query) & (key >= sinks)
    late = slice(sinks + window, None)
    layers = [seen.probabilities(layer)[:, late] for layer in seen.layers]
    return torch.stack([torch.stack((p[..., :sinks].sum(-1).mean(), (p * near[late]).sum(-1).mean())) for p in layers])


@dataclass(frozen=True)
class Recorded:
    """What `main` measured: perplexities as the functions above return them, formats with their bits per element."""

    model: str
    protocol: str
    windows: dict[tuple[int, int], float]
    axes: dict[tuple[str, str], float]
    precisions: dict[tuple[str, int, int], float]
    formats: dict[str, tuple[float, float]]
    mass: Tensor

    @property
    def plain(self) -> float:
        """Perplexity of the model as it is."""
        return self.formats["float"][1]


def recorded() -> Recorded:
    """The measurements of smollm2-135m that the course ships."""
    return from_json(json.loads(files(facts).joinpath(RECORDED).read_text(encoding="utf-8")))


def from_json(data: Mapping) -> Recorded:
    """What `measure` returned."""
    tables = {name: {tuple(case): value for *case, value in data[name]} for name in ("windows", "axes", "precisions")}
    formats = {name: (bits, value) for name, bits, value in data["formats"]}
    return Recorded(data["model"], data["protocol"], **tables, formats=formats, mass=torch.tensor(data["mass"]))


def _in_bits(scheme: Scheme, bits: int) -> Scheme:
    return lambda x: scheme(x, bits)


def measure(model: Decoder, text: Sequence[int], name: str, tokens: int = 2048, calibration: int = 512) -> dict:
    """All of it for one model, as JSON: the first `tokens` of the text are scored, codebooks are fitted to its last."""
    scored, formats = text[:tokens], formats_of(model, text[-calibration:])
    bits = {case: 8 * each.bytes_per_element(model.config.head_dim, torch.float16) for case, each in formats.items()}
    return {
        "model": name,
        "protocol": f"heldout.txt, its first {tokens} tokens, windows of 512 without overlap, each in one pass, its "
        f"first token not scored; codebooks fitted to the text's last {calibration} tokens",
        "windows": [[*case, value] for case, value in window_sweep(model, scored).items()],
        "axes": [[*case, value] for case, value in format_sweep(model, scored, axis_formats(2)).items()],
        "precisions": [[*case, value] for case, value in format_sweep(model, scored, precision_formats()).items()],
        "formats": [[case, bits[case], value] for case, value in format_sweep(model, scored, formats).items()],
        "mass": attention_mass(record(model, text[:256]), sinks=4, window=64).tolist(),
    }


def main(name: str = "smollm2-135m") -> None:
    """Measure and write. About ten minutes on two cores."""
    model = load_model(name, device="cpu", dtype=torch.float32, backend="torch")
    text = load_tokenizer(name).encode((ASSETS / "heldout.txt").read_text(encoding="utf-8"))
    path = Path(facts.__file__).parent / RECORDED
    path.write_text(json.dumps(measure(model, text, name), indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
