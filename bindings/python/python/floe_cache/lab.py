"""The lab: the value of policies, sizes and devices for a workload, by the code that serves.

>>> from floe_cache import lab
>>> table = lab.simulate("zipf:keys=1000,requests=20000", ["lru", "s3-fifo"], ["1%", "10%"])
>>> len(table["miss_ratio"])
4

Results are a `Table`: a dict of columns, each a list, which `pandas.DataFrame`, `polars.DataFrame`
and `pyarrow.table` take as it is. Neither these nor NumPy are needed here. Only `Table.plot` needs
matplotlib.
"""

from __future__ import annotations

import json
import os
from array import array
from collections.abc import Callable, Iterable, Iterator, Sequence
from html import escape
from itertools import islice
from typing import Any, Protocol, TypeAlias, Union

from floe_cache import _floe
from floe_cache._floe import Trace

#: A trace that is open, a file, or a generator in words.
Source: TypeAlias = Union[Trace, str, "os.PathLike[str]"]

#: Objects (1000), a share of what the trace touches (0.1 or "10%"), bytes ("64MiB"), or a range of
#: these ("1%..=20%:1%").
Size: TypeAlias = Union[int, float, str]

__all__ = [
    "Policy", "Size", "Source", "Table", "Trace", "columns", "model", "model_policies", "mrc", "open_trace",
    "policies", "replay", "simulate",
]  # fmt: skip

_MRC_SIZES = "0.1%,0.2%,0.5%,1%,2%,3%,5%,7%,10%,15%,20%,30%,40%,50%,60%,70%,80%,90%,100%"
_HIT_RATIOS = (0.4, 0.5, 0.6, 0.7, 0.75, 0.8, 0.85, 0.9, 0.95, 0.98, 0.99, 1.0)


#: The most rows of a table that a notebook shows.
_ROWS_SHOWN = 60


class Policy(Protocol):
    """An eviction policy of one's own, made for a capacity in objects.

    Keys are numbers from 0, in order of appearance. The simulator knows which are in the cache: it
    calls `hit` for one that is, and otherwise `evict`, if the cache is full, and then `insert`.
    """

    def hit(self, key: int, /) -> object: ...
    def insert(self, key: int, /) -> object: ...
    def evict(self) -> int:
        """Returns the key that leaves."""
        ...


class Table(dict[str, list[Any]]):
    """Results as columns by name. All columns have the same length; a value may be None."""

    #: Names of the columns that a plot has on its axes, and of those that tell its lines apart.
    axes: tuple[str, str, tuple[str, ...]] | None = None

    @classmethod
    def of(cls, rows: Iterable[dict[str, Any]]) -> Table:
        """Makes a table of rows, which may lack columns."""
        rows = list(rows)
        names = dict.fromkeys(name for row in rows for name in row)
        return cls({name: [row.get(name) for row in rows] for name in names})

    def rows(self) -> Iterator[dict[str, Any]]:
        """Returns the rows, one dict each."""
        for values in zip(*self.values()):
            yield dict(zip(self, values))

    def _repr_html_(self) -> str:
        """Returns the table as HTML, which notebooks show: its first rows."""

        def text(value: Any) -> str:
            if value is None:
                return ""
            return f"{value:.6g}" if isinstance(value, float) else escape(str(value))

        count = max(map(len, self.values()), default=0)
        head = "".join(f"<th>{escape(name)}</th>" for name in self)
        rows = "".join(
            f"<tr>{''.join(f'<td>{text(value)}</td>' for value in row.values())}</tr>"
            for row in islice(self.rows(), _ROWS_SHOWN)
        )
        rest = f"<p>{count - _ROWS_SHOWN} more rows</p>" if count > _ROWS_SHOWN else ""
        return f"<table><thead><tr>{head}</tr></thead><tbody>{rows}</tbody></table>{rest}"

    def plot(self, file: str | os.PathLike[str] | None = None, *, ax: Any = None) -> Any:
        """Draws the table's curves with matplotlib, and returns the axes.

        With `file` the picture is saved there, too. `ax` are axes to draw on.
        """
        if self.axes is None:
            raise ValueError("this table has no curves to draw")
        try:
            from matplotlib.figure import Figure
        except ImportError as error:
            raise ImportError("plots need matplotlib: pip install matplotlib") from error
        x, y, by = self.axes
        if ax is None:
            ax = Figure(layout="constrained").subplots()
        lines: dict[str, list[tuple[float, float]]] = {}
        by = tuple(name for name in by if len(set(self[name])) > 1) or by[:1]
        for row in self.rows():
            if row[x] is not None and row[y] is not None:
                name = ", ".join(str(row[name]) for name in by)
                lines.setdefault(name, []).append((row[x], row[y]))
        for name, points in lines.items():
            ax.plot(*zip(*sorted(points)), label=name, marker=".")
        ax.set_xlabel(x)
        ax.set_ylabel(y)
        ax.set_ylim(bottom=0)
        ax.legend()
        if file is not None:
            ax.figure.savefig(file)
        return ax


def _trace(
    source: str,
    format: str | None,
    columns: str | None,
    skip_bad: bool,
    as_blocks: bool,
    filter: str | None,
) -> Trace:
    return Trace(
        source, format=format, columns=columns, skip_bad=skip_bad, as_blocks=as_blocks,
        filter=filter,
    )  # fmt: skip


def open_trace(
    source: str | os.PathLike[str],
    *,
    format: str | None = None,
    columns: str | None = None,
    skip_bad: bool = False,
    as_blocks: bool = False,
    filter: str | None = None,
) -> Trace:
    """Opens a trace, compressed or not, or a generator such as "zipf:keys=1000,requests=100000".

    The format is recognised unless it is given; `columns` names those of a table, as
    "time=when,key=obj". `filter` keeps some requests, as "time=1h..2h,op=write". A ValueError says
    why a trace cannot be opened.
    """
    return _trace(os.fspath(source), format, columns, skip_bad, as_blocks, filter)


def columns(trace: Source, *, limit: int | None = None) -> dict[str, array[int]]:
    """Reads the requests of a trace as columns: time_ns, key, bytes, volume, and op (0 reads, 1
    writes, 2 deletes). `numpy.asarray` takes each without a copy."""
    types = {"time_ns": "Q", "key": "Q", "bytes": "Q", "volume": "I", "op": "B"}
    read = _opened(trace)._columns(limit)
    return {name: array(types[name], column) for name, column in read.items()}


def policies() -> dict[str, str]:
    """Returns the names of the eviction policies, each with a description."""
    return dict(_floe.policies())


def model_policies() -> list[str]:
    """Returns the policies that `model` knows."""
    return _floe.model_policies()


def simulate(
    traces: Source | Iterable[Source],
    policies: str | Callable[[int], Policy] | Iterable[str | Callable[[int], Policy]],
    sizes: Size | Iterable[Size],
    *,
    admit: str | Iterable[str] = (),
    bytes: bool = False,
    sample: float = 1.0,
    hit_us: float = 1.0,
    miss_us: float | None = None,
    insert_us: float = 0.0,
    filter: str | None = None,
) -> Table:
    """Simulates each policy at each size over each trace, on all cores.

    `policies` are names with parameters, as "slru:segments=2", or makers of a `Policy` of one's
    own, which is simulated on one core. `admit` are admissions to compare, as "second-access".
    With `bytes` objects take their size. `sample` simulates a share of the keys, and bounds the
    error. `miss_us` adds mean latencies, and `insert_us` is what a miss takes longer that puts its
    object in. The columns are the fields of `floe simulate --json`. `filter` keeps some requests of
    traces that are given by name, as "time=1h..2h,op=read".

    Other threads of Python go on meanwhile. A trace that is given by name is forgotten afterwards.
    """
    of_library: list[str] = []
    own: list[Callable[[int], Policy]] = []
    for policy in _listed(policies):
        of_library.append(policy) if isinstance(policy, str) else own.append(policy)
    given: list[Source] = _listed(traces)
    opened = [_opened(trace, filter) for trace in given]
    admissions, text = _listed(admit), _sizes(sizes)
    lines: list[str] = []
    if of_library:
        keep = [isinstance(trace, Trace) for trace in given]
        lines = _floe.simulate(
            opened, of_library, text, admit=admissions, in_bytes=bytes, sample=sample,
            hit_us=hit_us, miss_us=miss_us, insert_us=insert_us, keep=keep,
            some_sizes=sizes is _MRC_SIZES,
        )  # fmt: skip
    if own and (admissions or bytes or sample != 1.0 or miss_us is not None):
        raise ValueError("a policy of one's own is simulated without options")
    rows: list[dict[str, Any]] = [json.loads(line) for line in lines]
    for trace in opened:
        for make in own:
            name = getattr(make, "__name__", type(make).__name__)
            for size, requests, hits in _floe.simulate_own(trace, make, text):
                row = {"trace": trace.name, "policy": name, "size": size, "requests": requests}
                misses = requests - hits
                rows.append(row | {"hits": hits, "misses": misses, "miss_ratio": misses / requests})
    table = Table.of(rows)
    table.axes = ("size", "miss_ratio", ("policy", "trace"))
    return table


def mrc(
    trace: Source,
    policy: str | Iterable[str] = "lru",
    sizes: Size | Iterable[Size] = _MRC_SIZES,
    *,
    sample: float = 1.0,
    filter: str | None = None,
) -> Table:
    """Returns miss ratio curves: `simulate` at sizes from 0.1 % to all of what a trace touches, as
    far as these hold an object."""
    return simulate(trace, policy, sizes, sample=sample, filter=filter)


def replay(
    trace: Source,
    *,
    backing: str,
    cache: str | None = None,
    tiers: Sequence[str] = (),
    in_flight: int | None = None,
    speed: float | None = None,
    warmup: float = 0,
    verify: bool = False,
    wrap: bool = False,
    concatenate: bool = False,
    limit: int | None = None,
    **settings: object,
) -> dict[str, Any]:
    """Replays a trace of disk I/O through the block cache in virtual time, on simulated devices.

    `backing`, `cache` and `tiers` are devices in words, as "memory:1GiB,medium=nvme"; no file is
    touched. `settings` are those of `floe serve`, as `write="back"` or `evict="s3-fifo"`. Requests
    begin when another of `in_flight` has been answered or, with `speed`, at their recorded times,
    that many times faster. The first `warmup` requests, or that share of them, do not count.
    Returns the fields of `floe replay --json`.
    """
    named = {"backing": backing, "cache": cache, **settings}
    given = [
        (name.replace("_", "-"), [] if value is True else [str(one) for one in _listed(value)])
        for name, value in named.items()
        if value is not None and value is not False
    ]
    line = _floe.replay(
        _opened(trace), given, list(tiers), in_flight=in_flight, speed=speed, warmup=warmup,
        verify=verify, wrap=wrap, concatenate=concatenate, limit=limit,
    )  # fmt: skip
    result: dict[str, Any] = json.loads(line)
    return result


def model(
    policies: str | Iterable[str] = ("lru", "fifo"),
    hit_ratios: float | Iterable[float] = _HIT_RATIOS,
    *,
    mpl: int | Iterable[int] = 72,
    disk_us: float | Iterable[float] = 100.0,
    cores: int | None = None,
    service: str | os.PathLike[str] | None = None,
    precision: float = 0.0,
) -> tuple[Table, Table]:
    """Computes throughput over hit ratios, with `mpl` requests in flight and a disk of `disk_us`.

    Returns two tables, with the fields of `floe model --json`: the points of the curves, and for
    each curve its peak: `p_star` is the hit ratio past which throughput falls. `service` is a file
    with the service times of a machine. A `precision` above 0, such as 0.005, simulates the points
    as well.
    """
    points, peaks = _floe.model(
        _listed(policies), [float(at) for at in _listed(hit_ratios)], _listed(mpl),
        [float(time) for time in _listed(disk_us)], cores=cores,
        service=None if service is None else os.fspath(service), precision=precision,
    )  # fmt: skip
    table = Table.of(map(json.loads, points))
    table.axes = ("hit_ratio", "mva_mrps", ("policy", "mpl", "disk_us"))
    return table, Table.of(map(json.loads, peaks))


def _listed(given: Any) -> list[Any]:
    """What was given, as a list even if it is one thing."""
    if isinstance(given, (str, os.PathLike, Trace)) or not isinstance(given, Iterable):
        return [given]
    return list(given)


def _opened(source: Source, filter: str | None = None) -> Trace:
    if not isinstance(source, Trace):
        return open_trace(source, filter=filter)
    if filter is not None:
        raise ValueError("a trace is filtered when it is opened: open_trace(…, filter=…)")
    return source


def _sizes(sizes: Size | Iterable[Size]) -> str:
    def text(size: Size) -> str:
        if isinstance(size, float):
            if not 0 < size <= 1:
                raise ValueError(f"{size} is not a share above 0 and up to 1")
            return f"{size * 100:.12g}%"
        return str(size)

    return ",".join(map(text, _listed(sizes)))
