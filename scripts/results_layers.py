"""A write with a flush, timed at each layer between a file system and `floe serve`."""

import mmap
import os
import socket
import struct
import sys
import time

from results_applications import Application, percentiles
from results_volume import Volume, make_image, rounds, run, say

SIZE, PLACES = 8192, 512
# Beyond the file system's own file.
BASE = 1 << 30
LAYER_SETUPS = ("floor", "nvme", "back", "bare")


class Nbd:
    """A client that sends a request and waits for its reply."""

    WRITE, FLUSH = 1, 3

    def __init__(self, path):
        self.socket = socket.socket(socket.AF_UNIX)
        self.socket.connect(str(path))
        self.receive(18)  # the server's greeting
        # Flags (fixed newstyle, no zeroes), then the default export by NBD_OPT_EXPORT_NAME.
        self.socket.sendall(struct.pack(">I", 3) + b"IHAVEOPT" + struct.pack(">II", 1, 0))
        self.receive(10)  # its size and flags

    def receive(self, length):
        data = b""
        while len(data) < length:
            if not (more := self.socket.recv(length - len(data))):
                sys.exit("the server has closed the connection")
            data += more
        return data

    def ask(self, command, at=0, data=b""):
        self.socket.sendall(struct.pack(">IHHQQI", 0x25609513, 0, command, 0, at, len(data)) + data)
        if error := struct.unpack(">I", self.receive(16)[4:8])[0]:
            sys.exit(f"the server answered error {error}")


class Layer:
    """Passes over the same places by way of one layer: a write and a flush at each."""

    def __init__(self, volume, write):
        self.row = {}
        for name in ("first", "again"):
            before, times = volume.counters(), []
            for number in range(PLACES):
                begun = time.perf_counter()
                write(number * SIZE)
                times.append((time.perf_counter() - begun) * 1e6)
            after = volume.counters()
            found = percentiles(times) | {"cache_kib": (after["cache_write_bytes"] - before["cache_write_bytes"]) / PLACES / 1024}
            self.row |= {f"{name}_{field}": value for field, value in found.items()}


def of_file(volume, path, flags, base, data):
    file = os.open(path, os.O_RDWR | flags)
    try:
        return Layer(volume, lambda at: (os.pwrite(file, data, base + at), os.fdatasync(file)))
    finally:
        os.close(file)


def measure_layers(floe, folder, system):
    """Yields a row for each setup and layer, from the server up."""
    app = Application(folder, folder / "root")
    app.kind = "layers"
    image = make_image(folder, system, app)
    data = mmap.mmap(-1, SIZE)  # aligned, as direct I/O wants it
    data.write(os.urandom(SIZE))
    for setup in LAYER_SETUPS:
        with Volume(floe, folder, image, system, setup) as volume:
            path = volume.root / "file"
            path.write_bytes(bytes(PLACES * SIZE))
            run("sync", "-f", volume.root)
            found = {system: of_file(volume, path, 0, 0, data)}
            # Layers below the file system would overwrite parts of it.
            run("umount", volume.root)
            found["loop device"] = of_file(volume, volume.loop, os.O_DIRECT, BASE, data)
            found["FUSE"] = of_file(volume, volume.fuse / "nbd", 0, BASE + PLACES * SIZE, data)
            client = Nbd(volume.socket)
            base = BASE + 2 * PLACES * SIZE
            found["NBD"] = Layer(volume, lambda at: (client.ask(Nbd.WRITE, base + at, data[:]), client.ask(Nbd.FLUSH)))
            client.socket.close()
            volume.mount()
        for layer in reversed(found):
            row = found[layer].row
            say(f"{setup}, {layer}: p50 {row['first_p50_ms']:.3f}, again {row['again_p50_ms']:.3f} ms")
            yield {"fs": system, "kind": "layers", "setup": rounds(setup)[-1], "load": layer, **row}
    image.unlink()
