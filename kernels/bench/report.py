"""What a run prints: a table of the kernels, one of the model, one of the checks."""

from __future__ import annotations

from rich.console import Group
from rich.table import Table

from course_kernels.bench.summary import problems

UNITS = {"copy": (1e9, "GB/s"), "matmul": (1e12, "TFLOP/s")}
INTERPRETED = "interpreted: times mean nothing"


def line(record: dict) -> str:
    """One entry, as soon as it is done."""
    what = record.get("why", "")
    if record["status"] == "done" and record["section"] == "checks":
        what = f"error {record['error']:.2f} of {record['allowed']:g} units"
        what += "" if record["passed"] else ": NOT PASSED"
    return f"{record['section']}: {record['name']}: {record['status']}{', ' * bool(what)}{what}"


def show(result: dict) -> Group:
    """All tables of a result, and below them what is wrong."""
    small = result["settings"]["small"]
    records = [record for section in ("ceilings", "checks", "kernels", "model") for record in result.get(section, [])]
    wrong = problems(records)
    return Group(
        INTERPRETED if small else _ceilings(result["rates"]),
        _checks(result.get("checks", [])),
        _kernels(result.get("kernels", []), small),
        _model(result.get("model", []), small),
        *wrong,
        f"{len(wrong)} problems." if wrong else "All checks passed and nothing failed.",
    )


def _ceilings(rates: dict[str, float]) -> str:
    return "Ceilings: " + ", ".join(
        f"{name} {_rate(rates[name], name) if name in rates else 'not measured'}" for name in UNITS
    )


def _checks(records: list[dict]) -> Table:
    """The largest error of each kernel over its dtypes; the rest is in the JSON."""
    table = _table("Checked against float64; 1 unit is twice one rounding", "kernel", "largest error", "allowed", "")
    by_name: dict[str, list[dict]] = {}
    for record in records:
        by_name.setdefault(record["name"].rsplit(", ", 1)[0], []).append(record)
    for name, group in by_name.items():
        done = [record for record in group if record["status"] == "done"]
        rest = "; ".join(dict.fromkeys(f"{r['status']}: {r['why']}" for r in group if r["status"] != "done"))
        if not done:
            table.add_row(name, "-", "-", rest)
            continue
        worst = max(done, key=lambda record: record["error"] - record["allowed"])
        passed = "passed" if all(record["passed"] for record in done) else "NOT PASSED"
        table.add_row(name, f"{worst['error']:.2f}", f"{worst['allowed']:g}", "; ".join(filter(None, (passed, rest))))
    return table


def _kernels(records: list[dict], small: bool) -> Table:
    columns = ("kernel", "time", "achieved", "of ceiling", "vs torch", "target", "reached")
    table = _table("Kernels" + f" ({INTERPRETED})" * small, *columns)
    for record in records:
        if record["status"] != "done":
            table.add_row(record["name"], record["status"], *("-",) * 5)
            continue
        verdict, peer = record["verdict"], record["peer"]
        achieved = "-" if verdict["rate"] is None else _rate(verdict["rate"], verdict["bound"])
        time_us = f"{verdict['time_s'] * 1e6:.1f} us" + _no_graph(record, small)
        speed = "-"
        if peer:
            speed = "failed" if "failed" in peer else f"{verdict['speed']:.2f}x {peer['name']}" + _no_graph(peer, small)
        target = _target(**record["target"])
        table.add_row(
            record["name"], time_us, achieved, _percent(verdict["share"]), speed, target,
            _yes(verdict["reached"], bool(target)),
        )  # fmt: skip
    return table


def _no_graph(timed: dict, small: bool) -> str:
    """Marks a time in which Python's launches may be more than the kernels."""
    return "" if small or timed["graph"] else ", no graph"


def _model(records: list[dict], small: bool) -> Table:
    columns = ("engine", "batch", "step", "decode tok/s", "output tok/s", "of bandwidth bound", "target", "reached")
    table = _table("A whole model" + f" ({INTERPRETED})" * small, *columns)
    for record in records:
        if record["status"] != "done":
            table.add_row(record["name"], "-", record["status"], *("-",) * 5)
            continue
        for v in record["verdict"]:
            target = "" if v["target"] is None else f"{v['target']:.0%}"
            table.add_row(
                record["name"], str(v["batch"]), f"{v['step_s'] * 1e3:.2f} ms", f"{v['decode_tokens_per_s']:.0f}",
                f"{v['output_tokens_per_s']:.0f}", _percent(v["share"]), target, _yes(v["reached"], bool(target)),
            )  # fmt: skip
    return table


def _target(share: float | None, speed: float | None) -> str:
    return ", ".join(text for value, text in ((share, _percent(share)), (speed, f"{speed}x")) if value is not None)


def _table(title: str, name: str, *columns: str) -> Table:
    table = Table(title=title)
    table.add_column(name)
    for column in columns:
        table.add_column(column, justify="right")
    return table


def _rate(rate: float, ceiling: str) -> str:
    scale, unit = UNITS[ceiling]
    return f"{rate / scale:.0f} {unit}"


def _percent(share: float | None) -> str:
    return "-" if share is None else f"{share:.0%}"


def _yes(reached: bool | None, aimed: bool) -> str:
    if not aimed:
        return ""
    return "not measured" if reached is None else "yes" if reached else "NO"
