"""Times of `HybridCache` and diskcache, and of fsspec's caches, one after the other in each round.

    FLOE_PYTHON_PROFILE=release FLOE_PYTHON_WHEEL=1 scripts/test-python
    target/python/environment/bin/pip install diskcache
    target/python/environment/bin/python bindings/python/benches/hybrid.py FOLDER [ROUNDS]

FOLDER is on the drive to be measured. Prints the median of each series over the rounds, and its
ratio to Floe's in the same round. Time is the clock's, since caches wait for the drive. A cache
that is not installed is left out, and that is said.
"""

from __future__ import annotations

import random
import shutil
import statistics
import sys
import tempfile
import time
from collections.abc import Callable
from importlib.metadata import PackageNotFoundError, version
from typing import Any

import floe_cache
import fsspec
from floe_cache.fsspec import FloeFileSystem
from fsspec.implementations.memory import MemoryFileSystem

KEYS = 2000
FILE_BYTES = 64 << 20
LATENCY_S = 0.030
BYTES_A_SECOND = 100e6
READS = 200
READ_BYTES = 4096

Series = dict[str, dict[str, float]]


class Distant(MemoryFileSystem):  # type: ignore[misc]
    """Files behind a network: each request takes 30 ms, and each connection has 100 MB/s."""

    protocol = "distant"
    store: dict[str, Any] = {}
    pseudo_dirs = [""]
    requests = 0

    def cat_file(self, path: str, start: Any = None, end: Any = None, **kwargs: Any) -> Any:
        content = super().cat_file(path, start=start, end=end, **kwargs)
        self.wait(len(content))
        return content

    def wait(self, count: int) -> None:
        Distant.requests += 1
        time.sleep(LATENCY_S + count / BYTES_A_SECOND)

    def _open(self, path: str, mode: str = "rb", **kwargs: Any) -> Any:
        if mode != "rb":
            return super()._open(path, mode, **kwargs)
        return DistantFile(self, path, mode, size=len(self.store[path].getbuffer()))


class DistantFile(fsspec.spec.AbstractBufferedFile):  # type: ignore[misc]
    """A file of which fsspec's caches fetch ranges."""

    def _fetch_range(self, start: int, end: int) -> bytes:
        content = bytes(self.fs.store[self.path].getbuffer()[start:end])
        self.fs.wait(len(content))
        return content


fsspec.register_implementation("distant", Distant, clobber=True)


def timed(run: Callable[[], object], count: int) -> float:
    """Microseconds of one of `count` operations."""
    begun = time.perf_counter_ns()
    run()
    return (time.perf_counter_ns() - begun) / 1000 / count


def mapping_series(cache: Any, values: dict[Any, Any], order: list[Any]) -> dict[str, float]:
    """Times of insertions, lookups and misses."""
    absent = [f"absent {key}" for key in order]

    def insert() -> None:
        for key, value in values.items():
            cache.set(key, value)

    def look_up() -> None:
        for key in order:
            cache.get(key)

    def miss() -> None:
        for key in absent:
            cache.get(key)

    return {
        "set": timed(insert, len(values)),
        "get": timed(look_up, len(order)),
        "miss": timed(miss, len(order)),
    }


def mappings(folder: str, memory: int) -> dict[str, Any]:
    options: dict[str, Any] = {"memory": memory, "flash": "1GiB"}
    caches = {"floe": floe_cache.HybridCache(f"{folder}/hybrid", **options)}
    try:
        import diskcache

        caches["diskcache"] = diskcache.Cache(f"{folder}/disk", size_limit=1 << 30)
    except ImportError:
        print("diskcache is not installed", file=sys.stderr)
    return caches


def files(folder: str) -> dict[str, Callable[[], Any]]:
    """For each cache of fsspec, a function that makes its filesystem."""
    floe: dict[str, Any] = {"path": f"{folder}/files", "memory": "64MiB", "flash": "256MiB"}
    target: dict[str, Any] = {"target_protocol": "distant"}
    return {
        "floe": lambda: FloeFileSystem(**floe, **target),
        "blockcache": lambda: fsspec.filesystem(
            "blockcache", cache_storage=f"{folder}/block", **target
        ),
        "filecache": lambda: fsspec.filesystem(
            "filecache", cache_storage=f"{folder}/file", **target
        ),
    }


def file_series(make: Callable[[], Any], chance: random.Random) -> dict[str, float]:
    """Milliseconds of random reads and a scan, cold and again."""
    offsets = [chance.randrange(FILE_BYTES - READ_BYTES) for _ in range(READS)]
    fs = make()

    def at_random() -> None:
        with fs.open("/file", "rb") as file:
            for offset in offsets:
                file.seek(offset)
                assert len(file.read(READ_BYTES)) == READ_BYTES

    def scan() -> None:
        with fs.open("/scanned", "rb") as file:
            while file.read(256 << 10):
                pass

    times: dict[str, float] = {}
    for name, run in (("random reads", at_random), ("scan", scan)):
        for how in ("cold", "again"):
            Distant.requests = 0
            times[f"{name}, {how}, ms"] = timed(run, 1000)
            times[f"{name}, {how}, requests"] = Distant.requests
    return times


def show(title: str, taken: dict[str, list[dict[str, float]]]) -> None:
    print(f"\n{title}\n\n{'':12} {'':28} {'median':>10} {'times Floe':>12}")
    own = taken["floe"]
    for name, rounds in taken.items():
        for what in rounds[0]:
            median = statistics.median(times[what] for times in rounds)
            pairs = [(times[what], floe[what]) for times, floe in zip(rounds, own)]
            ratio = (
                f"{statistics.median(a / b for a, b in pairs):12.1f}"
                if all(b for _, b in pairs)
                else f"{'-':>12}"
            )
            print(f"{name:12} {what:28} {median:10.2f} {ratio}")


def main() -> None:
    folder, rounds = sys.argv[1], int(sys.argv[2]) if len(sys.argv) > 2 else 7
    for package in ("floe-cache", "diskcache", "fsspec"):
        try:
            print(f"{package} {version(package)}")
        except PackageNotFoundError:
            pass
    print(f"Python {sys.version.split()[0]}; {rounds} rounds")
    chance = random.Random(7)
    for title, make, memory in (
        ("bytes of 4 KiB, all in memory, us", lambda: chance.randbytes(4096), 256 << 20),
        ("bytes of 4 KiB, memory for a quarter, us", lambda: chance.randbytes(4096), 3 << 20),
        ("a list of 10 numbers, us", lambda: [chance.random() for _ in range(10)], 256 << 20),
    ):
        values = {f"key {number}": make() for number in range(KEYS)}
        order = chance.choices(list(values), k=2 * KEYS)
        taken: dict[str, list[dict[str, float]]] = {}
        for _ in range(rounds):
            place = tempfile.mkdtemp(dir=folder)
            for name, cache in mappings(place, memory).items():
                taken.setdefault(name, []).append(mapping_series(cache, values, order))
                cache.close()
            shutil.rmtree(place)
        show(title, taken)
    distant = fsspec.filesystem("distant")
    for name in ("/file", "/scanned"):
        distant.pipe_file(name, chance.randbytes(FILE_BYTES))
    taken = {}
    for number in range(max(1, rounds // 3)):
        place = tempfile.mkdtemp(dir=folder)
        for name, make_fs in files(place).items():
            times = file_series(make_fs, random.Random(number))
            taken.setdefault(name, []).append(times)
        FloeFileSystem.clear_instance_cache()
        shutil.rmtree(place)
    show(
        f"{READS} reads of {READ_BYTES} bytes, and a scan, of files of {FILE_BYTES >> 20} MiB "
        f"behind {LATENCY_S * 1000:.0f} ms and {BYTES_A_SECOND / 1e6:.0f} MB/s",
        taken,
    )


if __name__ == "__main__":
    main()
