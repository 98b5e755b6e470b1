"""From a name to a model: embedded models, a local folder, a .gguf file or a Hugging Face id."""

from __future__ import annotations

import os
from pathlib import Path

import torch
from tqdm import tqdm

from course_lib.errors import ModelError
from course_lib.model import Decoder
from course_lib.tokenizer import Tokenizer
from course_lib.weights.gguf_tokenizer import gguf_tokenizer
from course_lib.weights.names import source_shape, stack
from course_lib.weights.sources import GGUFFile, SafetensorsFolder

ASSETS = Path(__file__).parent.parent / "assets"
EMBEDDED = ("tiny", "tiny-draft", "tiny-mha")


def default_model() -> str:
    """The model of this session: the environment's COURSE_MODEL, else `tiny`."""
    return os.environ.get("COURSE_MODEL") or "tiny"


def locate(name: str) -> Path:
    """The folder or .gguf file behind a model name; fetches a Hub id into Hugging Face's cache.

    Raises ModelError in one sentence where there is none.
    """
    if name in EMBEDDED:
        return ASSETS / name
    if name == "smollm2-135m":
        from course_lib.fetch import smollm2_path

        if not (found := smollm2_path()):
            raise ModelError("the model smollm2-135m is not on this machine; `python3 course.py fetch` gets it (93 MB)")
        return found
    path = Path(name).expanduser()
    if path.is_dir() or path.is_file():
        if path.is_file() and path.suffix != ".gguf":
            raise ModelError(f"{path} is neither a folder nor a .gguf file; give the folder that holds config.json")
        return path
    if name.count("/") != 1 or name.startswith((".", "/", "~")) or name.endswith(".gguf"):
        raise ModelError(
            f"there is no model '{name}'; use {', '.join(EMBEDDED)}, smollm2-135m, "
            "a folder, a .gguf file or a Hugging Face id such as Qwen/Qwen3-0.6B"
        )
    from huggingface_hub import snapshot_download

    try:
        return Path(snapshot_download(name, allow_patterns=["*.json", "*.safetensors", "*.jinja"]))
    except Exception as error:  # the hub client raises errors of several libraries, all of which mean: not to be had
        raise ModelError(
            f"'{name}' is not a local path and could not be fetched from the Hugging Face hub "
            f"({type(error).__name__}); check the name and the network, or use an embedded model such as tiny"
        ) from None


def load_model(
    name: str | None = None,
    device: torch.device | str | None = None,
    dtype: torch.dtype | None = None,
    backend: str | None = None,
) -> Decoder:
    """Load a decoder, ready for inference.

    name: see `locate`; default `default_model()`. device: default COURSE_DEVICE, else cuda if there is one, else cpu.
    dtype: default float32 on the CPU, where reduced precision is slower, and bfloat16 on a GPU.
    backend: "torch" or "triton", see `choose_backend`.
    Raises ModelError naming the file and the tensor: file damaged, architecture unknown, tensor missing or misshapen.
    """
    path = locate(name or default_model())
    device = _device(device or os.environ.get("COURSE_DEVICE") or ("cuda" if torch.cuda.is_available() else "cpu"))
    dtype = dtype or (torch.float32 if device.type == "cpu" else torch.bfloat16)
    source = _source(path)
    with torch.device("meta"):  # shapes only: the weights come from the file
        model = Decoder(source.config)
    state = {}
    entries = list(source.naming.entries(source.config))
    progress = tqdm(entries, f"loading {path.name}", unit="tensor", delay=5, leave=False)  # seen only where it is slow
    for ours, names in progress:
        parts = [source.get(theirs, source_shape(ours, theirs, source.config)) for theirs in names]
        state[ours] = stack(parts).to(device=device, dtype=dtype)
    if source.config.tied_embeddings:
        state["head.weight"] = state["embed.weight"]
    model.load_state_dict(state, assign=True)
    if source.config.tied_embeddings:  # assign makes two parameters of one tensor
        model.head.weight = model.embed.weight
    return model.prepare(backend)


def load_tokenizer(name: str | None = None) -> Tokenizer:
    """The tokenizer that belongs to a model name (see `locate`)."""
    path = locate(name or default_model())
    return gguf_tokenizer(path) if path.suffix == ".gguf" else Tokenizer.from_folder(path)


def _device(name: torch.device | str) -> torch.device:
    if str(name).split(":")[0] not in ("cpu", "cuda"):
        raise ModelError(f"the device '{name}' is not supported; use 'cpu' or, with an NVIDIA GPU, 'cuda'")
    if str(name) != "cpu" and not torch.cuda.is_available():
        raise ModelError("the device 'cuda' was asked for, but torch sees no NVIDIA GPU; use device='cpu'")
    return torch.device(name)


def _source(path: Path) -> SafetensorsFolder | GGUFFile:
    return GGUFFile(path) if path.suffix == ".gguf" else SafetensorsFolder(path)
