"""Repositories of a distribution's packages for nodes, which reach no mirror of it.

Each holds what one base tree lacks for building: a compiler, headers, libraries, with everything
that those depend on. It is a flat repository, downloaded once by this machine's apt.
"""

from __future__ import annotations

import hashlib
import json
import subprocess
from pathlib import Path

from .cache import make_once, run
from .trees import TREES, mirror, tree

KEYS = "/usr/share/keyrings/debian-archive-keyring.gpg"

# What a wheel runtime may ask a distribution for, by the base tree.
WANTED = {
    "fresh": ("g++", "libnuma1", "libgomp1", "python3-dev", "python3.11-dev", "python3-venv"),
    "trixie": ("g++", "libnuma1", "libgomp1", "python3-dev", "python3-venv"),
}

# Trees that are another one with more packages: what that one lacks is all that they may lack.
SAME_AS = {"bookworm": "fresh"}


def repository(cache: Path, name: str) -> Path:
    """The repository for nodes of the tree `name` (a key of WANTED)."""
    base, wanted, suite = tree(cache, name), WANTED[name], TREES[name].suite

    def make(beside: Path) -> None:
        apt = beside / "apt"
        for folder in ("etc/apt/apt.conf.d", "etc/apt/preferences.d", "state/lists/partial"):
            (apt / folder).mkdir(parents=True)
        (apt / "cache/archives/partial").mkdir(parents=True)
        source = f"deb [signed-by={KEYS}] {mirror()} {suite} main\n"
        (apt / "etc/apt/sources.list").write_text(source)
        config = apt / "apt.conf"
        config.write_text(
            f'Dir "{apt}";\n'
            f'Dir::Etc "{apt}/etc/apt";\nDir::State "{apt}/state";\nDir::Cache "{apt}/cache";\n'
            f'Dir::State::status "{base}/var/lib/dpkg/status";\n'
            'APT::Sandbox::User "root";\nAcquire::Languages "none";\n'
            'APT::Install-Recommends "false";\nDebug::NoLocking "true";\n'
        )
        env = {"APT_CONFIG": str(config)}
        run("apt-get", "-qq", "update", env=env)
        run("apt-get", "-qq", "-y", "--download-only", "install", *wanted, env=env)
        for deb in (apt / "cache/archives").glob("*.deb"):
            # A version's epoch is written `%3a` in a file's name; an address would need it twice.
            deb.rename(beside / deb.name.replace("%3a", "~"))
        run("rm", "-r", apt)
        _describe(beside)

    base_stamp = (base.parent / f".{base.name}.stamp").read_text()
    stamp = json.dumps([base_stamp, wanted, Path(__file__).read_text()])
    return make_once(cache / "packages" / name, make, stamp)


def _describe(folder: Path) -> None:
    """Write the repository's `Packages` and `Release`."""
    entries = []
    for deb in sorted(folder.glob("*.deb")):
        with open(deb, "rb") as content:
            digest = hashlib.file_digest(content, "sha256").hexdigest()
        about = run("dpkg-deb", "--field", deb).strip()
        entries.append(
            f"{about}\nFilename: ./{deb.name}\nSize: {deb.stat().st_size}\nSHA256: {digest}\n"
        )
    listing = "\n".join(entries).encode()
    (folder / "Packages").write_bytes(listing)
    date = subprocess.check_output(["date", "-Ru"], text=True).strip()
    digest = hashlib.sha256(listing).hexdigest()
    (folder / "Release").write_text(
        f"Origin: tests\nLabel: tests\nSuite: tests\nDate: {date}\nSHA256:\n"
        f" {digest} {len(listing)} Packages\n"
    )
