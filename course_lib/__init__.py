"""The compact inference engine of the course, and everything its notebooks import.

The names below are loaded on first use, so that commands which need no engine do not wait for torch.
"""

import importlib

_HOME = {
    "LLM": "llm",
    "SamplingParams": "sampling",
    "RequestOutput": "outputs",
    "load_model": "weights",
    "load_tokenizer": "weights",
    "CourseError": "errors",
    "ModelError": "errors",
    "RequestError": "errors",
}
__all__ = list(_HOME)


def __getattr__(name: str):
    if name not in _HOME:
        raise AttributeError(f"module 'course_lib' has no attribute '{name}'")
    return getattr(importlib.import_module(f"course_lib.{_HOME[name]}"), name)
