"""Subclasses, comparison, copies and other processes: as of dict, cachetools and lru_cache."""

import asyncio
import copy
import functools
import multiprocessing
import operator
import pickle
from collections import OrderedDict
from collections.abc import Callable, Hashable, Mapping
from concurrent.futures import ProcessPoolExecutor
from importlib.metadata import files
from typing import Any, cast

import cachetools
import floe_cache
import pytest


@floe_cache.cached(100)
def square(x: int) -> int:
    return x * x


@floe_cache.cached(100)
async def cube(x: int) -> int:
    return x * x * x


class Sized(floe_cache.Cache[Any, Any]):
    """With a constructor of its own, and attributes."""

    __slots__ = ("label", "__dict__")

    def __init__(self, label: str, *, size: int = 10) -> None:
        super().__init__(size, policy="slru:segments=2", ttl=3600, getsizeof=len)
        self.label = label
        self.more = [label]


class Circle:
    def __init__(self, radius: int) -> None:
        self.radius = radius

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Circle) and self.radius == other.radius

    def __hash__(self) -> int:
        return hash(self.radius)

    @floe_cache.cached(10)
    def area(self, pi: int) -> int:
        return self.radius**2 * pi


def test_the_package_has_one_module_whose_name_is_ours() -> None:
    names = {file.parts[0] for file in files("floe-cache") or []}
    assert {name for name in names if not name.endswith(".dist-info")} == {"floe_cache"}


def test_a_subclass_may_have_a_constructor_of_its_own() -> None:
    cache = Sized("name", size=50)
    cache["a"] = "xyz"
    assert (cache.label, cache.maxsize, cache.currsize) == ("name", 50, 3)

    class Late(floe_cache.Cache[str, int]):
        def __init__(self, name: str) -> None:
            self.name = name

    late = Late("late")
    for use in (len, list, repr, lambda it: it.get("a"), lambda it: it.stats(), pickle.dumps):
        with pytest.raises(RuntimeError, match=r"super\(\).__init__\(capacity\)"):
            use(late)
    with pytest.raises(RuntimeError):
        floe_cache.cached(cache=late)(str)
    floe_cache.Cache.__init__(late, 10)
    late["a"] = 1
    with pytest.raises(RuntimeError, match="already"):
        floe_cache.Cache.__init__(late, 10)
    assert late["a"] == 1

    class Plain(floe_cache.Cache[str, int]):
        pass

    assert Plain(7, policy="lru").stats().policy == "lru"
    with pytest.raises(TypeError):
        Plain("name", 7)  # type: ignore[arg-type, call-arg]


def test_a_capacity_of_none_is_refused() -> None:
    cached: Any = floe_cache.cached
    cache: Any = floe_cache.Cache
    uses: list[Callable[[], object]] = [
        lambda: cached(None),
        lambda: cached(None)(len),
        lambda: cached(capacity=None),
        lambda: cache(None),
    ]
    for use in uses:
        with pytest.raises(TypeError, match="a cache has a capacity"):
            use()
    named = floe_cache.cached(capacity=7)(len)
    assert named.cache_parameters() == {"maxsize": 7, "typed": False}
    assert floe_cache.cached(len).cache.maxsize == floe_cache.cached()(len).cache.maxsize == 128


def traced(base: Any, *methods: str) -> tuple[Any, list[Any]]:
    """A subclass that notes calls of these methods, and the notes."""
    calls: list[Any] = []

    def note(name: str) -> Callable[..., Any]:
        def method(self: Any, *args: Any) -> Any:
            calls.append((name, *args))
            return getattr(base, name)(self, *args)

        return method

    return type("Traced", (base,), {name: note(name) for name in methods}), calls


METHODS = ("__getitem__", "__setitem__", "__delitem__", "__contains__", "__missing__")
USES: dict[str, Callable[[Any], Any]] = {
    "get": lambda cache: cache.get("a"),
    "get, absent": lambda cache: cache.get("z", 7),
    "pop": lambda cache: cache.pop("a"),
    "pop, absent": lambda cache: cache.pop("z", 7),
    "popitem": lambda cache: cache.popitem(),
    "setdefault": lambda cache: cache.setdefault("a", 7),
    "setdefault, absent": lambda cache: cache.setdefault("z", 7),
    "update": lambda cache: cache.update({"z": 7}, y=8),
    "in": lambda cache: "a" in cache,
    "keys": lambda cache: list(cache.keys()),
    "in keys": lambda cache: "a" in cache.keys(),
    "subscript": lambda cache: cache["a"],
    "len": len,
    "clear": lambda cache: cache.clear(),
}


@pytest.mark.parametrize("name", USES)
def test_methods_call_overridden_ones_as_those_of_cachetools_do(name: str) -> None:
    ours, our_calls = traced(floe_cache.Cache, *METHODS)
    theirs, their_calls = traced(cachetools.Cache, *METHODS)
    our_cache, their_cache = ours(10), theirs(10)
    our_cache["a"] = their_cache["a"] = 1
    our_calls.clear()
    their_calls.clear()
    assert USES[name](our_cache) == USES[name](their_cache)
    # Ours asks once more whether a key is there, so that `popitem` bears other threads.
    if name == "popitem":
        our_calls.remove(("__contains__", "a"))
    assert our_calls == their_calls
    assert dict(our_cache) == dict(their_cache)


def test_values_that_a_subclass_makes_are_those_that_all_methods_show() -> None:
    class Doubled(floe_cache.Cache[str, int]):
        def __getitem__(self, key: str) -> int:
            return 2 * super().__getitem__(key)

        def __setitem__(self, key: str, value: int) -> None:
            super().__setitem__(key.lower(), value)

        def __delitem__(self, key: str) -> None:
            super().__delitem__(key.lower())

    cache = Doubled(10)
    cache.update({"A": 1}, B=2)
    assert cache.get("a") == 2 and cache.setdefault("C", 3) == 3 and cache.setdefault("c", 9) == 6
    assert ("a", 2) in cache.items() and ("a", 1) not in cache.items() and 2 in cache.values()
    assert sorted(cache.values()) == [2, 4, 6] and dict(cache.items()) == {"a": 2, "b": 4, "c": 6}
    assert cache == {"a": 2, "b": 4, "c": 6} and cache.pop("b") == 4 and cache.pop("b", 0) == 0
    assert cache.peek("a") == 1, "as it is"
    assert cache.get("none") is None and cache.stats().misses > 0
    del cache["A"]
    assert cache.popitem() == ("c", 6) and len(cache) == 0
    with pytest.raises(KeyError):
        cache.popitem()
    # A cached function uses the cache itself.
    length = floe_cache.cached(cache=cache, key=lambda text: text)(len)
    assert length("XY") == length("XY") == 2 and cache.peek("XY") == 2


def test_missing_is_called_by_subscripts_only() -> None:
    class Squares(floe_cache.Cache[int, int]):
        def __missing__(self, key: int) -> int:
            if key < 0:
                return super().__missing__(key)
            self[key] = key * key
            return key * key

    squares = Squares(10)
    assert squares[7] == 49 and 7 in squares and squares.get(8) is None and 8 not in squares
    assert squares.pop(8, 0) == 0 and squares.setdefault(8, 1) == 1
    with pytest.raises(KeyError) as raised:
        squares[-1]
    assert raised.value.args == (-1,)


def test_a_cache_equals_a_mapping_with_the_same_entries() -> None:
    cache: floe_cache.Cache[Any, Any] = floe_cache.Cache(10)
    cache[1] = 2
    other: floe_cache.Cache[Any, Any] = floe_cache.Cache(20, policy="lru")
    other[1.0] = 2
    their: cachetools.LRUCache[Any, Any] = cachetools.LRUCache(10)
    their[1] = 2
    for equal in ({1: 2}, {True: 2.0}, OrderedDict({1: 2}), other, their):
        assert cache == equal and equal == cache and not cache != equal
    others: list[Any] = [{1: 3}, {}, {1: 2, 3: 4}, [(1, 2)], None, 1, "x"]
    for differs in others:
        assert cache != differs and differs != cache and not cache == differs
    assert cache.stats().hits == 0
    with pytest.raises(TypeError):
        operator.lt(cast(Any, cache), others[0])
    uses: list[Callable[[Any], object]] = [hash, reversed]
    for use in uses:
        for unusable in (cache, their):
            with pytest.raises(TypeError):
                use(unusable)
    assert isinstance(cache, Mapping) and not isinstance(cache, Hashable)
    match cache:
        case {1: value}:
            assert value == 2
        case _:
            pytest.fail("not matched as a mapping")


def pickled(it: Any, protocol: int) -> Any:
    return pickle.loads(pickle.dumps(it, protocol))


COPIES: list[Callable[[Any], Any]] = [copy.copy, copy.deepcopy]
COPIES += [
    functools.partial(pickled, protocol=protocol)
    for protocol in range(pickle.HIGHEST_PROTOCOL + 1)
]


@pytest.mark.parametrize("make", COPIES)
def test_caches_are_copied_and_pickled(make: Callable[[Any], Any]) -> None:
    cache: floe_cache.Cache[Any, Any] = floe_cache.Cache(100, policy="s3-fifo", idle=60.5)
    cache.update({"a": [1], 2: "b", (1, "x"): None, Circle(1): 5})
    cache.resize(50)
    made = make(cache)
    assert type(made) is floe_cache.Cache and made is not cache and made == cache
    assert (made.maxsize, made.stats().policy, made[Circle(1)]) == (50, "s3-fifo", 5)
    made["c"] = 3
    assert "c" not in cache
    assert (made["a"] is cache["a"]) == (make is copy.copy)
    assert make(made) == made

    sized = Sized("name")
    sized["k"] = "abc"
    same = make(sized)
    assert type(same) is Sized and (same.label, same.more) == ("name", ["name"])
    assert same == sized and same.currsize == 3 and same.maxsize == 10
    with pytest.raises(ValueError, match="too large"):
        same["large"] = "x" * 11


def test_a_cache_in_itself_is_copied() -> None:
    cache: floe_cache.Cache[Any, Any] = floe_cache.Cache(10)
    cache["self"] = cache
    for make in COPIES[1:]:
        made = make(cache)
        assert made is not cache and made["self"] is made


def test_functions_are_copied_and_pickled_as_those_of_lru_cache() -> None:
    theirs = functools.lru_cache(10)(abs)
    assert copy.copy(theirs) is theirs and copy.deepcopy(theirs) is theirs
    for function in (square, cube, Circle.area):
        for make in COPIES:
            assert make(function) is function
    circle = pickle.loads(pickle.dumps(Circle(2).area))
    assert circle(3) == 12
    with pytest.raises((AttributeError, pickle.PicklingError)):
        pickle.dumps(floe_cache.cached(10)(lambda x: x))


@pytest.mark.parametrize("make", COPIES)
def test_counts_are_copied_and_pickled(make: Callable[[Any], Any]) -> None:
    square(3)
    stats = square.stats()
    assert make(stats).as_dict() == stats.as_dict()


def work(cache: floe_cache.Cache[str, int], x: int) -> tuple[int, floe_cache.Stats, Any]:
    cache["x"] = x
    return square(x), square.stats(), cache


@pytest.mark.parametrize("way", ["fork", "spawn"])
@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_other_processes_run_cached_functions(way: str) -> None:
    cache: floe_cache.Cache[str, int] = floe_cache.Cache(10, ttl=3600)
    cache["a"] = 1
    context = multiprocessing.get_context(way)
    with ProcessPoolExecutor(2, mp_context=context) as pool:
        assert list(pool.map(square, range(10), timeout=120)) == [x * x for x in range(10)]
        result, stats, theirs = pool.submit(work, cache, 7).result(120)
    assert result == 49 and stats.entries > 0
    assert theirs == {"a": 1, "x": 7} and cache == {"a": 1}


def test_coroutine_functions_have_the_same_parameters() -> None:
    @floe_cache.cached(7, typed=True)
    async def kind(x: object) -> str:
        return type(x).__name__

    async def main() -> list[str]:
        return [await kind(x) for x in (1, 1.0, True, 1)]

    assert asyncio.run(main()) == ["int", "float", "bool", "int"]
    assert kind.cache_parameters() == {"maxsize": 7, "typed": True}
