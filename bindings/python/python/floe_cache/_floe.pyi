from asyncio import AbstractEventLoop
from collections.abc import Callable, Hashable, Iterator, MutableMapping
from datetime import timedelta
from typing import Any, Generic, ParamSpec, TypeVar, overload

from floe_cache._cached import CacheInfo

K = TypeVar("K")
V = TypeVar("V")
D = TypeVar("D")
P = ParamSpec("P")
R = TypeVar("R")

class Cache(MutableMapping[K, V]):
    def __init__(
        self,
        capacity: int,
        *,
        policy: str = "qd-clock",
        ttl: float | timedelta | None = None,
        idle: float | timedelta | None = None,
        getsizeof: Callable[[V], int] | None = None,
        admission: str | None = None,
    ) -> None: ...
    @property
    def maxsize(self) -> int: ...
    @property
    def currsize(self) -> int: ...
    def __len__(self) -> int: ...
    def __iter__(self) -> Iterator[K]: ...
    def __getitem__(self, key: K, /) -> V: ...
    def __setitem__(self, key: K, value: V, /) -> None: ...
    def __delitem__(self, key: K, /) -> None: ...
    def __missing__(self, key: K, /) -> V: ...
    @overload
    def peek(self, key: K, /) -> V | None: ...
    @overload
    def peek(self, key: K, default: D, /) -> V | D: ...
    def insert(
        self,
        key: K,
        value: V,
        /,
        *,
        ttl: float | timedelta | None = None,
        idle: float | timedelta | None = None,
        pinned: bool = False,
    ) -> None: ...
    def reclaim(self) -> None: ...
    def resize(self, capacity: int) -> None: ...
    def stats(self) -> Stats: ...
    def _entries(self) -> list[tuple[K, V]]: ...

class Stats:
    hits: int
    misses: int
    insertions: int
    replacements: int
    rejections: int
    evictions: int
    expirations: int
    removals: int
    loads: int
    failed_loads: int
    entries: int
    weight: int
    memory_bytes: int
    policy: str
    @property
    def hit_ratio(self) -> float | None: ...
    def as_dict(self) -> dict[str, Any]: ...

class CachedFunction(Generic[P, R]):
    __wrapped__: Callable[..., Any]
    __name__: str
    def __init__(
        self,
        function: Callable[P, R],
        cache: Cache[Any, Any],
        key: Callable[..., Hashable] | None,
        typed: bool = False,
    ) -> None: ...
    def __call__(self, *args: P.args, **kwargs: P.kwargs) -> R: ...
    @overload
    def __get__(self, instance: None, owner: type | None = None) -> CachedFunction[P, R]: ...
    @overload
    def __get__(self, instance: object, owner: type | None = None) -> Callable[..., R]: ...
    @property
    def cache(self) -> Cache[Any, Any]: ...
    def invalidate(self, *args: P.args, **kwargs: P.kwargs) -> bool: ...
    def stats(self) -> Stats: ...
    def cache_info(self) -> CacheInfo: ...
    def cache_parameters(self) -> dict[str, Any]: ...
    def cache_clear(self) -> None: ...

class Calls:
    FAILURES_MAX: int
    def __init__(
        self, cache: Cache[Any, Any], key: Callable[..., Hashable] | None, typed: bool
    ) -> None: ...
    def find(self, args: tuple[Any, ...], kwargs: dict[str, Any], missing: Any) -> Any: ...
    def join(
        self, args: tuple[Any, ...], kwargs: dict[str, Any], loop: AbstractEventLoop
    ) -> Ticket: ...
    def count_alone(self, has_failed: bool) -> None: ...
    def invalidate(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> bool: ...

class Ticket:
    @property
    def leads(self) -> bool: ...
    def enter(self) -> object: ...
    def leave(self, before: object) -> None: ...
    def finish(self, value: Any) -> None: ...
    def give_up(self) -> None: ...
    def listen(
        self, loop: AbstractEventLoop, function: Callable[[], object]
    ) -> Listener | None: ...
    def value(self, missing: Any) -> Any: ...

class Listener:
    def end(self) -> None: ...

class Trace:
    def __init__(
        self,
        source: str,
        *,
        format: str | None = None,
        columns: str | None = None,
        skip_bad: bool = False,
        as_blocks: bool = False,
        filter: str | None = None,
    ) -> None: ...
    @property
    def name(self) -> str: ...
    @property
    def format(self) -> str: ...
    @property
    def kind(self) -> str: ...
    def _columns(self, limit: int | None = None) -> dict[str, bytes]: ...

def policies() -> list[tuple[str, str]]: ...
def model_policies() -> list[str]: ...
def simulate(
    traces: list[Trace],
    policies: list[str],
    sizes: str,
    *,
    admit: list[str],
    in_bytes: bool,
    sample: float,
    hit_us: float,
    miss_us: float | None,
    insert_us: float,
    keep: list[bool],
    some_sizes: bool,
) -> list[str]: ...
def simulate_own(
    trace: Trace, make: Callable[[int], Any], sizes: str
) -> list[tuple[int, int, int]]: ...
def model(
    policies: list[str],
    hit_ratios: list[float],
    mpl: list[int],
    disk_us: list[float],
    *,
    cores: int | None,
    service: str | None,
    precision: float,
) -> tuple[list[str], list[str]]: ...
def replay(
    trace: Trace,
    settings: list[tuple[str, list[str]]],
    tiers: list[str],
    *,
    in_flight: int | None,
    speed: float | None,
    warmup: float,
    verify: bool,
    wrap: bool,
    concatenate: bool,
    limit: int | None,
) -> str: ...
