"""The child process: whatever happens to an entry costs that entry only."""

from __future__ import annotations

import os
import time

from course_kernels.bench.runner import Entry, Skipped, run_entries


def entries(marker: str) -> list[Entry]:
    """Entries of every kind; made anew in each child."""

    def skip():
        raise Skipped("no such device")

    def fail():
        raise ArithmeticError(marker)

    return [
        Entry("a", "result", lambda: {"value": marker}),
        Entry("a", "skip", skip),
        Entry("a", "fail", fail),
        Entry("a", "crash", lambda: os._exit(3)),
        Entry("a", "after the crash", lambda: {}),
        Entry("a", "hang", lambda: time.sleep(600)),
        Entry("b", "late", lambda: {}),
        Entry("a", "after the hang", lambda: {}),
    ]


def test_one_entry_costs_no_other():
    records = list(run_entries(entries, ("mark",), {"a": 600, "b": 0}, entry_s=2))
    found = {record["name"]: (record["status"], record.get("why")) for record in records}
    assert found == {
        "result": ("done", None),
        "skip": ("skipped", "no such device"),
        "fail": ("failed", "ArithmeticError: mark"),
        "crash": ("failed", "the process ended with status 3"),
        "after the crash": ("done", None),
        "hang": ("failed", "no answer within 2 s"),
        "late": ("not measured", "the section's time was spent"),
        "after the hang": ("done", None),
    }
    assert records[0]["value"] == "mark" and "ArithmeticError" in records[2]["traceback"]
