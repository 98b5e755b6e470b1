"""KV caches. Each owns its memory, can count its bytes, and is reached through one protocol."""

from course_lib.cache.base import KVCache
from course_lib.cache.contiguous import ContiguousCache

__all__ = ["ContiguousCache", "KVCache"]
