"""Exercise 03: fewer and smaller keys, from their bytes to grouped, merged and latent heads that run in the engine."""

from course_lib.checks.core import Exercise
from course_lib.checks.ex03_attention import GROUPED_ATTENTION
from course_lib.checks.ex03_bytes import CACHE_BYTES
from course_lib.checks.ex03_intensity import ATTENTION_INTENSITY
from course_lib.checks.ex03_latent import ABSORBED_ATTENTION
from course_lib.checks.ex03_merge import MERGE_KV_HEADS
from course_lib.checks.ex03_spread import SPREAD_HEADS

EXERCISE = Exercise(
    number="03",
    title="Fewer and smaller keys",
    notebook="03_gqa_mqa_mla.ipynb",
    problems=(
        CACHE_BYTES,
        ATTENTION_INTENSITY,
        SPREAD_HEADS,
        GROUPED_ATTENTION,
        MERGE_KV_HEADS,
        ABSORBED_ATTENTION,
    ),
)
