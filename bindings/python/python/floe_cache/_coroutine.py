"""Coroutine functions whose results are cached."""

from __future__ import annotations

import asyncio
import weakref
from collections.abc import Callable, Coroutine, Hashable
from functools import partial
from typing import Any

from floe_cache._floe import Cache, Calls, Ticket

_MISSING: Any = object()


def _settle(future: asyncio.Future[None]) -> None:
    if not future.done():
        future.set_result(None)


def _wake(
    loop: asyncio.AbstractEventLoop, waiting: weakref.ref[asyncio.Future[None]]
) -> None:
    """Lets a coroutine of a loop go on. Any thread may call it."""
    future = waiting()
    if future is None:
        return
    if asyncio._get_running_loop() is loop:
        _settle(future)
    elif not loop.is_closed():
        try:
            loop.call_soon_threadsafe(_settle, future)
        except RuntimeError:  # closed since
            pass


async def _end_of(ticket: Ticket, loop: asyncio.AbstractEventLoop) -> bool:
    """Waits for the end of a load, unless the wait might never end."""
    future = loop.create_future()
    # A weak reference: what nobody waits for any more can be collected.
    listener = ticket.listen(loop, partial(_wake, loop, weakref.ref(future)))
    if listener is None:
        return False
    try:
        await future
    finally:
        listener.end()
    return True


def cached_coroutine(
    function: Callable[..., Coroutine[Any, Any, Any]],
    cache: Cache[Any, Any],
    key: Callable[..., Hashable] | None,
    typed: bool,
) -> Callable[..., Coroutine[Any, Any, Any]]:
    """Makes the coroutine function whose results are cached."""
    calls = Calls(cache, key, typed)
    find = calls.find

    async def call(*args: Any, **kwargs: Any) -> Any:
        value = find(args, kwargs, _MISSING)
        return await wait_or_load(args, kwargs) if value is _MISSING else value

    async def wait_or_load(args: Any, kwargs: Any) -> Any:
        loop = asyncio.get_running_loop()
        failures = 0
        while True:
            ticket = calls.join(args, kwargs, loop)
            if ticket.leads:
                return await load(ticket, args, kwargs)
            if failures == calls.FAILURES_MAX or not await _end_of(ticket, loop):
                return await load_alone(args, kwargs)
            value = ticket.value(_MISSING)
            if value is not _MISSING:
                return value
            failures += 1

    async def load(ticket: Ticket, args: Any, kwargs: Any) -> Any:
        value = _MISSING
        try:
            before = ticket.enter()
            try:
                value = await function(*args, **kwargs)
            finally:
                ticket.leave(before)
        finally:
            if value is _MISSING:
                ticket.give_up()
            else:
                ticket.finish(value)
        return value

    async def load_alone(args: Any, kwargs: Any) -> Any:
        has_failed = True
        try:
            value = await function(*args, **kwargs)
            has_failed = False
        finally:
            calls.count_alone(has_failed)
        return value

    def invalidate(*args: Any, **kwargs: Any) -> bool:
        """Removes the result for these arguments. Returns whether there was one."""
        return calls.invalidate(args, kwargs)

    for name, value in (("cache", cache), ("invalidate", invalidate), ("stats", cache.stats)):
        setattr(call, name, value)
    return call
