"""Exercise 10: who is served first, who gives way, what that costs, and what was promised."""

from course_lib.checks.core import Exercise
from course_lib.checks.ex10_cost import RESUME_SECONDS
from course_lib.checks.ex10_deadline import NEXT_DEADLINE
from course_lib.checks.ex10_engine import AGED_ORDER
from course_lib.checks.ex10_fits import NEVER_FITS
from course_lib.checks.ex10_goodput import GOODPUT
from course_lib.checks.ex10_percentile import PERCENTILE
from course_lib.checks.ex10_ttft import PREDICTED_TTFT
from course_lib.checks.ex10_victims import CHOOSE_VICTIMS

EXERCISE = Exercise(
    number="10",
    title="Scheduling",
    notebook="10_scheduling.ipynb",
    problems=(
        NEXT_DEADLINE,
        CHOOSE_VICTIMS,
        RESUME_SECONDS,
        PERCENTILE,
        GOODPUT,
        NEVER_FITS,
        PREDICTED_TTFT,
        AGED_ORDER,
    ),
)
