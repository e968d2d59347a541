"""Which keys are one key: those that are one in a dict."""

import decimal
import enum
import gc
import random
import uuid
import weakref
from collections import namedtuple
from decimal import Decimal
from fractions import Fraction
from typing import Any

import floe_cache
import pytest

Point = namedtuple("Point", "x y")


class Text(str):
    pass


class Shout(str):
    """Equal without regard to case."""

    def __eq__(self, other: object) -> bool:
        return isinstance(other, str) and self.lower() == other.lower()

    def __hash__(self) -> int:
        return hash(self.lower())


class Bytes(bytes):
    pass


class Number(int):
    pass


class Level(enum.IntEnum):
    ONE = 1
    LARGE = 2**70


class Name(str, enum.Enum):
    A = "a"


NAN = float("nan")
NUMBERS: list[Any] = [
    0, 1, -1, 2, True, False, 1.0, -0.0, 0.5, 0.1, NAN, float("nan"), float("inf"), float("-inf"),
    2**53, 2**53 + 1, 2.0**53, 2**62, 2**63 - 1, 2**63, 2**63 + 1, -(2**63), -(2**63) - 1, 2.0**63,
    -(2.0**63), 2**64, 2**70, 2**70 + 1, 2.0**70, 10**400, -(10**400), 1.7976931348623157e308,
    int(1.7976931348623157e308), Decimal(1), Decimal("1.0"), Decimal("0.5"), Decimal("0.1"),
    Decimal(2**63), Decimal(2**70 + 1), Decimal("1e400"), Decimal("inf"), Decimal("NaN"),
    Decimal("-0"), Fraction(1, 1), Fraction(1, 2), Fraction(1, 10), Fraction(2**63), Fraction(1, 3),
    Fraction(2**71 + 2, 2), complex(1, 0), complex(0.5, 0), complex(0, 1), complex(2**63, 0),
    Number(1), Number(2**70 + 1), Level.ONE, Level.LARGE,
]  # fmt: skip
OTHERS: list[Any] = [
    "a", Text("a"), Name.A, "", Text(""), b"a", Bytes(b"a"), None, (1, 2),
    (True, Decimal(2)), (1.0, Fraction(4, 2)), Point(1, 2), Point("a", b"a"), (Text("a"), Bytes(b"a")),
    (2**63,), (2.0**63,), (Decimal(2**63),), (2**70 + 1, "a"), (Decimal(2**70 + 1), "a"), (NAN,),
    (NAN, (NAN,)), (float("nan"),), ((1, (Decimal("0.5"),)), "x"), ((1, (0.5,)), "x"), int, float,
    (int, 1), (int, Decimal(1)), frozenset({1}), frozenset({1.0}), frozenset({Decimal(1)}),
    (frozenset({1}), 1), (frozenset({True}), 1.0), uuid.UUID(int=7), 7, range(3), Exception,
]  # fmt: skip


def numpy_numbers() -> list[Any]:
    numpy = pytest.importorskip("numpy")
    kinds = "int8 uint8 int64 uint64 float32 float64 complex64 complex128".split()
    numbers = [getattr(numpy, kind)(value) for kind in kinds for value in (0, 1, 2)]
    numbers += [numpy.float32(0.5), numpy.float32(0.1), numpy.float64(0.1), numpy.uint64(2**63)]
    return numbers + [numpy.float64("nan"), numpy.bool_(True), numpy.str_("a"), numpy.bytes_(b"a")]


def beside_a_dict(keys: list[Any]) -> None:
    """Does the same to a cache and a dict, at random."""
    seed = random.randrange(1 << 32)
    chance = random.Random(seed)
    cache: floe_cache.Cache[Any, int] = floe_cache.Cache(10_000)
    calls: floe_cache.CachedFunction[Any, Any] = floe_cache.cached(10_000)(lambda key: [key])
    model: dict[Any, int] = {}
    results: dict[Any, Any] = {}
    for step in range(30_000):
        key, what = chance.choice(keys), chance.randrange(8)
        why = f"seed {seed}, step {step}, key {key!r} of {type(key)}"
        if what < 2:
            cache[key] = model[key] = step
        elif what == 2:
            assert cache.pop(key, -1) == model.pop(key, -1), why
        elif what == 3:
            assert (key in cache) == (key in model), why
        elif what == 4:
            assert cache.setdefault(key, step) == model.setdefault(key, step), why
        elif what == 5:
            result = calls(key)
            assert results.setdefault(key, result) is result, why
        else:
            assert cache.get(key) == model.get(key), why
        assert len(cache) == len(model), why
    assert set(cache) == set(model) and len(calls.cache) == len(results), f"seed {seed}"
    assert cache == model and model == cache


def test_numbers_that_are_equal_are_one_key() -> None:
    cache: floe_cache.Cache[Any, int] = floe_cache.Cache(10)
    cache[2**63] = 1
    assert cache.get(2.0**63) == 1 and cache[Decimal(2**63)] == 1
    beside_a_dict(NUMBERS)


def test_keys_of_all_kinds_are_one_where_they_are_in_a_dict() -> None:
    beside_a_dict(NUMBERS + OTHERS)


def test_numbers_of_numpy_are_keys_as_in_a_dict() -> None:
    # A `dict` fails to compare some of these with decimal numbers.
    plain = [number for number in NUMBERS if not isinstance(number, Decimal)]
    beside_a_dict(plain + OTHERS[:9] + numpy_numbers())


def test_every_two_keys_are_one_as_in_a_dict() -> None:
    for one in NUMBERS + OTHERS:
        for other in NUMBERS + OTHERS:
            cache: floe_cache.Cache[Any, int] = floe_cache.Cache(4)
            cache[one] = 1
            assert (other in cache) == (other in {one: 1}), (one, other)


def test_conversions_that_fail_or_take_long_are_none() -> None:
    class Odd:
        def __float__(self) -> float:
            raise ZeroDivisionError

        def __int__(self) -> int:
            raise OverflowError

    class Worse(Odd):
        def __float__(self) -> float:
            raise KeyboardInterrupt

    cache: floe_cache.Cache[Any, int] = floe_cache.Cache(10)
    odd = Odd()
    cache[odd] = 1
    assert cache[odd] == 1 and Odd() not in cache
    huge = decimal.Context(prec=5).create_decimal("1e999999")
    cache[huge] = 2
    assert cache[Decimal("1e999999")] == 2
    with pytest.raises(KeyboardInterrupt):
        cache[Worse()]
    with pytest.raises(TypeError, match="unhashable"):
        cache[[1]]
    with pytest.raises(TypeError):
        cache[Decimal("sNaN")]


def test_keys_whose_own_comparison_claims_more_are_compared_with_each_other_only() -> None:
    cache: floe_cache.Cache[Any, int] = floe_cache.Cache(10)
    cache["a"] = 1
    cache[Shout("A")] = 2
    assert cache["a"] == 1 and cache[Shout("a")] == 2 and len(cache) == 2


def test_the_key_that_came_in_is_the_one_that_comes_out() -> None:
    cache: floe_cache.Cache[Any, int] = floe_cache.Cache(10)
    for key in (Decimal(1), Point(1, 2), Text("x"), Level.LARGE, (Fraction(1, 2), "y")):
        cache[key] = 1
        (found,) = cache
        assert found is key and cache.popitem()[0] is key


def test_the_collector_frees_cycles_through_keys_of_these_types() -> None:
    class Tagged(str):
        tag: Any

    class Pair(tuple[Any, ...]):
        tag: Any

    for make in (Tagged, lambda text: Pair((text, Decimal(1)))):
        cache: floe_cache.Cache[Any, Any] = floe_cache.Cache(10)
        key = make("key")
        key.tag = cache
        cache[key] = 1
        gone = weakref.ref(cache)
        del cache, key
        gc.collect()
        gc.collect()
        assert gone() is None


def test_types_of_arguments_tell_calls_apart_only_if_asked() -> None:
    import functools

    arguments: list[tuple[tuple[Any, ...], dict[str, Any]]] = [
        ((1,), {}), ((1.0,), {}), ((True,), {}), ((Decimal(1),), {}), ((1, 2), {}), ((1, 2.0), {}),
        ((), {"a": 1}), ((), {"a": 1.0}), ((1,), {"a": 1}), ((1.0,), {"a": 1}), ((), {}),
        (("1",), {}), (((1, 2),), {}), (((1.0, 2),), {}), ((1, int), {}), ((None,), {}),
    ]  # fmt: skip

    def kinds(*args: Any, **kwargs: Any) -> str:
        return repr((args, kwargs))

    ours: Any = floe_cache.cached(100, typed=True)(kinds)
    theirs: Any = functools.lru_cache(100, typed=True)(kinds)
    for _ in range(2):
        for args, kwargs in arguments:
            assert ours(*args, **kwargs) == theirs(*args, **kwargs), (args, kwargs)
    assert ours.cache_info() == theirs.cache_info()
    assert ours.cache_parameters() == theirs.cache_parameters()
    assert ours.invalidate(1.0) and not ours.invalidate(1.0) and ours.invalidate(1, a=1)

    # `lru_cache` takes a single 1 and 1.0 for two keys even so.
    untyped: Any = floe_cache.cached(100)(kinds)
    for args, kwargs in arguments:
        untyped(*args, **kwargs)
    assert untyped(True) == "((1,), {})" and untyped(a=True) == "((), {'a': 1})"
    assert untyped.cache_info().misses == 9
    with pytest.raises(TypeError, match="key of one's own"):
        floe_cache.cached(10, typed=True, key=lambda x: x)
