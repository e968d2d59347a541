"""`floe::` in URLs of fsspec: parts of files in memory and on flash.

>>> import fsspec
>>> with fsspec.open("memory://data", "wb") as file:
...     _ = file.write(b"some bytes")
>>> import tempfile
>>> path = tempfile.mkdtemp() + "/cache"
>>> floe = {"path": path, "memory": "8MiB", "flash": "64MiB"}
>>> with fsspec.open("floe::memory://data", floe=floe) as file:
...     file.read(4)
b'some'
"""

from __future__ import annotations

import asyncio
import contextlib
import inspect
import os
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from hashlib import sha256
from typing import Any

import fsspec
from fsspec.asyn import sync
from fsspec.implementations.chained import ChainedFileSystem
from fsspec.spec import AbstractBufferedFile, AbstractFileSystem

from floe_cache._hybrid import HybridCache

__all__ = ["FloeFile", "FloeFileSystem"]

PART_BYTES = 64 << 10
"""Bytes of a part, which is what the cache has under one key."""
AHEAD_BYTES = 8 << 20
"""Most bytes that a sequential reader fetches at a time, and most bytes of a request."""
REGION_BYTES = 4 << 20
"""Bytes that are fetched together where scattered reads have paid for them."""
STREAMS = 1000
"""Number of paths of which the last read is known, for readers without an open file."""

# Options that say who reads, not what is read. They may change while the content stays.
_CREDENTIALS = {"key", "secret", "token", "username", "user", "password", "profile", "account_key"}
_CREDENTIALS |= {"sas_token", "credential", "session", "requester_pays", "anon", "access_token"}

_caches: dict[str, tuple[tuple[Any, Any], HybridCache]] = {}
_caches_lock = threading.Lock()


def _cache_at(path: str, memory: int | str, flash: int | str) -> HybridCache:
    """Returns the cache of a file. Filesystems with one path share it."""
    path = os.path.realpath(os.path.expanduser(path))
    sizes = (memory, flash)
    with _caches_lock:
        known, cache = _caches.get(path, (None, None))
        if cache is None or cache.closed:
            cache = HybridCache(path, memory=memory, flash=flash)
            _caches[path] = sizes, cache
        elif known != sizes:
            raise ValueError(f"the cache {path} is open with other sizes: {known}, not {sizes}")
        return cache


@dataclass(frozen=True)
class Version:
    """What a file was when it was last looked at."""

    name: str
    size: int


@dataclass
class Prices:
    """Seconds of a request and of a byte, from the times of requests.

    Both begin as is usual for S3: 30 ms and 75 MB/s.
    """

    request: float = 0.030
    byte: float = 1 / 75e6

    def add(self, count: int, seconds: float) -> None:
        """Notes a request of `count` bytes. An eighth of what is known is replaced.

        A stall counts as twice the time that was expected.
        """
        seconds = min(seconds, 2 * self.of(count))
        if count <= 4 * PART_BYTES:
            self.request += (seconds - self.request) / 8
        elif count >= REGION_BYTES // 4:
            self.byte += (max(seconds - self.request, 0) / count - self.byte) / 8

    def of(self, count: int) -> float:
        """Returns the seconds that a request of `count` bytes is expected to take."""
        return self.request + count * self.byte


@dataclass
class Stream:
    """One reader of a file, who reads in sequence or does not."""

    next: int = 0
    window: int = PART_BYTES
    in_sequence: bool = False
    spent: dict[int, float] = field(default_factory=dict)
    """For each region the seconds that requests for single parts of it have taken."""

    def note(self, start: int, end: int) -> None:
        """Notes a read."""
        self.in_sequence = start == self.next and start > 0
        if start != self.next:
            self.window = PART_BYTES
        self.next = end

    def ahead(self, needed: int) -> int:
        """Returns the bytes to fetch for a read that misses. In sequence they double."""
        if self.in_sequence:
            self.window = min(2 * max(self.window, needed), AHEAD_BYTES)
        return max(self.window, needed)

    def spend(self, start: int, seconds: float) -> None:
        """Notes the time of a request for parts from `start` on."""
        if len(self.spent) >= STREAMS:
            self.spent.clear()
        region = start // REGION_BYTES
        self.spent[region] = self.spent.get(region, 0) + seconds

    def region(self, start: int, end: int, prices: Prices) -> tuple[int, int]:
        """Returns the bytes to fetch for a scattered read that misses.

        That is the whole region once single requests have taken as long as it would: so reads that
        come densely take at most twice the time of fetching regions from the start, and reads that
        do not are fetched exactly.
        """
        region = start // REGION_BYTES
        begins, ends = region * REGION_BYTES, (region + 1) * REGION_BYTES
        if end > ends or self.spent.get(region, 0) < prices.of(REGION_BYTES):
            return start, end
        del self.spent[region]
        return begins, ends


@dataclass
class _Read:
    """A read of a range."""

    path: str
    version: Version
    start: int
    end: int

    def numbers(self) -> range:
        """Returns the numbers of the parts that it needs."""
        if self.start == self.end:
            return range(0)
        return range(self.start // PART_BYTES, -(-self.end // PART_BYTES))

    def assemble(self, parts: dict[int, bytes]) -> bytes:
        numbers = self.numbers()
        if not numbers:
            return b""
        skipped = self.start - numbers[0] * PART_BYTES
        if len(numbers) == 1:
            return parts[numbers[0]][skipped : skipped + self.end - self.start]
        pieces = [memoryview(parts[number]) for number in numbers]
        pieces[-1] = pieces[-1][: self.end - numbers[-1] * PART_BYTES]
        pieces[0] = pieces[0][skipped:]
        return b"".join(pieces)


class Replaced(OSError):
    """The file was replaced by another version while it was read."""


def _runs(numbers: Iterable[int]) -> Iterator[range]:
    """Groups numbers that follow each other."""
    run = range(0)
    for number in numbers:
        if run and number == run.stop:
            run = range(run.start, number + 1)
        else:
            if run:
                yield run
            run = range(number, number + 1)
    if run:
        yield run


def _passed(name: str) -> Callable[..., Any]:
    """Makes a method that the wrapped filesystem answers."""

    def method(self: FloeFileSystem, *args: Any, **kwargs: Any) -> Any:
        return getattr(self.fs, name)(*args, **kwargs)

    method.__name__ = name
    return method


def _changing(name: str) -> Callable[..., Any]:
    """Makes a method that changes files. It passes through and forgets their old versions."""

    def method(self: FloeFileSystem, *args: Any, **kwargs: Any) -> Any:
        try:
            return getattr(self.fs, name)(*args, **kwargs)
        finally:
            for given in (*args, *kwargs.values()):
                paths = given if isinstance(given, (list, tuple, dict)) else [given]
                for path in paths:
                    if isinstance(path, (str, os.PathLike)):
                        self._forget(os.fspath(path))

    method.__name__ = name
    return method


class FloeFileSystem(ChainedFileSystem):  # type: ignore[misc]
    """Wraps another filesystem and keeps parts of its files in a `HybridCache`.

    `path`, `memory` and `flash` are those of the `HybridCache`; `cache` may give an open one.
    `check` is the time in seconds for which the version of a file is taken as known: its size and
    ETag, or its `ukey` where the filesystem has no ETags. With 0, each read looks at the file
    first, and again after it has fetched.
    """

    protocol = "floe"
    _strip_tokenize_options = ("fo",)

    def __init__(
        self,
        path: str | os.PathLike[str] | None = None,
        memory: int | str | None = None,
        flash: int | str | None = None,
        *,
        cache: HybridCache | None = None,
        check: float = 10,
        target_protocol: str | None = None,
        target_options: dict[str, Any] | None = None,
        fs: AbstractFileSystem | None = None,
        fo: str | None = None,
        **kwargs: Any,
    ) -> None:
        super().__init__(**kwargs)
        if (fs is None) == (target_protocol is None):
            raise ValueError(
                "floe:: wraps another filesystem, as in floe::s3://bucket/key: give either fs or "
                "target_protocol"
            )
        if cache is None:
            if path is None or memory is None or flash is None:
                raise ValueError(
                    'floe:: needs a cache: floe={"path": …, "memory": …, "flash": …}'
                )
            cache = _cache_at(os.fspath(path), memory, flash)
        if fs is None:
            fs = fsspec.filesystem(target_protocol, **(target_options or {}))
        self.fs: Any = fs
        self.cache = cache
        self.check = check
        self.sep, self.root_marker = fs.sep, fs.root_marker
        options = {
            name: value
            for name, value in fs.storage_options.items()
            if name not in _CREDENTIALS and isinstance(value, (str, int, dict, list, tuple))
        }
        identity = repr((fs.protocol, sorted(options.items(), key=str)))
        self._source = sha256(identity.encode()).digest()[:16]
        # In the class it is called without a wrapped filesystem, for URLs.
        self._strip_protocol = self._strip
        # A description in a cached listing may be old.
        info_arguments = inspect.signature(getattr(fs, "_info", fs.info)).parameters
        self._look_options = {"refresh": True} if "refresh" in info_arguments else {}
        self._known: dict[str, tuple[Version, float]] = {}
        self._streams: dict[str, Stream] = {}
        self._prices = Prices()

    def _strip(self, path: Any) -> Any:
        if isinstance(path, list):
            return [self._strip(one) for one in path]
        path = os.fspath(path)
        return self.fs._strip_protocol(path.removeprefix("floe::").removeprefix("floe://"))

    def unstrip_protocol(self, name: str) -> str:
        """Returns the URL of a path in the wrapped filesystem."""
        return f"floe::{self.fs.unstrip_protocol(name)}"

    # Lookups, which the wrapped filesystem answers.
    ls, find, walk, glob, du = map(_passed, ("ls", "find", "walk", "glob", "du"))
    exists, isfile, isdir, info = map(_passed, ("exists", "isfile", "isdir", "info"))
    created, modified, sign = map(_passed, ("created", "modified", "sign"))
    checksum, ukey, sizes, size = map(_passed, ("checksum", "ukey", "sizes", "size"))

    # Changes.
    pipe, pipe_file, put, put_file = map(_changing, ("pipe", "pipe_file", "put", "put_file"))
    rm, rm_file, _rm, rmdir = map(_changing, ("rm", "rm_file", "_rm", "rmdir"))
    cp_file, copy, mv = map(_changing, ("cp_file", "copy", "mv"))
    mkdir, makedirs, touch = map(_changing, ("mkdir", "makedirs", "touch"))

    def invalidate_cache(self, path: str | None = None) -> None:
        """Has the versions of files looked up anew."""
        self.fs.invalidate_cache(path)
        if path is None:
            self._known.clear()
        else:
            self._forget(path)

    def _forget(self, path: str) -> None:
        """Forgets the metadata and the cached parts of a path and of all paths below it."""
        path = self._strip_protocol(path).rstrip("/")
        below = [name for name in list(self._known) if name == path or name.startswith(path + "/")]
        for name in below:
            version, _ = self._known.pop(name, (None, 0))
            if version is not None:
                for number in range(-(-version.size // PART_BYTES)):
                    self.cache._forget(self._key(name, version, number))

    def _key(self, path: str, version: Version, number: int) -> tuple[Any, ...]:
        return self._source, path, version.name, number

    def _version(self, path: str, info: dict[str, Any]) -> Version | None:
        """Returns the version that a description tells; `None` if the file has no size."""
        size = info.get("size")
        if size is None or info.get("type") == "directory":
            return None
        etag = info.get("ETag") or info.get("etag") or info.get("generation")
        if etag is None:
            own = type(self.fs).ukey is not AbstractFileSystem.ukey
            etag = self.fs.ukey(path) if own else sha256(str(info).encode()).hexdigest()
        return Version(f"{size} {etag}", int(size))

    def _look(self, paths: Sequence[str], age: float) -> dict[str, Version | Exception | None]:
        """Returns the versions of files, which are known for `age` seconds at most."""
        now = time.monotonic()
        found: dict[str, Version | Exception | None] = {}
        asked = []
        for path in dict.fromkeys(paths):
            version, at = self._known.get(path, (None, 0.0))
            if version is not None and now - at < age:
                found[path] = version
            else:
                asked.append(path)
        if len(asked) > 1 and self.fs.async_impl and not self.fs.asynchronous:

            async def infos() -> list[Any]:
                calls = (self.fs._info(path, **self._look_options) for path in asked)
                return await asyncio.gather(*calls, return_exceptions=True)

            answers = sync(self.fs.loop, infos)
        else:
            answers = []
            for path in asked:
                try:
                    answers.append(self.fs.info(path, **self._look_options))
                except Exception as error:
                    answers.append(error)
        for path, answer in zip(asked, answers):
            if isinstance(answer, Exception):
                self._known.pop(path, None)
                found[path] = answer
                continue
            version = found[path] = self._version(path, answer)
            if version is not None:
                self._known[path] = version, now
        return found

    def _read(self, reads: Sequence[_Read], stream: Stream | None = None) -> list[bytes]:
        """Returns the bytes of ranges. Parts come from the cache, missing ones in few requests.

        `stream` is that of a single read, which may fetch ahead. Raises `Replaced` if a file is not
        what it was.
        """
        files: dict[tuple[str, Version], dict[int, bytes]] = {}
        keys: dict[Any, tuple[dict[int, bytes], int]] = {}
        for read in reads:
            parts = files.setdefault((read.path, read.version), {})
            for number in read.numbers():
                keys[self._key(read.path, read.version, number)] = parts, number
        for key, part in self.cache.get_many(keys).items():
            parts, number = keys.pop(key)
            parts[number] = part
        if keys:
            missing: dict[tuple[str, Version], set[int]] = {}
            for read in reads:
                file = (read.path, read.version)
                absent = (number for number in read.numbers() if number not in files[file])
                missing.setdefault(file, set()).update(absent)
            requests: list[tuple[str, Version, int, int]] = []
            for (path, version), numbers in missing.items():
                for run in _runs(sorted(numbers)):
                    start, end = run.start * PART_BYTES, min(run.stop * PART_BYTES, version.size)
                    if stream is not None and run.stop == reads[0].numbers().stop:
                        if stream.in_sequence:
                            end = self._ahead(path, version, end, start + stream.ahead(end - start))
                        else:
                            start, end = stream.region(start, end, self._prices)
                            end = min(end, version.size)
                    requests += [
                        (path, version, at, min(at + AHEAD_BYTES, end))
                        for at in range(start, end, AHEAD_BYTES)
                    ]
            begun = time.perf_counter()
            contents = self._fetch(requests)
            if stream is not None and len(requests) == 1:
                [(_, _, start, end)] = requests
                seconds = time.perf_counter() - begun
                self._prices.add(end - start, seconds)
                if not stream.in_sequence and end - start < REGION_BYTES:
                    stream.spend(start, min(seconds, 2 * self._prices.of(end - start)))
            for (path, version, start, _), content in zip(requests, contents):
                parts = files[path, version]
                for at in range(0, len(content), PART_BYTES):
                    number, part = (start + at) // PART_BYTES, content[at : at + PART_BYTES]
                    parts[number] = part
                    self.cache.set(self._key(path, version, number), part)
        return [read.assemble(files[read.path, read.version]) for read in reads]

    def _fetch(self, requests: Sequence[tuple[str, Version, int, int]]) -> list[bytes]:
        """Reads ranges of the wrapped filesystem, all of their versions."""
        if len(requests) == 1:
            [(path, _, start, end)] = requests
            contents = [self.fs.cat_file(path, start=start, end=end)]
        else:
            paths, versions, starts, ends = (list(column) for column in zip(*requests))
            contents = self.fs.cat_ranges(paths, starts, ends, on_error="raise")
        for (path, _, start, end), content in zip(requests, contents):
            if len(content) != end - start:
                self._known.pop(path, None)
                raise Replaced(
                    f"{path}: {len(content)} bytes at {start}, not the {end - start} asked for: it "
                    "was replaced while it was read"
                )
        # The bytes of another version must not get the name of this one.
        looked = self._look([path for path, *_ in requests], self.check)
        for path, version, *_ in requests:
            if looked[path] != version:
                raise Replaced(f"{path} was replaced while it was read")
        return [bytes(content) for content in contents]

    def _ahead(self, path: str, version: Version, end: int, most: int) -> int:
        """Returns the end of a fetch: `most`, or where the cache has the next part."""
        most = min(most, version.size)
        while end < most and not self.cache._may_have(
            self._key(path, version, end // PART_BYTES)
        ):
            end = min(end + PART_BYTES, version.size)
        return end

    def _stream(self, path: str) -> Stream:
        """Returns the reader of a path who has no open file."""
        stream = self._streams.pop(path, None) or Stream()
        self._streams[path] = stream  # the last one of the dict
        while len(self._streams) > STREAMS:
            with contextlib.suppress(KeyError, RuntimeError, StopIteration):
                del self._streams[next(iter(self._streams))]
        return stream

    def cat_file(
        self, path: str, start: int | None = None, end: int | None = None, **kwargs: Any
    ) -> bytes:
        """Returns the bytes of a range of a file. Negative numbers count from the end."""
        [content] = self.cat_ranges([path], [start], [end], on_error="raise", **kwargs)
        return bytes(content)

    def cat_ranges(
        self,
        paths: list[str],
        starts: Any,
        ends: Any,
        max_gap: int | None = None,
        on_error: str = "return",
        **kwargs: Any,
    ) -> list[Any]:
        """Returns the bytes of ranges of files. Missing parts are fetched together."""
        count = len(paths)
        starts = starts if isinstance(starts, (list, tuple)) else [starts] * count
        ends = ends if isinstance(ends, (list, tuple)) else [ends] * count
        if len(starts) != count or len(ends) != count:
            raise ValueError(f"{count} paths, {len(starts)} starts and {len(ends)} ends")
        paths = [self._strip_protocol(path) for path in paths]
        try:
            return self._cat_ranges(paths, starts, ends, on_error, self.check, kwargs)
        except Replaced:
            # Of the new version all bytes are fetched anew.
            return self._cat_ranges(paths, starts, ends, on_error, 0, kwargs)

    def _cat_ranges(
        self,
        paths: list[str],
        starts: Sequence[int | None],
        ends: Sequence[int | None],
        on_error: str,
        age: float,
        kwargs: dict[str, Any],
    ) -> list[Any]:
        versions = self._look(paths, age)
        results: list[Any] = [None] * len(paths)
        reads: list[tuple[int, _Read]] = []
        for at, (path, start, end) in enumerate(zip(paths, starts, ends)):
            version = versions[path]
            if isinstance(version, Exception):
                if on_error == "raise":
                    raise version
                results[at] = version
            elif version is None:
                results[at] = self.fs.cat_file(path, start=start, end=end, **kwargs)
            else:
                first, last, _ = slice(start, end).indices(version.size)
                reads.append((at, _Read(path, version, first, max(first, last))))
        stream = None
        if len(paths) == 1 and reads:
            [(_, read)] = reads
            stream = self._stream(read.path)
            stream.note(read.start, read.end)
        contents = self._read([read for _, read in reads], stream)
        for (at, _), content in zip(reads, contents):
            results[at] = content
        return results

    def cat(
        self, path: Any, recursive: bool = False, on_error: str = "raise", **kwargs: Any
    ) -> Any:
        """Returns the content of a file, or of several by their paths."""
        paths = self.expand_path(path, recursive=recursive)
        if len(paths) == 1 and isinstance(path, str) and paths[0] == self._strip_protocol(path):
            return self.cat_file(paths[0], **kwargs)
        how = "raise" if on_error == "raise" else "return"
        contents = self.cat_ranges(paths, None, None, on_error=how, **kwargs)
        found = dict(zip(paths, contents))
        if on_error == "omit":
            return {at: it for at, it in found.items() if not isinstance(it, Exception)}
        return found

    def _open(self, path: str, mode: str = "rb", **kwargs: Any) -> Any:
        if mode != "rb":
            return _Written(self.fs._open(path, mode, **kwargs), self, path)
        version = self._look([path], self.check)[path]
        if isinstance(version, Exception):
            raise version
        if version is None:
            return self.fs._open(path, mode, **kwargs)
        return FloeFile(self, path, version)


class FloeFile(AbstractBufferedFile):  # type: ignore[misc]
    """A file that is read through the cache."""

    def __init__(self, fs: FloeFileSystem, path: str, version: Version) -> None:
        super().__init__(fs, path, "rb", PART_BYTES, cache_type="none", size=version.size)
        self.version = version
        self._reader = Stream()
        # The parts of the last small read, in which the next one may be.
        self._near: bytes = b""
        self._near_start = 0

    def _fetch_range(self, start: int, end: int) -> bytes:
        end = min(end, self.version.size)
        at = start - self._near_start
        if 0 <= at and end - self._near_start <= len(self._near):
            return self._near[at : at + end - start]
        is_small = end - start < PART_BYTES
        first, last = start, end
        if is_small:
            first = start // PART_BYTES * PART_BYTES
            last = min(-(-end // PART_BYTES) * PART_BYTES, self.version.size)
        stream = self._reader
        # A small read may begin in the last part of the one before.
        follows = is_small and first <= stream.next <= last
        stream.note(stream.next if follows else first, last)
        content: bytes
        [content] = self.fs._read([_Read(self.path, self.version, first, last)], stream)
        if not is_small:
            return content
        self._near, self._near_start = content, first
        return content[start - first : end - first]


class _Written:
    """A file that is written. At its end the old version is forgotten."""

    def __init__(self, file: Any, fs: FloeFileSystem, path: str) -> None:
        self._file, self._fs, self._path = file, fs, path

    def __getattr__(self, name: str) -> Any:
        return getattr(self._file, name)

    def __enter__(self) -> _Written:
        self._file.__enter__()
        return self

    def __exit__(self, *exception: Any) -> Any:
        try:
            return self._file.__exit__(*exception)
        finally:
            self._fs._forget(self._path)

    def __iter__(self) -> Iterator[Any]:
        return iter(self._file)

    def close(self) -> None:
        try:
            self._file.close()
        finally:
            self._fs._forget(self._path)

    def commit(self) -> None:
        try:
            self._file.commit()
        finally:
            self._fs._forget(self._path)


fsspec.register_implementation("floe", FloeFileSystem, clobber=True)
