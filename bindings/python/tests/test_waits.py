"""Loads that wait for loads: across threads, tasks, event loops and processes, without a hang."""

import asyncio
import concurrent.futures
import gc
import os
import random
import signal
import threading
import time
import weakref
from collections.abc import Callable, Coroutine
from typing import Any

import floe_cache
import pytest

from test_cached import in_threads, run


def loop_in_thread(main: Callable[[], Coroutine[Any, Any, Any]]) -> Any:
    return asyncio.run(asyncio.wait_for(main(), 60))


def test_rings_of_threads_end() -> None:
    for size in (2, 3, 5):
        barrier = threading.Barrier(size)
        inside = threading.local()

        @floe_cache.cached(100)
        def ring(x: int) -> int:
            if getattr(inside, "depth", 0) == size:
                return 0
            if not hasattr(inside, "depth"):
                inside.depth = 0
                barrier.wait(60)
            inside.depth += 1
            return ring((x + 1) % size) + 1

        results = in_threads(size, ring)
        assert all(isinstance(result, int) for result in results), results
        assert ring(0) == ring(0), "the key is free again"


async def gathered(coroutine: Coroutine[Any, Any, Any]) -> Any:
    return (await asyncio.gather(coroutine, asyncio.sleep(0)))[0]


TASKS: dict[str, Callable[[Coroutine[Any, Any, Any]], Any]] = {
    "await": lambda it: it,
    "create_task": lambda it: asyncio.create_task(it),
    "wait_for": lambda it: asyncio.wait_for(it, 60),
    "gather": lambda it: gathered(it),
    "shield": lambda it: asyncio.shield(it),
    "nested": lambda it: asyncio.create_task(asyncio.wait_for(asyncio.shield(it), 60)),
}


@pytest.mark.parametrize("how", TASKS)
def test_rings_of_tasks_end(how: str) -> None:
    for size in (1, 2, 3):
        depth = 0

        @floe_cache.cached(100)
        async def ring(x: int) -> int:
            nonlocal depth
            await asyncio.sleep(0.001)
            depth += 1
            if depth > 20 * size:
                return 0
            return int((await TASKS[how](ring((x + 1) % size)))) + 1 if depth < 10 else 0

        async def main() -> list[int]:
            return await asyncio.gather(*[ring(x) for x in range(size)])

        assert all(isinstance(result, int) for result in run(main()))
        assert run(ring(0)) >= 0


def test_a_task_group_in_a_load_asks_for_its_key() -> None:
    calls = []

    @floe_cache.cached(10)
    async def tree(x: int) -> int:
        calls.append(x)
        await asyncio.sleep(0)
        if len(calls) > 8:
            return 1
        return sum(await asyncio.gather(*[asyncio.create_task(tree(y)) for y in (x, 1 - x)]))

    assert run(tree(0)) > 0


def test_threads_that_a_load_starts_with_its_context_do_not_wait_for_it() -> None:
    calls = []

    @floe_cache.cached(10)
    async def load(x: int) -> int:
        calls.append(x)
        return await asyncio.to_thread(blocking, x) if len(calls) < 3 else 7

    @floe_cache.cached(10)
    def blocking(x: int) -> int:
        return asyncio.run(load(x))

    assert run(load(1)) == 7


def test_a_load_that_runs_a_loop_whose_tasks_ask_for_its_key() -> None:
    calls = []

    @floe_cache.cached(10)
    def blocking(x: int) -> int:
        calls.append(x)
        return asyncio.run(waiting(x)) if len(calls) < 3 else 7

    @floe_cache.cached(10)
    async def waiting(x: int) -> int:
        return await asyncio.create_task(other(x))

    async def other(x: int) -> int:
        return await asyncio.to_thread(blocking, x)

    assert in_threads(1, blocking) == [7]

    # A task that was made outside of the load: nothing tells that it is part of it.
    cache: floe_cache.Cache[Any, Any] = floe_cache.Cache(10)
    same = floe_cache.cached(cache=cache, key=lambda: "key")

    @same
    async def asks() -> str:
        return "asked"

    @same
    def runs() -> Any:
        return loop.run_until_complete(task)

    loop = asyncio.new_event_loop()
    task = loop.create_task(asks())
    assert in_threads(1, lambda _: runs()) == ["asked"]
    loop.close()


def test_loops_of_several_threads_share_a_load() -> None:
    calls, go_on = [], threading.Event()

    @floe_cache.cached(10)
    async def load(x: int) -> object:
        calls.append(x)
        while not go_on.is_set():
            await asyncio.sleep(0.01)
        return object()

    async def many() -> list[object]:
        return await asyncio.gather(*[load(1) for _ in range(10)])

    def later() -> None:
        while not calls:
            time.sleep(0.001)
        time.sleep(0.1)
        go_on.set()

    threading.Thread(target=later).start()
    results = in_threads(6, lambda _: loop_in_thread(many))
    values = {id(value) for result in results for value in result}
    assert len(calls) == 1 and len(values) == 1


def test_threads_and_tasks_share_a_load_either_way() -> None:
    cache: floe_cache.Cache[Any, Any] = floe_cache.Cache(10)
    shared = floe_cache.cached(cache=cache, key=lambda x: x)
    calls: list[str] = []
    go_on = threading.Event()

    @shared
    def blocking(x: int) -> object:
        calls.append("thread")
        assert go_on.wait(60)
        return object()

    @shared
    async def waiting(x: int) -> object:
        calls.append("task")
        while not go_on.is_set():
            await asyncio.sleep(0.01)
        return object()

    for key, leads in enumerate((blocking, waiting)):
        go_on.clear()
        calls.clear()

        def use(number: int) -> object:
            if number > 0:
                while not calls:
                    time.sleep(0.001)
            if number == 5:
                time.sleep(0.1)
                go_on.set()
            ours = leads if number == 0 else (blocking, waiting)[number % 2]
            return ours(key) if ours is blocking else loop_in_thread(lambda: waiting(key))

        results = in_threads(6, use)
        assert len(calls) == 1 and all(result is results[0] for result in results), results


def test_rings_through_loops_of_several_threads_end() -> None:
    begun = [threading.Event(), threading.Event()]
    calls = [0]

    @floe_cache.cached(10)
    async def load(x: int) -> int:
        calls[0] += 1
        if calls[0] > 2:
            return 0
        begun[x].set()
        while not begun[1 - x].is_set():
            await asyncio.sleep(0.001)
        return await asyncio.create_task(load(1 - x)) + 1

    results = in_threads(2, lambda x: loop_in_thread(lambda: load(x)))
    assert all(isinstance(result, int) for result in results), results


def test_a_thread_that_waits_holds_the_tasks_of_its_loop_up() -> None:
    # A task of loop 1 loads `a`. Another task there blocks its thread for `b`, which thread 2 loads
    # by way of `a`.
    begun = threading.Event()
    asked = threading.Event()

    @floe_cache.cached(10)
    async def a() -> str:
        begun.set()
        await asyncio.sleep(0.05)
        return "a"

    cache = a.cache
    key_of_a = floe_cache.cached(cache=cache, key=lambda: "a")
    slow_a: Any = key_of_a(a.__wrapped__)

    @key_of_a
    def blocking_a() -> str:
        return "a by itself"

    @floe_cache.cached(10)
    def b() -> str:
        asked.set()
        time.sleep(0.1)
        return blocking_a()

    async def blocks() -> str:
        asked.wait(60)
        return b()

    async def main() -> tuple[Any, str]:
        return await asyncio.gather(slow_a(), blocks())

    def use(number: int) -> Any:
        if number == 0:
            return loop_in_thread(main)
        begun.wait(60)
        return b()

    results = in_threads(2, use)
    assert results[0][0] == "a" and results[1] == results[0][1], results


def test_failures_in_several_loops_do_not_queue() -> None:
    now, at_once = [0], [0]

    @floe_cache.cached(10)
    async def down(x: int) -> int:
        now[0] += 1
        at_once[0] = max(at_once[0], now[0])
        await asyncio.sleep(0.05)
        now[0] -= 1
        raise LookupError(x)

    async def many() -> list[int | BaseException]:
        return await asyncio.gather(*[down(1) for _ in range(20)], return_exceptions=True)

    results = in_threads(3, lambda _: loop_in_thread(many))
    assert all(isinstance(error, LookupError) for result in results for error in result)
    assert at_once[0] > 10 and down.stats().failed_loads == 60


def test_a_loop_that_stands_still_is_not_waited_for() -> None:
    @floe_cache.cached(10)
    async def load(x: int) -> int:
        calls.append(x)
        await asyncio.sleep(0 if len(calls) > 1 else 3600)
        return x

    calls: list[int] = []
    loop = asyncio.new_event_loop()
    task = loop.create_task(load(1))
    loop.run_until_complete(asyncio.sleep(0.001))
    assert calls == [1] and run(load(1)) == 1, "the same thread, another loop"
    assert in_threads(1, lambda _: loop_in_thread(lambda: load(2))) == [2]
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        loop.run_until_complete(task)
    loop.close()


def test_a_coroutine_that_nobody_runs_any_more_gives_its_load_up() -> None:
    @floe_cache.cached(10)
    async def load(x: int) -> int:
        await asyncio.sleep(0)
        return x

    coroutine: Any = load(1)
    coroutine.close()

    async def begin() -> None:
        first = load(2)
        task = asyncio.ensure_future(first)
        await asyncio.sleep(0)
        task.cancel()
        assert await load(2) == 2

    run(begin())
    gc.collect()


def test_what_waits_in_vain_is_collected() -> None:
    class Big:
        pass

    @floe_cache.cached(10)
    async def load(x: int) -> int:
        await asyncio.Event().wait()
        return x

    def begin() -> weakref.ref[Any]:
        big = Big()

        async def waits() -> Any:
            return await load(1), big

        loop = asyncio.new_event_loop()
        tasks = [loop.create_task(load(1)), loop.create_task(waits())]
        loop.run_until_complete(asyncio.sleep(0.001))
        for task in tasks:
            task._log_destroy_pending = False  # type: ignore[attr-defined]
        loop.close()
        return weakref.ref(big)

    gone = begin()
    gc.collect()
    gc.collect()
    assert gone() is None


def in_child(run: Callable[[], object]) -> None:
    """Runs a function in a child of `fork`, which has to end well within a minute."""
    child = os.fork()
    if child == 0:
        signal.alarm(60)
        try:
            run()
            os._exit(0)
        except BaseException as error:
            os.write(2, f"{error!r}\n".encode())
            os._exit(1)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_a_child_loads_what_was_loading_at_the_fork() -> None:
    begun, go_on = threading.Event(), threading.Event()

    @floe_cache.cached(10)
    def slow(x: int) -> str:
        if os.getpid() != parent:
            return "of the child"
        begun.set()
        assert go_on.wait(60)
        return "of the parent"

    @floe_cache.cached(cache=slow.cache, key=lambda x: ("async", x))
    async def waiting(x: int) -> str:
        return "of the child" if os.getpid() != parent else slow(x)

    parent = os.getpid()
    threads = [threading.Thread(target=slow, args=(1,)) for _ in range(3)]
    threads.append(threading.Thread(target=lambda: loop_in_thread(lambda: waiting(1))))
    for thread in threads:
        thread.start()
    assert begun.wait(60)
    time.sleep(0.1)

    def use() -> None:
        assert slow(1) == "of the child" and slow(1) == "of the child"
        assert loop_in_thread(lambda: waiting(1)) == "of the child"
        assert in_threads(2, slow) == ["of the child"] * 2
        slow.cache[7] = "x"
        assert slow.cache[7] == "x" and len(slow.cache) == 4
        in_child_of_child = slow(2)
        assert in_child_of_child == "of the child"

    for _ in range(5):
        in_child(use)
    go_on.set()
    for thread in threads:
        thread.join(60)
    assert slow(1) == "of the parent"


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_a_load_may_fork_and_go_on_in_the_child() -> None:
    @floe_cache.cached(10)
    def load(x: int) -> int:
        if x == 0:
            in_child(lambda: check(load(0 + 5)))
            child.append(os.fork())
            if child == [0]:
                signal.alarm(60)
        return x

    def check(value: int) -> None:
        assert value == 5 and in_threads(1, lambda _: load(6)) == [6]

    child: list[int] = []
    value = load(0)
    if child == [0]:
        os._exit(0 if value == 0 and load(0) == 0 and load(1) == 1 else 1)
    assert os.waitstatus_to_exitcode(os.waitpid(child[0], 0)[1]) == 0


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_children_forked_at_any_moment_use_the_cache() -> None:
    ended = threading.Event()

    @floe_cache.cached(50)
    def square(x: int) -> int:
        time.sleep(0)
        return x * x

    def use() -> None:
        chance = random.Random()
        while not ended.is_set():
            x = chance.randrange(100)
            assert square(x) == x * x
            square.cache.get(("a", x))

    threads = [threading.Thread(target=use) for _ in range(3)]
    for thread in threads:
        thread.start()
    try:
        for _ in range(30):
            in_child(lambda: [square(x) for x in range(100)])
    finally:
        ended.set()
        for thread in threads:
            thread.join(60)


def test_random_nets_of_loads_end() -> None:
    """Threads and loops whose loads ask for each other at random."""
    cache: floe_cache.Cache[Any, Any] = floe_cache.Cache(4)
    shared = floe_cache.cached(cache=cache, key=lambda x, depth: x)
    seed = random.randrange(1 << 32)
    chance = random.Random(seed)

    @shared
    def blocking(x: int, depth: int) -> int:
        time.sleep(0.0001)
        if chance.random() < 0.1:
            raise LookupError
        return x if depth == 0 else blocking(chance.randrange(6), depth - 1)

    @shared
    async def waiting(x: int, depth: int) -> int:
        await asyncio.sleep(0)
        if chance.random() < 0.1:
            raise LookupError
        if depth == 0:
            return x
        how = chance.choice(list(TASKS.values()))
        if chance.random() < 0.1:
            return await asyncio.to_thread(blocking, chance.randrange(6), depth - 1)
        if chance.random() < 0.2:
            return blocking(chance.randrange(6), depth - 1)
        return int(await how(waiting(chance.randrange(6), depth - 1)))

    def use(number: int) -> int:
        ended = 0
        for _ in range(30):
            try:
                if number % 2:
                    blocking(chance.randrange(6), 3)
                else:
                    loop_in_thread(many)
            except LookupError:
                pass
            ended += 1
        return ended

    async def many() -> None:
        loads = [waiting(chance.randrange(6), 3) for _ in range(5)]
        await asyncio.gather(*loads, return_exceptions=True)

    with concurrent.futures.ThreadPoolExecutor(1):
        assert in_threads(4, use) == [30] * 4, f"seed {seed}"


def test_many_tasks_wait_for_one_load() -> None:
    @floe_cache.cached(10)
    async def load(x: int) -> int:
        await asyncio.sleep(0.01)
        return x

    async def main() -> None:
        assert await asyncio.gather(*[load(1) for _ in range(20_000)]) == [1] * 20_000

    run(main())
    assert load.stats().loads == 1
