"""Exercise 02: a KV cache, from its size to a loop that generates text."""

from course_lib.checks.core import Exercise
from course_lib.checks.ex02_attention import ATTEND
from course_lib.checks.ex02_cache import APPEND, KV_BYTES
from course_lib.checks.ex02_loop import DECODE_LOOP
from course_lib.checks.ex02_mask import CAUSAL_MASK, POSITIONS

EXERCISE = Exercise(
    number="02",
    title="A KV cache",
    notebook="02_kv_cache.ipynb",
    problems=(KV_BYTES, APPEND, POSITIONS, CAUSAL_MASK, ATTEND, DECODE_LOOP),
)
