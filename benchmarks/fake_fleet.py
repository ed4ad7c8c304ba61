"""What a node more costs the controller: ``plan`` over converged nodes that are not there.

    .venv/bin/python -m benchmarks.fake_fleet [--nodes 1 100 1000] [--milliseconds 30]

pyinfra's @fake connector answers the survey after so many milliseconds; parsing, planning and
printing are real. Time and processor time per node should be the same for 100 and for 1,000.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from benchmarks.fleet.measure import as_installed
from locks.lockfile import write_lock
from tests.fake.command import CHAT
from tests.fake.served import served
from tests.fake.test_exit_codes import whole_lock

SITE = """\
_lines = {lines!r}
_node = {{"fake_responses": {{"sglang-survey": _lines}}, "fake_delay": {delay}, "fake_delay_jitter": 0}}
nodes = ([(f"@fake/gpu-{{n}}", _node) for n in range({count})], {{"sglang": {{"services": [{chat!r}]}}}})
"""


def run(folder: Path, count: int, delay_s: float) -> tuple[float, float, float]:
    """Plan so many nodes; return seconds, processor seconds and the most memory in MiB."""
    site = folder / "site.py"
    site.write_text(SITE.format(lines=served("dgx-spark"), delay=delay_s, count=count, chat=CHAT))
    write_lock(folder / "sglang.lock", whole_lock())
    began = time.monotonic()
    with subprocess.Popen(
        [sys.executable, "-m", "cli", "plan", str(site), "--check"],
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        env={**as_installed(), "PYINFRA_PROGRESS": "off"},
    ) as child:
        _, status, used = os.wait4(child.pid, 0)
        child.returncode = os.waitstatus_to_exitcode(status)
    if child.returncode != 0:
        raise SystemExit(f"plan --check ended with {child.returncode}: the nodes are not converged")
    return time.monotonic() - began, used.ru_utime + used.ru_stime, used.ru_maxrss / 1024


def main() -> None:
    """Print a line for each number of nodes."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--nodes", type=int, nargs="+", default=[1, 100, 1000])
    parser.add_argument("--milliseconds", type=float, default=30.0)
    words = parser.parse_args()
    print("nodes  seconds  CPU s  MiB  ms of CPU for a node more")
    first: tuple[int, float] | None = None
    for count in words.nodes:
        with tempfile.TemporaryDirectory() as name:
            seconds, cpu, memory = run(Path(name), count, words.milliseconds / 1000)
        more = f"{(cpu - first[1]) / (count - first[0]) * 1000:25.1f}" if first else ""
        first = first or (count, cpu)
        print(f"{count:5}  {seconds:7.1f}  {cpu:5.1f}  {memory:3.0f}  {more}", flush=True)


if __name__ == "__main__":
    main()
