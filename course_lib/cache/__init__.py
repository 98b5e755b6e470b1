"""KV caches. Each owns its memory, can count its bytes, and is reached through one protocol."""

from course_lib.cache.base import KVCache
from course_lib.cache.block_manager import BlockManager
from course_lib.cache.contiguous import ContiguousCache
from course_lib.cache.paged import PagedCache
from course_lib.cache.prefix_hash import HashIndex
from course_lib.cache.prefix_radix import RadixIndex
from course_lib.cache.ring import RingCache

__all__ = ["BlockManager", "ContiguousCache", "HashIndex", "KVCache", "PagedCache", "RadixIndex", "RingCache"]
