"""A cache with modern eviction policies.

>>> import floe
>>> cache = floe.Cache(1000, policy="s3-fifo")
>>> cache["key"] = 1
>>> cache.get("key")
1
>>> @floe.cached(1000, ttl=60)
... def square(x: int) -> int:
...     return x * x
>>> square(7), square(7), square.stats().hits
(49, 49, 1)
"""

from collections.abc import MutableMapping as _MutableMapping

from floe._cached import CachedCoroutine, CacheInfo, cached
from floe._floe import Cache, CachedFunction, Stats

_MutableMapping.register(Cache)

__all__ = ["Cache", "CacheInfo", "CachedCoroutine", "CachedFunction", "Stats", "cached"]
