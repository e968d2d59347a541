"""Processor time a hit of Floe and of other caches in Python, one after the other in each round.

    FLOE_PYTHON_PROFILE=release FLOE_PYTHON_WHEEL=1 scripts/test-python
    target/python/environment/bin/pip install cachetools moka-py
    target/python/environment/bin/python bindings/python/benches/hits.py [ROUNDS]

Prints the median of each series over the rounds, and its ratio to Floe's in the same round. A
cache that is not installed is left out, and that is said.
"""

from __future__ import annotations

import functools
import random
import statistics
import sys
import time
from collections.abc import Callable
from importlib.metadata import PackageNotFoundError, version
from typing import Any

import floe_cache

KEYS = 1000
LOOKUPS = 50_000


Look = Callable[[list[Any]], None]


def timed(look: Look, keys: list[Any]) -> float:
    """Nanoseconds of processor time of one lookup, with the loop's own."""
    begun = time.thread_time_ns()
    look(keys)
    return (time.thread_time_ns() - begun) / len(keys)


def subscripts(cache: Any) -> Look:
    """Looks keys up as in a mapping."""

    def look(keys: list[Any]) -> None:
        for key in keys:
            cache[key]

    return look


def calls_of(function: Callable[[Any], Any]) -> Look:
    def look(keys: list[Any]) -> None:
        for key in keys:
            function(key)

    return look


def series(keys: list[Any]) -> dict[str, dict[str, Look]]:
    """For each kind of use, a function that looks keys up for each cache."""

    def filled(cache: Any) -> Any:
        for key in keys:
            cache[key] = key
        return cache

    def identity(key: Any) -> Any:
        return key

    capacity = 2 * KEYS
    hits: dict[str, Look] = {
        "floe": subscripts(filled(floe_cache.Cache(capacity))),
        "floe, lru": subscripts(filled(floe_cache.Cache(capacity, policy="lru"))),
        "floe, s3-fifo": subscripts(filled(floe_cache.Cache(capacity, policy="s3-fifo"))),
        "floe, ttl": subscripts(filled(floe_cache.Cache(capacity, ttl=3600))),
        "floe, get": calls_of(filled(floe_cache.Cache(capacity)).get),
        "dict": subscripts(filled({})),
    }
    calls: dict[str, Callable[[Any], Any]] = {
        "floe_cache.cached": floe_cache.cached(capacity)(identity),
        "functools.lru_cache": functools.lru_cache(capacity)(identity),
        "no cache": identity,
    }
    try:
        import cachetools

        hits["cachetools.LRUCache"] = subscripts(filled(cachetools.LRUCache(capacity)))
        hits["cachetools.TTLCache"] = subscripts(filled(cachetools.TTLCache(capacity, 3600)))
        calls["cachetools.cached"] = cachetools.cached(cachetools.LRUCache(capacity))(identity)
    except ImportError:
        print("cachetools is not installed", file=sys.stderr)
    try:
        import moka_py

        moka: Any = moka_py.Moka(capacity)
        for key in keys:
            moka.set(key, key)
        hits["moka-py"] = calls_of(moka.get)
        calls["moka_py.cached"] = moka_py.cached(capacity)(identity)
    except ImportError:
        print("moka-py is not installed", file=sys.stderr)
    for call in calls.values():
        for key in keys:
            call(key)
    return {"hit": hits, "call": {name: calls_of(call) for name, call in calls.items()}}


def main() -> None:
    rounds = int(sys.argv[1]) if len(sys.argv) > 1 else 31
    names = ("floe-cache", "cachetools", "moka-py")
    for name in names:
        try:
            print(f"{name} {version(name)}")
        except PackageNotFoundError:
            pass
    print(f"Python {sys.version.split()[0]}; {KEYS} keys, all cached; {rounds} rounds\n")
    print(f"{'keys':6} {'':4} {'':22} {'ns':>8} {'times Floe':>12}")
    chance = random.Random(7)
    kinds: dict[str, list[Any]] = {
        "str": [f"key {number}" for number in range(KEYS)],
        "int": list(range(100_000, 100_000 + KEYS)),
        "tuple": [(f"key {number}", number) for number in range(KEYS)],
    }
    for kind, keys in kinds.items():
        order = chance.choices(keys, k=LOOKUPS)
        for use, caches in series(keys).items():
            taken: dict[str, list[float]] = {name: [] for name in caches}
            for _ in range(rounds):
                for name, look in caches.items():
                    taken[name].append(timed(look, order))
            own = taken[next(iter(caches))]
            for name, times in taken.items():
                ratio = statistics.median(a / b for a, b in zip(times, own))
                print(f"{kind:6} {use:4} {name:22} {statistics.median(times):8.1f} {ratio:12.2f}")


if __name__ == "__main__":
    main()
