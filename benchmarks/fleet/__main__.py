"""A converged fleet, by this toolkit, by plain pyinfra and by Ansible: what each of them costs.

    .venv/bin/python -m benchmarks.fleet [--hosts 1 10 100] [--ansible DIRECTORY] [--milliseconds 30]

One real node serves a real model; a hundred sshd on it are a hundred hosts, each some milliseconds
away. Converged runs may share what is on the node, since none of them writes. The three tools do
the same job on the same hosts, one after the other, each in a control group of its own.

All the hosts' processors are this machine's. So that a toolkit's row says what its controller and
the network take, the survey is answered from a recording made on that node a moment before; the row
"asked" runs it, on ten hosts at most. The others' commands are run.
"""

from __future__ import annotations

import argparse
import os
import tempfile
from pathlib import Path

from benchmarks.fleet.hosts import Fleet
from benchmarks.fleet.job import OURS, Job, ansible_in, tools
from benchmarks.fleet.measure import Cost, measured
from tests.node.harness.lab import Lab
from tests.node.site import Site, service

HEAD = ("hosts", "what", "seconds", "commands/host", "controller CPU s", "node CPU s", "memory MiB")


def row(hosts: int, what: str, cost: Cost) -> str:
    """Return a line of the table."""
    cells = (
        f"{hosts}", what, f"{cost.seconds:.1f}", f"{cost.commands / hosts:.1f}",
        f"{cost.cpu_s:.1f}", f"{cost.node_cpu_s:.1f}", f"{cost.memory_mib:.0f}",
    )  # fmt: skip
    return "  ".join(
        cell.rjust(len(head)) if head != "what" else cell.ljust(22)
        for cell, head in zip(cells, HEAD, strict=True)
    )


def ratios(hosts: int, costs: dict[str, Cost]) -> list[str]:
    """Return what the others take, in times of what this toolkit takes for an apply."""
    ours = costs.get(f"{OURS} apply")
    if ours is None:
        return []
    return [
        f"{hosts} hosts: {what} takes {cost.seconds / ours.seconds:.1f} times as long, "
        f"{cost.commands / ours.commands:.1f} times the commands, "
        f"{cost.cpu_s / ours.cpu_s:.1f} times the controller's CPU, "
        f"{cost.memory_mib / ours.memory_mib:.1f} times its memory"
        for what, cost in costs.items()
        if not what.startswith(OURS)
    ]


def main() -> None:
    """Deploy one service, then compare."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--hosts", type=int, nargs="+", default=[1, 10, 100])
    parser.add_argument("--milliseconds", type=float, default=30.0)
    parser.add_argument(
        "--ansible", type=Path, help="where ansible-core is, or is to be, installed (a venv)"
    )
    parser.add_argument("--most-ansible", type=int, default=100, help="hosts for Ansible")
    words = parser.parse_args()
    # A hundred surveys at once take two cores longer than a survey may take.
    most = {"ansible": words.most_ansible, f"{OURS} apply, asked": 10}
    with tempfile.TemporaryDirectory(prefix="fleet") as name:
        folder = Path(name)
        ansible = ansible_in(words.ansible or folder / "ansible")
        lab = Lab()
        try:
            node = lab.node("bench", images=True, gpus="one_l4_580")
            mirrors = {"mirrors": {"docker.io": lab.registry.url}}
            site = Site(folder, [node], {"services": [service()], "registry": mirrors})
            if site.tool("apply").code != 0:
                raise SystemExit("the node was not deployed to")
            with Fleet(node, max(words.hosts), words.milliseconds, folder) as fleet:
                print(fleet.distance)
                print(
                    f"{os.cpu_count()} processors, shared by the controller and by all hosts; "
                    f"load {os.getloadavg()[0]:.1f} before the first run",
                    flush=True,
                )
                job = Job.of(node, site, fleet)
                print("  ".join(h.ljust(22) if h == "what" else h for h in HEAD))
                told: list[str] = []
                for hosts in words.hosts:
                    costs = {}
                    for tool in tools(job, hosts, ansible):
                        if hosts > most.get(tool.name, hosts):
                            continue
                        fleet.play(job.survey if tool.played else None)
                        try:
                            for words_before in tool.warm_up:
                                measured([fleet], words_before, tool.env)
                            costs[tool.name] = measured([fleet], tool.words, tool.env)
                        except RuntimeError as error:
                            print(f"{hosts} hosts: {tool.name} failed: {error}", flush=True)
                            continue
                        print(row(hosts, tool.name, costs[tool.name]), flush=True)
                    told += ratios(hosts, costs)
                print("\n".join(told))
        finally:
            lab.close()


if __name__ == "__main__":
    main()
