"""What the stories of the node tier share: an inventory over nodes, the tool, a client."""

from __future__ import annotations

import json
import os
import resource
import subprocess
import sys
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from .harness.lab import MODEL
from .harness.machine import Node

ROOT = Path(__file__).resolve().parents[2]

COUNTED_PORT = 2222
"""Port of a second sshd on a node, which writes down every command that comes in."""

CPU_ARGUMENTS: dict[str, Any] = {
    "device": "cpu",
    "max-total-tokens": 20000,
    # Without it an idle scheduler takes a whole core.
    "sleep-on-idle": True,
}
"""Arguments that the real SGLang needs on its CPU device."""


ALLOWED = {
    name: min(limit, hard) if hard != resource.RLIM_INFINITY else limit
    for name, limit, hard in (
        ("memlock", 8388608, resource.getrlimit(resource.RLIMIT_MEMLOCK)[1]),
        ("nofile", 20000, resource.getrlimit(resource.RLIMIT_NOFILE)[1]),
    )
}
"""Limits that a node of ours may set: no process of a machine that lacks CAP_SYS_RESOURCE
can raise them, and such is the machine that these tests were first written on."""


def service(**keys: Any) -> dict[str, Any]:
    """Return the data of a service that serves the tiny model."""
    base: dict[str, Any] = {
        "name": "chat",
        "model": MODEL,
        "served_name": "tiny",
        "output_cap": 4000,
        "tokens_per_second": 40.0,
        "release": "0.5.22",
        "arguments": dict(CPU_ARGUMENTS),
        "ulimits": dict(ALLOWED),
    }
    return {**base, **keys}


def wheel_service(**keys: Any) -> dict[str, Any]:
    """Return the data of a service that serves the tiny model from a lock of packages."""
    # SGLang's own image for the CPU sets these as well.
    environment = {"SGLANG_USE_CPU_ENGINE": "1", "OMP_NUM_THREADS": "1"}
    return service(**{"environment": environment, **keys})


def show(node: Node, unit: str, *properties: str) -> dict[str, str]:
    """Return properties of a unit as systemd shows them."""
    out = node.run(f"systemctl show --property={','.join(properties)} {unit}").stdout
    return dict(line.split("=", 1) for line in out.splitlines())


def wait_for(node: Node, unit: str, timeout: float = 180, **wanted: str) -> None:
    """Wait until these properties of a unit have these values."""
    test = " && ".join(
        f'[ "$(systemctl show -p {name} --value {unit})" = {value} ]'
        for name, value in wanted.items()
    )
    node.run(f"for i in $(seq {int(timeout * 2)}); do {test} && exit 0; sleep 0.5; done; exit 1")


def scheduler_of(node: Node, container: str = "sglang-chat") -> str:
    """Return the process id, on the node, of a server's scheduler."""
    listing = f"docker top {container} -eo pid,args | awk '/sglang::scheduler/ {{print $1}}'"
    return node.run(listing).stdout.split()[0]


def count_commands(node: Node) -> None:
    """Give a node a second sshd that writes each incoming command into /root/commands."""
    node.put(
        "/root/counted",
        "#!/bin/sh\n"
        'printf "%s\\n" "$SSH_ORIGINAL_COMMAND" | head -c 200 | tr "\\n" " " >> /root/commands\n'
        "echo >> /root/commands\n"
        'exec sh -c "$SSH_ORIGINAL_COMMAND"\n',
        0o755,
    )
    node.put(
        "/etc/systemd/system/sshd-counted.service",
        "[Service]\n"
        f"ExecStart=/usr/sbin/sshd -D -p {COUNTED_PORT} -o ForceCommand=/root/counted "
        "-o PidFile=none\n"
        "RuntimeDirectory=sshd\nRuntimeDirectoryPreserve=yes\n"
        "[Install]\nWantedBy=multi-user.target\n",
    )
    node.run("systemctl daemon-reload && systemctl enable --now sshd-counted")
    node.run(
        f"for i in $(seq 50); do ss -Hltn 'sport = :{COUNTED_PORT}' | grep -q . && exit; sleep 0.1; done"
    )


def commands_of(node: Node) -> list[str]:
    """Return the commands that came in since the last call, and forget them."""
    text = node.run("cat /root/commands 2>/dev/null; rm -f /root/commands").stdout
    return [line for line in text.splitlines() if line.strip()]


def has_the_flags_of_the_unit(host: dict[str, Any]) -> None:
    """Check what the unit gives every container, in HostConfig of its ``docker inspect``."""
    assert host["Init"] is True
    assert host["AutoRemove"] is True
    assert host["LogConfig"]["Type"] == "none"
    assert host["CgroupParent"] == "sglang-chat.slice"
    assert host["IpcMode"] == "private"
    assert host["NetworkMode"] == "bridge"
    assert host["SecurityOpt"] == ["no-new-privileges"]
    assert host["CapDrop"] == ["ALL"]
    assert not host["CapAdd"]
    assert host["Privileged"] is False
    assert host["ReadonlyRootfs"] is True
    assert host["Tmpfs"] == {"/tmp": "exec,mode=1777"}
    assert host["PortBindings"] == {"30000/tcp": [{"HostIp": "127.0.0.1", "HostPort": "30000"}]}


@dataclass
class Ran:
    """How a run of the tool ended."""

    code: int
    out: str
    err: str

    @property
    def document(self) -> Any:
        """Its JSON document."""
        return json.loads(self.out)


@dataclass
class Site:
    """An inventory in a folder of its own, and the tool over it."""

    folder: Path
    nodes: list[Node]
    data: dict[str, Any]
    port: int = 22
    environment: dict[str, str] = field(default_factory=dict)
    keys: dict[str, Any] = field(default_factory=dict)
    """What the hosts' own data have beside how to reach them, or instead of it."""

    @property
    def inventory(self) -> Path:
        """The inventory file."""
        return self.folder / "site.py"

    def write(self) -> None:
        """Write the inventory anew from ``data``."""
        hosts = []
        for node in self.nodes:
            name, keys = node.pyinfra()
            reach = {**keys, "ssh_port": self.port, **self._known_hosts(keys)}
            hosts.append((name, {**reach, **self.keys}))
        text = f"gpu_nodes = ({hosts!r}, {{'sglang': {self.data!r}}})\n"
        self.inventory.write_text(text, encoding="utf-8")

    def _known_hosts(self, keys: dict[str, Any]) -> dict[str, str]:
        """Know the node's host key under the second port too; OpenSSH writes it with the port."""
        address = keys["ssh_hostname"]
        path = self.folder / f"known_hosts-{address}"
        known = Path(keys["ssh_known_hosts_file"]).read_text(encoding="utf-8")
        path.write_text(
            known + known.replace(address, f"[{address}]:{self.port}"), encoding="utf-8"
        )
        return {"ssh_known_hosts_file": str(path)}

    def tool(self, command: str, *words: str, timeout: float = 600) -> Ran:
        """Run ``sglang-node COMMAND INVENTORY WORDS...`` as a user would."""
        program = [sys.executable, "-m", "cli", command, str(self.inventory), *words]
        return self._ran(f"sglang-node {command} {' '.join(words)}", program, timeout)

    def pyinfra(self, deploy: str, *words: str, timeout: float = 600) -> Ran:
        """Run ``pyinfra INVENTORY deploys/DEPLOY.py WORDS...``, with nothing of the tool."""
        program = [str(Path(sys.executable).with_name("pyinfra")), str(self.inventory)]
        program += [f"deploys/{deploy}.py", *words]
        return self._ran(f"pyinfra site.py deploys/{deploy}.py {' '.join(words)}", program, timeout)

    def _ran(self, shown: str, program: list[str], timeout: float) -> Ran:
        self.write()
        ran = subprocess.run(
            program,
            cwd=ROOT,
            env={**os.environ, "NO_COLOR": "1", **self.environment},
            capture_output=True,
            text=True,
            timeout=timeout,
            stdin=subprocess.DEVNULL,
        )
        # Shown by pytest where a test fails.
        print(f"$ {shown} -> {ran.returncode}\n{ran.stdout}{ran.stderr}")
        return Ran(ran.returncode, ran.stdout, ran.stderr)


@dataclass
class Stream:
    """A streamed completion that runs on a node."""

    process: subprocess.Popen[str]

    def finish(self, timeout: float = 180) -> tuple[int, bool]:
        """Wait for its end; return the tokens that the server says it sent, and whether [DONE] came.

        A lost stream ends with status 200 as well: only these two tell.
        """
        out, _ = self.process.communicate(timeout=timeout)
        tokens = 0
        for line in out.splitlines():
            if line.startswith("data: {"):
                usage = json.loads(line[6:]).get("usage")
                if usage:
                    tokens = usage["completion_tokens"]
        return tokens, "data: [DONE]" in out


def stream(
    node: Node, tokens: int, *, port: int = 30000, model: str = "tiny", headers: str = "/dev/null"
) -> Stream:
    """Start a streamed completion of so many tokens on a node; it is in flight on return.

    ``headers``: a file of the node with more lines of the request's head.
    """
    body = json.dumps(
        {
            "model": model,
            "prompt": "hello",
            "max_tokens": tokens,
            "stream": True,
            "ignore_eos": True,
            "stream_options": {"include_usage": True},
        }
    )
    node.put("/root/stream.json", body)
    # Of one before nothing may be taken for this one's.
    node.run("rm -f /root/stream.out")
    process = subprocess.Popen(
        [
            *node.ssh(),
            "curl -sN --max-time 300 -H 'Content-Type: application/json' "
            f"-H @{headers} -d @/root/stream.json "
            f"http://127.0.0.1:{port}/v1/completions | tee /root/stream.out",
        ],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        text=True,
    )
    node.run(
        "for i in $(seq 100); do grep -q data: /root/stream.out 2>/dev/null && exit 0; sleep 0.1; done; exit 1"
    )
    return Stream(process)
