"""Real sshd, sudo and users on this machine, in a mount namespace of their own.

What is under /etc there is a copy: the users, their passwords and what sudo allows them are
nobody's else, and are gone with the namespace.
"""

from __future__ import annotations

import os
import pty
import select
import shutil
import socket
import subprocess
import sys
import time
from dataclasses import dataclass, field
from pathlib import Path

from tests.fake.command import ROOT, Ended, run

PASSWORD = "correct-horse 'battery\" $staple"
"""Of every user: with all that a shell could trip over."""

NEEDED = {"sshd": "openssh-server", "sudo": "sudo", "ssh-agent": "openssh-client",
          "unshare": "util-linux", "useradd": "passwd"}  # fmt: skip
"""Program on this machine: Debian package that has it."""

USERS = {
    "maria": "maria ALL=(ALL) ALL",
    "nora": "nora ALL=(ALL) NOPASSWD: ALL",
    "olga": "",
}
"""User: what sudo allows. Maria needs a password, Nora none, Olga is in no file of sudo's."""


def missing() -> list[str]:
    """What keeps this machine from running them, in words; empty where nothing does."""
    path = f"{os.environ['PATH']}:/usr/sbin"
    reasons = [] if os.geteuid() == 0 else ["not root"]
    return reasons + [
        f"no {program} (package {package})"
        for program, package in NEEDED.items()
        if not shutil.which(program, path=path)
    ]


SETUP = """
set -eu
mount --bind {folder}/etc /etc
mount --bind {folder}/log /var/log
mkdir -p /run/sshd /run/sudo {folder}/ts
mount --bind {folder}/ts /run/sudo
{users}
echo 'Defaults logfile={folder}/log/sudo' > /etc/sudoers.d/zz-tests
chmod 0440 /etc/sudoers.d/*
: > {folder}/ready
exec sleep infinity
"""


def _port() -> int:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port: int = free.getsockname()[1]
        return port


@dataclass
class Sshd:
    """One sshd: its port and the key by which it is known."""

    port: int
    key: Path
    process: subprocess.Popen[bytes]

    @property
    def public(self) -> str:
        """Type and text of its host key."""
        return " ".join(self.key.with_suffix(".pub").read_text(encoding="utf-8").split()[:2])

    @property
    def known(self) -> str:
        """Its line of known_hosts."""
        return f"[127.0.0.1]:{self.port} {self.public}\n"

    @property
    def fingerprint(self) -> str:
        """Its key's fingerprint, as ssh-keygen says it."""
        said = subprocess.run(
            ["ssh-keygen", "-lf", str(self.key)], capture_output=True, text=True, check=True
        )
        return said.stdout.split()[1]


@dataclass
class Machine:
    """Users, and as many sshd as are asked for."""

    folder: Path
    space: subprocess.Popen[bytes]
    daemons: list[Sshd] = field(default_factory=list)

    @classmethod
    def start(cls, folder: Path) -> Machine:
        """Make the namespace with its users, whose key is ``folder/key``."""
        folder.chmod(0o755)
        shutil.copytree("/etc", folder / "etc", symlinks=True)
        (folder / "log").mkdir()
        (folder / "homes").mkdir()
        # What the machine's own sudo allows is not what is tried here.
        for file in (folder / "etc/sudoers.d").iterdir():
            file.unlink()
        _keygen(folder / "key")
        users = "\n".join(
            f"useradd --no-log-init -M -d {folder}/homes/{user} -s /bin/sh {user}; "
            f"mkdir {folder}/homes/{user}; chown {user} {folder}/homes/{user}; "
            f"printf '%s\\n' '{allowed}' > /etc/sudoers.d/{user}"
            for user, allowed in USERS.items()
        )
        program = folder / "setup"
        program.write_text(SETUP.format(folder=folder, users=users), encoding="utf-8")
        space = subprocess.Popen(["unshare", "--mount", "sh", str(program)])
        machine = cls(folder, space)
        _until((folder / "ready").exists, space)
        machine.set_password(PASSWORD)
        return machine

    def inside(self, *words: str, text: str | None = None) -> str:
        """Run a program in the namespace, and return what it printed."""
        done = subprocess.run(
            ["nsenter", "--mount", f"--target={self.space.pid}", *words],
            input=text, capture_output=True, text=True, check=True,
        )  # fmt: skip
        return done.stdout

    def set_password(self, password: str) -> None:
        """Give every user this password."""
        self.inside("chpasswd", text="".join(f"{user}:{password}\n" for user in USERS))

    def sshd(self, *lines: str) -> Sshd:
        """Start an sshd with a host key of its own."""
        port = _port()
        key = self.folder / f"host-{port}"
        _keygen(key)
        config = self.folder / f"sshd-{port}"
        config.write_text(
            f"Port {port}\nListenAddress 127.0.0.1\nHostKey {key}\nPidFile none\nUsePAM no\n"
            f"AuthorizedKeysFile {self.folder}/key.pub\nStrictModes no\nMaxStartups 100\n"
            f"PasswordAuthentication no\nUseDNS no\n" + "".join(f"{one}\n" for one in lines),
            encoding="utf-8",
        )
        process = subprocess.Popen(
            ["nsenter", "--mount", f"--target={self.space.pid}", "--",
             "/usr/sbin/sshd", "-D", "-e", "-f", str(config)],
            stderr=(self.folder / f"sshd-{port}.log").open("wb"),
        )  # fmt: skip
        daemon = Sshd(port, key, process)
        self.daemons.append(daemon)
        _until(lambda: _answers(port), process)
        return daemon

    def sudo_log(self) -> str:
        """Return what sudo logged."""
        log = self.folder / "log/sudo"
        return log.read_text(encoding="utf-8") if log.exists() else ""

    def close(self) -> None:
        """End all of it."""
        for process in [*(one.process for one in self.daemons), self.space]:
            process.kill()
            process.wait()


def _keygen(path: Path) -> None:
    subprocess.run(["ssh-keygen", "-qt", "ed25519", "-N", "", "-f", str(path)], check=True)


def _answers(port: int) -> bool:
    with socket.socket() as one:
        return one.connect_ex(("127.0.0.1", port)) == 0


def _until(true: object, process: subprocess.Popen[bytes]) -> None:
    assert callable(true)
    for _ in range(200):
        if true():
            return
        assert process.poll() is None, f"{process.args!r} ended with {process.returncode}"
        time.sleep(0.05)
    raise AssertionError(f"{process.args!r} did not begin within 10 s")


@dataclass
class Person:
    """An operator at this machine: a home with ~/.ssh, an inventory, and the tool."""

    home: Path
    environment: dict[str, str] = field(default_factory=dict)

    def __post_init__(self) -> None:
        (self.home / ".ssh").mkdir(parents=True, mode=0o700)

    @property
    def known_hosts(self) -> Path:
        """Where ssh writes which keys are known."""
        return self.home / ".ssh/known_hosts"

    def configure(self, text: str) -> None:
        """Write ~/.ssh/config."""
        (self.home / ".ssh/config").write_text(text, encoding="utf-8")

    def inventory(self, *hosts: tuple[str, dict[str, object]]) -> Path:
        """Write an inventory of these hosts."""
        site = self.home / "site.py"
        site.write_text(f"nodes = {list(hosts)!r}\n", encoding="utf-8")
        return site

    def _environment(self) -> dict[str, str]:
        kept = {k: v for k, v in os.environ.items() if k not in ("SSH_AUTH_SOCK", "FORCE_COLOR")}
        return {**kept, "HOME": str(self.home), "NO_COLOR": "1", "COLUMNS": "200",
                "PYINFRA_PROGRESS": "off", **self.environment}  # fmt: skip

    def tool(self, *words: object) -> Ended:
        """Run ``sglang-node WORDS``."""
        mine = {"HOME": str(self.home), "SSH_AUTH_SOCK": "", "NO_COLOR": "1"}
        return _shown(run(*words, env={**mine, **self.environment}), *words)

    def tool_without_terminal(self, *words: object) -> Ended:
        """Run it where it has no terminal, also where these tests have one."""
        done = subprocess.run(
            [sys.executable, "-m", "cli", *map(str, words)],
            cwd=ROOT, env=self._environment(), stdin=subprocess.DEVNULL, capture_output=True,
            text=True, timeout=120, start_new_session=True, check=False,
        )  # fmt: skip
        return _shown(Ended(done.returncode, done.stdout, done.stderr), *words)

    def tool_on_terminal(self, *words: object, types: str) -> tuple[Ended, str]:
        """Run it on a terminal, on which ``types`` is typed once it asks for a password.

        Returns how it ended, and what stood on the terminal.
        """
        ours, theirs = pty.openpty()
        process = subprocess.Popen(
            [sys.executable, "-c", _ON_TERMINAL, os.ttyname(theirs), *map(str, words)],
            cwd=ROOT, env=self._environment(), stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
            stderr=subprocess.PIPE, text=True, start_new_session=True,
        )  # fmt: skip
        shown = b""
        while b"password" not in shown:
            assert select.select([ours], [], [], 30)[0], process.communicate()
            shown += os.read(ours, 1024)
        # getpass drops what was typed before it had turned the echo off.
        time.sleep(0.3)
        os.write(ours, types.encode())
        out, err = process.communicate(timeout=120)
        os.set_blocking(ours, False)
        try:
            while more := os.read(ours, 1024):
                shown += more
        except OSError:
            pass
        os.close(ours)
        os.close(theirs)
        return _shown(Ended(process.returncode, out, err), *words), shown.decode()


def _shown(ended: Ended, *words: object) -> Ended:
    """Print how a command ended: pytest shows it where a test fails."""
    print(f"$ sglang-node {' '.join(map(str, words))} -> {ended.code}")
    print(ended.out[-6000:], ended.err[-6000:])
    return ended


_ON_TERMINAL = """
import fcntl, os, sys, termios
fcntl.ioctl(os.open(sys.argv[1], os.O_RDWR), termios.TIOCSCTTY, 0)
os.execv(sys.executable, [sys.executable, "-m", "cli", *sys.argv[2:]])
"""

INTERRUPT = "\x03"
"""What Ctrl-C types."""
