"""What this machine has for the course, and what each missing part costs: `course doctor`, `doctor.show()`.

Imports only the standard library at the top, so that `python3 course.py doctor` runs before the set-up.
"""

from __future__ import annotations

import html
import importlib.metadata
import importlib.util
import os
import platform
import shutil
import subprocess
import textwrap
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import Literal

from course_lib.errors import CourseError
from course_lib.fetch import FILE, smollm2_path
from course_lib.files import cache_dir

GIB = 2**30
NEEDED_DISK = 4 * GIB  # the packages, the chat model and converted copies of it
ASSETS = Path(__file__).parent / "assets"
BROWSERS = ("chromium", "chromium-browser", "google-chrome", "chrome")


@dataclass(frozen=True)
class Check:
    """One line of the report. `cost` says what a missing or weak part costs; it is empty when `status` is "ok"."""

    name: str
    value: str
    status: Literal["ok", "note", "missing"]
    cost: str = ""


class Report(list[Check]):
    """A list of checks that prints as text in a terminal and as a table in a notebook."""

    def __repr__(self) -> str:
        lines = []
        for check in self:
            lines.append(f"{check.status:<8} {check.name:<13} {check.value}")
            lines += textwrap.wrap(check.cost, 96, initial_indent=" " * 23, subsequent_indent=" " * 23)
        return "\n".join(lines)

    def _repr_html_(self) -> str:
        rows = "".join(
            "<tr>" + "".join(f'<td style="text-align:left">{html.escape(cell)}</td>' for cell in cells) + "</tr>"
            for cells in ((check.status, check.name, check.value, check.cost) for check in self)
        )
        return f"<table><tr><th></th><th>part</th><th>this machine</th><th>what it costs you</th></tr>{rows}</table>"


def report() -> list[Check]:
    """Look at this machine. Takes about two seconds, most of it the import of torch; needs no network."""
    return [
        Check("Python", platform.python_version(), "ok"),
        _course(),
        _torch(),
        _device(),
        _threads(),
        _products(),
        _backend(),
        _memory(),
        _disk(),
        _package("triton", "Triton kernels cannot run, not even in the interpreter; PyTorch runs in their place"),
        _chat_model(),
        _tiny_models(),
        _package("transformers", "no comparison with transformers; `python3 course.py test` installs it"),
        _package("nbgrader", "no conversion for nbgrader; `python3 course.py test` installs it"),
        _browser(),
        _uv(),
    ]


def show() -> Report:
    """The report as the last line of a notebook cell shows it."""
    return Report(report())


def _course() -> Check:
    try:
        return Check("course", f"{importlib.metadata.version('llm-inference-course')}, installed", "ok")
    except importlib.metadata.PackageNotFoundError:
        return Check("course", "not installed", "missing", "nothing runs; start with `python3 course.py lab`")


def _torch() -> Check:
    if (torch := _import("torch")) is None:
        return Check("torch", "not installed", "missing", "no model runs; start with `python3 course.py lab`")
    if torch.version.cuda:
        return Check("torch", f"{torch.__version__}, CUDA {torch.version.cuda} build", "ok")
    if torch.version.hip:
        return Check("torch", f"{torch.__version__}, ROCm {torch.version.hip} build", "ok")
    return Check("torch", f"{torch.__version__}, CPU build", "ok")


def _device() -> Check:
    torch, gpu = _import("torch"), _nvidia_gpu()
    if torch is not None and torch.cuda.is_available():
        free, total = torch.cuda.mem_get_info()
        value = f"{torch.cuda.get_device_name()}, {free / GIB:.1f} of {total / GIB:.1f} GiB free"
        if os.environ.get("COURSE_DEVICE") == "cpu":
            return Check("device", f"CPU, {_cpu_name()}", "note", f"COURSE_DEVICE leaves the GPU idle: {value}")
        return Check("device", value, "ok")
    if gpu is None:
        cost = "no NVIDIA GPU: every lesson runs, Triton kernels only in the interpreter"
        return Check("device", f"CPU, {_cpu_name()}", "note", cost)
    if torch is None:
        return Check("device", gpu, "ok")
    cost = "the GPU stays idle: update its driver, delete .venv and run `python3 course.py lab` again"
    return Check("device", f"CPU; {gpu} is not usable by this torch", "note", cost)


def _threads() -> Check:
    torch = _import("torch")
    threads = torch.get_num_threads() if torch is not None else "unknown"
    return Check("threads", f"{threads} for torch, {os.cpu_count()} logical cores", "ok")


def _products() -> Check:
    """How linear layers run on the CPU."""
    if (torch := _import("torch")) is None:
        return Check("CPU products", "unknown until the set-up", "note")
    from course_lib.linear import packing_works

    if packing_works(torch.float32):
        return Check("CPU products", "packed weights, oneDNN", "ok")
    return Check("CPU products", "plain weights", "note", "no packed product: batches gain less on this CPU")


def _backend() -> Check:
    """What runs attention, norms and the other operations between the matrix products."""
    if (torch := _import("torch")) is None:
        return Check("backend", "unknown until the set-up", "note")
    if wish := os.environ.get("COURSE_BACKEND"):
        if wish not in ("torch", "triton"):
            return Check("backend", wish, "missing", "no model loads: set COURSE_BACKEND to torch or triton")
        return Check("backend", f"{wish}, by COURSE_BACKEND", "ok")
    if torch.cuda.is_available() and os.environ.get("COURSE_DEVICE") != "cpu":
        if importlib.util.find_spec("triton"):
            return Check("backend", "triton, the course's kernels", "ok")
        return Check("backend", "torch", "note", "Triton is not installed, so the course's kernels do not run")
    return Check("backend", "torch; triton only in the interpreter", "ok")


def _memory() -> Check:
    if (psutil := _import("psutil")) is None:
        return Check("memory", "unknown until the set-up", "note")
    memory = psutil.virtual_memory()
    value = f"{memory.available / GIB:.1f} of {memory.total / GIB:.1f} GiB free"
    if memory.available < 2 * GIB:
        return Check("memory", value, "note", "under 2 GiB: close other programs before you load the chat model")
    return Check("memory", value, "ok")


def _disk() -> Check:
    try:
        folder = cache_dir()
    except ImportError:
        folder = Path.home()
    existing = next(path for path in (folder, *folder.absolute().parents) if path.exists())
    free = shutil.disk_usage(existing).free
    value = f"{free / GIB:.1f} GiB free for the cache"
    if free < NEEDED_DISK:
        cost = f"under {NEEDED_DISK / GIB:.0f} GiB: free some, or set COURSE_CACHE to a folder on another disk"
        return Check("disk", value, "note", cost)
    return Check("disk", value, "ok")


def _package(name: str, cost: str) -> Check:
    try:
        return Check(name, importlib.metadata.version(name), "ok")
    except importlib.metadata.PackageNotFoundError:
        return Check(name, "not installed", "missing", cost)


def _chat_model() -> Check:
    try:
        path = smollm2_path()
    except CourseError as error:
        return Check("smollm2-135m", "not found", "missing", str(error))
    except ImportError:
        path = None
    if path is None:
        cost = "no real chat model, the course runs on `tiny`; `python3 course.py fetch` gets it (93 MB)"
        return Check("smollm2-135m", "not found", "missing", cost)
    return Check("smollm2-135m", f"{FILE}, {path.stat().st_size / 1e6:.0f} MB", "ok")


def _tiny_models() -> Check:
    names = ("tiny", "tiny-draft", "tiny-mha")
    absent = [name for name in names if not (ASSETS / name / "model.safetensors").is_file()]
    if absent:
        cost = "the course and its tests need it; `git checkout course_lib/assets` restores it"
        return Check("tiny models", f"{' and '.join(absent)} missing", "missing", cost)
    return Check("tiny models", ", ".join(names), "ok")


def _browser() -> Check:
    browser = next((name for name in BROWSERS if shutil.which(name)), None)
    if browser and importlib.util.find_spec("playwright"):
        return Check("browser test", f"playwright with {browser}", "ok")
    absent = " and ".join(
        name
        for name, there in (("Chromium", browser), ("playwright", importlib.util.find_spec("playwright")))
        if not there
    )
    return Check("browser test", f"{absent} not installed", "missing", "only the browser test, which is skipped")


def _uv() -> Check:
    if path := shutil.which("uv"):
        return Check("uv", subprocess.run([path, "--version"], capture_output=True, text=True).stdout.strip(), "ok")
    return Check("uv", "not installed", "note", "set-up uses pip, which is slower")


def _import(name: str) -> ModuleType | None:
    """The module, or None where it is missing or, after an interrupted set-up, incomplete."""
    try:
        module = importlib.import_module(name)
    except (ImportError, AttributeError, OSError):
        return None
    return module if module.__file__ else None  # a folder left without its __init__.py imports as an empty module


def _nvidia_gpu() -> str | None:
    """The name of the first GPU that the NVIDIA driver lists, whatever torch can do with it."""
    tool = shutil.which("nvidia-smi")
    if tool is None:
        return None
    query = [tool, "--query-gpu=name", "--format=csv,noheader"]
    answer = subprocess.run(query, capture_output=True, text=True)
    return answer.stdout.splitlines()[0].strip() if answer.returncode == 0 and answer.stdout.strip() else None


def _cpu_name() -> str:
    """The processor's name as the system states it."""
    info = Path("/proc/cpuinfo")
    names = [line for line in info.read_text().splitlines() if line.startswith("model name")] if info.exists() else []
    return names[0].split(":", 1)[1].strip() if names else platform.processor() or platform.machine()


if __name__ == "__main__":
    print(show())
