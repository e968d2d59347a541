"""The cache as a mapping: beside a dict, and in what it does not have."""

import gc
import random
import subprocess
import sys
import threading
import time
import weakref
from collections.abc import Callable, MutableMapping
from datetime import timedelta
from typing import Any

import floe_cache
import pytest


def wait_until(condition: Callable[[], bool]) -> None:
    end = time.monotonic() + 30
    while not condition():
        assert time.monotonic() < end, "it did not come to that in 30 s"
        time.sleep(0.005)


class Value:
    """An object that can be referred to weakly."""


def test_the_mapping_interface() -> None:
    cache: floe_cache.Cache[str, int] = floe_cache.Cache(10)
    assert isinstance(cache, MutableMapping)
    cache["a"] = 1
    cache["a"] = 2
    assert cache["a"] == 2 and "a" in cache and len(cache) == 1
    assert cache.get("b") is None and cache.get("b", 7) == 7
    with pytest.raises(KeyError) as raised:
        cache["b"]
    assert raised.value.args == ("b",)
    assert cache.setdefault("c", 3) == 3 and cache.setdefault("c", 4) == 3
    assert cache.pop("c") == 3 and cache.pop("c", None) is None
    with pytest.raises(KeyError):
        cache.pop("c")
    del cache["a"]
    with pytest.raises(KeyError):
        del cache["a"]
    cache.update({"x": 1, "y": 2})
    cache.update([("z", 3)], w=4)
    assert sorted(cache) == ["w", "x", "y", "z"]
    assert sorted(cache.keys()) == ["w", "x", "y", "z"]
    assert sorted(cache.values()) == [1, 2, 3, 4] and 4 in cache.values()
    assert dict(cache.items()) == {"x": 1, "y": 2, "z": 3, "w": 4}
    assert ("x", 1) in cache.items() and ("x", 2) not in cache.items()
    assert cache.popitem()[1] in (1, 2, 3, 4) and len(cache) == 3
    assert cache.maxsize == 10 and cache.currsize == 3
    assert repr(cache) == "Cache(maxsize=10, currsize=3, policy='qd-clock')"
    cache.clear()
    assert len(cache) == 0 and not list(cache)
    with pytest.raises(KeyError):
        cache.popitem()


def test_iteration_is_over_what_was_there_and_counts_no_hits() -> None:
    cache: floe_cache.Cache[int, int] = floe_cache.Cache(100)
    cache.update((key, key) for key in range(50))
    for key, value in cache.items():
        del cache[key]
    assert len(cache) == 0 and cache.stats().hits == 0


def test_policies_by_name() -> None:
    cache: floe_cache.Cache[int, int] = floe_cache.Cache(2, policy="lru")
    cache[1] = cache[2] = 0
    cache[1]
    cache[3] = 0
    assert 1 in cache and 2 not in cache
    assert floe_cache.Cache(10, policy="slru:segments=2").stats().policy == "slru"
    with pytest.raises(ValueError, match="there are: .*s3-fifo"):
        floe_cache.Cache(10, policy="best")
    with pytest.raises(ValueError, match="future"):
        floe_cache.Cache(10, policy="belady")
    with pytest.raises(ValueError):
        floe_cache.Cache(10, admission="nobody")


def test_a_model_agrees_as_long_as_nothing_is_evicted() -> None:
    seed = random.randrange(1 << 32)
    chance = random.Random(seed)
    cache: floe_cache.Cache[Any, int] = floe_cache.Cache(10_000)
    model: dict[Any, int] = {}
    keys: list[Any] = [0, 1, True, 1.0, 1.5, -1, 2**40, "", "a", "é", "\ud800"]
    keys += [b"", b"a", None, (), (1,), (1.0,), (True, "a"), ((1, b"x"), None), frozenset({1})]
    keys += [float("inf"), -0.0, float("nan"), (2**70,), ("a", frozenset()), tuple]
    for step in range(20_000):
        key, what = chance.choice(keys), chance.randrange(6)
        why = f"seed {seed}, step {step}, key {key!r}"
        if what < 2:
            cache[key] = model[key] = step
        elif what == 2:
            assert cache.pop(key, -1) == model.pop(key, -1), why
        elif what == 3:
            assert (key in cache) == (key in model), why
        else:
            assert cache.get(key) == model.get(key), why
        assert len(cache) == len(model), why
    assert set(cache) == set(model), f"seed {seed}"


def test_what_equality_raises_is_raised() -> None:
    class Bad:
        def __hash__(self) -> int:
            return 7

        def __eq__(self, other: object) -> bool:
            raise ZeroDivisionError

    cache: floe_cache.Cache[Any, int] = floe_cache.Cache(10)
    cache[Bad()] = 1
    with pytest.raises(ZeroDivisionError):
        cache[Bad()]
    assert len(cache) == 1


def test_equality_may_let_other_threads_go_on_and_use_the_cache() -> None:
    cache: floe_cache.Cache[Any, int] = floe_cache.Cache(100)

    class Key:
        def __init__(self, number: int) -> None:
            self.number = number

        def __hash__(self) -> int:
            return self.number % 3

        def __eq__(self, other: object) -> bool:
            time.sleep(0)  # gives the interpreter's lock to another thread
            cache[self.number] = cache.get(self.number, 0) + 1
            return isinstance(other, Key) and self.number == other.number

    def use(seed: int) -> None:
        chance = random.Random(seed)
        for _ in range(500):
            key = Key(chance.randrange(12))
            if chance.random() < 0.5:
                cache[key] = key.number
            elif chance.random() < 0.5:
                assert cache.get(key, key.number) == key.number
            else:
                cache.pop(key, None)

    threads = [threading.Thread(target=use, args=(seed,), daemon=True) for seed in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
        assert not thread.is_alive(), "two threads wait for each other"
    assert len({key.number for key in cache if isinstance(key, Key)}) == sum(
        isinstance(key, Key) for key in cache
    )


def test_threads_on_one_cache() -> None:
    cache: floe_cache.Cache[Any, tuple[int, int]] = floe_cache.Cache(200, policy="s3-fifo")

    def use(seed: int) -> None:
        chance = random.Random(seed)
        for step in range(5000):
            number = chance.randrange(400)
            key: Any = number if number % 2 else f"key {number}"
            found = cache.get(key)
            assert found is None or found[0] == number
            cache[key] = (number, step)
            if step % 100 == 0:
                cache.pop(key, None)

    failures: list[BaseException] = []

    def guarded(seed: int) -> None:
        try:
            use(seed)
        except BaseException as error:
            failures.append(error)

    threads = [threading.Thread(target=guarded, args=(seed,)) for seed in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not failures and len(cache) <= 200


def test_weights() -> None:
    cache: floe_cache.Cache[str, bytes] = floe_cache.Cache(100, getsizeof=len)
    cache["a"] = b"x" * 40
    cache["b"] = b"x" * 50
    assert cache.currsize == 90 and cache.maxsize == 100
    cache["c"] = b"x" * 60
    assert cache.currsize <= 100 and len(cache) == 1
    with pytest.raises(ValueError, match="value too large"):
        cache["d"] = b"x" * 101
    with pytest.raises(TypeError):
        cache["e"] = 7  # type: ignore[assignment]
    cache.resize(10)
    assert len(cache) == 0 and cache.maxsize == 10


def test_a_value_may_weigh_more_than_four_gibibytes() -> None:
    gib = 2**30
    cache: floe_cache.Cache[str, int] = floe_cache.Cache(16 * gib, getsizeof=lambda weight: weight)
    cache["a"], cache["b"] = 5 * gib, 6 * gib + 1
    assert cache.currsize == 11 * gib + 1
    with pytest.raises(ValueError, match="value too large"):
        cache["c"] = 17 * gib


def test_limits() -> None:
    cache: floe_cache.Cache[int, int] = floe_cache.Cache(3)
    for key in range(100):
        cache[key] = key
    assert len(cache) == 3
    cache.resize(2)
    assert len(cache) == 2 and cache.maxsize == 2
    off: floe_cache.Cache[int, int] = floe_cache.Cache(0)
    off[1] = 1
    assert 1 not in off
    with pytest.raises(OverflowError):
        floe_cache.Cache(-1)
    with pytest.raises(ValueError):
        floe_cache.Cache(1 << 40)
    with pytest.raises(ValueError):
        cache.resize(1 << 40)


def test_pinned_entries_stay() -> None:
    cache: floe_cache.Cache[str, int] = floe_cache.Cache(2)
    cache.insert("root", 1, pinned=True)
    cache.update((str(key), key) for key in range(10))
    assert cache["root"] == 1


@pytest.mark.parametrize("ttl", [0.02, timedelta(milliseconds=20)])
def test_entries_expire(ttl: Any) -> None:
    cache: floe_cache.Cache[str, int] = floe_cache.Cache(10, ttl=ttl)
    cache["a"] = 1
    cache.insert("later", 2, ttl=3600)
    wait_until(lambda: "a" not in cache)
    assert cache["later"] == 2
    idle: floe_cache.Cache[str, int] = floe_cache.Cache(10, idle=0.02)
    idle["a"] = 1
    wait_until(lambda: "a" not in idle)


def test_what_has_expired_is_freed_by_itself() -> None:
    cache: floe_cache.Cache[str, Value] = floe_cache.Cache(10, ttl=0.01)
    value = Value()
    gone = weakref.ref(value)
    cache["a"] = value
    del value
    wait_until(lambda: len(cache) == 0)
    wait_until(lambda: (cache.get("b"), gone() is None)[1])


def test_finalizers_of_what_has_expired_run_in_a_quiet_cache() -> None:
    program = """
import floe_cache, os, threading

class Value:
    def __del__(self):
        gone.release()

def expire(count, ttl):
    caches = [floe_cache.Cache(1000, ttl=ttl), floe_cache.Cache(1000)]
    for key in range(count):
        caches[0][key] = Value()
        caches[1].insert(("other", key), Value(), ttl=ttl)
    # Nothing calls Floe from here on.
    for _ in range(2 * count):
        assert gone.acquire(timeout=60)

gone = threading.Semaphore(0)
for count in (1, 100):
    expire(count, 0.05)
child = os.fork()
expire(10, 0.05)
os.write(1, b"child\\n" if child == 0 else b"parent\\n")  # at once: both write to one pipe
if child:
    assert os.waitpid(child, 0)[1] == 0
caches = floe_cache.Cache(10, ttl=0.01)
caches["at the end"] = object()
"""
    run = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", program], capture_output=True, timeout=300, text=True
    )
    assert (run.returncode, run.stderr) == (0, "")
    assert sorted(run.stdout.split()) == ["child", "parent"]


@pytest.mark.parametrize("ttl", [0, -1, float("nan"), "soon"])
def test_times_that_are_none(ttl: Any) -> None:
    cache: floe_cache.Cache[str, int] = floe_cache.Cache(10)
    uses: list[Callable[[], object]] = [
        lambda: floe_cache.Cache(10, ttl=ttl),
        lambda: cache.insert("a", 1, ttl=ttl),
        lambda: floe_cache.cached(10, ttl=ttl)(str),
    ]
    for use in uses:
        with pytest.raises((ValueError, TypeError), match="ttl must be"):
            use()


@pytest.mark.parametrize(
    "time", [None, float("inf"), 10**400, 1e300, 10 * 365.25 * 86400, timedelta.max, 1e-300]
)
def test_times_of_any_length(time: Any) -> None:
    cache: floe_cache.Cache[str, int] = floe_cache.Cache(10, ttl=time, idle=time)
    other: floe_cache.Cache[str, int] = floe_cache.Cache(10, ttl=3600)
    cache["a"] = 1
    other.insert("a", 1, ttl=time, idle=time)
    if time == 1e-300:
        wait_until(lambda: "a" not in cache and "a" not in other)
    else:
        assert cache["a"] == other["a"] == 1


def test_values_go_at_once() -> None:
    cache: floe_cache.Cache[Any, Value] = floe_cache.Cache(10)
    ways: list[Callable[[Any], Any]] = [
        lambda key: cache.__delitem__(key),
        lambda key: cache.pop(key),
        lambda key: cache.__setitem__(key, Value()),
        lambda key: cache.clear(),
        lambda key: cache.update((other, Value()) for other in range(100)),
    ]
    for key in ["a", frozenset("a")]:
        for way in ways:
            value = Value()
            gone = weakref.ref(value)
            cache[key] = value
            del value
            assert gone() is not None
            way(key)
            assert gone() is None
            cache.clear()


def test_references_are_counted_right() -> None:
    cache: floe_cache.Cache[Any, Any] = floe_cache.Cache(4)
    value, key, other = Value(), "a key that is not interned" * 2, frozenset({"key"})
    before = [sys.getrefcount(it) for it in (value, key, other)]
    for _ in range(1000):
        for k in (key, other, (key, 1)):
            cache[k] = value
            assert cache[k] is value and cache.get(k) is value and k in cache
            cache.setdefault(k, value), cache.peek(k), list(cache.items())
            cache.pop(k)
    del k
    cache.reclaim()
    assert [sys.getrefcount(it) for it in (value, key, other)] == before
    assert len(cache) == 0


def test_the_collector_frees_cycles_through_the_cache() -> None:
    class Holder:
        cache: floe_cache.Cache[Any, Any]

        def __init__(self) -> None:
            self.cache = floe_cache.Cache(10, getsizeof=lambda value: 1 if self else 0)

    def value_in_it(holder: Holder) -> None:
        holder.cache["self"] = holder

    def key_in_it(holder: Holder) -> None:
        holder.cache[holder] = 1

    def left_it(holder: Holder) -> None:
        holder.cache["self"] = holder
        holder.cache["self"] = 1
        holder.cache[(holder, 1)] = 1
        del holder.cache[(holder, 1)]

    def weighed_by_it(holder: Holder) -> None:
        pass

    for way in (value_in_it, key_in_it, left_it, weighed_by_it):
        holder = Holder()
        way(holder)
        gone = weakref.ref(holder)
        del holder
        gc.collect()
        assert gone() is None, way.__name__


def test_the_collector_leaves_what_is_reachable() -> None:
    cache: floe_cache.Cache[Any, Any] = floe_cache.Cache(100)
    for number in range(50):
        cache[number] = [number, cache]
        cache[frozenset({number})] = {"n": number}
    gc.collect()
    assert [cache[number][0] for number in range(50)] == list(range(50))
    assert all(cache[frozenset({number})] == {"n": number} for number in range(50))


def test_destructors_may_use_the_cache() -> None:
    cache: floe_cache.Cache[int, Any] = floe_cache.Cache(5)
    seen = []

    class Last:
        def __del__(self) -> None:
            seen.append(len(cache))
            cache[len(seen) % 3] = 1

    for key in range(100):
        cache[key] = Last()
    cache.clear()
    assert len(seen) == 100


def test_subclasses_with_missing() -> None:
    class Squares(floe_cache.Cache[int, int]):
        def __missing__(self, key: int) -> int:
            self[key] = key * key
            return key * key

    squares = Squares(10)
    assert squares[7] == 49 and 7 in squares and squares.get(8) is None
    assert repr(squares).startswith("Squares(")


def test_statistics() -> None:
    cache: floe_cache.Cache[str, int] = floe_cache.Cache(10)
    assert cache.stats().hit_ratio is None
    cache["a"] = 1
    cache["a"], cache.get("b"), cache.peek("a"), "a" in cache
    stats = cache.stats()
    assert (stats.hits, stats.misses, stats.insertions, stats.entries) == (1, 1, 1, 1)
    assert stats.hit_ratio == 0.5 and stats.as_dict()["hit_ratio"] == 0.5
    assert "hits=1" in repr(stats)


def test_a_program_ends_in_order_with_what_expires_in_a_cache() -> None:
    program = """
import floe_cache, threading, time
cache = floe_cache.Cache(100, ttl=0.01)
class Value: pass
for key in range(50): cache[key] = Value()
threading.Thread(target=lambda: [cache.get(key) for key in range(50)]).start()
time.sleep(1.2)
for key in range(50): cache[key] = Value()
print("done")
"""
    run = subprocess.run([sys.executable, "-c", program], capture_output=True, timeout=60, text=True)
    assert (run.returncode, run.stdout, run.stderr) == (0, "done\n", "")
