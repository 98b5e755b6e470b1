"""`course grade` from the outside: folders, exit status, JSON and HTML."""

from __future__ import annotations

import json
import shutil

import pytest

from course_lib.errors import CourseError
from course_lib.grading.cli import find_notebooks, grade_command
from course_lib.grading.grader import Grade
from tests.exercises.conftest import ROOT, with_function

EVIL_NAME = "<img src=x onerror=alert(1)>.ipynb"


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    """One graded folder: a solution, a starter, a wrong one with markup in its error, and a broken file."""
    root = tmp_path_factory.mktemp("submitted")
    for student in ("ada", "ben", "cem", "dee"):
        (root / student).mkdir()
    shutil.copy(ROOT / "solutions/02_kv_cache.ipynb", root / "ada")
    shutil.copy(ROOT / "exercises/01_prefill_vs_decode.ipynb", root / "ben")
    wrong = with_function(
        "append", "def append(buffer, new, length):\n    raise ValueError('<script>alert(1)</script>')"
    )
    (root / "cem" / EVIL_NAME).write_text(json.dumps(wrong))
    (root / "dee" / "02_kv_cache.ipynb").write_text('{"cells": [')
    (root / "dee" / ".ipynb_checkpoints").mkdir()
    shutil.copy(ROOT / "solutions/02_kv_cache.ipynb", root / "dee" / ".ipynb_checkpoints")
    status = grade_command([root], root / "grades.json", root / "grades.html")
    return status, json.loads((root / "grades.json").read_text()), (root / "grades.html").read_text()


def test_folder_gets_a_result_for_every_file(run):
    status, report, _ = run
    assert status == 0
    results = {s["name"]: (s["status"], s["points"], s["max_points"]) for s in report["submissions"]}
    assert results == {
        "ada/02_kv_cache.ipynb": ("graded", 28, 28),
        "ben/01_prefill_vs_decode.ipynb": ("graded", 0, 24),
        f"cem/{EVIL_NAME}": ("graded", 24, 28),
        "dee/02_kv_cache.ipynb": ("unreadable", None, None),
    }


def test_json_tells_what_is_needed_to_repeat_the_run(run):
    _, report, _ = run
    assert report["format"] == 1 and isinstance(report["seed"], int)
    assert {"python", "torch", "platform"} <= set(report["versions"])
    assert report["limits"]["call_seconds"] > 0
    graded = report["submissions"][0]
    assert {"network", "processes", "files", "memory", "cpu", "output"} == set(graded["isolation"])
    assert all(function["public"] == function["hidden"] == "passed" for function in graded["functions"])
    starter = report["submissions"][1]["functions"][0]
    assert (starter["public"], starter["hidden"], starter["failure"]["hint_key"]) == ("failed", "not run", "starter")


def test_html_escapes_what_submissions_say(run):
    _, _, page = run
    assert "<script" not in page and "<img" not in page and "&lt;script&gt;" in page
    assert "http" not in page.replace("http-equiv", "")  # nothing is loaded from elsewhere
    assert "Not graded: the file is not valid JSON" in page


def test_a_fault_of_the_grader_is_not_a_grade(tmp_path, monkeypatch, capsys):
    shutil.copy(ROOT / "exercises/02_kv_cache.ipynb", tmp_path)
    monkeypatch.setattr("course_lib.grading.cli.grade", lambda *args: 1 / 0)
    assert grade_command([tmp_path], tmp_path / "grades.json") == 1
    [submission] = json.loads((tmp_path / "grades.json").read_text())["submissions"]
    assert (submission["status"], submission["points"]) == ("grader fault", None)
    assert "grader fault" in capsys.readouterr().out


def test_weak_isolation_is_said_once(tmp_path, monkeypatch, capsys):
    for name in ("a.ipynb", "b.ipynb"):
        (tmp_path / name).touch()
    weak = Grade("x", "graded", isolation={"network": "not isolated on darwin", "cpu": "RLIMIT_CPU"})
    monkeypatch.setattr("course_lib.grading.cli.grade", lambda *args: weak)
    assert grade_command([tmp_path]) == 0
    [note] = [line for line in capsys.readouterr().err.splitlines() if line.startswith("note:")]
    assert note == "note: network not isolated on darwin; docs/grading.md says what that means"


def test_paths_that_hold_nothing_are_refused(tmp_path):
    with pytest.raises(CourseError, match="does not exist"):
        list(find_notebooks(tmp_path / "nowhere"))
    (tmp_path / "folder.ipynb").mkdir()
    with pytest.raises(CourseError, match="holds no notebook"):
        list(find_notebooks(tmp_path))
    (tmp_path / "x.ipynb").touch()
    with pytest.raises(CourseError, match="cannot be written"):
        grade_command([tmp_path], json=tmp_path / "missing" / "grades.json")


def test_names_lose_control_characters(tmp_path):
    (tmp_path / "a\x1b[31m\n.ipynb").touch()
    assert [name for _, name in find_notebooks(tmp_path)] == ["a?[31m?.ipynb"]


def test_equal_names_in_two_folders_are_told_apart(tmp_path, capsys):
    for folder in ("ann", "bob"):
        (tmp_path / folder).mkdir()
        (tmp_path / folder / "01.ipynb").write_text("{")
    grade_command([tmp_path / "ann", tmp_path / "bob"])
    lines = capsys.readouterr().out
    assert "ann/01.ipynb" in lines and "bob/01.ipynb" in lines
