"""`HybridCache`: values in memory and on flash, keys, lifetimes, loads, restarts, processes."""

import datetime
import enum
import json
import marshal
import pathlib
import pickle
import random
import subprocess
import sys
import threading
import time
from collections import namedtuple
from collections.abc import Callable, Iterator, MutableMapping
from typing import Any

import floe_cache
import pytest

MEMORY, FLASH = 2 << 20, 16 << 20


@pytest.fixture
def path(tmp_path: pathlib.Path) -> pathlib.Path:
    return tmp_path / "cache"


@pytest.fixture
def cache(path: pathlib.Path) -> Iterator[floe_cache.HybridCache]:
    with floe_cache.HybridCache(path, memory=MEMORY, flash=FLASH) as cache:
        yield cache


def child(program: str, *arguments: Any) -> str:
    """Runs a program in another process. Returns what it prints."""
    command = [sys.executable, "-c", program, *map(str, arguments)]
    return subprocess.run(command, check=True, text=True, capture_output=True).stdout


class Color(enum.IntEnum):
    RED = 1


Point = namedtuple("Point", "x y")


def test_it_is_a_mapping_of_picklable_values(cache: floe_cache.HybridCache) -> None:
    assert isinstance(cache, MutableMapping)
    assert not cache and len(cache) == 0
    cache["a"] = {"any": ["object", 1.5]}
    cache[b"a"] = b"bytes"
    cache[1, "b"] = None
    assert cache and len(cache) == 3
    assert cache["a"] == {"any": ["object", 1.5]} and cache["a"] is not cache["a"]
    assert cache[b"a"] == b"bytes"
    assert cache[1, "b"] is None and cache.get((1, "b"), "default") is None
    assert set(cache) == set(cache.keys()) == {"a", b"a", (1, "b")}
    assert dict(cache.items())[b"a"] == b"bytes" and b"bytes" in cache.values()
    assert "a" in cache and "b" not in cache
    assert cache.get("b") is None and cache.get("b", 5) == 5 and cache.peek("b", 6) == 6
    with pytest.raises(KeyError, match="b"):
        cache["b"]
    with pytest.raises(KeyError, match="b"):
        del cache["b"]
    with pytest.raises(KeyError, match="b"):
        cache.pop("b")
    assert cache.pop("b", 7) == 7 and cache.pop(b"a") == b"bytes" and b"a" not in cache
    assert cache.delete("a") and not cache.delete("a")
    assert cache.setdefault("a", 8) == 8 and cache.setdefault("a", 9) == 8
    assert cache.add("c", 1) and not cache.add("c", 2) and cache["c"] == 1
    cache.update({"d": 4}, e=5)
    assert cache.get_many(["c", "d", "e", "f"]) == {"c": 1, "d": 4, "e": 5}
    assert cache.popitem()[0] not in cache
    assert cache == cache and cache != dict(cache.items()) and hash(cache)
    cache.clear()
    assert list(cache) == [] and not cache


@pytest.mark.parametrize(
    ("key", "equal"),
    [
        (True, 1),
        (2.0, 2),
        (Color.RED, 1),
        (2.0**70, 2**70),
        (Point(1, "a"), (1, "a")),
        ((1.0, (None,)), (1, (None,))),
        (float("nan"), float("nan")),
    ],
)
def test_keys_that_are_equal_are_one(cache: floe_cache.HybridCache, key: Any, equal: Any) -> None:
    cache[key] = "value"
    assert cache[equal] == "value" and len(cache) == 1


def some_key(chance: random.Random, depth: int = 0) -> Any:
    match chance.randrange(7 if depth < 3 else 6):
        case 0:
            return chance.choice(["", "s", "b", "é", "\0", "ss"])
        case 1:
            return chance.choice([b"", b"s", b"\0", b"\x04\0\0\0s"])
        case 2:
            return chance.choice([-1, 1]) * (1 << chance.randrange(80)) + chance.randrange(-2, 3)
        case 3:
            return chance.choice([0.5, -0.5, float("inf"), 1e300, -0.0])
        case 4:
            return None
        case 5:
            return chance.randrange(-300, 300)
        case _:
            return tuple(some_key(chance, depth + 1) for _ in range(chance.randrange(4)))


def test_different_keys_are_different_and_come_back(cache: floe_cache.HybridCache) -> None:
    seed = random.randrange(1 << 32)
    chance = random.Random(seed)
    model = {}
    for number in range(2000):
        key = some_key(chance)
        model[key] = cache[key] = number
    assert dict(cache.items()) == model, f"seed {seed}"


class Unhashed:
    __hash__ = None  # type: ignore[assignment]


@pytest.mark.parametrize("key", [[], {}, object(), 1j, ("a", []), str, frozenset(), Unhashed()])
def test_other_keys_are_refused(cache: floe_cache.HybridCache, key: Any) -> None:
    for use in (cache.get, cache.__getitem__, cache.delete, lambda key: cache.set(key, 1)):
        with pytest.raises(TypeError, match="a key must be a str, bytes, an int, a float, None or"):
            use(key)


def test_long_keys_and_values_are_refused(cache: floe_cache.HybridCache) -> None:
    with pytest.raises(ValueError, match="a key of 65536 bytes is too long: it may have 65535"):
        cache.get("k" * 65535)
    cache["k" * 65534] = 1
    assert cache["k" * 65534] == 1
    assert cache.set("large", bytes(FLASH // 16)) and len(cache["large"]) == FLASH // 16
    assert not cache.set("large", bytes(FLASH // 4))
    with pytest.raises(ValueError, match="a value of 4194305 bytes is too large: it may have an"):
        cache["large"] = bytes(FLASH // 4)
    assert "large" not in cache
    nested: Any = ()
    for _ in range(50):
        nested = (nested,)
    with pytest.raises(TypeError, match="at most 8 levels"):
        cache[nested] = 1


def test_a_random_sequence_is_as_of_a_dict(path: pathlib.Path) -> None:
    """Values move to flash and back. A cache may lose entries, but has no wrong one."""
    seed = random.randrange(1 << 32)
    chance = random.Random(seed)
    model: dict[int, bytes] = {}
    found = 0
    for _ in range(3):
        with floe_cache.HybridCache(path, memory=MEMORY, flash=FLASH) as cache:
            for _ in range(1500):
                key, use = chance.randrange(600), chance.randrange(8)
                if use < 3:
                    model[key] = cache[key] = chance.randbytes(chance.randrange(1, 16000))
                elif use == 3:
                    assert cache.delete(key) == (model.pop(key, None) is not None), f"seed {seed}"
                else:
                    value = cache.get_many([key]).get(key) if use == 4 else cache.get(key)
                    assert value == model.get(key), f"seed {seed}"
                    found += value is not None
            assert dict(cache.items()) == model, f"seed {seed}"
            assert cache.stats()["flash_objects"] > 0, "more than memory has"
    assert found > 100


def test_entries_expire(cache: floe_cache.HybridCache) -> None:
    cache.set("short", 1, expire=0.05)
    cache.set("long", 2, expire=datetime.timedelta(hours=1))
    assert cache.add("new", 3, expire=0.05)
    while "short" in cache or "new" in cache:
        time.sleep(0.01)
    assert cache["long"] == 2 and cache.add("short", 4)
    for wrong in (0, -1, float("nan")):
        with pytest.raises(ValueError, match="expire must be more than 0 s"):
            cache.set("wrong", 1, expire=wrong)


def test_it_is_warm_after_a_restart(path: pathlib.Path) -> None:
    with floe_cache.HybridCache(path, memory=MEMORY, flash=FLASH) as cache:
        assert cache.opened == "new" and cache.path == str(path)
        cache["a"] = [1]
    assert cache.closed and repr(cache) == f"HybridCache({str(path)!r}, closed)"
    cache.close()
    for use in (lambda: cache["a"], lambda: cache.set("a", 1), cache.stats, lambda: len(cache)):
        with pytest.raises(ValueError, match=f"the cache {path} is closed"):
            use()
    # Sizes may be texts. The process does not close the cache: its end does.
    program = """
import sys, floe_cache
cache = floe_cache.HybridCache(sys.argv[1], memory="2MiB", flash="16 MiB")
print(cache.opened, cache["a"])
cache["b"] = "of the other process"
"""
    assert child(program, path) == "clean [1]\n"
    with floe_cache.HybridCache(path, memory=MEMORY, flash=FLASH) as cache:
        assert (cache.opened, cache["b"]) == ("clean", "of the other process")
    cache = floe_cache.HybridCache(path, memory=MEMORY, flash=FLASH)
    cache["c"] = 1
    del cache  # closes it, too
    with floe_cache.HybridCache(path, memory=MEMORY, flash=FLASH) as cache:
        assert (cache.opened, cache["c"]) == ("clean", 1)


def test_a_file_belongs_to_one_process(cache: floe_cache.HybridCache) -> None:
    program = """
import sys, floe_cache
try:
    floe_cache.HybridCache(sys.argv[1], memory="2MiB", flash="16MiB")
except OSError as error:
    print(error)
"""
    line = (
        f"{cache.path} is in use by another process or by another cache; "
        "give each process a file of its own, or close the other cache\n"
    )
    assert child(program, cache.path) == line
    for copy in (pickle.dumps, __import__("copy").copy):
        with pytest.raises(TypeError, match="cannot be copied or pickled: it has one file"):
            copy(cache)


def test_a_child_of_fork_is_refused() -> None:
    program = """
import os, sys, tempfile, floe_cache
path = tempfile.mkdtemp() + "/cache"
with floe_cache.HybridCache(path, memory="2MiB", flash="16MiB") as cache:
    cache["a"] = 1
    if pid := os.fork():
        assert os.waitpid(pid, 0)[1] == 0
        assert cache["a"] == 1
    else:
        for use in (lambda: cache["a"], lambda: cache.set("a", 2), cache.clear, cache.sync):
            try:
                use()
                print("not refused")
            except RuntimeError as error:
                assert str(error) == (
                    f"the cache {path} belongs to the process that forked this one: "
                    "open a cache with a file of its own in each process"
                ), error
        assert cache.closed
with floe_cache.HybridCache(path, memory="2MiB", flash="16MiB") if pid else cache as cache:
    assert not pid or (cache.opened, cache["a"]) == ("clean", 1)
"""
    assert child(program) == ""


@pytest.mark.parametrize(
    ("options", "error", "text"),
    [
        ({"flash": 1 << 20}, ValueError, "has 16777216 bytes, not the 1048576 asked for; open it"),
        ({"memory": 1}, ValueError, "1 bytes of memory are too few"),
        ({"memory": "much"}, ValueError, "memory must be a size such as '64MiB' or '200GiB', not"),
        ({"flash": 1.5}, TypeError, "flash must be a number of bytes, or text such as '200GiB'"),
        ({"admission": "all"}, ValueError, "all"),
        ({"write_budget": "little"}, ValueError, "little"),
        ({"serializer": object()}, TypeError, "a serializer must have the functions dumps and loads"),
        ({"ttl": 0}, ValueError, "ttl must be more than 0 s"),
    ],
)
def test_wrong_settings_are_told(
    path: pathlib.Path, options: dict[str, Any], error: type[Exception], text: str
) -> None:
    settings: dict[str, Any] = {"memory": MEMORY, "flash": FLASH}
    floe_cache.HybridCache(path, **settings).close()
    with pytest.raises(error, match=text):
        floe_cache.HybridCache(path, **{**settings, **options})
    with floe_cache.HybridCache(path, **settings) as cache:
        assert cache.opened == "clean"


def test_wrong_paths_are_told(tmp_path: pathlib.Path) -> None:
    with pytest.raises(OSError, match="is neither a regular file nor a block device"):
        floe_cache.HybridCache(tmp_path, memory=MEMORY, flash=FLASH)
    with pytest.raises(FileNotFoundError, match=f"the folder {tmp_path}/missing does not exist"):
        floe_cache.HybridCache(tmp_path / "missing" / "cache", memory=MEMORY, flash=FLASH)
    (tmp_path / "text").write_bytes(b"text" * (FLASH // 4))
    with pytest.raises(OSError, match="holds something other than a hybrid cache"):
        floe_cache.HybridCache(tmp_path / "text", memory=MEMORY, flash=FLASH)


class Json:
    """A serializer of one's own."""

    @staticmethod
    def dumps(value: Any) -> bytes:
        return json.dumps(value).encode()

    loads = staticmethod(json.loads)


def test_values_of_another_serializer_are_misses(path: pathlib.Path) -> None:
    with floe_cache.HybridCache(path, memory=MEMORY, flash=FLASH, serializer=Json()) as cache:
        cache["a"], cache["b"] = (1, 2), b"bytes"
        assert cache["a"] == [1, 2]
        with pytest.raises(TypeError, match="not JSON serializable"):
            cache["c"] = object()
    with floe_cache.HybridCache(path, memory=MEMORY, flash=FLASH) as cache:
        assert cache.get("a") is None and cache["b"] == b"bytes"
        cache["a"] = {1}
    with floe_cache.HybridCache(path, memory=MEMORY, flash=FLASH, serializer=Json()) as cache:
        assert cache.get("a") is None, "nothing unpickles it"
        assert cache.get_or_set("a", lambda: 1) == 1
    with floe_cache.HybridCache(path, memory=MEMORY, flash=FLASH, serializer=marshal) as cache:
        cache["c"] = {1}
        assert cache["c"] == {1}
    with floe_cache.HybridCache(
        path, memory=MEMORY, flash=FLASH, serializer=json  # type: ignore[arg-type]
    ) as cache:
        with pytest.raises(TypeError, match="dumps must return bytes, not str"):
            cache["a"] = 1


def in_threads(count: int, run: Callable[[int], None]) -> None:
    errors: list[BaseException] = []

    def guarded(number: int) -> None:
        try:
            run(number)
        except BaseException as error:
            errors.append(error)

    threads = [threading.Thread(target=guarded, args=(number,)) for number in range(count)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not errors, errors


def test_one_caller_loads_a_key(cache: floe_cache.HybridCache) -> None:
    calls: list[int] = []
    begun, go = threading.Event(), threading.Event()

    @cache.memoize
    def slow(number: int, *, more: int = 0) -> list[int]:
        calls.append(number)
        begun.set()
        assert go.wait(60)
        return [number + more]

    def ask(number: int) -> None:
        assert slow(7, more=1) == [8]

    leader = threading.Thread(target=ask, args=(0,))
    leader.start()
    assert begun.wait(60)
    followers = threading.Thread(target=in_threads, args=(4, ask))
    followers.start()
    go.set()
    leader.join()
    followers.join()
    assert calls == [7] and slow(7, more=1) == [8] and slow(7) == [7] and calls == [7, 7]
    assert cache.stats()["loads"] == 2
    assert slow.invalidate(7) and not slow.invalidate(7) and slow(7) == [7] and len(calls) == 3
    name = f"{__name__}.test_one_caller_loads_a_key.<locals>.slow"
    assert slow.cache_key(7) == (name, (7,), ())
    assert slow.cache is cache and slow.__name__ == "slow"


def test_results_that_are_out_of_date_are_not_stored(cache: floe_cache.HybridCache) -> None:
    for change in (
        lambda: cache.set("key", "newer"),
        lambda: cache.delete("key"),
        cache.clear,
        lambda: cache.pop("key", None),
    ):

        def load() -> str:
            change()
            return "older"

        cache.clear()
        assert cache.get_or_set("key", load) == "older"
        assert cache.get("key") in (None, "newer")
    assert cache.get_or_set("key", lambda: "first", expire=60) == "first" == cache["key"]


def test_failed_loads_are_not_stored(cache: floe_cache.HybridCache) -> None:
    def fail() -> None:
        raise LookupError("of the source")

    for _ in range(2):
        with pytest.raises(LookupError, match="of the source"):
            cache.get_or_set("key", fail)
    with pytest.raises((AttributeError, pickle.PicklingError, TypeError)):
        cache.get_or_set("key", lambda: threading.Lock())
    assert "key" not in cache and cache.get_or_set("key", lambda: 1) == 1
    assert cache.stats()["failed_loads"] == 2


def test_memoized_functions_have_names(cache: floe_cache.HybridCache) -> None:
    @cache.memoize(60, name="one", typed=True)
    def typed(x: Any) -> str:
        return type(x).__name__

    assert (typed(1), typed(1.0), typed(True)) == ("int", "float", "bool")

    @cache.memoize(key=lambda x: len(x))
    def length(x: list[int]) -> int:
        return len(x)

    assert length([1, 2]) == length([3, 4]) == 2 and length([]) == 0
    with pytest.raises(TypeError, match="results of a lambda need a name"):
        cache.memoize(lambda: 1)
    assert cache.memoize(name="lambda")(lambda: 1)() == 1

    async def coroutine() -> None: ...

    with pytest.raises(TypeError, match="is a coroutine function"):
        cache.memoize(coroutine)

    @cache.memoize
    def itself(x: int) -> int:
        again.append(x)
        return itself(x) if len(again) < 3 else x

    again: list[int] = []
    assert itself(0) == 0, "a function that asks for its own arguments does not wait for itself"


def test_threads_change_and_read(path: pathlib.Path) -> None:
    """Each value tells its key. `add` lets one thread in."""
    with floe_cache.HybridCache(path, memory=MEMORY, flash=FLASH) as cache:
        added: list[int] = []

        def run(number: int) -> None:
            chance = random.Random(number)
            for at in range(300):
                key = chance.randrange(200)
                match chance.randrange(5):
                    case 0 | 1:
                        cache[key] = (key, chance.randbytes(4000))
                    case 2:
                        found = cache.pop(key, None)
                        assert found is None or found[0] == key
                    case 3:
                        assert cache.get_or_set(key, lambda: (key, b""))[0] == key
                    case _:
                        for name, value in cache.get_many([key, key + 1]).items():
                            assert value[0] == name
                if cache.add(("once", at), number):
                    added.append(at)

        in_threads(4, run)
        assert sorted(added) == list(range(300))


def test_the_interpreter_is_free_while_a_load_is_waited_for(cache: floe_cache.HybridCache) -> None:
    begun = threading.Event()

    def load() -> int:
        begun.set()
        while not done:
            time.sleep(0.001)
        return 1

    done: list[int] = []

    def wait() -> None:
        assert begun.wait(60) and cache.get_or_set("key", lambda: 2) == 1

    def tick() -> None:
        assert begun.wait(60)
        time.sleep(0.01)  # `wait` waits by now
        done.append(1)

    waiting, ticker = threading.Thread(target=wait), threading.Thread(target=tick)
    waiting.start()
    ticker.start()
    assert cache.get_or_set("key", load) == 1
    waiting.join()
    ticker.join()
