"""Files that hold tensors by name: a safetensors folder and a GGUF file, behind one small interface."""

from __future__ import annotations

import functools
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from torch import Tensor

from course_lib.config import ModelConfig
from course_lib.errors import ModelError
from course_lib.files import read_json
from course_lib.weights.names import GGUF, HUGGING_FACE, Naming, deepseek, half_split, unpermute


class SafetensorsFolder:
    """A Hugging Face folder: config.json and model.safetensors, whole or in shards with an index."""

    def __init__(self, folder: Path):
        self.path = folder
        config = read_json(folder / "config.json")
        generation = folder / "generation_config.json"
        if generation.exists():  # chat models list further end tokens there
            config["eos_token_id"] = read_json(generation).get("eos_token_id", config.get("eos_token_id"))
        if config.get("quantization_config"):
            raise ModelError(f"{folder}: quantised checkpoints are not supported yet; use the unquantised model")
        self.config = ModelConfig.from_hf(config, str(folder / "config.json"))
        self.naming: Naming = deepseek(self.config.mla) if self.config.mla else HUGGING_FACE
        interleaved = self.config.mla and config.get("rope_interleave", True)
        self._reorder = half_split(self.config) if interleaved else lambda name, tensor: tensor
        self._files: dict[str, Path] = {}  # tensor -> file
        self._open: dict[Path, Any] = {}
        index = folder / "model.safetensors.index.json"
        if index.exists():
            self._files = {name: folder / shard for name, shard in read_json(index)["weight_map"].items()}
        else:
            path = folder / "model.safetensors"
            self._files = {name: path for name in self._file(path).keys()}

    def _file(self, path: Path):
        if path not in self._open:
            try:
                self._open[path] = safe_open(path, framework="pt")
            except FileNotFoundError:
                raise ModelError(f"{path} is missing; download the model's folder again, with all its shards") from None
            except (SafetensorError, OSError) as error:
                raise ModelError(f"{path} is damaged or cut short ({error}); download it again") from None
        return self._open[path]

    def get(self, name: str, shape: tuple[int, ...]) -> Tensor:
        """The tensor, in its stored dtype. Raises ModelError naming file and tensor: missing, unreadable, misshapen."""
        if name not in self._files:
            raise ModelError(f"{self.path}: the tensor '{name}' is missing; the file does not fit its config.json")
        try:
            tensor = self._file(self._files[name]).get_tensor(name)
        except SafetensorError as error:
            raise ModelError(f"{self._files[name]}: the tensor '{name}' cannot be read ({error})") from None
        return self._reorder(name, _checked(tensor, shape, name, self._files[name]))


class GGUFFile:
    """A llama.cpp model file, read with the `gguf` library; block-quantised weights are expanded to float32."""

    naming: Naming = GGUF

    def __init__(self, path: Path):
        self.path = path
        self._reader, self.metadata = _read_gguf(path, path.stat().st_mtime_ns)
        self._tensors = {tensor.name: tensor for tensor in self._reader.tensors}
        self.config = ModelConfig.from_gguf(self.metadata, GGUF.head not in self._tensors, str(path))
        self._unpermute = unpermute(self.config)

    def get(self, name: str, shape: tuple[int, ...]) -> Tensor:
        """The tensor as float32. Raises ModelError naming file and tensor: missing, of a foreign type, misshapen."""
        import gguf

        if name not in self._tensors:
            raise ModelError(f"{self.path}: the tensor '{name}' is missing; the file does not fit its metadata")
        entry = self._tensors[name]
        try:
            values = gguf.quants.dequantize(entry.data, entry.tensor_type)
        except NotImplementedError:
            raise ModelError(
                f"{self.path}: tensor '{name}' has the block type {entry.tensor_type.name}, which the gguf library "
                "cannot expand; use a file in Q4_K_M, Q8_0 or F16"
            ) from None
        return self._unpermute(name, _checked(torch.from_numpy(values.copy()).float(), shape, name, self.path))


def _checked(tensor: Tensor, shape: tuple[int, ...], name: str, path: Path) -> Tensor:
    if tuple(tensor.shape) != shape:
        raise ModelError(f"{path}: tensor '{name}' has shape {tuple(tensor.shape)}, expected {shape}")
    return tensor


@functools.lru_cache(maxsize=2)
def _read_gguf(path: Path, mtime_ns: int):
    """(reader, metadata). Kept, because parsing the vocabulary takes seconds and the tokenizer needs it too."""
    import gguf

    try:
        reader = gguf.GGUFReader(path)
        return reader, {key: field.contents() for key, field in reader.fields.items()}
    except (ValueError, IndexError, KeyError, OSError, OverflowError) as error:
        raise ModelError(f"{path} is not a readable GGUF file or is cut short ({error}); download it again") from None
