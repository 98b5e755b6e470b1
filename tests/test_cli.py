"""The `course` command: it starts without torch, errors are one sentence, statuses are right."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
from typer.testing import CliRunner

from course_lib import doctor
from course_lib.cli import app

ROOT = Path(__file__).resolve().parent.parent


@pytest.fixture
def course(monkeypatch):
    monkeypatch.delenv("COURSE_SMOLLM2", raising=False)
    return lambda *arguments, typed=None: CliRunner().invoke(app, arguments, input=typed)


def test_help_names_every_command_without_torch():
    code = "import sys; from course_lib.cli import app; app(['--help'], standalone_mode=False); print(*sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True)
    page, modules = done.stdout.rsplit("\n", 2)[:2]
    assert not {"torch", "transformers", "matplotlib"} & set(modules.split())
    for command in ("doctor", "fetch", "chat", "generate", "serve", "grade"):
        assert f" {command} " in page


@pytest.mark.parametrize(
    ("arguments", "names"),
    [
        (["generate", "a", "--model", "no-such-model"], "no-such-model"),
        (["generate", "a", "--temperature", "-1"], "temperature"),
        (["generate", ""], "empty"),
        (["chat", "--model", "tiny"], "chat template"),
        (["serve", "--model", "tiny", "--port", "-1"], "--port"),
        (["serve", "--model", "tiny", "--port", "0", "--blocks", "0"], "0 blocks"),
        (["serve", "--model", "tiny", "--port", "0", "--max-waiting", "-1"], "max_waiting"),
        (["grade", "no-such-file.ipynb"], "no-such-file.ipynb"),
    ],
)
def test_a_users_mistake_is_one_sentence(course, arguments, names):
    done = course(*arguments, typed="hello\n")
    assert done.exit_code == 1
    [line] = done.stderr.splitlines()
    assert line.startswith("course: ") and names in line


def test_wrong_usage_has_its_own_status(course):
    assert course("generate").exit_code == 2
    assert course("no-such-command").exit_code == 2


def test_generate_prints_what_the_engine_generates(course):
    from course_lib import LLM, SamplingParams

    prompt = "In the beginning"
    [expected] = LLM("tiny").generate(prompt, SamplingParams(temperature=0, max_tokens=8))
    done = course("generate", prompt, "--model", "tiny", "--max-tokens", "8")
    assert done.exit_code == 0
    assert done.stdout == expected.outputs[0].text + "\n"


class Echo:
    """An engine that answers with the contents of the conversation so far."""

    def __init__(self, model):
        self.model = model

    def stream_chat(self, messages, params):
        yield from (f"<{message['content']}>" for message in messages)


@pytest.mark.parametrize("end", ["", "\n\nnot read\n"], ids=["end of input", "empty line"])
def test_chat_remembers_the_conversation(course, monkeypatch, end):
    monkeypatch.setattr("course_lib.llm.LLM", Echo)
    done = course("chat", typed="one\ntwo" + end)
    assert done.exit_code == 0
    assert done.stdout.replace("you> ", "").splitlines() == ["<one>", "<one><<one>><two>"]


# --- doctor -----------------------------------------------------------------------------------------------------


def test_doctor_reports_every_part(course):
    done = course("doctor")
    assert done.exit_code == 0
    parts = "Python, torch, device, threads, CPU products, backend, memory, disk, triton, smollm2-135m, tiny models"
    for name in parts.split(", "):
        assert f" {name} " in done.stdout


def test_what_is_missing_says_its_cost(monkeypatch, tmp_path):
    monkeypatch.setattr(doctor, "ASSETS", tmp_path)
    monkeypatch.setenv("COURSE_SMOLLM2", str(tmp_path / "absent.gguf"))
    monkeypatch.setenv("PATH", str(tmp_path))
    checks = {check.name: check for check in doctor.report()}
    assert {name for name, check in checks.items() if check.status == "missing"} >= {
        "tiny models",
        "smollm2-135m",
        "browser test",
    }
    assert "absent.gguf" in checks["smollm2-135m"].cost
    assert all(check.cost for check in checks.values() if check.status != "ok")
    assert not any(check.cost for check in checks.values() if check.status == "ok")


@pytest.mark.parametrize(("works", "status", "cost"), [(True, "ok", ""), (False, "note", "batches gain less")])
def test_slow_products_of_a_cpu_are_named(monkeypatch, works, status, cost):
    monkeypatch.setattr("course_lib.linear.packing_works", lambda dtype: works)
    check = {check.name: check for check in doctor.report()}["CPU products"]
    assert check.status == status and cost in check.cost


@pytest.mark.parametrize(
    ("cuda", "wish", "value", "status"),
    [
        (False, None, "torch; triton only in the interpreter", "ok"),
        (True, None, "triton, the course's kernels", "ok"),
        (True, "torch", "torch, by COURSE_BACKEND", "ok"),
        (False, "cuda", "cuda", "missing"),
    ],
)
def test_the_backend_is_reported(monkeypatch, cuda, wish, value, status):
    monkeypatch.setattr("torch.cuda.is_available", lambda: cuda)
    monkeypatch.setattr("importlib.util.find_spec", lambda name: name)
    monkeypatch.setenv("COURSE_BACKEND", wish or "")
    check = doctor._backend()
    assert (check.value, check.status, bool(check.cost)) == (value, status, status != "ok")


@pytest.mark.parametrize("content", [None, "import no_such_module", "x = torch.y"], ids=["empty", "import", "name"])
def test_a_half_installed_package_counts_as_missing(monkeypatch, tmp_path, content):
    (tmp_path / "halfway").mkdir()
    if content:
        (tmp_path / "halfway" / "__init__.py").write_text(f"class torch: pass\n{content}\n")
    monkeypatch.syspath_prepend(tmp_path)
    assert doctor._import("halfway") is None
    sys.modules.pop("halfway", None)


@pytest.mark.parametrize(
    ("cuda", "gpu", "wish", "status", "cost"),
    [
        (True, "H100", None, "ok", ""),
        (True, "H100", "cpu", "note", "COURSE_DEVICE leaves the GPU idle"),
        (False, "H100", None, "note", "update its driver"),
        (False, None, None, "note", "no NVIDIA GPU"),
    ],
)
def test_device_says_why_a_gpu_is_idle(monkeypatch, cuda, gpu, wish, status, cost):
    monkeypatch.delenv("COURSE_DEVICE", raising=False)
    if wish:
        monkeypatch.setenv("COURSE_DEVICE", wish)
    monkeypatch.setattr("torch.cuda.is_available", lambda: cuda)
    monkeypatch.setattr("torch.cuda.mem_get_info", lambda: (2**30, 2**31))
    monkeypatch.setattr("torch.cuda.get_device_name", lambda: gpu)
    monkeypatch.setattr(doctor, "_nvidia_gpu", lambda: gpu)
    check = doctor._device()
    assert check.status == status
    assert cost in check.cost and bool(cost) == bool(check.cost)


def test_report_shows_as_text_and_as_escaped_html():
    shown = doctor.Report([doctor.Check("<part>", "1 < 2", "missing", "costs & more")])
    assert repr(shown).splitlines() == ["missing  <part>        1 < 2", " " * 23 + "costs & more"]
    assert "&lt;part&gt;" in shown._repr_html_() and "costs &amp; more" in shown._repr_html_()


def test_report_names_no_folder_of_this_machine():
    """Notebook 00 is committed with this report in it."""
    text = repr(doctor.show())
    assert str(Path.home()) not in text and str(ROOT) not in text
