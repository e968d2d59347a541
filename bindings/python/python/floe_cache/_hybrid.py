"""`floe_cache.HybridCache`: a cache in memory and on flash."""

from __future__ import annotations

import atexit
import contextlib
import functools
import inspect
import os
import weakref
from collections.abc import (
    Callable,
    ItemsView,
    Iterator,
    KeysView,
    MutableMapping,
    ValuesView,
)
from datetime import timedelta
from typing import Any, ParamSpec, Protocol, TypeVar, overload

from floe_cache._floe import HybridStore

P = ParamSpec("P")
R = TypeVar("R")
R_co = TypeVar("R_co", covariant=True)
S = TypeVar("S", bound="HybridCache")

_MISSING: Any = object()

# The caches of this process, which are closed at its end: then the next start is warm.
_open: weakref.WeakSet[HybridCache] = weakref.WeakSet()


def _close_all() -> None:
    for cache in list(_open):
        with contextlib.suppress(OSError):  # nobody is there any more to be told
            cache.close()


atexit.register(_close_all)


class Serializer(Protocol):
    """Turns values into bytes and back, as the modules `pickle` and `marshal` do."""

    def dumps(self, value: Any, /) -> bytes: ...
    def loads(self, data: bytes, /) -> Any: ...


class Memoized(Protocol[P, R_co]):
    """A function whose results are in a `HybridCache`."""

    cache: HybridCache
    __wrapped__: Callable[..., Any]
    __name__: str

    def __call__(self, *args: P.args, **kwargs: P.kwargs) -> R_co: ...
    def cache_key(self, *args: P.args, **kwargs: P.kwargs) -> tuple[Any, ...]: ...
    def invalidate(self, *args: P.args, **kwargs: P.kwargs) -> bool: ...


class _Values(ValuesView[Any]):
    """The values that are there when their keys are reached."""

    _mapping: HybridCache

    def __iter__(self) -> Iterator[Any]:
        for _, value in self._mapping.items():
            yield value

    def __contains__(self, value: object) -> bool:
        return any(found is value or found == value for found in self)


class _Items(ItemsView[Any, Any]):
    """The entries that are there when their keys are reached."""

    _mapping: HybridCache

    def __iter__(self) -> Iterator[tuple[Any, Any]]:
        for key in self._mapping:
            value = self._mapping.peek(key, _MISSING)
            if value is not _MISSING:
                yield key, value


class HybridCache(HybridStore, MutableMapping[Any, Any]):
    """A cache in memory and in one file on flash, which is warm again after a restart.

    `memory` and `flash` are numbers of bytes, or text such as "200GiB". A missing file is created
    with its full size. `ttl` is the time, in seconds or as timedelta, after which an entry expires.
    `admission` ("popularity", "obp", "small-bypass", "tinylfu") and `write_budget` ("1 DWPD",
    "40 MB/s") write less to flash. `serializer` has `dumps` and `loads`, and replaces pickle.

    >>> import tempfile
    >>> path = tempfile.mkdtemp() + "/cache"
    >>> with HybridCache(path, memory="8MiB", flash="64MiB") as cache:
    ...     cache["key"] = {"any": "object"}
    >>> with HybridCache(path, memory="8MiB", flash="64MiB") as cache:
    ...     cache["key"]
    {'any': 'object'}
    """

    def __init__(
        self,
        path: str | os.PathLike[str],
        *,
        memory: int | str,
        flash: int | str,
        ttl: float | timedelta | None = None,
        admission: str | None = None,
        write_budget: str | None = None,
        serializer: Serializer | None = None,
    ) -> None:
        self._open(path, memory, flash, ttl, admission, write_budget, serializer)
        _open.add(self)

    def __enter__(self: S) -> S:
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()

    # A comparison of entries would read all of flash.
    __eq__ = object.__eq__
    __hash__ = object.__hash__

    def __reduce__(self) -> Any:
        raise TypeError(f"the cache {self.path} cannot be copied or pickled: it has one file")

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.path!r}{', closed' if self.closed else ''})"

    def keys(self) -> KeysView[Any]:
        """Returns a view of the keys. Iteration reads the keys on flash."""
        return KeysView(self)

    def values(self) -> ValuesView[Any]:
        """Returns a view of the values. Iteration reads flash and counts no hits."""
        return _Values(self)

    def items(self) -> ItemsView[Any, Any]:
        """Returns a view of the entries. Iteration reads flash and counts no hits."""
        return _Items(self)

    def popitem(self) -> tuple[Any, Any]:
        """Removes an arbitrary entry and returns its key and value. Reads the keys on flash."""
        for key in self:
            value = self.pop(key, _MISSING)
            if value is not _MISSING:
                return key, value
        raise KeyError("the cache is empty")

    @overload
    def memoize(self, expire: Callable[P, R], /) -> Memoized[P, R]: ...
    @overload
    def memoize(
        self,
        expire: float | timedelta | None = None,
        *,
        name: str | None = None,
        typed: bool = False,
        key: Callable[..., Any] | None = None,
    ) -> Callable[[Callable[P, R]], Memoized[P, R]]: ...
    def memoize(
        self,
        expire: Any = None,
        *,
        name: str | None = None,
        typed: bool = False,
        key: Callable[..., Any] | None = None,
    ) -> Any:
        """Caches the results of a function. One caller runs it for the same arguments at a time.

        The key of a result is the function's `name`, by default its module and qualified name, and
        the arguments, or what `key(*args, **kwargs)` returns. So results are found again after a
        restart. A changed function needs another name, or `clear`. With `typed`, equal arguments of
        different types differ.
        """
        if callable(expire):
            return self.memoize()(expire)
        if key is not None and typed:
            raise TypeError("a key of one's own tells arguments apart, not their types")

        def decorate(function: Callable[..., Any]) -> Any:
            if inspect.iscoroutinefunction(function):
                name_of = function.__qualname__
                raise TypeError(f"{name_of} is a coroutine function: use floe_cache.cached")
            prefix = f"{function.__module__}.{function.__qualname__}" if name is None else name
            if prefix.endswith("<lambda>"):
                raise TypeError("results of a lambda need a name: memoize(name=…)")

            def cache_key(*args: Any, **kwargs: Any) -> tuple[Any, ...]:
                """Returns the key of the result for these arguments."""
                if key is not None:
                    return prefix, key(*args, **kwargs)
                named = tuple(sorted(kwargs.items()))
                if not typed:
                    return prefix, args, named
                values = (*args, *(value for _, value in named))
                return prefix, args, named, tuple(type(value).__qualname__ for value in values)

            @functools.wraps(function)
            def call(*args: Any, **kwargs: Any) -> Any:
                run = functools.partial(function, *args, **kwargs)
                return self.get_or_set(cache_key(*args, **kwargs), run, expire)

            def invalidate(*args: Any, **kwargs: Any) -> bool:
                """Removes the result for these arguments. Returns whether there was one."""
                return self.delete(cache_key(*args, **kwargs))

            memoized: Any = call
            memoized.cache, memoized.cache_key, memoized.invalidate = self, cache_key, invalidate
            return memoized

        return decorate
