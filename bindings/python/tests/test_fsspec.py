"""`floe::` in URLs of fsspec: what is read, how often the wrapped filesystem is asked, changes."""

import pathlib
import random
import subprocess
import sys
import uuid
from collections.abc import Iterator
from typing import Any

import fsspec
import pytest
from floe_cache.fsspec import (
    AHEAD_BYTES,
    PART_BYTES,
    REGION_BYTES,
    FloeFileSystem,
    Prices,
    Replaced,
)
from fsspec.implementations.memory import MemoryFileSystem

KIB, MIB = 1 << 10, 1 << 20


class Counted(MemoryFileSystem):  # type: ignore[misc]
    """A filesystem that notes what it is asked for."""

    protocol = "counted"
    store: dict[str, Any] = {}
    pseudo_dirs = [""]
    requests: list[tuple[int, int]] = []
    looks: list[str] = []

    @classmethod
    def _strip_protocol(cls, path: str) -> str:
        path = path.removeprefix("counted://").strip("/")
        return f"/{path}" if path else ""

    def cat_file(self, path: str, start: Any = None, end: Any = None, **kwargs: Any) -> Any:
        self.requests.append((start, end))
        return super().cat_file(path, start=start, end=end, **kwargs)

    def info(self, path: str, **kwargs: Any) -> Any:
        self.looks.append(path)
        return super().info(path, **kwargs)


fsspec.register_implementation("counted", Counted, clobber=True)


@pytest.fixture
def floe(tmp_path: pathlib.Path) -> Iterator[dict[str, Any]]:
    options = {"path": str(tmp_path / "cache"), "memory": "4MiB", "flash": "64MiB"}
    Counted.requests.clear()
    Counted.looks.clear()
    yield options
    fsspec.filesystem("floe", target_protocol="counted", **options).cache.close()
    Counted.store.clear()


def filled(name: str, size: int) -> bytes:
    content = random.Random(size).randbytes(size)
    fsspec.filesystem("counted").pipe_file(name, content)
    return content


def asked() -> list[tuple[int, int]]:
    requests = list(Counted.requests)
    Counted.requests.clear()
    return requests


def test_the_first_read_fetches_and_the_second_does_not(floe: dict[str, Any]) -> None:
    content = filled("/a", 300 * KIB)
    for expected in ([(0, 300 * KIB)], []):
        with fsspec.open("floe::counted://a", floe=floe) as file:
            assert file.read() == content
        assert asked() == expected
    # After a restart it is there, too.
    fsspec.filesystem("floe", target_protocol="counted", **floe).cache.close()
    FloeFileSystem.clear_instance_cache()
    with fsspec.open("floe::counted://a", floe=floe) as file:
        assert file.seek(-10, 2) and file.read(20) == content[-10:]
    assert asked() == []


def test_ranges_are_those_of_the_file(floe: dict[str, Any]) -> None:
    content = filled("/a", 10 * PART_BYTES + 123)
    fs, _ = fsspec.url_to_fs("floe::counted://a", floe=floe)
    seed = random.randrange(1 << 32)
    chance = random.Random(seed)
    size = len(content)
    edges = [None, 0, 1, -1, PART_BYTES, -PART_BYTES, size, -size, size + 5, size - 1]
    for _ in range(150):
        start, end = (
            chance.choice([chance.choice(edges), chance.randrange(-size, size)]) for _ in "ab"
        )
        assert fs.cat_file("/a", start, end) == content[start:end], f"seed {seed}: {start}:{end}"
    with fs.open("/a") as file:
        for _ in range(150):
            at, length = chance.randrange(size + 10), chance.choice([0, 1, 700, 90_000, 400_000])
            file.seek(at)
            assert file.read(length) == content[at : at + length], f"seed {seed}: {at}+{length}"
    found = fs.cat_ranges(["/a", "/b", "/a"], [0, 0, 5], [3, 3, 9])
    assert found[::2] == [content[:3], content[5:9]]
    assert isinstance(fs.cat_ranges(["/b"], 0, 1)[0], FileNotFoundError)
    with pytest.raises(FileNotFoundError):
        fs.cat_file("/b")


def test_adjacent_misses_are_one_request(floe: dict[str, Any]) -> None:
    content = filled("/a", 20 * PART_BYTES)
    fs, _ = fsspec.url_to_fs("floe::counted://a", floe=floe)
    assert fs.cat_file("/a", 5 * PART_BYTES, 5 * PART_BYTES + 1) == content[5 * PART_BYTES :][:1]
    assert asked() == [(5 * PART_BYTES, 6 * PART_BYTES)], "little for a scattered read"
    assert fs.cat_file("/a", 3 * PART_BYTES + 7, 9 * PART_BYTES - 7) == (
        content[3 * PART_BYTES + 7 : 9 * PART_BYTES - 7]
    )
    assert asked() == [(3 * PART_BYTES, 5 * PART_BYTES), (6 * PART_BYTES, 9 * PART_BYTES)]
    starts = [12 * PART_BYTES, 13 * PART_BYTES + 5, 12 * PART_BYTES + 100]
    ends = [start + 50 for start in starts]
    found = fs.cat_ranges(["/a"] * 3, starts, ends)
    assert found == [content[start:end] for start, end in zip(starts, ends)]
    assert asked() == [(12 * PART_BYTES, 14 * PART_BYTES)], "of several ranges, too"


def test_sequential_reads_fetch_ahead(floe: dict[str, Any]) -> None:
    content = filled("/a", 20 * MIB)
    with fsspec.open("floe::counted://a", floe=floe) as file:
        pieces = iter(lambda: file.read(10_000), b"")
        assert b"".join(pieces) == content
    requests = asked()
    lengths = [end - start for start, end in requests]
    assert lengths[:4] == [PART_BYTES, 2 * PART_BYTES, 4 * PART_BYTES, 8 * PART_BYTES]
    assert max(lengths) == AHEAD_BYTES and sum(lengths) == len(content)
    assert [start for start, _ in requests[1:]] == [end for _, end in requests[:-1]]
    fs, _ = fsspec.url_to_fs("floe::counted://b", floe=floe)
    filled("/b", 20 * MIB)
    for at in range(0, 4 * MIB, 64 * KIB):
        fs.cat_file("/b", at, at + 64 * KIB)
    assert len(asked()) < 10, "without an open file, too"


def test_dense_scattered_reads_fetch_the_region_and_sparse_ones_do_not(
    floe: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    content = filled("/a", 3 * REGION_BYTES - 5)
    fs, _ = fsspec.url_to_fs("floe::counted://a", floe=floe)
    at = [20, 9, 40, 63, 8]  # parts of a region

    def read_scattered(region: int) -> list[tuple[int, int]]:
        asked()
        for part in at:
            start = region * REGION_BYTES + part * PART_BYTES + 7
            end = min(start + 10, len(content))
            assert fs.cat_file("/a", start, end) == content[start:end]
        return asked()

    # A region takes as long as a request: the second miss fetches it.
    monkeypatch.setattr(Prices, "of", lambda self, count: 1e-9)
    for region in (0, 2):
        end = min((region + 1) * REGION_BYTES, len(content))
        first = region * REGION_BYTES + at[0] * PART_BYTES
        whole = (region * REGION_BYTES, end)
        assert read_scattered(region) == [(first, first + PART_BYTES), whole]
        assert read_scattered(region) == []
    # One takes longer than all requests together: parts alone.
    monkeypatch.setattr(Prices, "of", lambda self, count: 1e9)
    assert len(read_scattered(1)) == len(at)


def test_the_price_of_a_request_and_of_a_byte_is_learned() -> None:
    prices = Prices()
    for _ in range(100):
        prices.add(PART_BYTES, 0.003)
        prices.add(AHEAD_BYTES, 0.003 + AHEAD_BYTES / 1e9)
    assert 0.003 <= prices.of(0) < 0.0031
    assert 0.9e9 < 1 / prices.byte < 1.1e9
    prices.add(PART_BYTES, 60.0)  # a stall
    assert prices.of(0) < 0.004


def test_changes_are_seen(floe: dict[str, Any]) -> None:
    fs, _ = fsspec.url_to_fs("floe::counted://a", floe=floe)

    def by_open(content: bytes) -> None:
        with fs.open("/a", "wb") as file:
            file.write(content)

    for number, write in enumerate(
        (lambda it: fs.pipe_file("/a", it), lambda it: fs.pipe({"/a": it}), by_open)
    ):
        old, new = bytes([number]) * 1000, bytes([100 + number]) * 1000
        fs.pipe_file("/a", old)
        assert fs.cat_file("/a") == old
        write(new)
        assert fs.cat_file("/a") == new
    with fsspec.open("floe::counted://dir/b", "wt", floe=floe) as file:
        assert fs.cat_file("/a") and file.write("text")
    with fsspec.open("floe::counted://dir/b", "rt", floe=floe) as file:
        assert file.read() == "text"
    fs.mv("/dir/b", "/dir/c")
    with pytest.raises(FileNotFoundError):
        fs.cat_file("/dir/b")
    assert fs.cat(["/dir/c", "/a"]) == {"/dir/c": b"text", "/a": new}
    fs.rm("/dir", recursive=True)
    with pytest.raises(FileNotFoundError):
        fs.open("/dir/c")
    assert fs.ls("/", detail=False) == ["/a"] and fs.exists("/a") and fs.size("/a") == 1000


def test_a_file_that_is_replaced_meanwhile_is_not_mixed(floe: dict[str, Any]) -> None:
    old, new = b"o" * (4 * PART_BYTES), b"n" * (4 * PART_BYTES)
    inner = fsspec.filesystem("counted")
    inner.pipe_file("/a", old)
    fs, _ = fsspec.url_to_fs("floe::counted://a", floe={**floe, "check": 0})
    with fs.open("/a") as file:
        assert file.read(5) == old[:5]
        inner.pipe_file("/a", new)
        file.seek(2 * PART_BYTES)
        with pytest.raises(Replaced, match="/a was replaced while it was read"):
            file.read(5)
    assert fs.cat_file("/a") == new
    inner.pipe_file("/a", b"shorter")
    assert fs.cat_file("/a") == b"shorter"
    # Within `check` seconds it is not looked at: what is known is served.
    fs, _ = fsspec.url_to_fs("floe::counted://a", floe={**floe, "check": 60})
    assert fs.cat_file("/a") == b"shorter"
    Counted.looks.clear()
    inner.pipe_file("/a", new)
    assert fs.cat_file("/a") == b"shorter" and Counted.looks == []
    fs.invalidate_cache()
    assert fs.cat_file("/a") == new


def test_files_of_different_sources_are_told_apart(
    floe: dict[str, Any], tmp_path: pathlib.Path
) -> None:
    filled("/a", 10)
    (tmp_path / "a").write_bytes(b"local")
    local, _ = fsspec.url_to_fs(f"floe::file://{tmp_path}/a", floe=floe)
    counted, _ = fsspec.url_to_fs("floe::counted://a", floe=floe)
    assert local.cache is counted.cache
    assert local.cat_file(f"{tmp_path}/a") == b"local" != counted.cat_file("/a")
    with fsspec.open(f"floe::file://{tmp_path}/a", "wb", floe=floe) as file:
        file.write(b"LOCAL")
    assert local.cat_file(f"{tmp_path}/a") == b"LOCAL"


def test_pandas_and_dask_read_by_it(floe: dict[str, Any]) -> None:
    dask: Any = pytest.importorskip("dask")
    read_bytes: Any = pytest.importorskip("dask.bytes").read_bytes
    pandas: Any = pytest.importorskip("pandas")
    table = pandas.DataFrame({"number": range(1000), "text": [f"row {at}" for at in range(1000)]})
    name = f"floe::counted://{uuid.uuid4()}.csv"
    options = {"floe": floe}
    table.to_csv(name, index=False, storage_options=options)
    for _ in range(2):
        assert pandas.read_csv(name, storage_options=options).equals(table)
    assert len(asked()) == 1
    _, [blocks] = read_bytes(name, blocksize=5000, **options)
    pieces = dask.compute(*blocks, scheduler="threads")
    assert b"".join(pieces) == table.to_csv(index=False).encode()
    assert asked() == []


def test_wrong_options_are_told(floe: dict[str, Any]) -> None:
    filled("/a", 10)
    fsspec.url_to_fs("floe::counted://a", floe=floe)
    with pytest.raises(ValueError, match="is open with other sizes"):
        fsspec.url_to_fs("floe::counted://a", floe={**floe, "memory": "8MiB"})
    with pytest.raises(ValueError, match="floe:: needs a cache"):
        fsspec.url_to_fs("floe::counted://a")
    with pytest.raises(ValueError, match="floe:: wraps another filesystem"):
        fsspec.filesystem("floe", **floe)


def test_the_protocol_is_known_without_an_import(tmp_path: pathlib.Path) -> None:
    program = """
import sys, fsspec
with fsspec.open("memory://a", "wb") as file:
    file.write(b"some bytes")
floe = {"path": sys.argv[1] + "/cache", "memory": "4MiB", "flash": "16MiB"}
with fsspec.open("floe::memory://a", floe=floe) as file:
    print(file.read(4))
"""
    command = [sys.executable, "-c", program, str(tmp_path)]
    assert subprocess.run(command, check=True, capture_output=True).stdout == b"b'some'\n"
