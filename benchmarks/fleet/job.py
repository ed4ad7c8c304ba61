"""The job that each tool does: what stands on the node, as the three of them know it."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
import venv
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from benchmarks.fleet.hosts import FIRST_PORT, Fleet
from tests.node.harness.machine import Node
from tests.node.site import Site

OURS = "sglang-node"
HERE = Path(__file__).resolve().parent

QUIET = {"NO_COLOR": "1", "PYINFRA_PROGRESS": "off"}

ANSIBLE_CFG = """\
[defaults]
forks = 100
gathering = smart
fact_caching = jsonfile
fact_caching_connection = {folder}/facts
fact_caching_timeout = 86400
interpreter_python = /usr/bin/python3
host_key_checking = True
stdout_callback = default
display_ok_hosts = False
[ssh_connection]
pipelining = True
ssh_args = -F none -o ControlMaster=auto -o ControlPersist=60s -o UserKnownHostsFile={known}
control_path = {folder}/cp/%%C
"""


def launched(node: Node) -> tuple[str, dict[str, str]]:
    """Return the directory of the current deployment on a node, and what its launch.env says."""
    deployment = node.run("readlink -f /var/lib/sglang/deployments/chat/current").stdout.strip()
    launch = (
        line.split("=", 1)
        for line in node.read(f"{deployment}/launch.env").splitlines()
        if not line.startswith("#")
    )
    return deployment, {name: value.strip('"') for name, value in launch}


@dataclass(frozen=True)
class Job:
    """Where things are on the node, and the files as they are there."""

    fleet: Fleet
    data: object  # the operator's wishes, for this toolkit
    image: str
    deployment: str
    unit: str
    ready: str
    survey: str  # as the node prints it

    @classmethod
    def of(cls, node: Node, site: Site, fleet: Fleet) -> Job:
        """Read what was deployed."""
        deployment, said = launched(node)
        unit = "sglang@chat.service"
        site.tool("survey", "--record", str(site.folder / "surveys"))
        (survey,) = (site.folder / "surveys").glob("*.survey")
        job = cls(
            fleet, site.data, said["SGLANG_IMAGE"], deployment, unit,
            f"http://127.0.0.1:{said['SGLANG_PORT']}{said['SGLANG_READY_PATH']}",
            survey.read_text(),
        )  # fmt: skip
        job.files.mkdir()
        for path in (
            f"{deployment}/server.yaml",
            f"{deployment}/launch.env",
            "/etc/systemd/system/sglang@.service",
            f"/etc/systemd/system/{unit}.d/10-toolkit.conf",
        ):
            (job.files / path.rsplit("/", 1)[1]).write_text(node.read(path))
        return job

    @property
    def files(self) -> Path:
        """The files as they are on the node."""
        return self.fleet.folder / "files"

    @property
    def variables(self) -> dict[str, str]:
        """What the playbook and the plain deploy are told."""
        return {
            "image": self.image, "deployment": self.deployment, "unit": self.unit,
            "ready": self.ready, "files": str(self.files),
        }  # fmt: skip


@dataclass(frozen=True)
class Tool:
    """A program to measure, and what is run before, so that its caches are warm."""

    name: str
    words: Sequence[str]
    warm_up: Sequence[Sequence[str]] = ()
    env: dict[str, str] = field(default_factory=dict)
    played: bool = False  # surveys are answered from a recording


def tools(job: Job, count: int, ansible: Path) -> list[Tool]:
    """Return the three tools and the two floors, for the first ``count`` hosts."""
    hosts = job.fleet.hosts(count)
    folder = job.fleet.folder / f"of-{count}"
    folder.mkdir()
    ours = folder / "site.py"
    ours.write_text(f"nodes = ({hosts!r}, {{'sglang': {job.data!r}}})\n")
    shutil.copy(job.fleet.folder / "sglang.lock", folder)
    plain = folder / "plain.py"
    plain.write_text(f"nodes = ({hosts!r}, {job.variables!r})\n")
    pyinfra = [str(Path(sys.executable).with_name("pyinfra")), "-y", "--parallel", str(count)]
    ssh = folder / "ssh"
    key = job.fleet.node.key
    ssh.write_text(
        "#!/bin/sh\n"
        f"seq {FIRST_PORT} {FIRST_PORT + count - 1} | xargs -P {count} -I PORT "
        f"ssh -F none -i {key} -o BatchMode=yes -o UserKnownHostsFile={job.fleet.known_hosts} "
        f"-p PORT root@{job.fleet.address} true\n"
    )
    known = job.fleet.known_hosts
    play, config = playbook(ansible, "playbook.yml", hosts, job.variables, known, folder)
    tool = [sys.executable, "-m", "cli"]
    return [
        Tool("handshakes by ssh", ["sh", str(ssh)]),
        Tool("handshakes by pyinfra", [*pyinfra, str(plain), str(HERE / "floor.py")], env=QUIET),
        Tool(f"{OURS} plan", [*tool, "plan", str(ours), "--check"], env=QUIET, played=True),
        Tool(f"{OURS} apply", [*tool, "apply", str(ours)], env=QUIET, played=True),
        Tool(f"{OURS} apply, asked", [*tool, "apply", str(ours)], env=QUIET),
        Tool("plain pyinfra", [*pyinfra, str(plain), str(HERE / "plain.py")], env=QUIET),
        # Once before, so that its cache of facts is there.
        Tool("ansible", play, [play], config),
    ]  # fmt: skip


def playbook(
    ansible: Path,
    book: str,
    hosts: Sequence[tuple[str, dict[str, Any]]],
    variables: Mapping[str, str],
    known_hosts: Path,
    folder: Path,
) -> tuple[list[str], dict[str, str]]:
    """Write what Ansible needs for these hosts into a folder; return its command and environment.

    ``hosts``: as a pyinfra inventory has them. ``book``: a playbook of this directory.
    """
    inventory = folder / "hosts.json"
    reach = {
        name: {
            "ansible_host": keys["ssh_hostname"],
            "ansible_port": keys["ssh_port"],
            "ansible_user": "root",
            "ansible_ssh_private_key_file": keys["ssh_key"],
        }
        for name, keys in hosts
    }
    inventory.write_text(json.dumps({"nodes": {"hosts": reach, "vars": dict(variables)}}))
    config = folder / "ansible.cfg"
    config.write_text(ANSIBLE_CFG.format(folder=folder, known=known_hosts))
    (folder / "cp").mkdir()
    words = [str(ansible / "bin/ansible-playbook"), "-i", str(inventory), str(HERE / book)]
    return words, {"ANSIBLE_CONFIG": str(config), "ANSIBLE_HOME": str(folder / "home"), **QUIET}


def ansible_in(folder: Path) -> Path:
    """Return a virtual environment with ansible-core, made where it is not there yet."""
    if not (folder / "bin/ansible-playbook").exists():
        venv.create(folder, with_pip=True)
        subprocess.run([folder / "bin/pip", "install", "--quiet", "ansible-core"], check=True)
    return folder.resolve()
