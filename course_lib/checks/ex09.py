"""Exercise 09: continuous batching, from counting steps to a scheduler that drives the engine."""

from course_lib.checks.core import Exercise
from course_lib.checks.ex09_batch import RAGGED_BATCH
from course_lib.checks.ex09_plan import PLAN_STEP
from course_lib.checks.ex09_rate import PREFILL_CHUNKS, SUSTAINABLE_RATE
from course_lib.checks.ex09_steps import CONTINUOUS_STEPS, STATIC_STEPS

EXERCISE = Exercise(
    number="09",
    title="Continuous batching",
    notebook="09_continuous_batching.ipynb",
    problems=(STATIC_STEPS, CONTINUOUS_STEPS, SUSTAINABLE_RATE, PREFILL_CHUNKS, RAGGED_BATCH, PLAN_STEP),
)
