"""A first apply on separate nodes, by this toolkit, by plain pyinfra and by Ansible.

    .venv/bin/python -m benchmarks.first_apply [--nodes 3] [--ansible DIRECTORY] [--milliseconds 30]

Each tool gets fresh nodes that have the image in their stores and nothing else of it, each some
milliseconds away. All three bring the same files, start the same server and end when it answers;
the files are those that the toolkit made on a node of its own before. The toolkit does more in that
time: it checks the weights, tries the image before the switch, follows the start, verifies the
answer's text, and keeps records. Most of the time is the servers' own start on shared processors:
the row "start alone" is what systemd and the servers take for it, all nodes at once.
"""

from __future__ import annotations

import argparse
import os
import shutil
import sys
import tempfile
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path

from benchmarks.fleet.__main__ import HEAD, ratios, row
from benchmarks.fleet.hosts import FIRST_PORT, Fleet
from benchmarks.fleet.job import HERE, OURS, QUIET, ansible_in, launched, playbook
from benchmarks.fleet.measure import Cost, measured
from tests.node.harness.lab import Lab
from tests.node.harness.machine import Node
from tests.node.site import Site, service

UNIT = "sglang@chat.service"
READY = (
    "for i in $(seq 600); do curl -sf -o /dev/null -m 5 http://127.0.0.1:30000/ready && exit 0; "
    "sleep 0.2; done; exit 1"
)


@dataclass(frozen=True)
class Pattern:
    """What the toolkit made on a node: the other tools bring the same."""

    folder: Path  # with the operator's lock, and the files below files/
    data: object  # the operator's wishes
    variables: dict[str, str]  # what the playbook and the plain deploy are told

    @classmethod
    def of(cls, lab: Lab, folder: Path) -> Pattern:
        """Deploy to a node, and take what is there then."""
        node = lab.node("pattern", images=True)
        data = {
            "services": [service()],
            "registry": {"mirrors": {"docker.io": lab.registry.url}},
        }
        site = Site(folder, [node], data)
        if site.tool("apply", timeout=1800).code != 0:
            raise SystemExit("the node was not deployed to")
        deployment, said = launched(node)
        kernels = said["SGLANG_KERNELS"]
        names = ("server.yaml", "launch.env", "container.env", "ready-gate", "stop-gate",
                 "probe.json", "probe-plain.json")  # fmt: skip
        places = {f"deployment/{name}": f"{deployment}/{name}" for name in names}
        places["sglang@.service"] = "/etc/systemd/system/sglang@.service"
        places["10-toolkit.conf"] = f"/etc/systemd/system/{UNIT}.d/10-toolkit.conf"
        files = folder / "files"
        (files / "deployment").mkdir(parents=True)
        for name, place in places.items():
            (files / name).write_text(node.read(place))
            (files / name).chmod(int(node.run(f"stat -c %a {place}").stdout, 8))
        node.discard()
        return cls(
            folder,
            data,
            {
                "image": said["SGLANG_IMAGE"],
                "deployment": deployment,
                "caches": f"{kernels}/home {kernels}/inductor",
                "unit": UNIT,
                "files": str(files),
                "answer": "http://127.0.0.1:30000/v1/completions",
                "model": "tiny",
            },
        )


@contextmanager
def fresh(lab: Lab, name: str, count: int, ms: float, folder: Path) -> Iterator[list[Fleet]]:
    """Give nodes that have the image and nothing else, each a host some way off."""
    nodes: list[Node] = []
    with ExitStack() as stack:
        for number in range(count):
            nodes.append(lab.node(f"{name}-{number}", images=True))
            stack.callback(nodes[-1].discard)
        yield [
            stack.enter_context(Fleet(node, 1, ms, folder, FIRST_PORT + number))
            for number, node in enumerate(nodes)
        ]


def words_of(
    tool: str, fleets: list[Fleet], pattern: Pattern, ansible: Path
) -> tuple[list[str], dict[str, str]]:
    """Return the command of a tool over these nodes, and its environment."""
    hosts = [host for fleet in fleets for host in fleet.hosts(1)]
    folder = fleets[0].folder
    if tool == OURS:
        site = folder / "site.py"
        site.write_text(f"nodes = ({hosts!r}, {{'sglang': {pattern.data!r}}})\n")
        shutil.copy(pattern.folder / "sglang.lock", folder)
        return [sys.executable, "-m", "cli", "apply", str(site)], QUIET
    if tool == "plain pyinfra":
        site = folder / "plain.py"
        site.write_text(f"nodes = ({hosts!r}, {pattern.variables!r})\n")
        program = str(Path(sys.executable).with_name("pyinfra"))
        deploy = str(HERE / "first_plain.py")
        return [program, "-y", "--parallel", str(len(hosts)), str(site), deploy], QUIET
    known = folder / "known_hosts"
    known.write_text("".join(fleet.known_hosts.read_text() for fleet in fleets))
    return playbook(ansible, "first.yml", hosts, pattern.variables, known, folder)


def start_alone(fleets: list[Fleet]) -> float:
    """Return the seconds that the servers of deployed nodes take to start, all at once."""
    for fleet in fleets:
        fleet.node.run(f"systemctl stop {UNIT}", timeout=600)
    began = time.monotonic()
    with ThreadPoolExecutor(len(fleets)) as pool:
        start = f"systemctl start {UNIT} && {READY}"
        list(pool.map(lambda fleet: fleet.node.run(start, timeout=900), fleets))
    return time.monotonic() - began


def main() -> None:
    """Deploy to fresh nodes by each tool, and print what it cost."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--nodes", type=int, default=3)
    parser.add_argument("--milliseconds", type=float, default=30.0)
    parser.add_argument("--ansible", type=Path, help="where ansible-core is, or is to be (a venv)")
    words = parser.parse_args()
    lab = Lab()
    with tempfile.TemporaryDirectory(prefix="first") as name:
        try:
            ansible = ansible_in(words.ansible or Path(name, "ansible"))
            (Path(name) / "pattern").mkdir()
            pattern = Pattern.of(lab, Path(name) / "pattern")
            costs: dict[str, Cost] = {}
            for number, tool in enumerate((f"{OURS} apply", "plain pyinfra", "ansible")):
                folder = Path(name) / f"run-{number}"
                folder.mkdir()
                with fresh(lab, f"n{number}", words.nodes, words.milliseconds, folder) as fleets:
                    if not costs:
                        print(fleets[0].distance)
                        print("  ".join(h.ljust(22) if h == "what" else h for h in HEAD))
                    which = OURS if tool.startswith(OURS) else tool
                    load = os.getloadavg()[0]
                    costs[tool] = measured(fleets, *words_of(which, fleets, pattern, ansible))
                    for fleet in fleets:
                        fleet.node.run(READY, timeout=900)
                    print(
                        row(words.nodes, tool, costs[tool]), f"  load {load:.1f} before", flush=True
                    )
                    alone = start_alone(fleets)
                    print(f"start alone, on the same nodes: {alone:.1f} s", flush=True)
            print("\n".join(ratios(words.nodes, costs)))
        finally:
            lab.close()


if __name__ == "__main__":
    main()
