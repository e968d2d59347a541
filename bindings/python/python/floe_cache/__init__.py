"""A cache with modern eviction policies.

>>> import floe_cache
>>> cache = floe_cache.Cache(1000, policy="s3-fifo")
>>> cache["key"] = 1
>>> cache.get("key")
1
>>> @floe_cache.cached(1000, ttl=60)
... def square(x: int) -> int:
...     return x * x
>>> square(7), square(7), square.stats().hits
(49, 49, 1)
"""

from collections.abc import MutableMapping as _MutableMapping

from floe_cache._cached import CachedCoroutine, CacheInfo, cached
from floe_cache._floe import Cache, CachedFunction, Stats
from floe_cache._hybrid import HybridCache, Memoized

_MutableMapping.register(Cache)

__all__ = [
    "Cache",
    "CacheInfo",
    "CachedCoroutine",
    "CachedFunction",
    "HybridCache",
    "Memoized",
    "Stats",
    "cached",
]
