"""Which kernel tests this process can run: Triton decides when it is imported whether it interprets or compiles.

TRITON_INTERPRET=1 is for interpreted/, TRITON_INTERPRET=0 for compiled/. Without it only the tests here are collected,
and those start a process for each of the two folders.
"""

from __future__ import annotations

import os

FOLDERS = {"1": "interpreted", "0": "compiled"}
here = FOLDERS.get(os.environ.get("TRITON_INTERPRET"))
collect_ignore = [folder for folder in FOLDERS.values() if folder != here]
