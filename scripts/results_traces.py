"""Requests of traces, read from the compact form (docs/trace-format.md)."""

import pathlib
import struct
import subprocess
import tempfile


def column(data, at, count):
    """Numbers of a column of the compact form (docs/trace-format.md), and where the next begins."""
    width, scale, base = data[at], *struct.unpack_from("<IQ", data, at + 4)
    if width == 0:
        return [base] * count, at + 16
    steps = struct.unpack_from(f"<{count}{' BH I   Q'[width]}", data, at + 16)
    return [(base + scale * step) % 2**64 for step in steps], at + 16 + width * count


def disk_requests(floe, trace, most):
    """Volume, offset, size and operation of the first requests of a trace."""
    with tempfile.TemporaryDirectory() as scratch:
        compact = pathlib.Path(scratch) / "trace.floe"
        subprocess.run([floe, "trace", "convert", "--as-blocks", str(trace), str(compact)], check=True, capture_output=True)
        data = compact.read_bytes()
    at, requests = 64, []
    while len(requests) < most and data[at:at + 1] == b"R":
        length, count, new = struct.unpack_from("<III", data, at + 4)
        _, inside = column(data, at + 24, new)
        columns = []
        for _ in range(5):
            numbers, inside = column(data, inside, count)
            columns.append(numbers)
        offsets, sizes, _, volumes, operations = columns
        requests += zip(volumes, offsets, sizes, operations)
        at += 24 + length
    return requests[:most]
