"""`floe_cache.cached`: functions and coroutine functions whose results are cached."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Coroutine, Hashable
from datetime import timedelta
from typing import Any, NamedTuple, ParamSpec, Protocol, TypeVar, overload

from floe_cache._coroutine import cached_coroutine
from floe_cache._floe import Cache, CachedFunction, Stats

P = ParamSpec("P")
R = TypeVar("R")
R_co = TypeVar("R_co", covariant=True)

_UNSET: Any = object()


class CacheInfo(NamedTuple):
    """Returned by `cache_info()`, as by that of `functools.lru_cache`."""

    hits: int
    misses: int
    maxsize: int
    currsize: int


class CachedCoroutine(Protocol[P, R_co]):
    """A coroutine function whose results are cached.

    The task that misses first runs the function, and others wait, in whichever event loop they are.
    If it raises or is cancelled, the next one that waits runs the function.
    """

    cache: Cache[Any, Any]
    __wrapped__: Callable[..., Coroutine[Any, Any, Any]]
    __name__: str

    def __call__(self, *args: P.args, **kwargs: P.kwargs) -> Coroutine[Any, Any, R_co]: ...
    @overload
    def __get__(
        self, instance: None, owner: type | None = None
    ) -> CachedCoroutine[P, R_co]: ...
    @overload
    def __get__(
        self, instance: object, owner: type | None = None
    ) -> Callable[..., Coroutine[Any, Any, R_co]]: ...
    def invalidate(self, *args: P.args, **kwargs: P.kwargs) -> bool: ...
    def stats(self) -> Stats: ...
    def cache_info(self) -> CacheInfo: ...
    def cache_parameters(self) -> dict[str, Any]: ...
    def cache_clear(self) -> None: ...


class _Decorator(Protocol):
    @overload
    def __call__(  # type: ignore[overload-overlap]
        self, function: Callable[P, Coroutine[Any, Any, R]], /
    ) -> CachedCoroutine[P, R]: ...
    @overload
    def __call__(self, function: Callable[P, R], /) -> CachedFunction[P, R]: ...


@overload
def cached(  # type: ignore[overload-overlap]
    function: Callable[P, Coroutine[Any, Any, R]], /
) -> CachedCoroutine[P, R]: ...
@overload
def cached(function: Callable[P, R], /) -> CachedFunction[P, R]: ...
@overload
def cached(
    capacity: int = 128,
    *,
    cache: Cache[Any, Any] | None = None,
    key: Callable[..., Hashable] | None = None,
    typed: bool = False,
    policy: str | None = None,
    ttl: float | timedelta | None = None,
    idle: float | timedelta | None = None,
    getsizeof: Callable[[Any], int] | None = None,
    admission: str | None = None,
) -> _Decorator: ...
def cached(
    capacity: Any = _UNSET,
    *,
    cache: Cache[Any, Any] | None = None,
    key: Callable[..., Hashable] | None = None,
    typed: bool = False,
    **options: Any,
) -> Any:
    """Caches the results of a function or a coroutine function.

    The results are in a `Cache` of its own, made with `capacity` (128) and the other arguments, or
    in `cache`. Callers that miss the same arguments at the same time wait for one of them, which
    runs the function. An exception is not cached, and is raised to the caller that ran the
    function; the next one that waits runs it again.

    Arguments are compared as keys of a `Cache` are; with `typed`, those of different types differ,
    as with `functools.lru_cache`. `key(*args, **kwargs)` may return the key instead; then it is a
    key of the mapping `cache`, as with `cachetools.cached`.

    The result has `cache`, `stats()` and `invalidate(*args, **kwargs)`; and, as with
    `functools.lru_cache`, `cache_info()`, `cache_parameters()`, `cache_clear()` and `__wrapped__`.
    """
    if callable(capacity):
        return cached()(capacity)
    options = {name: value for name, value in options.items() if value is not None}
    if cache is None:
        cache = Cache(128 if capacity is _UNSET else capacity, **options)
    elif capacity is not _UNSET or options:
        raise TypeError("a cache that is given has its capacity and options already")
    if key is not None and typed:
        raise TypeError("with a key of one's own that alone tells arguments apart, not their types")
    store = cache

    def decorate(function: Callable[..., Any]) -> Any:
        if not inspect.iscoroutinefunction(function):
            return functools.update_wrapper(CachedFunction(function, store, key, typed), function)
        coroutine: Any = cached_coroutine(function, store, key, typed)
        coroutine.cache_info = lambda: _cache_info(store)
        coroutine.cache_parameters = lambda: {"maxsize": store.maxsize, "typed": typed}
        coroutine.cache_clear = store.clear
        return functools.update_wrapper(coroutine, function)

    return decorate


def _cache_info(cache: Cache[Any, Any]) -> CacheInfo:
    stats = cache.stats()
    return CacheInfo(stats.hits, stats.misses, cache.maxsize, cache.currsize)
