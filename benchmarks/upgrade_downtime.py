"""How long an upgrade takes a server away, against SGLang's own bare stop and start.

    .venv/bin/python -m benchmarks.upgrade_downtime [--pairs 5]

One node, both images in its store. In alternating pairs, and back and forth between 0.5.22 and
0.5.23: the toolkit upgrades a service (`upgrade --to`, with its canary, proof and soak), and a
server of the same image, model and arguments that plain `docker run` started is told to stop by
SIGTERM, waited for, and started anew from the other image. A client on the node asks the ready
endpoint all the while; away is from the last good answer to the next. No other server runs
meanwhile, and nobody else asks: what is measured is the stop and the start, not a drain.
"""

from __future__ import annotations

import argparse
import os
import statistics
import tempfile
import time
from pathlib import Path

from benchmarks.polling import begin, end, spread
from tests.node.harness.lab import MODEL, Lab
from tests.node.harness.machine import Node
from tests.node.site import CPU_ARGUMENTS, Site, service

RELEASES = ("0.5.22", "0.5.23")
PORT = 30000

ALLOWED_SHARE, ALLOWED_S = 0.10, 3.0
"""By how much an upgrade's time away may be longer than the bare one's: the larger of both."""


def image(lab: Lab, release: str) -> str:
    """Return the image of a release, by digest."""
    return f"lmsysorg/sglang@{lab.registry.digest('lmsysorg/sglang', f'v{release}')}"


def arguments() -> str:
    """Return the arguments of the service, as words for a bare server."""
    given = {"model-path": MODEL, "served-model-name": "tiny", **CPU_ARGUMENTS}
    words = [f"--{name}" if value is True else f"--{name} {value}" for name, value in given.items()]
    # What the toolkit adds to each service.
    return " ".join([*words, "--enable-metrics", f"--host 0.0.0.0 --port {PORT}"])


def bare_start(lab: Lab, node: Node, release: str) -> None:
    """Start a server of a release as SGLang's own page does, with the port on loopback alone."""
    node.run(
        "docker run -d --rm --init --name bare --device nvidia.com/gpu=all --shm-size 1g "
        f"-p 127.0.0.1:{PORT}:{PORT} -v /srv/models:/srv/models:ro "
        f"{image(lab, release)} sglang serve {arguments()}"
    )


def ready(node: Node) -> None:
    """Wait until the server on the port is ready."""
    node.run(
        f"for i in $(seq 600); do curl -sf -o /dev/null -m 5 http://127.0.0.1:{PORT}/ready && exit 0; "
        "sleep 0.5; done; exit 1",
        timeout=900,
    )


def bare(lab: Lab, node: Node, old: str, new: str) -> float:
    """Stop a bare server of one release and start one of another; return the seconds away."""
    bare_start(lab, node, old)
    ready(node)
    begin(node, PORT)
    time.sleep(1)
    # To the server itself (docker's init passes it on), which drains and ends; then the other.
    node.run("docker kill --signal=TERM bare >/dev/null; docker wait bare || :", timeout=300)
    node.run(
        "for i in $(seq 100); do docker inspect bare >/dev/null 2>&1 || exit 0; sleep 0.1; done"
    )
    bare_start(lab, node, new)
    ready(node)
    time.sleep(0.5)
    took = end(node)
    node.run("docker kill --signal=TERM bare >/dev/null; docker wait bare || :", timeout=300)
    node.run(
        "for i in $(seq 100); do docker inspect bare >/dev/null 2>&1 || exit 0; sleep 0.1; done"
    )
    return took


def ours(site: Site, node: Node, new: str, soak: str) -> float:
    """Upgrade the service to a release; return the seconds away."""
    node.run("systemctl start sglang@chat.service", timeout=900)
    begin(node, PORT)
    time.sleep(1)
    ran = site.tool("upgrade", "--to", new, "--soak", soak, "--yes", timeout=1800)
    assert ran.code == 0, ran.err
    took = end(node)
    site.data["services"][0]["release"] = new
    node.run("systemctl stop sglang@chat.service", timeout=600)
    return took


def main() -> None:
    """Run the pairs on one node, and print their ratios."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--pairs", type=int, default=5)
    parser.add_argument("--soak", default="5s")
    words = parser.parse_args()
    lab = Lab()
    try:
        node = lab.node("bench", images=True, model=True)
        with tempfile.TemporaryDirectory() as folder:
            data = {
                "services": [service(release=RELEASES[0])],
                "registry": {"mirrors": {"docker.io": lab.registry.url}},
            }
            site = Site(Path(folder), [node], data)
            assert site.tool("apply", timeout=1800).code == 0
            assert site.tool("lock", "--to", RELEASES[1]).code == 0
            node.run("systemctl stop sglang@chat.service", timeout=600)
            measure(lab, site, node, words.pairs, words.soak)
    finally:
        lab.close()


def measure(lab: Lab, site: Site, node: Node, pairs: int, soak: str) -> None:
    """Run the pairs; which of both comes first alternates too."""
    found: list[tuple[float, float]] = []
    for number in range(pairs):
        old, new = RELEASES if number % 2 == 0 else RELEASES[::-1]
        if number % 2 == 0:
            mine = ours(site, node, new, soak)
            theirs = bare(lab, node, old, new)
        else:
            theirs = bare(lab, node, old, new)
            mine = ours(site, node, new, soak)
        found.append((mine, theirs))
        print(
            f"pair {number + 1}, {old} to {new}: upgrade {mine:.1f} s away, bare stop and start "
            f"{theirs:.1f} s, {mine / theirs:.2f} times; load {os.getloadavg()[0]:.1f}",
            flush=True,
        )
    print(told(found))


def told(found: list[tuple[float, float]]) -> str:
    """Return in one sentence what pairs of seconds away came to: the upgrade's, the bare one's."""
    mine, theirs = (statistics.median(values) for values in zip(*found, strict=True))
    more = statistics.median(one - other for one, other in found)
    may = max(ALLOWED_SHARE * theirs, ALLOWED_S)
    return (
        f"an upgrade takes the server away {spread([one / other for one, other in found])} times as "
        f"long as a bare stop and start (median, lowest and highest of {len(found)} pairs); "
        f"{mine:.1f} s against {theirs:.1f} s, {more:+.1f} s, where {may:.1f} s more are allowed: "
        f"{'within' if more <= may else 'NOT within'}"
    )


if __name__ == "__main__":
    main()
