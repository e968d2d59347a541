"""Coroutine functions whose results are cached."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Hashable
from typing import Any, NamedTuple

from floe._floe import Cache, Calls

_MISSING: Any = object()


class _Load(NamedTuple):
    """A load under way: by which task of which loop, and what becomes of it."""

    loop: asyncio.AbstractEventLoop
    task: asyncio.Task[Any] | None
    value: asyncio.Future[Any]  # _MISSING if it failed


# Of all functions: a load of one may wait for a load of another.
_loads: dict[int, _Load] = {}
_waits: dict[asyncio.Task[Any], _Load] = {}


def _waits_for(load: _Load | None, task: asyncio.Task[Any] | None) -> bool:
    """Returns whether a load waits for a task, by way of others perhaps."""
    while load is not None and load.task is not None:
        if load.task is task:
            return True
        load = _waits.get(load.task)
    return False


def cached_coroutine(
    function: Callable[..., Coroutine[Any, Any, Any]],
    cache: Cache[Any, Any],
    key: Callable[..., Hashable] | None,
) -> Callable[..., Coroutine[Any, Any, Any]]:
    """Makes the coroutine function whose results are cached."""
    calls = Calls(cache, key)
    find = calls.find

    async def call(*args: Any, **kwargs: Any) -> Any:
        value = find(args, kwargs, _MISSING)
        return await wait_or_load(args, kwargs) if value is _MISSING else value

    async def wait_or_load(args: Any, kwargs: Any) -> Any:
        loop = asyncio.get_running_loop()
        task = asyncio.current_task()
        while True:
            ticket = calls.join(args, kwargs)
            if ticket.leads:
                break
            under_way = _loads.get(ticket.number)
            # Led by a thread or in another loop, or by a task that waits for this one.
            if under_way is None or under_way.loop is not loop or _waits_for(under_way, task):
                return await function(*args, **kwargs)
            if task is not None:
                _waits[task] = under_way
            try:
                value = await asyncio.shield(under_way.value)
            finally:
                if task is not None:
                    _waits.pop(task, None)
            if value is not _MISSING:
                return value
        own = _loads[ticket.number] = _Load(loop, task, loop.create_future())
        value = _MISSING
        try:
            value = await function(*args, **kwargs)
        finally:
            del _loads[ticket.number]
            try:
                if value is _MISSING:
                    ticket.give_up()
                else:
                    ticket.finish(value)
            finally:
                if not loop.is_closed():
                    own.value.set_result(value)
        return value

    def invalidate(*args: Any, **kwargs: Any) -> bool:
        """Removes the result for these arguments. Returns whether there was one."""
        return calls.invalidate(args, kwargs)

    for name, value in (("cache", cache), ("invalidate", invalidate), ("stats", cache.stats)):
        setattr(call, name, value)
    return call
