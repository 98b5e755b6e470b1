"""The formats of a KV cache by name, as `LLM(kv_cache_dtype=...)` takes them."""

from __future__ import annotations

import torch

from course_lib.cache.eight_bit import EightBit
from course_lib.cache.kivi import Kivi
from course_lib.cache.per_token import Int4
from course_lib.cache.store import FLOAT, KVFormat
from course_lib.errors import RequestError

FORMATS: dict[str, KVFormat] = {
    kv_format.name: kv_format
    for kv_format in (
        FLOAT,
        EightBit(dtype=torch.int8),
        EightBit(dtype=torch.float8_e4m3fn),
        Int4(),
        Kivi(bits=4),
        Kivi(bits=2),
    )
}


def choose_format(kv_cache_dtype: str | KVFormat) -> KVFormat:
    """The format of that name, or the one that is given. Raises RequestError for another name."""
    if isinstance(kv_cache_dtype, KVFormat):
        return kv_cache_dtype
    if kv_cache_dtype not in FORMATS:
        raise RequestError(
            f"there is no KV cache format '{kv_cache_dtype}'; use {', '.join(FORMATS)}, or a fitted Codebook"
        )
    return FORMATS[kv_cache_dtype]
