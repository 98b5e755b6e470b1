"""Shares, speeds and verdicts: from raw samples and the two ceilings."""

from __future__ import annotations

from collections.abc import Sequence
from statistics import median

MODEL_TARGET = ("triton, CUDA graphs", 1, 0.75)  # engine, batch, share of the bandwidth bound


def rates(records: Sequence[dict]) -> dict[str, float]:
    """The ceilings that were measured: "copy" in bytes per second, "matmul" in FLOP per second."""
    return {
        record["name"]: record["work"] / median(record["seconds"])
        for record in records
        if record["section"] == "ceilings" and record["status"] == "done"
    }


def judge_kernel(record: dict, ceilings: dict[str, float]) -> dict:
    """What a measured kernel reached.

    time_s: the median. bound: the ceiling under which the operation takes longer, "copy" or "matmul"; rate: the bytes
    or FLOPs, whichever that counts, per second; share: the time at that ceiling over the kernel's. speed: PyTorch's
    time over the kernel's. reached: whether all that was aimed at. None where a ceiling or PyTorch's time is missing.
    8-bit products are held against the bfloat16 rate, though tensor cores do twice as many of them.
    """
    time_s, peer, target = median(record["seconds"]), record["peer"], record["target"]
    work = {"copy": record["bytes"], "matmul": record["flops"]}
    bound = share = rate = speed = None
    if ceilings.keys() >= work.keys():
        bound = max(work, key=lambda ceiling: work[ceiling] / ceilings[ceiling])
        rate = work[bound] / time_s
        share = rate / ceilings[bound]
    if peer and "seconds" in peer:
        speed = median(peer["seconds"]) / time_s
    reached = _reached((share, target["share"]), (speed, target["speed"]))
    return {"time_s": time_s, "bound": bound, "rate": rate, "share": share, "speed": speed, "reached": reached}


def judge_model(record: dict, ceilings: dict[str, float]) -> list[dict]:
    """Of each batch: step_s, the median; decode_tokens_per_s, of all its sequences; output_tokens_per_s, prefill
    included; share: the time at the copy bandwidth for the bytes of a step over the step's; target; reached."""
    judged = []
    for run in record["runs"]:
        step_s, batch = median(run["step_s"]), run["batch"]
        share = run["bytes_per_step"] / ceilings["copy"] / step_s if "copy" in ceilings else None
        target = MODEL_TARGET[2] if (record["name"], batch) == MODEL_TARGET[:2] else None
        judged.append({
            "batch": batch, "step_s": step_s, "decode_tokens_per_s": batch / step_s,
            "output_tokens_per_s": run["tokens"] / run["seconds"], "share": share, "target": target,
            "reached": _reached((share, target)),
        })  # fmt: skip
    return judged


def _reached(*pairs: tuple[float | None, float | None]) -> bool | None:
    """Whether each value is at least its target. None where there is no target, or a value is missing."""
    aimed = [(value, target) for value, target in pairs if target is not None]
    if not aimed or any(value is None for value, _ in aimed):
        return None
    return all(value >= target for value, target in aimed)


def judge(records: Sequence[dict], small: bool) -> dict:
    """The records by section, each that was measured with its verdict as `reached`. small: nothing is held against a
    ceiling, as the times are those of an interpreter."""
    ceilings = {} if small else rates(records)
    found: dict = {"rates": ceilings}
    for record in records:
        if record["status"] == "done" and record["section"] == "kernels":
            record |= {"verdict": judge_kernel(record, ceilings)}
        if record["status"] == "done" and record["section"] == "model":
            record |= {"verdict": judge_model(record, ceilings)}
        found.setdefault(record["section"], []).append(record)
    return found


def problems(records: Sequence[dict]) -> list[str]:
    """A line for each check that did not pass and each entry that failed. A check that was not run has not passed."""
    found = []
    for record in records:
        name = f"{record['section']}: {record['name']}"
        if record["status"] == "failed" or (record["section"] == "checks" and record["status"] == "not measured"):
            found.append(f"{name}: {record['status']}, {record['why']}")
        elif record["section"] == "checks" and record["status"] == "done" and not record["passed"]:
            found.append(f"{name}: an error of {record['error']:.3g} units where {record['allowed']:g} are allowed")
    return found
