"""A volume of `floe serve` with a file system on it, mounted by way of FUSE and a loop device, and running other programs.

The way of a request: the file system, a loop device with direct I/O, nbdfuse, NBD on a Unix socket, `floe serve`.
"""

import contextlib
import dataclasses
import json
import os
import pathlib
import shutil
import signal
import socket
import subprocess
import sys
import time

COUNTERS = ("write_requests", "write_bytes", "flush_requests", "backing_read_bytes", "backing_write_bytes", "cache_read_bytes",
            "cache_write_bytes")
TICKS = os.sysconf("SC_CLK_TCK")
VOLUME_BYTES = 3 << 30
MEMORY = "256MiB"


@dataclasses.dataclass(frozen=True)
class Setup:
    """A volume's medium, the server's way of writing with further settings if there is a cache, and that cache."""
    medium: str
    write: tuple = ()
    cache_medium: str = "nvme"
    cache_bytes: int = 600 << 20


SETUPS = {
    "floor": Setup(""),
    "bare": Setup("cloud"),
    "through": Setup("cloud", ("through",)),
    "back": Setup("cloud", ("back",)),
    "memory": Setup("cloud", ("back", "--memory", MEMORY)),
    # These tell the parts of a commit's time from each other.
    "nvme": Setup("nvme"),
    "instant": Setup("cloud", ("back",), cache_medium=""),
    # It has room for all that is written.
    "unclean": Setup("cloud", ("back", "--flush-interval", "1h", "--dirty-max", "95%"), cache_bytes=1536 << 20),
}
MAIN_SETUPS = ("floor", "bare", "through", "back", "memory")
PART_SETUPS = ("nvme", "instant", "unclean")
NAMES = {
    "floor": "floor: a file without a medium",
    "bare": "bare volume",
    "through": "write-through, cold",
    "through, warm": "write-through, warm",
    "back": "write-back, cold",
    "back, warm": "write-back, warm",
    "memory": "write-back and memory, cold",
    "memory, warm": "write-back and memory, warm",
}
PART_NAMES = {
    "floor": NAMES["floor"],
    "nvme": "a volume like `nvme`, no cache",
    "instant, warm": "write-back, warm, cache without a medium",
    "unclean, warm": "write-back, warm, never cleaned",
    "back, warm": NAMES["back, warm"],
    "bare": NAMES["bare"],
}
MAKE = {
    "ext4": ("mke2fs", "-q", "-F", "-t", "ext4", "-E", "lazy_itable_init=0,lazy_journal_init=0"),
    "xfs": ("mkfs.xfs", "-q", "-f"),
}


def rounds(setup):
    """The rows of a setup: with a cache all loads run twice."""
    return [setup] + ([f"{setup}, warm"] if SETUPS[setup].write else [])


def say(text):
    print(f"{time.strftime('%H:%M:%S')} {text}", file=sys.stderr, flush=True)


def run(*words, **options):
    """Runs a program to its end; ends this one with its complaint if it fails."""
    done = subprocess.run([str(word) for word in words], capture_output=True, text=True, stdin=subprocess.DEVNULL, **options)
    if done.returncode:
        sys.exit(f"{' '.join(map(str, words))}: exit code {done.returncode}: {(done.stderr or done.stdout).strip()[-2000:]}")
    return done.stdout


def tried(*words):
    """Runs a program that may fail; returns whether it has not."""
    return subprocess.run([str(word) for word in words], capture_output=True, stdin=subprocess.DEVNULL).returncode == 0


def until(what, seconds=60.0):
    """Waits until a condition holds; returns whether it does."""
    end = time.monotonic() + seconds
    while not (holds := what()) and time.monotonic() < end:
        time.sleep(0.05)
    return holds


def seconds_of(process):
    """Seconds of a processor that a process has used."""
    words = pathlib.Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()
    return (int(words[11]) + int(words[12])) / TICKS


def make_image(folder, system, app):
    """Makes a volume's image with an application's files on it, at the speed of this machine."""
    image, root = folder / f"{system}-{app.kind}.img", app.root
    with open(image, "wb") as file:
        file.truncate(VOLUME_BYTES)
    run(*MAKE[system], image)
    root.mkdir(exist_ok=True)
    run("mount", "-o", "loop", image, root)
    try:
        app.make()
    finally:
        run("umount", root)
    return image


class Volume:
    """A volume with a file system, mounted at `root`."""

    def __init__(self, floe, folder, image, system, setup):
        self.floe, self.folder, self.system = floe, folder, system
        setup = SETUPS[setup]
        self.root, self.fuse = folder / "root", folder / "fuse"
        self.socket, self.admin = folder / "nbd.sock", folder / "admin.sock"
        self.volume, self.cache = folder / "volume.img", folder / "cache.img"
        for path in (self.root, self.fuse):
            path.mkdir(exist_ok=True)
        run("cp", "--sparse=always", image, self.volume)
        self.cache.unlink(missing_ok=True)
        shutil.rmtree(folder / "state", ignore_errors=True)  # notes of caches before
        like = lambda name: f",medium={name}" if name else ""
        cache = ["--cache", "memory:16MiB", "--write", "pass"]
        if setup.write:
            cache = ["--cache", f"file:{self.cache},size={setup.cache_bytes}{like(setup.cache_medium)}", "--write", *setup.write]
        self.command = [floe, "serve", "--backing", f"file:{self.volume}{like(setup.medium)}", *cache, "--state-dir", folder / "state",
                        "--listen", f"nbd+unix:///?socket={self.socket}", "--admin", f"unix:{self.admin}"]
        self.server = self.client = self.loop = None

    def __enter__(self):
        self.serve()
        self.attach()
        return self

    def __exit__(self, *_):
        self.detach()
        self.stop()

    def serve(self):
        self.socket.unlink(missing_ok=True)
        log = open(self.folder / "floe.log", "a")
        self.server = subprocess.Popen([str(word) for word in self.command], stdin=subprocess.DEVNULL, stdout=log, stderr=log)

        def answers():
            with contextlib.suppress(OSError), socket.socket(socket.AF_UNIX) as probe:
                probe.connect(str(self.socket))
                return True
            return self.server.poll() is not None

        if not until(answers) or self.server.poll() is not None:
            sys.exit(f"floe does not serve: {(self.folder / 'floe.log').read_text()[-2000:]}")

    def attach(self):
        file = self.fuse / "nbd"
        self.client = subprocess.Popen(["nbdfuse", str(self.fuse), f"nbd+unix:///?socket={self.socket}"],
                                       stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        if not until(lambda: file.exists() and file.stat().st_size > 0, 20):
            sys.exit("nbdfuse shows no file")
        self.loop = run("losetup", "--find", "--show", "--direct-io=on", file).strip()
        self.mount()

    def mount(self):
        # The file system of a killed server may still be there, detached, with the same identifier.
        run("mount", "-t", self.system, *(["-o", "nouuid"] if self.system == "xfs" else []), self.loop, self.root)

    def detach(self):
        """Takes the file system away, also one whose server is gone."""
        if self.loop:
            until(lambda: tried("umount", self.root), 30) or tried("umount", "-l", self.root)
            run("losetup", "-d", self.loop)
            until(lambda: self.loop not in run("losetup", "-l", "-n", "-O", "NAME").split(), 30)
            self.loop = None
        if self.client:
            if not until(lambda: tried("fusermount3", "-u", self.fuse), 20):
                tried("fusermount3", "-uz", self.fuse)
            with contextlib.suppress(subprocess.TimeoutExpired):
                self.client.wait(timeout=20)
            if self.client.poll() is None:
                self.client.kill()
                self.client.wait()
            self.client = None

    def stop(self):
        if self.server:
            self.server.terminate()
            self.server.wait()
            self.server = None

    def kill(self):
        self.server.send_signal(signal.SIGKILL)
        self.server.wait()
        self.server = None

    def remount(self):
        """Empties the page cache of the file system."""
        if not until(lambda: tried("umount", self.root)):
            run("umount", self.root)
        self.mount()

    def counters(self):
        """Requests, bytes of both devices, and seconds of a processor of server, FUSE client and all programs, so far."""
        status = json.loads(run(self.floe, "status", "--json", "--admin", f"unix:{self.admin}"))
        with open("/proc/stat") as file:
            ticks = [int(word) for word in file.readline().split()[1:9]]
        busy = (sum(ticks) - ticks[3] - ticks[4]) / TICKS
        return {name: status[name] for name in COUNTERS} | {"server_s": seconds_of(self.server.pid), "fuse_s": seconds_of(self.client.pid),
                                                          "busy_s": busy}
