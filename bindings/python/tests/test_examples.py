"""The examples run as they are."""

import runpy
import subprocess
import sys
from pathlib import Path

import pytest

EXAMPLES = Path(__file__).parent.parent / "examples"


def test_the_notebook_runs(capsys: pytest.CaptureFixture[str]) -> None:
    runpy.run_path(str(EXAMPLES / "workload.py"))
    printed = capsys.readouterr().out
    assert "lru        LRU-like" in printed and "hit ratio 0." in printed


def test_a_folder_of_traces_is_simulated_with_dask(tmp_path: Path) -> None:
    pytest.importorskip("dask.distributed")
    for number in range(4):
        keys = "\n".join(f"{at},{at * at % (50 + number)},1" for at in range(2000))
        (tmp_path / f"{number}.csv").write_text(f"time,key,size\n{keys}\n")
    command = [sys.executable, str(EXAMPLES / "thousand_traces.py"), str(tmp_path), "--sizes", "10%"]
    command += ["--policies", "lru,s3-fifo,auto"]
    run = subprocess.run(command, capture_output=True, timeout=240, text=True)
    assert run.returncode == 0, run.stderr
    head, *rows = run.stdout.splitlines()
    assert head == "4 traces, sizes 10%: misses saved, compared with lru"
    assert [row.split()[0] for row in rows] == ["s3-fifo", "auto"]
