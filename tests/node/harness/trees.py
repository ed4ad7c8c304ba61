"""Base trees: whole distributions in a directory, made once by mmdebstrap and never changed."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path

from .cache import HarnessError, make_once, run

# What a GPU host has before anybody provisions it.
HOST_PACKAGES = (
    "systemd,systemd-sysv,dbus,openssh-server,python3,sudo,ca-certificates,iproute2,curl,procps"
)


@dataclass(frozen=True)
class Tree:
    """A distribution that nodes boot, or that an image is made of: its suite and its packages."""

    suite: str
    packages: str

    @property
    def has_docker(self) -> bool:
        """Whether a node of it runs Docker."""
        return "docker.io" in self.packages


TREES = {
    # Debian 13: systemd 257, Docker 26.1 with CDI.
    "trixie": Tree("trixie", f"{HOST_PACKAGES},docker.io,docker-cli,iptables"),
    # Debian 12: systemd 252, Docker 20.10; its python3.11 runs SGLang (python3-venv, g++ for it).
    "bookworm": Tree("bookworm", f"{HOST_PACKAGES},docker.io,iptables,python3-venv"),
    # The same before anybody installed anything: no Docker, no compiler, no headers.
    "fresh": Tree("bookworm", HOST_PACKAGES),
    # The ground of the images. libgomp and libnuma are what torch and SGLang load.
    "image": Tree("bookworm", "python3,busybox-static,libgomp1,libnuma1,libsndfile1,procps"),
}


def mirror() -> str:
    """The Debian mirror that this machine's apt uses, or the one `SGLANG_NODE_MIRROR` names."""
    named = os.environ.get("SGLANG_NODE_MIRROR")
    if named:
        return named
    targets = run("apt-get", "indextargets", "--format", "$(REPO_URI)", "Created-By: Packages")
    for uri in targets.splitlines():
        if uri.rstrip("/").endswith("/debian"):
            return uri
    raise HarnessError(
        "apt on this machine names no Debian mirror: set SGLANG_NODE_MIRROR to the address of one"
    )


def tree(cache: Path, name: str) -> Path:
    """The directory of the base tree `name` (a key of TREES), made now if it is not there."""
    wanted = TREES[name]

    def make(beside: Path) -> None:
        # mmdebstrap takes a third of debootstrap's time. Nobody reads these trees' documentation,
        # and a power loss while one is made costs nothing.
        unread = (
            f"--dpkgopt=path-exclude=/usr/share/{part}/*" for part in ("doc", "locale", "man")
        )
        run(
            *("mmdebstrap", "--quiet", "--mode=root", "--variant=minbase"),
            *("--dpkgopt=force-unsafe-io", *unread, f"--include={wanted.packages}"),
            *(wanted.suite, beside, mirror()),
        )
        _strip(beside)

    return make_once(cache / "trees" / name, make, stamp=f"{wanted.suite} {wanted.packages}\n")


def _strip(root: Path) -> None:
    """Take away what every booted node must have of its own."""
    (root / "etc/machine-id").unlink(missing_ok=True)
    for key in (root / "etc/ssh").glob("ssh_host_*"):
        key.unlink()
    units = root / "etc/systemd/system"
    if units.is_dir():  # each node gets one host key; this would make it wait for two more
        (units / "sshd-keygen.service").symlink_to("/dev/null")
