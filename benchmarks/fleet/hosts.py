"""Hosts that are one node: an sshd for each, a hundred or one, behind a network some way off."""

from __future__ import annotations

import subprocess
import sys
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from tests.node.harness.machine import Node

FIRST_PORT = 22001
LOG = "/run/fleet.log"
PLAYED = "/run/fleet.survey"
PLAYER = f"""\
#!/bin/sh
# Answers a survey with what the same one printed on this node a moment ago, where that is asked
# for; everything else is run.
case $SSH_ORIGINAL_COMMAND in
*": sglang-survey;"*) [ -e {PLAYED} ] && exec cat {PLAYED} ;;
esac
exec sh -c "$SSH_ORIGINAL_COMMAND"
"""
SSHD = (
    f"/usr/sbin/sshd -E {LOG} -o LogLevel=VERBOSE -o PidFile=none -o UseDNS=no "
    "-o MaxStartups=300 -o MaxSessions=50 -o ForceCommand=/root/fleet-player -p"
)


@dataclass
class Fleet:
    """The hosts; ``distance`` says how they are far off."""

    node: Node
    count: int
    milliseconds: float
    folder: Path
    first: int = FIRST_PORT  # port of the first of them
    distance: str = ""
    address: str = ""
    _relay: subprocess.Popen[str] | None = field(default=None, repr=False)

    def __enter__(self) -> Self:
        last = self.first + self.count - 1
        self.node.put("/root/fleet-player", PLAYER, 0o755)
        loop = f"for port in $(seq {self.first} {last}); do {SSHD} $port || exit 1; done"
        self.node.run(
            "mkdir -p /run/sshd && systemd-run --quiet --unit=fleet -p Type=oneshot "
            f"-p RemainAfterExit=yes -p TasksMax=infinity sh -c '{loop}'"
        )
        self.address = self.node.address
        self.distance = (
            f"every packet to the node arrives {self.milliseconds:g} ms later (tc netem)"
        )
        if not self._netem():
            self.address = "127.0.0.1"
            self.distance = (
                f"a relay makes a round trip of {self.milliseconds:g} ms "
                "(this machine's kernel has no tc netem)"
            )
            self._relay = subprocess.Popen(
                [sys.executable, "-m", "benchmarks.fleet.relay", self.node.address,
                 str(self.first), str(last), str(self.milliseconds)],
                stdout=subprocess.PIPE, text=True,
            )  # fmt: skip
            assert self._relay.stdout is not None
            if self._relay.stdout.readline() != "ready\n":
                raise RuntimeError("the relay did not start")
        known = (line.split(None, 1) for line in self.node.known_hosts.read_text().splitlines())
        key = next(key for name, key in known if name == self.node.address)
        self.known_hosts.write_text(
            "".join(f"[{self.address}]:{self.first + n} {key}\n" for n in range(self.count))
        )
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if self._relay is not None:
            self._relay.terminate()
            self._relay.wait()

    def _netem(self) -> bool:
        """Delay what goes to the node on its end of the cable: nobody's loopback is slowed."""
        stage = self.node.stage
        cable = f"vb-s{stage.number}n{self.node.address.rpartition('.')[2]}"
        words = ["tc", "qdisc", "add", "dev", cable, "root", "netem", "delay",
                 f"{self.milliseconds}ms", "limit", "100000"]  # fmt: skip
        return subprocess.run(words, capture_output=True).returncode == 0

    @property
    def known_hosts(self) -> Path:
        """The host keys, all of them the node's."""
        return self.folder / f"known_hosts-{self.first}"

    def hosts(self, count: int) -> list[tuple[str, dict[str, Any]]]:
        """Return the first hosts, as a pyinfra inventory has them."""
        return [
            (
                f"gpu-{self.first - FIRST_PORT + number + 1:03}",
                {
                    "ssh_hostname": self.address,
                    "ssh_port": self.first + number,
                    "ssh_user": "root",
                    "ssh_key": str(self.node.key),
                    "ssh_known_hosts_file": str(self.known_hosts),
                    "ssh_strict_host_key_checking": "yes",
                    "ssh_config_file": "/dev/null",
                },
            )
            for number in range(count)
        ]

    def play(self, survey: str | None) -> None:
        """Let surveys be answered with a recorded one from now on, or be run."""
        if survey is None:
            self.node.run(f"rm -f {PLAYED}")
        else:
            self.node.put(PLAYED, survey)

    def commands(self) -> int:
        """Return how many sessions the hosts were asked for since the last call: commands, files."""
        said = self.node.run(f"grep -c 'Starting session: ' {LOG} || true; : >{LOG}").stdout
        return int(said)
