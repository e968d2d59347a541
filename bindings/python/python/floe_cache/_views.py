"""Views of a cache's keys, values and items. Iterating counts no hits."""

from __future__ import annotations

from collections.abc import ItemsView, Iterator, KeysView, ValuesView
from typing import Generic, TypeVar

from floe_cache._floe import Cache

K = TypeVar("K")
V = TypeVar("V")


class Keys(KeysView[K], Generic[K]):
    """The keys of a cache."""


class Values(ValuesView[V], Generic[K, V]):
    """The values of a cache."""

    _mapping: Cache[K, V]

    def __iter__(self) -> Iterator[V]:
        return iter([value for _, value in self._mapping._entries()])

    def __contains__(self, value: object) -> bool:
        return any(found is value or found == value for found in self)


class Items(ItemsView[K, V]):
    """The entries of a cache, as pairs."""

    _mapping: Cache[K, V]

    def __iter__(self) -> Iterator[tuple[K, V]]:
        return iter(self._mapping._entries())

    def __contains__(self, item: object) -> bool:
        if not isinstance(item, tuple) or len(item) != 2:
            return False
        missing: object = object()
        is_own = type(self._mapping).__getitem__ is not Cache.__getitem__
        find = self._mapping.get if is_own else self._mapping.peek
        found = find(item[0], missing)
        return found is not missing and (found is item[1] or found == item[1])
