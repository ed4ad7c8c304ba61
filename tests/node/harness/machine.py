"""A node: a distribution booted with its own systemd, sshd and Docker, reached over SSH."""

from __future__ import annotations

import json
import shlex
import shutil
import subprocess
import time
import uuid
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from .cache import HarnessError, run
from .stage import Stage, kill, mount_overlay

# Ready for SSH after 1.4 s on an idle machine; the rest is for two cores with much to do.
BOOT_SECONDS = 90.0

NETWORK = """\
[Match]
Name=host0
[Network]
Address={address}/24
Gateway={gateway}
LinkLocalAddressing=no
"""

# The node's own name on both loopbacks, so that no look-up of it waits for a name server.
HOSTS = "127.0.0.1 localhost {name}\n::1 localhost {name}\n"


def make_key(stage: Stage) -> Path:
    """The private SSH key of this run, made at the first call."""
    key = stage.directory / "id_ed25519"
    if not key.exists():
        run("ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", key)
    return key


@dataclass
class Node:
    """One node. Make it with `Node.create`, then `boot()`; its disk lives until the run's end."""

    stage: Stage
    name: str
    address: str
    root: Path
    store: Path
    key: Path
    binds: Mapping[Path, str] = field(default_factory=dict)
    _process: subprocess.Popen[bytes] | None = None

    @classmethod
    def create(
        cls,
        stage: Stage,
        name: str,
        tree: Path,
        store: Path | None = None,
        binds: Mapping[Path, str] | None = None,
    ) -> Node:
        """Prepare the node's disk over the base tree `tree`.

        `name` is its host name, unique in the run. `store` is a directory for /var/lib/docker
        that the node may write (an empty one otherwise). `binds` are directories of this machine
        that the node sees, read-only, at the paths given.
        """
        folder = stage.directory / "nodes" / name
        folder.mkdir(parents=True)
        if store is None:
            store = folder / "docker"
            store.mkdir()
        node = cls(
            stage=stage,
            name=name,
            address=stage.next_address(),
            root=mount_overlay(tree, folder),
            store=store,
            key=make_key(stage),
            binds=dict(binds or {}),
        )
        network = NETWORK.format(address=node.address, gateway=stage.address)
        node.put("/etc/systemd/network/10-host0.network", network)
        node.put("/etc/machine-id", uuid.uuid4().hex + "\n", 0o444)
        node.put("/etc/hostname", f"{name}\n")
        node.put("/etc/hosts", HOSTS.format(name=name))
        (node.root / "etc/resolv.conf").unlink(missing_ok=True)
        node.put("/etc/resolv.conf", "")
        node.put("/root/.ssh/authorized_keys", node.key.with_suffix(".pub").read_text(), 0o600)
        host_key = node.root / "etc/ssh/ssh_host_ed25519_key"
        run("ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-C", name, "-f", host_key)
        with open(node.known_hosts, "a") as known:
            known.write(f"{node.address} {host_key.with_suffix('.pub').read_text()}")
        node.enable("systemd-networkd.service", "multi-user.target")
        return node

    @property
    def known_hosts(self) -> Path:
        """The known_hosts file of this run: every node's host key by address."""
        return self.stage.directory / "known_hosts"

    @property
    def console(self) -> Path:
        """What the node printed while it booted and stopped."""
        return self.stage.directory / "nodes" / self.name / "console.log"

    @property
    def booted(self) -> bool:
        """Whether its systemd-nspawn process is alive."""
        return self._process is not None and self._process.poll() is None

    def boot(self) -> Node:
        """Boot it and wait until SSH answers; raises HarnessError with the console's end."""
        # The name becomes the host's end of the cable, vb-NAME: 15 characters at most. After a
        # power cut the kernel may still hold the old one.
        machine = f"s{self.stage.number}n{self.address.rpartition('.')[2]}"
        subprocess.run(["ip", "link", "del", f"vb-{machine}"], capture_output=True)
        argv = [
            "systemd-nspawn",
            *("--keep-unit", "--register=no", "--quiet", "--directory", str(self.root)),
            *(f"--network-bridge={self.stage.bridge}", "--capability=all", "--resolv-conf=off"),
            f"--machine={machine}",
            f"--bind={self.store}:/var/lib/docker",
            *(f"--bind-ro={here}:{there}" for here, there in self.binds.items()),
            "--boot",
        ]
        env = {"SYSTEMD_SECCOMP": "0", "SYSTEMD_NSPAWN_UNIFIED_HIERARCHY": "1"}
        with open(self.console, "ab") as log:
            self._process = self.stage.start(self.name, argv, log, env)
        end = time.monotonic() + BOOT_SECONDS
        while self.run("true", check=False, connect_timeout=2).returncode:
            if not self.booted or time.monotonic() > end:
                lines = self.console.read_text(errors="replace").splitlines()[-25:]
                raise HarnessError(f"node {self.name} did not boot:\n" + "\n".join(lines))
            time.sleep(0.1)
        return self

    def ssh(self, *options: str) -> list[str]:
        """The ssh command line that reaches this node as root, without a command."""
        return [
            *("ssh", "-F", "none", "-i", str(self.key), "-o", "BatchMode=yes"),
            *("-o", f"UserKnownHostsFile={self.known_hosts}", "-o", "LogLevel=ERROR"),
            *options,
            f"root@{self.address}",
        ]

    def run(
        self,
        command: str,
        check: bool = True,
        text: str | None = None,
        timeout: float = 600.0,
        connect_timeout: int = 10,
    ) -> subprocess.CompletedProcess[str]:
        """Run a shell command on the node as root; `text` is its input.

        Raises HarnessError with its output where it fails and `check` is true, and
        subprocess.TimeoutExpired after `timeout` seconds.
        """
        result = subprocess.run(
            [*self.ssh("-o", f"ConnectTimeout={connect_timeout}"), command],
            input=text or "",
            capture_output=True,
            text=True,
            errors="replace",
            timeout=timeout,
        )
        if check and result.returncode:
            raise HarnessError(
                f"{self.name}: {command}: exit {result.returncode}\n{result.stdout}{result.stderr}"
            )
        return result

    def put(self, path: str, text: str, mode: int = 0o644) -> None:
        """Write a file on the node, its directories made as needed, owned by root."""
        if self.booted:
            folder, file = shlex.quote(str(Path(path).parent)), shlex.quote(path)
            self.run(
                f"mkdir -p {folder} && cat >{file}.new && chmod {mode:o} {file}.new "
                f"&& mv -f {file}.new {file}",
                text=text,
            )
        else:
            here = self.root / path.lstrip("/")
            here.parent.mkdir(parents=True, exist_ok=True)
            here.write_text(text)
            here.chmod(mode)

    def enable(self, unit: str, target: str) -> None:
        """Let `unit` start with `target` at every boot, and now where the node runs."""
        if self.booted:
            self.run(f"systemctl daemon-reload && systemctl enable --now {unit}")
            return
        wants = self.root / f"etc/systemd/system/{target}.wants"
        wants.mkdir(parents=True, exist_ok=True)
        folder = "etc" if (self.root / "etc/systemd/system" / unit).exists() else "usr/lib"
        link = wants / unit
        if not link.is_symlink():
            link.symlink_to(f"/{folder}/systemd/system/{unit}")

    def read(self, path: str) -> str:
        """A file's text; raises HarnessError where it cannot be read."""
        return self.run(f"cat {shlex.quote(path)}").stdout

    def docker_settings(self, **settings: Any) -> None:
        """Merge settings into /etc/docker/daemon.json (`_` in a name stands for `-`).

        Restarts the Docker daemon where the node runs and the file changed.
        """
        path = "/etc/docker/daemon.json"
        if self.booted:
            old = self.run(f"cat {path} 2>/dev/null || echo '{{}}'").stdout
        else:
            here = self.root / path.lstrip("/")
            old = here.read_text() if here.exists() else "{}"
        before = json.loads(old)
        after = {**before, **{name.replace("_", "-"): value for name, value in settings.items()}}
        if after == before:
            return
        self.put(path, json.dumps(after, indent=2) + "\n")
        if self.booted:
            self.run("systemctl restart docker")

    def put_folder(self, here: Path, there: str) -> None:
        """Copy a directory of this machine onto the node as directory `there`."""
        if not self.booted:
            target = self.root / there.lstrip("/")
            target.parent.mkdir(parents=True, exist_ok=True)
            shutil.copytree(here, target, symlinks=True, dirs_exist_ok=True)
            return
        with subprocess.Popen(
            ["tar", "-C", str(here), "-cf", "-", "."], stdout=subprocess.PIPE
        ) as tar:
            command = f"mkdir -p {shlex.quote(there)} && tar -C {shlex.quote(there)} -xf -"
            subprocess.run([*self.ssh(), command], stdin=tar.stdout, check=True)

    def pyinfra(self) -> tuple[str, dict[str, Any]]:
        """This node as an entry of a pyinfra inventory."""
        return self.name, {
            "ssh_hostname": self.address,
            "ssh_user": "root",
            "ssh_key": str(self.key),
            "ssh_known_hosts_file": str(self.known_hosts),
            "ssh_strict_host_key_checking": "yes",
        }

    def shutdown(self, timeout: float = 150.0) -> None:
        """Shut it down as its power button would and wait for it, `timeout` seconds at most."""
        if self._process is not None and self.booted:
            self._process.terminate()
            self._process.wait(timeout)
        self._process = None

    def reboot(self) -> None:
        """Reboot from within and wait until SSH answers again; the disk keeps what it holds."""
        if self._process is None:
            raise HarnessError(f"node {self.name} is not running")
        self.run("systemctl reboot", check=False)
        self._process.wait(150.0)
        self.boot()

    def cut_power(self) -> None:
        """End all its processes at once. What they wrote stays, unlike after a real power loss."""
        if self._process is not None and self.booted:
            kill(self.stage.cgroup(self.name) / "payload")
            self._process.wait()
        self._process = None

    def discard(self) -> None:
        """End it and throw its disk away, before the run's end does."""
        self.cut_power()
        folder = self.stage.directory / "nodes" / self.name
        subprocess.run(["umount", str(self.root)], check=True)
        shutil.rmtree(folder)
