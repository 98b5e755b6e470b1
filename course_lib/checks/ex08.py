"""Exercise 08: a paged KV cache, from the slot of a token to copy-on-write and eviction."""

from course_lib.checks.core import Exercise
from course_lib.checks.ex08_allocate import ALLOCATE
from course_lib.checks.ex08_attention import PAGED_ATTENTION
from course_lib.checks.ex08_blocks import BLOCK_COUNT, SLOTS
from course_lib.checks.ex08_extend import EXTEND
from course_lib.checks.ex08_prefix import BLOCK_KEYS, LONGEST_PREFIX
from course_lib.checks.ex08_release import RELEASE

EXERCISE = Exercise(
    number="08",
    title="PagedAttention",
    notebook="08_paged_attention.ipynb",
    problems=(BLOCK_COUNT, SLOTS, PAGED_ATTENTION, BLOCK_KEYS, LONGEST_PREFIX, ALLOCATE, EXTEND, RELEASE),
)
