"""The lab from Python."""

import pickle
import subprocess
import sys
import threading
import time
from collections import OrderedDict
from pathlib import Path
from typing import Any

import floe_cache
import pytest
from floe_cache import lab

ZIPF = "zipf:keys=1000,requests=20000,seed=7"


class OwnLru:
    """LRU, in Python."""

    def __init__(self, capacity: int) -> None:
        self.order: OrderedDict[int, None] = OrderedDict()

    def hit(self, key: int) -> None:
        self.order.move_to_end(key)

    def insert(self, key: int) -> None:
        self.order[key] = None

    def evict(self) -> int:
        return self.order.popitem(last=False)[0]


def test_simulations_by_policy_and_size() -> None:
    table = lab.simulate(ZIPF, ["lru", "belady"], [10, 0.1, "20%..=40%:10%"])
    assert table["policy"] == ["lru", "belady"] * 5 and table["trace"] == [ZIPF] * 10
    for row in table.rows():
        assert row["hits"] + row["misses"] == row["requests"] == 20000
        assert row["miss_ratio"] == row["misses"] / 20000
    misses = dict(zip(zip(table["size"], table["policy"]), table["misses"]))
    for size in table["size"]:
        assert misses[size, "belady"] <= misses[size, "lru"]


def test_a_cache_has_the_hits_that_are_simulated() -> None:
    keys = lab.columns(ZIPF)["key"]
    cache: floe_cache.Cache[int, int] = floe_cache.Cache(50, policy="lru")
    for key in keys:
        if cache.get(key) is None:
            cache[key] = 1
    assert [cache.stats().misses] == lab.simulate(ZIPF, "lru", 50)["misses"]


def test_a_policy_of_ones_own() -> None:
    table = lab.simulate(ZIPF, ["lru", OwnLru], [10, 100, 900])
    of_library, own = table["misses"][:3], table["misses"][3:]
    assert of_library == own and table["policy"][3:] == ["OwnLru"] * 3

    class Wrong(OwnLru):
        def evict(self) -> int:
            return 0

    with pytest.raises(ValueError, match="not in the cache"):
        lab.simulate(ZIPF, Wrong, 10)
    with pytest.raises(ValueError, match="without options"):
        lab.simulate(ZIPF, OwnLru, 10, sample=0.5)

    def fails(capacity: int) -> OwnLru:
        raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        lab.simulate(ZIPF, fails, 10)


def test_several_traces() -> None:
    traces = [f"zipf:keys=100,requests=2000,seed={seed}" for seed in range(7)]
    together = lab.simulate(traces, ["lru", "fifo"], [5, 10])
    apart = [lab.simulate(lab.open_trace(trace), ["lru", "fifo"], [5, 10]) for trace in traces]
    assert together["misses"] == [count for table in apart for count in table["misses"]]
    assert together["trace"] == [trace for trace in traces for _ in range(4)]


def test_admissions_sizes_in_bytes_and_samples(tmp_path: Path) -> None:
    file = tmp_path / "objects.csv"
    rows = [f"{n},{n * n % 50},{100 * (n * n % 50 + 1)}" for n in range(2000)]
    file.write_text("time,key,size\n" + "\n".join(rows) + "\n")
    trace = lab.open_trace(file)
    assert trace.kind == "object" and trace.format == "csv"
    table = lab.simulate(trace, "lru", "10KiB", miss_us=100)
    assert table["size"] == [10240] and table["byte_miss_ratio"] != table["miss_ratio"]
    assert table["mean_latency_us"] == [1 + table["miss_ratio"][0] * 99]
    admitted = lab.simulate(trace, "lru", 5, admit=["always", "second-access"])
    assert admitted["inserted"][1] < admitted["inserted"][0]
    sampled = lab.simulate("zipf:keys=50000,requests=200000", "lru", 0.1, sample=0.2)
    exact = lab.simulate("zipf:keys=50000,requests=200000", "lru", 0.1)
    error = abs(sampled["miss_ratio"][0] - exact["miss_ratio"][0])
    assert error < 3 * sampled["miss_ratio_ci95"][0] + 0.02
    with pytest.raises(ValueError, match="no sizes"):
        lab.simulate(ZIPF, "lru", "1MiB")


def test_a_filter_keeps_some_requests(tmp_path: Path) -> None:
    file = tmp_path / "trace.csv"
    file.write_text("time,key,op\n" + "".join(f"{at},{at % 7},{'set' if at % 2 else 'get'}\n" for at in range(100)))
    reads = lab.open_trace(file, filter="op=read")
    assert len(lab.columns(reads)["key"]) == 50 and set(lab.columns(reads)["op"]) == {0}
    assert len(lab.columns(pickle.loads(pickle.dumps(reads)))["key"]) == 50
    table = lab.simulate(file, "lru", 3, filter="op=read")
    assert table["requests"] == lab.simulate(reads, "lru", 3)["requests"] == [50]
    with pytest.raises(ValueError, match="when it is opened"):
        lab.simulate(reads, "lru", 3, filter="op=write")
    with pytest.raises(ValueError, match="colour"):
        lab.open_trace(file, filter="colour=red")


def test_columns_of_a_trace() -> None:
    columns = lab.columns(ZIPF, limit=100)
    assert [len(column) for column in columns.values()] == [100] * 5
    assert max(columns["key"]) < 1000 and set(columns["op"]) == {0}
    assert len(lab.columns(ZIPF)["key"]) == 20000


def test_what_is_refused() -> None:
    with pytest.raises(ValueError, match="no such file"):
        lab.open_trace("no such file")
    with pytest.raises(ValueError, match="csv"):
        lab.open_trace(ZIPF, format="x")
    with pytest.raises(ValueError, match="no policy is called `best`"):
        lab.simulate(ZIPF, "best", 10)
    for size in ("lots", 2.0, -1, "0%"):
        with pytest.raises(ValueError):
            lab.simulate(ZIPF, "lru", size)


def test_traces_travel_to_other_processes() -> None:
    trace = lab.open_trace(ZIPF)
    copy = pickle.loads(pickle.dumps(trace))
    assert (copy.name, copy.format, copy.kind) == (trace.name, trace.format, trace.kind)
    table = pickle.loads(pickle.dumps(lab.simulate(copy, "lru", 10)))
    assert table.axes is not None and table["misses"] == lab.simulate(ZIPF, "lru", 10)["misses"]


def test_other_threads_go_on_during_a_simulation() -> None:
    trace = lab.open_trace("zipf:keys=100000,requests=1000000")
    counted = [0]
    ended = threading.Event()

    def count() -> None:
        while not ended.is_set():
            counted[0] += 1
            time.sleep(0)

    # With the interpreter's lock held nothing would be counted in any round.
    thread = threading.Thread(target=count)
    thread.start()
    try:
        for _ in range(20):
            before = counted[0]
            lab.simulate(trace, ["lru", "arc"], [0.1, 0.2])
            if counted[0] > before + 10:
                break
        else:
            pytest.fail("no other thread went on")
    finally:
        ended.set()
        thread.join()


def test_curves() -> None:
    table = lab.mrc(ZIPF, ["lru", "s3-fifo"])
    of_lru = [row["miss_ratio"] for row in table.rows() if row["policy"] == "lru"]
    assert 15 < len(of_lru) < 19 and of_lru == sorted(of_lru, reverse=True)


def test_tables_are_read_by_pandas_polars_and_numpy() -> None:
    numpy = pytest.importorskip("numpy")
    pandas = pytest.importorskip("pandas")
    polars = pytest.importorskip("polars")
    table = lab.simulate(ZIPF, ["lru", "s3-fifo"], ["1%", "10%"])
    frame = pandas.DataFrame(table)
    assert list(frame["misses"]) == table["misses"] and len(frame) == 4
    assert polars.DataFrame(table)["policy"].to_list() == table["policy"]
    assert numpy.array(table["miss_ratio"]).dtype == float
    columns = lab.columns(ZIPF)
    keys = numpy.asarray(columns["key"])
    assert keys.dtype == "uint64" and len(keys) == 20000
    assert len(pandas.DataFrame(columns)) == 20000


def test_notebooks_show_a_table() -> None:
    table = lab.Table(policy=["lru", "<b>"], miss_ratio=[0.123456789, None], size=[1000, 2])
    shown = table._repr_html_()
    assert "<th>miss_ratio</th>" in shown
    assert "<tr><td>lru</td><td>0.123457</td><td>1000</td></tr>" in shown
    assert "<tr><td>&lt;b&gt;</td><td></td><td>2</td></tr>" in shown and "more rows" not in shown
    long = lab.Table(size=list(range(100)))._repr_html_()
    assert long.count("<tr>") == 61 and "40 more rows" in long


def test_plots(tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    table = lab.mrc(ZIPF, ["lru", "s3-fifo"])
    axes = table.plot(tmp_path / "curves.png")
    assert (tmp_path / "curves.png").stat().st_size > 1000
    assert [line.get_label() for line in axes.get_lines()] == ["lru", "s3-fifo"]
    points, _ = lab.model(["lru", "fifo"], mpl=[16, 72])
    assert len(points.plot(ax=None).get_lines()) == 4
    with pytest.raises(ValueError, match="no curves"):
        lab.Table(a=[1]).plot()


def test_the_package_needs_no_other(tmp_path: Path) -> None:
    program = f"""
import sys
for name in ("numpy", "matplotlib", "pandas", "polars"):
    sys.modules[name] = None
from floe_cache import lab
table = lab.simulate({ZIPF!r}, "lru", [10, 20])
lab.columns({ZIPF!r}, limit=10)
try:
    table.plot()
except ImportError as error:
    print(error)
"""
    run = subprocess.run([sys.executable, "-c", program], capture_output=True, timeout=60, text=True)
    assert (run.stdout, run.stderr) == ("plots need matplotlib: pip install matplotlib\n", "")


def test_replays_in_virtual_time() -> None:
    blocks = "zipf:keys=10000,requests=20000,block=4KiB,read=0.7,seed=7"
    backing = "memory:64MiB,medium=hdd"

    def run(**settings: Any) -> dict[str, Any]:
        return lab.replay(blocks, backing=backing, verify=True, **settings)

    result = run(cache="memory:4MiB,medium=nvme", write="back", warmup=0.2)
    assert result["time"] == "virtual" and result["requests"] == 16000
    assert 0.1 < result["read_hit_ratio"] < 1 and result["verified_bytes"] > 0
    larger = run(cache="memory:16MiB,medium=nvme", write="back", warmup=0.2)
    assert larger["read_us_mean"] < result["read_us_mean"]
    again = run(cache="memory:4MiB,medium=nvme", write="back", warmup=0.2)
    assert again["read_us_p99"] == result["read_us_p99"] and again["seconds"] == result["seconds"]
    tiers = run(tiers=["memory:1MiB,medium=optane", "memory:8MiB,medium=nvme"], in_flight=8)
    assert len(tiers["tiers"]) == 2
    with pytest.raises(ValueError, match="what-is-this"):
        run(cache="memory:4MiB", what_is_this=1)
    with pytest.raises(ValueError, match="disk I/O"):
        lab.replay(lab.open_trace(ZIPF), backing=backing, cache="memory:4MiB")
    with pytest.raises(ValueError, match="no file is used"):
        lab.replay(blocks, backing="file:/nonexistent,size=64MiB", cache="memory:4MiB")


def test_models() -> None:
    points, peaks = lab.model(["lru", "fifo"], [0.5, 0.9, 1.0], mpl=72, disk_us=100)
    assert points["policy"] == ["lru"] * 3 + ["fifo"] * 3
    assert peaks["classification"] == ["LRU-like", "FIFO-like"]
    assert peaks["p_star"][0] < 1 and peaks["p_star"][1] == 1
    simulated, _ = lab.model("lru", 0.9, precision=0.02)
    assert abs(simulated["sim_mrps"][0] / simulated["mva_mrps"][0] - 1) < 0.2
    assert "lru" in lab.model_policies() and "s3-fifo" in lab.policies()
    with pytest.raises(ValueError):
        lab.model("best")
