"""Cached functions and coroutine functions."""

import asyncio
import functools
import gc
import inspect
import random
import signal
import threading
import time
import weakref
from collections.abc import Awaitable, Callable
from typing import Any

import floe_cache
import pytest


def in_threads(count: int, run: Callable[[int], Any]) -> list[Any]:
    """What each of so many threads returns or raises."""
    results: list[Any] = [None] * count

    def guarded(number: int) -> None:
        try:
            results[number] = run(number)
        except BaseException as error:
            results[number] = error

    threads = [threading.Thread(target=guarded, args=(n,), daemon=True) for n in range(count)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
        assert not thread.is_alive(), "a thread waits for ever"
    return results


def test_results_are_cached() -> None:
    calls: list[Any] = []

    @floe_cache.cached(100, policy="lru")
    def add(a: int, b: int = 0, *more: int, scale: int = 1) -> int:
        """Adds."""
        calls.append((a, b, more, scale))
        return (a + b + sum(more)) * scale

    assert add(1) == add(1) == 1
    assert add(1, 2) == add(1, 2) == 3
    assert add(1, b=2) == add(1, b=2) == 3
    assert add(1, scale=2) == add(1, scale=2) == 2
    assert add(1, 2, 3, scale=2) == add(1, 2, 3, scale=2) == 12
    assert len(calls) == 5
    assert add.__wrapped__(5) == 5 and add.__doc__ == "Adds." and add.__name__ == "add"
    assert str(inspect.signature(add)) == str(inspect.signature(add.__wrapped__))
    stats = add.stats()
    assert (stats.hits, stats.loads, stats.failed_loads, stats.policy) == (5, 5, 0, "lru")
    assert add.cache_info() == (5, 5, 100, 5)
    assert add.invalidate(1) and not add.invalidate(1)
    assert add(1) == 1 and len(calls) == 7
    add.cache_clear()
    assert add(1, 2) == 3 and len(calls) == 8


def test_arguments_that_look_alike_differ() -> None:
    @floe_cache.cached
    def show(*args: Any, **kwargs: Any) -> str:
        return f"{args} {kwargs}"

    calls: list[tuple[tuple[Any, ...], dict[str, Any]]] = [
        ((), {}), ((1,), {}), (((1,),), {}), ((1, 2), {}), (((1, 2),), {}), ((1, "a", 2), {}),
        ((1,), {"a": 2}), ((), {"a": 2}), (("a", 2), {}), ((), {"a": 1, "b": 2}), ((None,), {}),
        ((("a", 2),), {}), ((), {"a": (1, "b")}), (("1",), {}), ((b"1",), {}), (([],), {}),
    ]  # fmt: skip
    for args, kwargs in calls[:-1]:
        for _ in range(2):
            assert show(*args, **kwargs) == f"{args} {kwargs}"
    assert show.stats().loads == len(calls) - 1
    with pytest.raises(TypeError, match="unhashable"):
        show([])


def test_a_cache_of_several_functions_and_keys_of_ones_own() -> None:
    cache: floe_cache.Cache[Any, Any] = floe_cache.Cache(100)

    @floe_cache.cached(cache=cache)
    def one(x: int) -> str:
        return f"one {x}"

    @floe_cache.cached(cache=cache)
    def two(x: int) -> str:
        return f"two {x}"

    @floe_cache.cached(cache=cache, key=lambda x: ("three", x % 10))
    def three(x: int) -> str:
        return f"three {x}"

    for _ in range(2):
        assert (one(1), two(1), three(1), three(11)) == ("one 1", "two 1", "three 1", "three 1")
    assert len(cache) == 3 and list(cache.items()) == [(("three", 1), "three 1")]
    assert one.cache is cache and cache.pop(("three", 1)) == "three 1"
    with pytest.raises(TypeError, match="has its capacity"):
        floe_cache.cached(10, cache=cache)


def test_methods() -> None:
    class Circle:
        def __init__(self, radius: int) -> None:
            self.radius = radius

        @floe_cache.cached(10)
        def area(self, pi: int) -> int:
            """The area."""
            return self.radius**2 * pi

    small, large = Circle(1), Circle(2)
    assert (small.area(3), large.area(3), small.area(3)) == (3, 12, 3)
    assert Circle.area.stats().hits == 1


def test_exceptions_are_not_cached() -> None:
    calls = []

    @floe_cache.cached(10)
    def fail(x: int) -> int:
        calls.append(x)
        raise LookupError(x)

    for _ in range(3):
        with pytest.raises(LookupError):
            fail(1)
    assert len(calls) == 3 and fail.stats().failed_loads == 3 and len(fail.cache) == 0


def test_one_load_for_all_threads() -> None:
    calls, begun, go_on = [], threading.Event(), threading.Event()

    @floe_cache.cached(10)
    def slow(x: int) -> object:
        calls.append(x)
        begun.set()
        assert go_on.wait(60)
        return object()

    def let_it_go_on() -> None:
        begun.wait(60)
        time.sleep(0.05)
        go_on.set()

    threading.Thread(target=let_it_go_on).start()
    results = in_threads(8, lambda _: slow(1))
    assert len(calls) == 1 and all(result is results[0] for result in results)


def test_of_failing_loads_only_the_callers_that_ran_them_hear() -> None:
    calls = []

    @floe_cache.cached(10)
    def second_time(x: int) -> int:
        calls.append(x)
        first = len(calls) == 1
        time.sleep(0.05)
        if first:
            raise LookupError(len(calls))
        return x

    results = in_threads(6, lambda _: second_time(7))
    failed = [result for result in results if isinstance(result, LookupError)]
    assert len(failed) == 1 and results.count(7) == 5 and len(calls) == 2


def test_callers_of_a_load_that_keeps_failing_do_not_queue() -> None:
    at_once, now = [0], [0]
    lock = threading.Lock()

    @floe_cache.cached(10)
    def down(x: int) -> int:
        with lock:
            now[0] += 1
            at_once[0] = max(at_once[0], now[0])
        # The last rounds run beside each other: all of them wait here for all.
        time.sleep(0.1)
        with lock:
            now[0] -= 1
        raise LookupError(x)

    results = in_threads(40, lambda _: down(7))
    assert all(isinstance(result, LookupError) for result in results)
    assert at_once[0] > 20, "one after the other"
    stats = down.stats()
    assert (stats.loads, stats.failed_loads) == (40, 40)


def test_functions_that_call_themselves() -> None:
    @floe_cache.cached(1000)
    def fibonacci(n: int) -> int:
        return n if n < 2 else fibonacci(n - 1) + fibonacci(n - 2)

    assert fibonacci(100) == 354224848179261915075 and fibonacci.stats().loads == 101

    @floe_cache.cached(10)
    def once_more(depth: Any) -> int:
        if len(calls) < 3:
            calls.append(1)
            return once_more(depth) + 1  # the same key: does not wait for itself
        return 0

    calls: list[int] = []
    assert once_more("key") == 3


def test_loads_that_wait_for_each_other_end() -> None:
    barrier = threading.Barrier(2)
    depth = threading.local()

    @floe_cache.cached(10)
    def one(x: int) -> str:
        if not getattr(depth, "inside", False):
            depth.inside = True
            barrier.wait(60)
            return f"one of {two(x)}"
        return "one"

    @floe_cache.cached(10)
    def two(x: int) -> str:
        if not getattr(depth, "inside", False):
            depth.inside = True
            barrier.wait(60)
            return f"two of {one(x)}"
        return "two"

    results = in_threads(2, lambda n: (one, two)[n](1))
    assert all(isinstance(result, str) for result in results), results


def test_what_is_invalidated_while_it_is_loaded_does_not_come_in() -> None:
    cache: floe_cache.Cache[Any, Any] = floe_cache.Cache(10)
    ways: list[Callable[[], object]] = [
        lambda: load.invalidate(1),
        lambda: cache.clear(),
        lambda: cache.pop("key 1", None),
        lambda: cache.__setitem__("key 1", "other"),
    ]

    @floe_cache.cached(cache=cache, key=lambda x: f"key {x}")
    def load(x: int) -> str:
        way()
        return "stale"

    for way in ways:
        assert load(1) == "stale"
        assert cache.pop("key 1", "nothing") in ("nothing", "other")


def test_values_that_are_too_large_are_returned() -> None:
    @floe_cache.cached(10, getsizeof=len)
    def text(n: int) -> str:
        return "x" * n

    assert len(text(5)) == 5 and len(text(50)) == 50
    assert len(text.cache) == 1


def test_a_waiting_thread_hears_signals() -> None:
    import _thread

    # A program that was started in the background may ignore it.
    before = signal.signal(signal.SIGINT, signal.default_int_handler)

    begun, go_on = threading.Event(), threading.Event()

    @floe_cache.cached(10)
    def slow(x: int) -> int:
        begun.set()
        assert go_on.wait(60)
        return x

    thread = threading.Thread(target=slow, args=(1,))
    thread.start()
    begun.wait(60)
    threading.Timer(0.05, _thread.interrupt_main).start()
    with pytest.raises(KeyboardInterrupt):
        slow(1)
    go_on.set()
    thread.join(60)
    assert slow(1) == 1
    signal.signal(signal.SIGINT, before)


def test_the_collector_frees_functions_with_their_results() -> None:
    def make() -> weakref.ref[Any]:
        @floe_cache.cached(10)
        def function(x: int) -> Any:
            return function

        assert function(1) is function
        return weakref.ref(function)

    gone = make()
    gc.collect()
    assert gone() is None


def run(coroutine: Awaitable[Any]) -> Any:
    async def bounded() -> Any:
        return await asyncio.wait_for(coroutine, 60)

    return asyncio.run(bounded())


def test_coroutines() -> None:
    calls = []

    @floe_cache.cached(10)
    async def double(x: int) -> int:
        """Doubles."""
        calls.append(x)
        await asyncio.sleep(0)
        return 2 * x

    async def main() -> None:
        assert await double(1) == 2 and await double(1) == 2
        results = await asyncio.gather(*[double(x % 3) for x in range(30)])
        assert results == [2 * (x % 3) for x in range(30)]

    assert inspect.iscoroutinefunction(double) and double.__doc__ == "Doubles."
    run(main())
    assert sorted(calls) == [0, 1, 2]
    run(main())  # another loop, the same results
    assert len(calls) == 3 and double.stats().loads == 3
    assert double.cache_info().currsize == 3
    assert double.invalidate(1) and not double.invalidate(1)
    double.cache_clear()
    assert len(double.cache) == 0


def test_coroutines_that_fail_or_are_cancelled() -> None:
    calls = []

    @floe_cache.cached(10)
    async def third_time(x: int) -> int:
        calls.append(x)
        number = len(calls)
        await asyncio.sleep(0.001)
        if number < 3:
            raise LookupError(number)
        return x

    async def fail() -> None:
        results = await asyncio.gather(*[third_time(7) for _ in range(6)], return_exceptions=True)
        assert sum(isinstance(result, LookupError) for result in results) == 2
        # After two that failed, all others run beside each other.
        assert results.count(7) == 4 and len(calls) == 6

    run(fail())

    @floe_cache.cached(10)
    async def slow(x: int) -> int:
        begun.append(x)
        await asyncio.sleep(0.01 if len(begun) > 1 else 60)
        return x

    begun: list[int] = []

    async def cancel() -> None:
        first = asyncio.create_task(slow(1))
        await asyncio.sleep(0)
        waiting = [asyncio.create_task(slow(1)) for _ in range(3)]
        await asyncio.sleep(0)
        waiting[0].cancel()
        first.cancel()
        assert await asyncio.gather(*waiting[1:]) == [1, 1] and len(begun) == 2
        assert first.cancelled() and waiting[0].cancelled()

    run(cancel())


def test_coroutines_that_wait_for_each_other_end() -> None:
    @floe_cache.cached(10)
    async def one(depth: str) -> str:
        await asyncio.sleep(0.001)
        return await two(depth) if asyncio.current_task() in first else "one"

    @floe_cache.cached(10)
    async def two(depth: str) -> str:
        await asyncio.sleep(0.001)
        return await one(depth) if asyncio.current_task() not in first else "two"

    first: set[Any] = set()

    async def main() -> None:
        tasks = [asyncio.create_task(one("x")), asyncio.create_task(two("x"))]
        first.add(tasks[0])
        assert all(isinstance(result, str) for result in await asyncio.gather(*tasks))

    run(main())


def test_methods_that_are_coroutines() -> None:
    class Page:
        def __init__(self, name: str) -> None:
            self.name = name

        @floe_cache.cached(10)
        async def read(self) -> str:
            return self.name

    async def main() -> None:
        one, other = Page("one"), Page("other")
        assert [await page.read() for page in (one, other, one)] == ["one", "other", "one"]

    run(main())


def test_a_function_and_its_thread_beside_an_event_loop() -> None:
    cache: floe_cache.Cache[Any, Any] = floe_cache.Cache(10)
    key = functools.partial(lambda x: x)

    @floe_cache.cached(cache=cache, key=key)
    def blocking(x: int) -> str:
        return "blocking"

    @floe_cache.cached(cache=cache, key=key)
    async def waiting(x: int) -> str:
        assert blocking(x) == "blocking"  # the same key, in the thread of its own load
        return "waiting"

    assert run(waiting(1)) == "waiting" and blocking(1) == "waiting"


def test_random_loads_of_many_threads() -> None:
    @floe_cache.cached(20, policy="s3-fifo")
    def square(x: Any) -> Any:
        if chance.random() < 0.05:
            raise LookupError
        time.sleep(0)
        return (x, x * x)

    chance = random.Random(random.randrange(1 << 32))

    def use(seed: int) -> int:
        own, failed = random.Random(seed), 0
        for _ in range(2000):
            x = own.randrange(60)
            try:
                assert square(x) == (x, x * x)
            except LookupError:
                failed += 1
            if own.random() < 0.05:
                square.invalidate(x)
        return failed

    failed = in_threads(4, use)
    assert square.stats().failed_loads == sum(failed)
