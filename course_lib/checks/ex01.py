"""Exercise 01: count FLOPs and bytes from a config, and bound the time with the roofline."""

from course_lib.checks.core import Exercise
from course_lib.checks.ex01_counts import ATTENTION_FLOPS, LINEAR_FLOPS
from course_lib.checks.ex01_roofline import ATTAINABLE, RIDGE_BATCH, STEP_BYTES, STEP_SECONDS

EXERCISE = Exercise(
    number="01",
    title="Prefill and decode: counts and the roofline",
    notebook="01_prefill_vs_decode.ipynb",
    problems=(LINEAR_FLOPS, ATTENTION_FLOPS, STEP_BYTES, ATTAINABLE, RIDGE_BATCH, STEP_SECONDS),
)
