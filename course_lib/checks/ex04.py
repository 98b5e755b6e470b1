"""Exercise 04: smaller KV caches, from the slots of a ring to 4-bit codes and what they take in bytes."""

from course_lib.checks.core import Exercise
from course_lib.checks.ex04_append import RING_APPEND
from course_lib.checks.ex04_bytes import COMPRESSED_BYTES
from course_lib.checks.ex04_dequantize import INT4_DEQUANTIZE
from course_lib.checks.ex04_int4 import INT4_QUANTIZE
from course_lib.checks.ex04_int8 import INT8_QUANTIZE
from course_lib.checks.ex04_kivi import KIVI_APPEND
from course_lib.checks.ex04_mask import WINDOW_MASK
from course_lib.checks.ex04_ring import RING_SLOTS

EXERCISE = Exercise(
    number="04",
    title="KV-cache compression",
    notebook="04_kv_cache_compression.ipynb",
    problems=(
        RING_SLOTS,
        WINDOW_MASK,
        RING_APPEND,
        INT8_QUANTIZE,
        INT4_QUANTIZE,
        INT4_DEQUANTIZE,
        KIVI_APPEND,
        COMPRESSED_BYTES,
    ),
)
