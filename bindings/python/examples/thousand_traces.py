"""Simulates policies over a folder of traces, with Dask, and prints how much each saves.

    pip install ./bindings/python "dask[distributed]"
    python thousand_traces.py FOLDER [--scheduler tcp://HOST:8786] [--sizes 1%,10%]
        [--policies fifo,lru,auto]

Each trace is a task: one process reads it once and simulates all policies. Without a scheduler
there are local processes, one for each core. Without a folder the traces are generated.
"""

# %% The work of one task
from __future__ import annotations

import argparse
import os
import statistics
from pathlib import Path
from typing import Any

from floe_cache import lab

POLICIES = "fifo,lru,s3-fifo,sieve,arc,lirs"


def simulate(trace: str, policies: list[str], sizes: list[str]) -> dict[str, list[Any]]:
    """Returns columns, which travel as they are."""
    return dict(lab.simulate(trace, policies, sizes))


# %% All tasks
def simulate_all(
    traces: list[str], policies: list[str], sizes: list[str], scheduler: str | None
) -> list[dict[str, list[Any]]]:
    from dask.distributed import Client, LocalCluster

    if scheduler is None:
        cluster = LocalCluster(
            n_workers=os.cpu_count(), threads_per_worker=1, dashboard_address=None
        )
        with cluster, Client(cluster) as client:
            return gather(client, traces, policies, sizes)
    with Client(scheduler) as client:
        return gather(client, traces, policies, sizes)


def gather(
    client: Any, traces: list[str], policies: list[str], sizes: list[str]
) -> list[dict[str, list[Any]]]:
    return list(client.gather(client.map(simulate, traces, policies=policies, sizes=sizes)))


# %% The result: how many of the first policy's misses another one saves, at each size of each trace
def savings(tables: list[dict[str, list[Any]]], policies: list[str]) -> dict[str, list[float]]:
    saved: dict[str, list[float]] = {policy: [] for policy in policies[1:]}
    for table in tables:
        rows = list(lab.Table(table).rows())
        first = {row["size"]: row["miss_ratio"] for row in rows if row["policy"] == policies[0]}
        for row in rows:
            if row["policy"] in saved and first[row["size"]] > 0:
                saved[row["policy"]].append(1 - row["miss_ratio"] / first[row["size"]])
    return saved


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0] if __doc__ else None)
    parser.add_argument("folder", nargs="?", type=Path)
    parser.add_argument("--scheduler")
    parser.add_argument("--sizes", default="1%,10%")
    parser.add_argument("--policies", default=POLICIES, help="the first is compared with")
    given = parser.parse_args()
    if given.folder:
        traces = [str(file) for file in sorted(given.folder.iterdir()) if file.is_file()]
    else:
        skews = [0.5 + at / 20 for at in range(12)]
        traces = [f"zipf:keys=10000,requests=100000,theta={skew:.2f}" for skew in skews]
    policies = given.policies.split(",")
    tables = simulate_all(traces, policies, given.sizes.split(","), given.scheduler)
    print(f"{len(traces)} traces, sizes {given.sizes}: misses saved, compared with {policies[0]}")
    for policy, saved in savings(tables, policies).items():
        print(f"{policy:10} mean {statistics.mean(saved):7.2%}   worst {min(saved):7.2%}")


if __name__ == "__main__":
    main()
