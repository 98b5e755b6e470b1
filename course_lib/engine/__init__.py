"""The serving engine: `Engine(llm).add_request(...)`, then `step()` until all is done."""

from course_lib.engine.engine import Engine, StepOutput
from course_lib.engine.metrics import Event, Metrics, RequestRecord, StepRecord
from course_lib.engine.plan import Plan
from course_lib.engine.policies import (
    ChunkedPrefill,
    ContinuousBatching,
    EarliestDeadline,
    Fcfs,
    Priority,
    Recompute,
    StaticBatching,
    Swap,
)
from course_lib.engine.request import Request, State
from course_lib.engine.scheduler import Scheduler

__all__ = [
    "ChunkedPrefill",
    "ContinuousBatching",
    "EarliestDeadline",
    "Engine",
    "Event",
    "Fcfs",
    "Metrics",
    "Plan",
    "Priority",
    "Recompute",
    "Request",
    "RequestRecord",
    "Scheduler",
    "State",
    "StaticBatching",
    "StepOutput",
    "StepRecord",
    "Swap",
]
