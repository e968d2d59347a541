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

import floe

KEYS = 1000
LOOKUPS = 50_000


def lookups(get: Callable[[Any], Any], keys: list[Any]) -> float:
    """Nanoseconds of processor time of one call."""
    begun = time.thread_time_ns()
    for key in keys:
        get(key)
    return (time.thread_time_ns() - begun) / len(keys)


def series(keys: list[Any]) -> dict[str, dict[str, Callable[[Any], Any]]]:
    """For each kind of use, a function that looks a key up for each cache."""

    def filled(cache: Any) -> Any:
        for key in keys:
            cache[key] = key
        return cache

    def identity(key: Any) -> Any:
        return key

    capacity = 2 * KEYS
    hits: dict[str, Callable[[Any], Any]] = {
        "floe": filled(floe.Cache(capacity)).__getitem__,
        "floe, lru": filled(floe.Cache(capacity, policy="lru")).__getitem__,
        "floe, s3-fifo": filled(floe.Cache(capacity, policy="s3-fifo")).__getitem__,
        "floe, ttl": filled(floe.Cache(capacity, ttl=3600)).__getitem__,
        "dict": filled({}).__getitem__,
    }
    calls: dict[str, Callable[[Any], Any]] = {
        "floe.cached": floe.cached(capacity)(identity),
        "functools.lru_cache": functools.lru_cache(capacity)(identity),
        "no cache": identity,
    }
    try:
        import cachetools

        hits["cachetools.LRUCache"] = filled(cachetools.LRUCache(capacity)).__getitem__
        hits["cachetools.TTLCache"] = filled(cachetools.TTLCache(capacity, 3600)).__getitem__
        calls["cachetools.cached"] = cachetools.cached(cachetools.LRUCache(capacity))(identity)
    except ImportError:
        print("cachetools is not installed", file=sys.stderr)
    try:
        import moka_py

        moka = moka_py.Moka(capacity)
        for key in keys:
            moka.set(key, key)
        hits["moka-py"] = moka.get
        calls["moka_py.cached"] = moka_py.cached(capacity)(identity)
    except ImportError:
        print("moka-py is not installed", file=sys.stderr)
    for call in calls.values():
        for key in keys:
            call(key)
    return {"hit": hits, "call": calls}


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
                for name, get in caches.items():
                    taken[name].append(lookups(get, order))
            own = taken[next(iter(caches))]
            for name, times in taken.items():
                ratio = statistics.median(a / b for a, b in zip(times, own))
                print(f"{kind:6} {use:4} {name:22} {statistics.median(times):8.1f} {ratio:12.2f}")


if __name__ == "__main__":
    main()
