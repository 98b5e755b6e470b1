"""Small helpers for files on this machine."""

from __future__ import annotations

import json
import os
from pathlib import Path

from course_lib.errors import ModelError


def cache_dir() -> Path:
    """Where the course keeps what it fetched or converted: COURSE_CACHE, else the user's cache folder."""
    if folder := os.environ.get("COURSE_CACHE"):
        return Path(folder).expanduser()
    from platformdirs import user_cache_path  # lazily: the doctor runs before set-up is complete

    return user_cache_path("llm-inference-course", appauthor=False)


def read_json(path: Path) -> dict:
    """A JSON file, or a ModelError that names it."""
    try:
        return json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise ModelError(f"{path} is missing; a model folder needs config.json and its safetensors files") from None
    except (json.JSONDecodeError, UnicodeDecodeError) as error:
        raise ModelError(f"{path} is not valid JSON ({error}); download it again") from None
