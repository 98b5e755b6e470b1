"""Exercise A1: three GPU kernels in Triton, run by its interpreter.

The grader's side, references and known mistakes, is PyTorch: it needs no Triton.
"""

from course_lib.checks.core import Exercise
from course_lib.checks.exA1_attention import ONLINE_ATTENTION
from course_lib.checks.exA1_gemv import INT4_GEMV
from course_lib.checks.exA1_norm import ADD_RMS_NORM

EXERCISE = Exercise(
    number="A1",
    title="GPU kernels",
    notebook="A1_gpu_kernels.ipynb",
    problems=(ADD_RMS_NORM, ONLINE_ATTENTION, INT4_GEMV),
)
