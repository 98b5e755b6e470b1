"""Whatever a submission does, it gets a right and explained result, and the function next to it keeps its points."""

from __future__ import annotations

import os
import time

import psutil
import pytest

from course_lib.grading.limits import Limits, MiB
from tests.exercises.conftest import LIMITS, failures, only_positions_fails, with_function

POSITIONS = "import os, sys, torch\ndef positions(cached, new):\n    "


@pytest.mark.parametrize(
    "body,said",
    [
        ("while True: pass", "it ran longer than the limit of 3 s"),
        ("import time; time.sleep(1e6)", "it ran longer than the limit of 3 s"),
        ("sys.exit(0)", "it raised SystemExit"),
        ("os._exit(0)", "it ended the Python process with exit status 0"),
        ("import ctypes; ctypes.string_at(0)", "its process was ended by signal 11"),
        ("os.kill(os.getpid(), 9)", "its process was ended by signal 9"),
        ("return torch.ones(2_000_000_000).sum()", "it asked for more than the limit of 2,048 MiB of memory"),
        ("return bytearray(8_000_000_000)", "it asked for more than the limit of 2,048 MiB of memory"),
        ("for _ in range(1000): print('x' * 1_000_000)", "it printed or wrote more than the limit of 1 MiB"),
        ("for _ in range(10_000): os.write(1, b'x' * 100_000)", "it printed or wrote more than the limit of 1 MiB"),
        ("return positions(cached, new)", "raised RecursionError"),
        ("raise Exception('\\x1b[2J' + 'x' * 10**7)", "raised Exception"),
        ("return torch.zeros(1).expand(10**12)", "an object of type tensor of"),
        ("return 'x' * 20_000_000", "a message of"),
    ],
)
def test_function_that_breaks_a_rule_loses_only_itself(grade_notebook, body, said):
    text = only_positions_fails(grade_notebook(with_function("positions", POSITIONS + body)))
    assert said in text
    assert len(text) < 500 and "\x1b" not in text


@pytest.mark.parametrize("how", ["os.fork()", "import subprocess; subprocess.run(['true'])"])
def test_no_new_processes(grade_notebook, how):
    # Bounded on purpose: where the sandbox cannot refuse it, the machine must survive the test.
    body = f"""
    for _ in range(20):
        {how}
    return torch.arange(cached, cached + new)"""
    grade = grade_notebook(with_function("positions", POSITIONS + body))
    if "seccomp" not in grade.isolation["processes"]:
        pytest.skip(f"processes are {grade.isolation['processes']}")
    assert "what the grader does not allow" in only_positions_fails(grade)


def test_daemon_does_not_outlive_the_grading(grade_notebook):
    source = (
        POSITIONS + "if os.fork() == 0:\n        os.setsid()\n        while True: pass\n    return torch.arange(new)"
    )
    grade_notebook(with_function("positions", source))
    time.sleep(0.1)
    mine = psutil.Process(os.getpid()).children(recursive=True)
    # The zygote and nothing else: no child of a child is left.
    assert [p for p in mine if "zygote" not in " ".join(p.cmdline()) and "worker" in " ".join(p.cmdline())] == []
    assert len([p for p in mine if "zygote" in " ".join(p.cmdline())]) <= 1


@pytest.mark.parametrize(
    "what",
    [
        "import socket; socket.create_connection(('127.0.0.1', 1), timeout=1)",
        "os.kill(os.getppid(), 9)",
        "open('/tmp/course-grade-escape', 'w').write('x')",
        "open(f'/proc/{os.getppid()}/mem', 'rb').read(1)",
        "os.chmod(__import__('course_lib').__file__, 0o600)",
    ],
)
def test_nothing_outside_can_be_reached(grade_notebook, what):
    grade = grade_notebook(with_function("positions", POSITIONS + what))
    if any("not isolated" in how for how in grade.isolation.values()):
        pytest.skip(f"this machine isolates less: {grade.isolation}")
    assert "what the grader does not allow" in only_positions_fails(grade)


@pytest.mark.parametrize(
    "how",
    [
        "from course_lib.checks.ex02_mask import positions as answer",
        "del sys.modules['course_lib.checks']; from course_lib.checks.ex02_mask import positions as answer",
        "import course_lib, pathlib; (pathlib.Path(course_lib.__file__).parent / 'checks/ex02_mask.py').read_text()",
        "import course_lib, pathlib; (pathlib.Path(course_lib.__file__).parent / '../solutions').resolve().iterdir()",
    ],
)
def test_answers_are_not_in_reach(grade_notebook, how):
    source = (
        POSITIONS
        + f"{how}\n    list(answer.__globals__) if 'answer' in locals() else None\n    return answer(cached, new)"
    )
    grade = grade_notebook(with_function("positions", source))
    if "Landlock" not in grade.isolation["files"]:
        pytest.skip(f"files are {grade.isolation['files']}")
    only_positions_fails(grade)


def test_answers_are_not_in_the_childs_memory(grade_notebook):
    """Modules the zygote has imported would be inherited by every child."""
    source = POSITIONS + "raise ValueError(sorted(m for m in sys.modules if m.startswith('course_lib.checks')))"
    text = only_positions_fails(grade_notebook(with_function("positions", source)))
    assert text == "raised ValueError: ['course_lib.checks']"  # the stand-in whose check does nothing


@pytest.mark.parametrize(
    "patch",
    [
        "import torch; torch.equal = torch.allclose = torch.isclose = lambda *a, **k: True",
        "import torch; torch.Tensor.__eq__ = torch.Tensor.__ne__ = lambda a, b: torch.tensor(True)",
        "import course_lib.grading.codec as c; c._encode = lambda *a: True",
        "import course_lib.grading.worker as w; w._call = lambda *a: dict(kind='result', value=1, args=[0, 0])",
        "import builtins; builtins.AssertionError = builtins.isinstance = lambda *a: True",
        "import course_lib.checks; course_lib.checks.check = lambda *a, **k: print('passed')",
    ],
)
def test_patching_the_comparison_gains_nothing(grade_notebook, patch):
    wrong = with_function("positions", f"{patch}\ndef positions(cached, new):\n    return torch.arange(new)")
    grade = grade_notebook(wrong)
    assert "positions" in failures(grade)


def test_object_that_equals_everything(grade_notebook):
    source = "class Yes:\n    def __eq__(self, other): return True\ndef positions(cached, new): return Yes()"
    text = only_positions_fails(grade_notebook(with_function("positions", source)))
    assert "an object of type Yes, want a tensor of int64" in text


def test_tensor_subclass_is_foreign(grade_notebook):
    source = "class T(torch.Tensor): pass\n" + POSITIONS + "return torch.arange(cached, cached + new).as_subclass(T)"
    assert "an object of type T" in only_positions_fails(grade_notebook(with_function("positions", source)))


def test_hard_coded_public_answers_earn_no_hidden_points(grade_notebook):
    source = """
    table = {(5, 3): [5, 6, 7], (0, 4): [0, 1, 2, 3], (7, 1): [7], (0, 1): [0], (4, 2): [4, 5], (6, 3): [6, 7, 8],
             (4, 5): [4, 5, 6, 7, 8], (1023, 65): list(range(1023, 1088))}
    return torch.tensor(table.get((cached, new), [0]))"""
    grade = grade_notebook(with_function("positions", POSITIONS + source))
    [function] = [function for function in grade.functions if function.name == "positions"]
    assert (function.points, function.public is None, function.hidden is not None) == (2, True, True)


def test_forged_messages_are_no_answers(grade_notebook):
    """The socket is in the child, so the submission can write to it; it still does not know what to write."""
    source = POSITIONS + (
        "for fd in range(3, 20):\n"
        "        try: os.write(fd, b'\\0' * 7 + b'\\5' + b'\\0\\0\\0\\1' + b'x')\n"
        "        except OSError: pass\n"
        "    return torch.arange(cached, cached + new)"
    )
    assert "not a result" in only_positions_fails(grade_notebook(with_function("positions", source)))


def test_too_many_callbacks(grade_notebook):
    source = "def decode_loop(step, prompt, *rest):\n    while True: step(prompt, 0)"
    limits = Limits(call_seconds=20, cells_seconds=LIMITS.cells_seconds, callbacks=50)
    grade = grade_notebook(with_function("decode_loop", source), limits)
    assert "too many calls" in failures(grade)["decode_loop"]


def test_too_much_in_callbacks(grade_notebook):
    source = "def decode_loop(step, prompt, *rest):\n    for _ in range(100): step('x' * 1_000_000, 0)"
    source = source.replace("step(", "quiet(step, ") + (
        "\ndef quiet(step, *args):\n    try: step(*args)\n    except IndexError: pass"
    )
    assert "too much in them" in failures(grade_notebook(with_function("decode_loop", source)))["decode_loop"]


def test_arguments_that_are_not_tokens_reach_step(grade_notebook):
    source = "def decode_loop(step, prompt, *rest):\n    return step([2**400, None], 'x'), object()"
    assert "decode_loop" in failures(grade_notebook(with_function("decode_loop", source)))


def test_memory_is_watched_where_the_system_sets_no_limit(grade_notebook, monkeypatch):
    """The child is told of 16 GiB, so its own limit does not hold; the grader still counts to 300 MiB."""
    told = {**LIMITS.as_dict(), "memory_bytes": 16 * 1024 * MiB}
    monkeypatch.setattr(Limits, "as_dict", lambda self: told)
    body = "block = torch.ones(200_000_000)\n    while True: block.add_(1)"
    limits = Limits(call_seconds=10, cells_seconds=LIMITS.cells_seconds, memory_bytes=300 * MiB)
    text = only_positions_fails(grade_notebook(with_function("positions", POSITIONS + body), limits))
    assert text == "it used more than the limit of 300 MiB of memory"


def test_cpu_time_is_limited(grade_notebook):
    limits = Limits(call_seconds=60, cells_seconds=LIMITS.cells_seconds, cpu_seconds=1)
    text = only_positions_fails(grade_notebook(with_function("positions", POSITIONS + "while True: pass"), limits))
    assert text == "it used more than the limit of 1 s of CPU time"
