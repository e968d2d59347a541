"""A notebook in percent cells: which cache does a workload want?"""

# %% A trace: a file, or a generator in words
from floe_cache import lab

trace = lab.open_trace("zipf:keys=20000,requests=200000,theta=0.9")
print(trace, lab.simulate(trace, "lru", "10%")["miss_ratio"])

# %% Miss ratios over sizes; `curves.plot("curves.png")` draws them
curves = lab.mrc(trace, ["lru", "s3-fifo", "arc", "belady"])
for row in curves.rows():
    if row["policy"] == "belady":
        print(f"{row['size']:6} objects: no policy misses less than {row['miss_ratio']:.3f}")


# %% A policy of one's own
class Random:
    """Evicts any key."""

    def __init__(self, capacity: int) -> None:
        self.keys: list[int] = []
        self.state = capacity

    def hit(self, key: int) -> None:
        pass

    def insert(self, key: int) -> None:
        self.keys.append(key)

    def evict(self) -> int:
        self.state = self.state * 6364136223846793005 + 1442695040888963407 & (1 << 64) - 1
        at = (self.state >> 33) % len(self.keys)
        self.keys[at], self.keys[-1] = self.keys[-1], self.keys[at]
        return self.keys.pop()


print(lab.simulate(trace, ["lru", Random], "10%")["miss_ratio"])

# %% Is a higher hit ratio faster? Past p* it is not
points, peaks = lab.model(["lru", "fifo", "s3-fifo"], disk_us=5)
for peak in peaks.rows():
    print(f"{peak['policy']:10} {peak['classification']:10} p* = {peak['p_star']:.2f}")

# %% Latencies of the block cache in front of a disk in the cloud
result = lab.replay(
    "zipf:keys=20000,requests=50000,block=4KiB,read=0.8",
    backing="memory:128MiB,medium=cloud",
    cache="memory:16MiB,medium=nvme",
    write="back",
    warmup=0.2,
)
print(f"hit ratio {result['read_hit_ratio']:.2f}, reads {result['read_us_mean']:.0f} us")
