"""From samples to shares, speeds and verdicts, on numbers worked by hand."""

from __future__ import annotations

import pytest

from course_kernels.bench import summary

CEILINGS = {"copy": 4e12, "matmul": 8e14}


def kernel_record(**changes) -> dict:
    plain = {"bytes": 1e9, "flops": 1e9, "seconds": (1.0, 5e-4, 4e-4), "peer": None}
    return plain | {"target": {"share": None, "speed": None}} | changes


def test_a_kernel_is_held_against_the_ceiling_that_binds_it():
    verdict = summary.judge_kernel(kernel_record(), CEILINGS)
    assert verdict["bound"] == "copy" and verdict["time_s"] == 5e-4
    assert verdict["rate"] == pytest.approx(2e12) and verdict["share"] == pytest.approx(0.5)
    assert verdict["reached"] is None and verdict["speed"] is None
    verdict = summary.judge_kernel(kernel_record(flops=3e11), CEILINGS)
    assert verdict["bound"] == "matmul" and verdict["share"] == pytest.approx(0.75)


@pytest.mark.parametrize(
    ("target", "peer", "reached"),
    [
        ((0.5, None), None, True),
        ((0.51, None), None, False),
        ((0.5, 0.9), {"seconds": (4.6e-4,)}, True),
        ((0.5, 0.9), {"seconds": (4.4e-4,)}, False),
        ((0.5, 0.9), {"failed": "out of memory"}, None),
    ],
)
def test_targets(target, peer, reached):
    record = kernel_record(target=dict(zip(("share", "speed"), target, strict=True)), peer=peer)
    assert summary.judge_kernel(record, CEILINGS)["reached"] is reached


def test_without_both_ceilings_there_is_no_share():
    record = kernel_record(target={"share": 0.5, "speed": None})
    verdict = summary.judge_kernel(record, {"copy": 4e12})
    assert verdict["share"] is verdict["bound"] is verdict["reached"] is None and verdict["time_s"] == 5e-4


def test_a_model_is_held_against_its_bytes():
    runs = [
        {"batch": 1, "tokens": 10, "seconds": 0.01, "step_s": [4e-4, 5e-4, 1e-3], "bytes_per_step": 1.2e9},
        {"batch": 64, "tokens": 640, "seconds": 0.02, "step_s": [1e-3], "bytes_per_step": 2e9},
    ]
    one, many = summary.judge_model({"name": "triton, CUDA graphs", "runs": runs}, CEILINGS)
    assert one["share"] == pytest.approx(0.6) and one["target"] == 0.75 and one["reached"] is False
    assert many["decode_tokens_per_s"] == pytest.approx(64e3) and many["output_tokens_per_s"] == pytest.approx(32e3)
    assert many["target"] is None and many["reached"] is None


def test_only_ceilings_that_were_measured_count():
    records = [
        {"section": "ceilings", "name": "copy", "status": "done", "work": 4e9, "seconds": (1e-3, 2e-3, 9.0)},
        {"section": "ceilings", "name": "matmul", "status": "failed", "why": "out of memory"},
    ]
    assert summary.rates(records) == {"copy": 2e12}


def test_a_check_that_was_not_run_has_not_passed():
    base = {"section": "checks", "name": "swiglu"}
    passed = base | {"status": "done", "passed": True, "error": 1, "allowed": 2}
    assert summary.problems([passed, base | {"status": "skipped", "why": ""}]) == []
    for wrong in (passed | {"passed": False}, base | {"status": "not measured", "why": "late"}):
        assert len(summary.problems([passed, wrong])) == 1
    late = {"section": "kernels", "name": "swiglu", "status": "not measured", "why": "late"}
    assert summary.problems([late]) == [] and len(summary.problems([late | {"status": "failed"}])) == 1
