"""What the wheel runtime costs: making an environment, and putting it in the place of another.

    .venv/bin/python -m benchmarks.wheel_runtime [--pairs 3]

A fresh node (no compiler, no Docker) gets SGLang's CPU build from a mirror on its bridge, by the
toolkit itself. Then, in alternating pairs on that node, the very program that an apply runs makes
the same environment from uv's warm cache, and pip installs the same lock into a virtual environment
from its own warm cache; both compile bytecode. At last an apply replaces the environment of the
running service by the next release's, while its ready endpoint is asked five times a second, and so
is a bare ``systemctl restart`` of it.
"""

from __future__ import annotations

import argparse
import statistics
import tempfile
import time
from pathlib import Path

from cli.context import Run
from deploys.node import Options, plan_of
from facts.survey import read_recorded
from plans.wheel import scripts
from plans.wheel.environment import PlannedEnvironment
from tests.node.harness.lab import Lab
from tests.node.harness.machine import Node
from tests.node.harness.mirror import Mirror
from tests.node.site import Site, wheel_service

POLL = """\
#!/bin/sh
while :; do
    code=$(curl -s -o /dev/null -m 20 -w '%{http_code}' http://127.0.0.1:30000/ready)
    echo "$(date +%s.%N) $code" >>/root/polled
    sleep 0.2
done
"""

PIP = "/root/pip/bin/pip install --quiet --no-deps --require-hashes --only-binary :all:"


def planned(site: Site, node: Node) -> PlannedEnvironment:
    """Return the environment of the node's service, to be built anew."""
    folder = site.folder / "surveys"
    site.tool("survey", "--record", str(folder))
    (file,) = folder.glob("*.survey")
    run = Run(str(site.inventory), False, (), 0, True)
    wishes = run.wishes()[node.name]
    plan = plan_of(read_recorded(file), wishes, Options(None))
    environment = plan.services[0].environment
    assert environment is not None
    return environment


def seconds(node: Node, program: str) -> float:
    """Run a program on a node; return how long it took, in seconds."""
    began = time.monotonic()
    node.run("sh -s", text=program, timeout=1800)
    return time.monotonic() - began


def installs(site: Site, node: Node, mirror: Mirror, pairs: int) -> None:
    """Make the same environment by the toolkit's program and by pip, in alternating pairs."""
    node.run("systemctl stop sglang@chat.service", timeout=600)
    environment = planned(site, node)
    ours_program = scripts.build(environment)
    index = mirror.keys["index"]
    host = index.split("/")[2].split(":")[0]
    node.put("/root/lock.txt", environment.requirements)
    node.run("apt-get install -y -q python3-venv", timeout=600)
    pip_program = (
        "set -e; rm -rf /root/pip; /usr/bin/python3.11 -m venv /root/pip; "
        f"{PIP} --index-url {index} --trusted-host {host} -r /root/lock.txt"
    )
    seconds(node, pip_program)  # fills pip's own cache
    ours, pips = [], []
    for number in range(pairs):
        node.run(f"rm -rf {environment.directory}")
        ours.append(seconds(node, ours_program))
        pips.append(seconds(node, pip_program))
        print(f"pair {number + 1}: ours {ours[-1]:.1f} s, pip {pips[-1]:.1f} s", flush=True)
    ratio = statistics.median(p / o for o, p in zip(ours, pips, strict=True))
    print(
        f"an environment of {environment.count} packages from a warm cache: ours "
        f"{statistics.median(ours):.1f} s, pip install of the same lock {statistics.median(pips):.1f} s; "
        f"pip takes {ratio:.2f} times as long (median of {pairs} pairs)"
    )
    node.run("systemctl start sglang@chat.service", timeout=900)


def down(node: Node) -> float:
    """Return for how long the server did not answer that it is ready, and forget it."""
    polled = [line.split() for line in node.read("/root/polled").splitlines()]
    node.run("rm -f /root/polled")
    away = [float(when) for when, code in polled if code != "200"]
    return away[-1] - away[0] if away else 0.0


def replacement(site: Site, node: Node, mirror: Mirror) -> None:
    """Put the next release's environment in place of the one that serves; then restart it bare."""
    site.data["wheel_lock"] = str(mirror.locks["0.5.23"])
    site.data["services"][0]["release"] = "0.5.23"
    node.put("/root/poll", POLL, 0o755)
    node.run("systemd-run --quiet --unit=poll /root/poll")
    began = time.monotonic()
    assert site.tool("apply", timeout=1800).code == 0
    whole = time.monotonic() - began
    replaced = down(node)
    node.run("systemctl restart sglang@chat.service", timeout=900)
    bare = down(node)
    node.run("systemctl stop poll")
    print(
        f"a new environment in the place of the old one: apply took {whole:.1f} s, of which the "
        f"service was down {replaced:.1f} s; a bare restart of it: {bare:.1f} s; "
        f"{replaced / bare:.2f} times a restart"
    )


def main() -> None:
    """Run both on one node."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--pairs", type=int, default=3)
    pairs = parser.parse_args().pairs
    lab = Lab()
    try:
        node, mirror = lab.node("bench", tree_name="fresh", gpus="one_l4_580"), lab.mirror
        with tempfile.TemporaryDirectory() as folder:
            data = {
                "services": [wheel_service()],
                "mirrors": mirror.keys,
                "wheel_lock": str(mirror.locks["0.5.22"]),
            }
            site = Site(Path(folder), [node], data)
            assert site.tool("apply", timeout=1800).code == 0
            installs(site, node, mirror, pairs)
            replacement(site, node, mirror)
    finally:
        lab.close()


if __name__ == "__main__":
    main()
