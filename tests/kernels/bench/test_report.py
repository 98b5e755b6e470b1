"""What is printed, of a run in which everything happened that can happen."""

from __future__ import annotations

import io

from rich.console import Console

from course_kernels.bench.report import line, show
from course_kernels.bench.summary import judge

CEILINGS = [
    {"section": "ceilings", "name": "copy", "status": "done", "work": 4e9, "seconds": (1e-3,)},
    {"section": "ceilings", "name": "matmul", "status": "done", "work": 8e11, "seconds": (1e-3,)},
]


def kernel(name: str, seconds: float, speed: float | None = None, **changes) -> dict:
    plain = {"section": "kernels", "name": name, "status": "done", "bytes": 4e9, "flops": 1e9, "seconds": (seconds,)}
    return plain | {"graph": True, "peer": None, "target": {"share": 0.8, "speed": speed}} | changes


def check(name: str, **changes) -> dict:
    plain = {"section": "checks", "name": name, "status": "done", "error": 0.5, "allowed": 2, "passed": True}
    return plain | changes


def missing(section: str, name: str, status: str, why: str) -> dict:
    return {"section": section, "name": name, "status": status, "why": why}


def printed(records: list[dict], small: bool = False) -> str:
    result = {"settings": {"small": small}} | judge(records, small)
    console = Console(width=200, file=io.StringIO())
    console.print(show(result))
    return console.file.getvalue()


def row(text: str, name: str) -> list[str]:
    [found] = [each for each in text.splitlines() if each.startswith(f"│ {name} ")]
    return [cell.strip() for cell in found.strip("│").split("│")]


def test_kernels():
    peer = {"name": "SDPA", "seconds": (2e-3,), "graph": True}
    text = printed([
        *CEILINGS,
        kernel("fast", 1.25e-3, peer=peer),
        kernel("slow", 2e-3, peer=peer | {"graph": False}),
        kernel("alone", 1e-3, 0.9, peer={"name": "SDPA", "failed": "out of memory"}),
        kernel("no target", 2e-3, target={"share": None, "speed": None}, flops=8e11),
        missing("kernels", "lost", "not measured", "the section's time was spent"),
    ])  # fmt: skip
    assert "Ceilings: copy 4000 GB/s, matmul 800 TFLOP/s" in text
    assert row(text, "fast") == ["fast", "1250.0 us", "3200 GB/s", "80%", "1.60x SDPA", "80%", "yes"]
    assert row(text, "slow") == ["slow", "2000.0 us", "2000 GB/s", "50%", "1.00x SDPA, no graph", "80%", "NO"]
    assert row(text, "alone")[4:] == ["failed", "80%, 0.9x", "not measured"]
    assert row(text, "no target")[2:] == ["2000 GB/s", "50%", "-", "", ""]
    assert row(text, "lost")[1] == "not measured"
    assert "All checks passed and nothing failed." in text


def test_checks_and_what_is_wrong():
    records = [
        check("swiglu, bfloat16", error=0.7),
        check("swiglu, float16"),
        check("rope_cache, bfloat16"),
        check("rope_cache, float16", error=3.0, passed=False),
        missing("checks", "sample, bfloat16", "skipped", "no GPU"),
        missing("checks", "rms_norm, bfloat16", "failed", "out of memory"),
    ]
    text = printed(records)
    assert "copy not measured" in text
    assert row(text, "swiglu") == ["swiglu", "0.70", "2", "passed"]
    assert row(text, "rope_cache") == ["rope_cache", "3.00", "2", "NOT PASSED"]
    assert row(text, "sample")[3] == "skipped: no GPU" and row(text, "rms_norm")[3] == "failed: out of memory"
    assert "rope_cache, float16: an error of 3 units where 2 are allowed" in text and "2 problems." in text
    assert line(records[3]).endswith("error 3.00 of 2 units: NOT PASSED")
    assert line(records[5]) == "checks: rms_norm, bfloat16: failed, out of memory"


def test_model():
    runs = [{"batch": 1, "tokens": 10, "seconds": 0.01, "step_s": [5e-4], "bytes_per_step": 1.6e9}]
    model = {"section": "model", "name": "triton, CUDA graphs", "status": "done", "runs": runs}
    text = printed([*CEILINGS, model, missing("model", "torch", "failed", "out of memory")])
    assert row(text, "triton, CUDA graphs")[1:] == ["1", "0.50 ms", "2000", "1000", "80%", "75%", "yes"]
    assert row(text, "torch")[2] == "failed" and "model: torch: failed, out of memory" in text


def test_small_mode_claims_nothing():
    text = printed([*CEILINGS, kernel("fast", 1e-3)], small=True)
    assert "Ceilings" not in text and "interpreted: times mean nothing" in text
    assert row(text, "fast")[2:] == ["-", "-", "-", "80%", "not measured"]
