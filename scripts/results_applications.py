"""Applications that run on a mounted volume: what they put there, and loads that are measured.

Each has its loads by name, `make` for its files, and `measure`, which returns a row: transactions a second (`tps`) with the
percentiles of their times, or how long a step took (`took_s`). `start` and `stop` stand around it where there is a server.
"""

import contextlib
import os
import pathlib
import random
import re
import shutil
import signal
import sqlite3
import statistics
import subprocess
import sys
import tempfile
import time

from results_volume import run, tried, until


class Application:
    """An application with its files below `root`; `folder` is on another disk."""

    kind = title = ""
    loads = {}

    def __init__(self, folder, root):
        self.folder, self.root = folder, root

    def make(self):
        """Puts files on a new volume."""

    def start(self):
        """Starts the application's server."""

    def stop(self):
        """Stops the application's server."""


def percentiles(times_us):
    times = sorted(times_us)
    at = lambda share: times[min(len(times) - 1, int(share * len(times)))] / 1e3
    return {"count": len(times), "p50_ms": at(0.5), "p99_ms": at(0.99), "p999_ms": at(0.999)}


def timed(work):
    """How long work takes, as a row."""
    begun = time.perf_counter()
    work()
    return {"took_s": time.perf_counter() - begun}


def as_user(user, *words, **options):
    return run("setpriv", f"--reuid={user}", f"--regid={user}", "--init-groups", *words, **options)


class Postgres(Application):
    """PostgreSQL with the tables of pgbench, and one table more to be vacuumed."""

    kind, title = "postgres", "PostgreSQL"
    # Arguments of pgbench; none for a step.
    loads = {
        "read-write, 1": ["-c1", "-j1"],
        "read-write, 4": ["-c4", "-j2"],
        "read-write, 16": ["-c16", "-j2"],
        "read-only, 8": ["-S", "-c8", "-j2"],
        "checkpoint": None,
        "vacuum": None,
    }
    bin = pathlib.Path("/usr/lib/postgresql/15/bin")
    user, scale, buffers, rows = "postgres", 20, "32MB", 300_000

    def __init__(self, folder, root):
        super().__init__(folder, root)
        self.data, self.sockets = root / "data", folder / "sockets"
        self.sockets.mkdir(exist_ok=True)
        shutil.chown(self.sockets, self.user)

    def make(self):
        self.data.mkdir()
        shutil.chown(self.data, self.user)
        self.data.chmod(0o700)
        as_user(self.user, self.bin / "initdb", "-D", self.data, "--auth=trust", "--data-checksums", cwd="/")
        with open(self.data / "postgresql.conf", "a") as file:
            file.write(f"shared_buffers = {self.buffers}\nlisten_addresses = ''\nunix_socket_directories = '{self.sockets}'\n"
                       "max_wal_size = 1GB\nautovacuum = on\n")
        self.start()
        run("pgbench", "-i", "-q", "-s", self.scale, *self.where())
        self.sql("create extension amcheck")
        self.sql("create table kept (id integer primary key, at integer, filler text) with (autovacuum_enabled = off)")
        self.sql(f"insert into kept select number, 0, repeat('x', 100) from generate_series(1, {self.rows}) number")
        self.sql("vacuum kept")
        self.stop()

    def where(self):
        return ["-h", self.sockets, "-U", self.user, "postgres"]

    def start(self):
        (self.sockets / ".s.PGSQL.5432").unlink(missing_ok=True)
        (self.sockets / ".s.PGSQL.5432.lock").unlink(missing_ok=True)
        as_user(self.user, self.bin / "pg_ctl", "start", "-w", "-t", "120", "-D", self.data, "-l", self.sockets / "log", "-o",
                f"-k {self.sockets}", cwd="/")

    def stop(self, how="fast"):
        return tried("setpriv", f"--reuid={self.user}", f"--regid={self.user}", "--init-groups", self.bin / "pg_ctl", "stop", "-w",
                     "-t", "60", "-m", how, "-D", self.data)

    def end(self, process):
        """Ends a postmaster whose disk is gone."""
        with contextlib.suppress(ProcessLookupError):
            os.kill(process, signal.SIGQUIT)
        if not until(lambda: not pathlib.Path(f"/proc/{process}").exists(), 10):
            with contextlib.suppress(ProcessLookupError):
                os.kill(process, signal.SIGKILL)
            until(lambda: not pathlib.Path(f"/proc/{process}").exists(), 10)

    def process(self):
        return int((self.data / "postmaster.pid").read_text().split()[0])

    def sql(self, text):
        return run("psql", "-q", "-A", "-t", "-v", "ON_ERROR_STOP=1", "-c", text, *self.where()).strip()

    def measure(self, load, seconds):
        if load == "checkpoint":
            # Each page of the table is dirty then.
            self.sql("update kept set at = at + 1 where id % 8 = 0")
            return timed(lambda: self.sql("checkpoint"))
        if load == "vacuum":
            return timed(lambda: self.sql("vacuum kept"))
        with tempfile.TemporaryDirectory(dir=self.folder) as logs:
            text = run("pgbench", "-n", "-l", "-r", f"-T{seconds}", *self.loads[load], *self.where(), cwd=logs)
            times = [int(line.split()[2]) for file in pathlib.Path(logs).iterdir() for line in file.read_text().splitlines()]
        tps = next(float(line.split("=")[1].split()[0]) for line in text.splitlines() if line.startswith("tps"))
        commits = [float(line.split()[0]) for line in text.splitlines() if line.strip().endswith("END;")]
        return {"tps": tps, "commit_ms": commits[0] if commits else None, **percentiles(times)}

    def check(self):
        """Returns complaints about the database, empty if it is whole."""
        done = subprocess.run([self.bin / "pg_amcheck", "--heapallindexed", "-h", self.sockets, "-U", self.user, "-d", "postgres"],
                              capture_output=True, text=True)
        found = [line for line in (done.stdout + done.stderr).splitlines() if line] if done.returncode else []
        sums = {self.sql(f"select coalesce(sum({column}), 0) from pgbench_{table}") for table, column in
                (("accounts", "abalance"), ("branches", "bbalance"), ("tellers", "tbalance"), ("history", "delta"))}
        return found + ([f"sums differ: {sorted(sums)}"] if len(sums) > 1 else [])


class Sqlite(Application):
    """SQLite; transactions of one update and one insert by one client."""

    kind, title = "sqlite", "SQLite"
    # Journal modes.
    loads = {"WAL": "wal", "rollback": "delete"}
    rows = 200_000

    def open(self, mode):
        base = sqlite3.connect(self.root / "base.sqlite", isolation_level=None)
        base.execute(f"pragma journal_mode={mode}")
        # With FULL, the removal of a rollback journal, which commits, need not survive a power cut.
        base.execute("pragma synchronous=extra")
        base.execute("pragma cache_size=-8000")
        return base

    def make(self):
        base = self.open("wal")
        base.execute("create table account (id integer primary key, balance integer, filler text)")
        base.execute("create table history (id integer primary key, account integer, at text)")
        base.execute("begin")
        base.executemany("insert into account values (?, 0, ?)", ((at, "x" * 200) for at in range(self.rows)))
        base.execute("commit")
        base.execute("pragma wal_checkpoint(truncate)")
        base.close()

    def write(self, load, seed, seconds, acknowledged=None):
        """Performs transactions for some seconds, and returns their times; notes each one in a file that is on another disk."""
        chance, times = random.Random(seed), []
        base = self.open(self.loads[load])
        begun = time.perf_counter()
        while (at := time.perf_counter()) - begun < seconds:
            account = chance.randrange(self.rows)
            base.execute("begin immediate")
            base.execute("update account set balance = balance + 1 where id = ?", (account,))
            row = base.execute("insert into history (account, at) values (?, 'now')", (account,)).lastrowid
            base.execute("commit")
            times.append((time.perf_counter() - at) * 1e6)
            if acknowledged:
                acknowledged.write(f"{row}\n")
                acknowledged.flush()
        base.close()
        return times

    def measure(self, load, seconds):
        begun = time.perf_counter()
        times = self.write(load, 1, seconds)
        return {"tps": len(times) / (time.perf_counter() - begun), "commit_ms": statistics.mean(times) / 1e3, **percentiles(times)}

    def check(self, load, rows):
        """Returns complaints about the database, empty if it is whole and has these rows."""
        base = self.open(self.loads[load])
        answers = [row[0] for row in base.execute("pragma integrity_check")]
        found = [] if answers == ["ok"] else answers
        there = {row[0] for row in base.execute("select id from history")}
        if missing := [row for row in rows if row not in there]:
            found.append(f"{len(missing)} acknowledged transactions are missing")
        counted = base.execute("select sum(balance), (select count(*) from history) from account").fetchone()
        if counted[0] != counted[1]:
            found.append(f"sums differ: {counted}")
        base.close()
        return found


class MariaDb(Application):
    """MariaDB with the tables of sysbench: four of 125,000 rows, InnoDB."""

    kind, title = "mysql", "MariaDB"
    # sysbench's load and its clients. A write-only transaction has four changes.
    loads = {"write-only, 1": ("oltp_write_only", 1), "read-write, 8": ("oltp_read_write", 8), "read-only, 8": ("oltp_read_only", 8)}
    user, buffers, tables, rows = "mysql", "32M", 4, 125_000

    def __init__(self, folder, root):
        super().__init__(folder, root)
        self.own = folder / "mysql"
        self.own.mkdir(exist_ok=True)
        shutil.chown(self.own, self.user)
        self.data, self.socket, self.server = root / "data", self.own / "socket", None

    def make(self):
        self.data.mkdir()
        shutil.chown(self.data, self.user)
        run("mariadb-install-db", "--no-defaults", f"--user={self.user}", f"--datadir={self.data}", "--skip-test-db",
            "--auth-root-authentication-method=normal")
        self.start()
        run("mariadb", "--no-defaults", f"--socket={self.socket}", "-uroot", "-e", "create database sbtest")
        run("sysbench", "oltp_write_only", *self.where(), f"--threads={self.tables}", "prepare")
        self.stop()

    def where(self):
        return ["--db-driver=mysql", f"--mysql-socket={self.socket}", "--mysql-user=root", f"--tables={self.tables}",
                f"--table-size={self.rows}"]

    def start(self):
        with open(self.own / "log", "a") as log:
            self.server = subprocess.Popen(
                ["mariadbd", "--no-defaults", f"--user={self.user}", f"--datadir={self.data}", f"--socket={self.socket}",
                 "--skip-networking", f"--innodb-buffer-pool-size={self.buffers}", "--innodb-flush-log-at-trx-commit=1",
                 f"--pid-file={self.data / 'mysql.pid'}", f"--tmpdir={self.own}"], stdin=subprocess.DEVNULL, stdout=log, stderr=log)
        if not until(lambda: tried("mariadb-admin", "--no-defaults", f"--socket={self.socket}", "-uroot", "ping")):
            sys.exit(f"MariaDB does not start: {(self.own / 'log').read_text()[-2000:]}")

    def stop(self):
        self.server.terminate()
        self.server.wait()

    def measure(self, load, seconds):
        script, clients = self.loads[load]
        text = run("sysbench", script, *self.where(), f"--threads={clients}", f"--time={seconds}", "--histogram", "run")
        tps = float(re.search(r"transactions: +\d+ +\(([\d.]+) per sec", text)[1])
        bins = [(float(ms), int(count)) for ms, count in re.findall(r"^ *([\d.]+) \|\**\s+(\d+)$", text, re.M)]
        return {"tps": tps, "commit_ms": None, **percentiles([ms * 1e3 for ms, count in bins for _ in range(count)])}


class RocksDb(Application):
    """RocksDB by its own db_bench: 500,000 entries of 416 bytes, not compressed."""

    kind, title = "rocksdb", "RocksDB"
    # db_bench's load and further arguments. A transaction is one put or get.
    loads = {
        "synced puts, 1": ("overwrite", "--sync=1", "--threads=1"),
        "synced puts, 8": ("overwrite", "--sync=1", "--threads=8"),
        "gets, 8": ("readrandom", "--threads=8"),
    }
    entries = 500_000

    def bench(self, load, *words):
        return run("db_bench", f"--benchmarks={load}", f"--db={self.root / 'base'}", f"--num={self.entries}", "--key_size=16",
                   "--value_size=400", "--compression_type=none", f"--cache_size={32 << 20}", "--bloom_bits=10", *words)

    def make(self):
        self.bench("fillrandom,compact")

    def measure(self, load, seconds):
        name, *words = self.loads[load]
        text = self.bench(name, "--use_existing_db=1", f"--duration={seconds}", "--ops_between_duration_checks=20", "--histogram=1", *words)
        found = re.search(rf"^{name} +: .*? (\d+) ops/sec [\d.]+ seconds (\d+) operations", text, re.M)
        at = {share: float(us) / 1e3 for share, us in re.findall(r" (P[\d.]+): ([\d.]+)", text)}
        return {"tps": float(found[1]), "count": int(found[2]), "commit_ms": None, "p50_ms": at["P50"], "p99_ms": at["P99"],
                "p999_ms": at["P99.9"]}


class Git(Application):
    """git: a clone of this repository, and a search of its files that are not in the page cache."""

    kind, title = "git", "git"
    loads = {"git clone": None, "git grep": None}

    def measure(self, load, _seconds):
        clone = self.root / "clone"
        if load == "git grep":
            return timed(lambda: run("git", "-C", clone, "grep", "-c", "cache"))
        source = self.folder / "source.git"
        if not source.exists():
            run("git", "clone", "--quiet", "--bare", "--no-local", pathlib.Path(__file__).resolve().parent.parent, source)
        shutil.rmtree(clone, ignore_errors=True)
        run("sync", "-f", self.root)
        return timed(lambda: (run("git", "clone", "--quiet", "--no-local", source, clone), run("sync", "-f", self.root)))


class Build(Application):
    """A package built from source: zlib, unpacked, configured, compiled, installed and packed as a Debian package."""

    kind, title = "build", "a package's build"
    loads = {"build": None}
    source = pathlib.Path(os.environ.get("CARGO_TARGET_DIR", pathlib.Path(__file__).resolve().parent.parent / "target"), "tools", "zlib")

    def make(self):
        notes = next(self.source.glob("*.dsc"), None)
        if notes is None:
            sys.exit(f"{self.source} has no source package: run scripts/require applications")
        shutil.copytree(self.source, self.root / "package")
        (self.root / "control").write_text("Package: trial\nVersion: 1\nArchitecture: all\nMaintainer: none <none@example.com>\n"
                                           "Description: files to be packed\n")
        (self.root / "build").write_text(
            "set -e\nrm -rf tree out\n"
            f"dpkg-source --no-check -x package/{notes.name} tree\n(cd tree && ./configure && make -j2 && make install DESTDIR=$PWD/../out)\n"
            "mkdir out/DEBIAN\ncp control out/DEBIAN\ndpkg-deb --build out out.deb\n")

    def measure(self, load, _seconds):
        shutil.rmtree(self.root / "tree", ignore_errors=True)
        run("sync", "-f", self.root)
        return timed(lambda: (run("sh", "build", cwd=self.root), run("sync", "-f", self.root)))


APPLICATIONS = {app.kind: app for app in (Postgres, Sqlite, MariaDb, RocksDb, Git, Build)}
