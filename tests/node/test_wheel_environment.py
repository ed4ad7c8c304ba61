"""The environment of a wheel runtime on a real node: made from nothing, broken, cut, made whole.

Small: the five packages of CUDA's compiler and some of pure Python, by real uv from the mirrors.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from releases.wheels import read_lock, write_lock

from .harness.lab import Lab
from .harness.machine import Node
from .harness.wheels import COMPILER
from .site import Ran, Site, service, show

PACKAGES = {*(pin.partition("==")[0] for pin in COMPILER), "idna", "sniffio"}
PACKAGES |= {"sglang", "sglang-kernel"}
ENVIRONMENTS = "/opt/sglang/environments"

# Runs on as what it began with; when it is told, it loads what it has not loaded yet.
LIVES = """\
import os, subprocess, sys, time
print("began", flush=True)
while not os.path.exists("/run/go-on"):
    time.sleep(0.1)
import decimal, idna, sniffio, sqlite3
child = subprocess.run([sys.executable, "-c", "import idna.codec; print(idna.__version__)"],
                       capture_output=True, text=True)
print("loaded", idna.__version__ == child.stdout.strip(), child.stderr, flush=True)
time.sleep(600)
"""


class Made(Site):
    """A node of the wheel runtime, of which only the environment is made."""

    @property
    def node(self) -> Node:
        return self.nodes[0]

    def make(self) -> Ran:
        return self.pyinfra("../tests/node/environment_alone", "-y")

    def wanted(self) -> list[str]:
        """Return the changes that a plan names for the environment, each with its reason."""
        node = self.tool("plan", "--json").document["nodes"][0]
        kinds = ("environment", "packages")
        return [f"{c['what']}: {c['why']}" for c in node["changes"] if c["kind"] in kinds]

    @property
    def place(self) -> str:
        """The environment's directory."""
        return self.node.run(f"echo {ENVIRONMENTS}/*").stdout.strip()


def wait_for_words(node: Node, words: str) -> None:
    """Wait until the program that lives on said this."""
    said = "journalctl -u lives -o cat --no-pager"
    node.run(f"for i in $(seq 60); do {said} | grep -q '{words}' && exit; sleep 0.5; done; exit 1")


@pytest.fixture(scope="module")
def site(lab: Lab, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Made]:
    folder = tmp_path_factory.mktemp("environment")
    lock = read_lock(lab.mirror.locks["compile"].read_text())
    small = tuple(one for one in lock.packages if one.name in PACKAGES)
    (folder / "small.txt").write_text(write_lock(lock.model_copy(update={"packages": small})))
    node = lab.node("bare", "fresh")
    data: dict[str, Any] = {
        "services": [service(release="0.5.23")],
        "runtime": "wheel",
        "wheel_lock": str(folder / "small.txt"),
        "mirrors": lab.mirror.keys,
    }
    yield Made(folder, [node], data)
    node.discard()


def test_from_nothing_it_is_made_whole_and_a_second_run_makes_nothing(site: Made) -> None:
    changes = site.wanted()
    assert any(one.startswith("user sglang") for one in changes)
    assert {"g++", "libnuma1"} <= {one.partition(":")[0] for one in changes}
    assert "not on the node" in changes[-1]
    assert "python3.11-dev" in changes[-1]
    ran = site.make()
    assert ran.code == 0
    assert "is whole: 9 packages" in ran.out + ran.err
    assert site.wanted() == []
    place, node = site.place, site.node
    # By its own inode: a second run leaves it where it is.
    before = node.run(f"stat -c %i {place} {place}/environment.json").stdout
    assert site.make().code == 0
    assert node.run(f"stat -c %i {place} {place}/environment.json").stdout == before


def test_its_user_compiles_and_links_with_it_and_may_not_write_to_it(site: Made) -> None:
    place, node = site.place, site.node
    cuda = f"{place}/lib/python3.11/site-packages/nvidia/cu13"
    node.run(
        "mkdir -p /tmp/try && chown sglang: /tmp/try && cd /tmp/try && "
        "echo '__global__ void k() {} int main() { k<<<1, 1>>>(); }' > x.cu && "
        f"runuser -u sglang -- env PATH={cuda}/bin:/usr/bin:/bin nvcc -arch=sm_89 "
        "-cudart shared x.cu -lcuda -o x",
        timeout=120,
    )
    assert "libcudart.so.13" in node.run("cd /tmp/try && objdump -p x | grep NEEDED").stdout
    header = "import sysconfig; print(open(sysconfig.get_paths()['include'] + '/Python.h').read(9))"
    node.run(f'runuser -u sglang -- {place}/bin/python3 -c "{header}"')
    refused = node.run(f"runuser -u sglang -- touch {place}/x", check=False)
    assert refused.returncode != 0
    user = node.run("getent passwd sglang").stdout.strip().split(":")
    assert user[5:] == ["/var/lib/sglang/home", "/usr/sbin/nologin"]


def test_links_that_are_gone_are_made_again_in_place(site: Made) -> None:
    place, node = site.place, site.node
    inode = node.run(f"stat -c %i {place}").stdout
    cuda = f"{place}/lib/python3.11/site-packages/nvidia/cu13"
    node.run(f"rm {cuda}/lib64 {cuda}/lib/libcudart.so")
    assert "links of its CUDA tree: no cu13/lib64" in site.wanted()[0]
    assert site.make().code == 0
    assert site.wanted() == []
    assert node.run(f"stat -c %i {place}").stdout == inode
    node.run(f"test -e {cuda}/lib64/libcudart.so")


def test_a_package_changed_by_hand_and_a_header_gone_make_it_anew(site: Made) -> None:
    place, node = site.place, site.node
    inode = node.run(f"stat -c %i {place}").stdout
    packages = f"{place}/lib/python3.11/site-packages"
    node.run(f"mv {packages}/sniffio-*.dist-info {packages}/sniffio-9.9.dist-info")
    header = node.run(
        f'sed -n \'s/.*"include": "\\(.*\\)".*/\\1/p\' {place}/environment.json'
    ).stdout.strip()
    # By its whole version: another patch that uv installs later changes nothing here.
    assert header.startswith("/opt/sglang/python/cpython-3.11.")
    assert "sniffio-9.9.dist-info" in site.wanted()[0]
    node.run(f"rm {header}/Python.h")
    assert "no Python.h any more" in site.wanted()[0]
    # A service runs from it meanwhile, under the unit's own view of the files.
    node.put("/srv/lives.py", LIVES)
    node.run(
        "systemd-run --quiet --unit=lives -p User=sglang -p ProtectSystem=strict "
        f"-p PrivateTmp=yes {place}/bin/python3 /srv/lives.py"
    )
    wait_for_words(node, "began")
    before = show(node, "lives", "MainPID")
    assert site.make().code == 0
    node.run("touch /run/go-on")
    wait_for_words(node, "loaded True")
    assert show(node, "lives", "MainPID") == before
    node.run("systemctl stop lives; rm /run/go-on")
    assert site.wanted() == []
    node.run(f"test -e {header}/Python.h && ! ls {packages} | grep -q 9.9")
    assert node.run(f"stat -c %i {place}").stdout != inode
    assert node.run(f"ls {ENVIRONMENTS}").stdout.split() == [Path(place).name]


def test_killed_in_the_middle_the_next_run_discards_the_half_and_ends_whole(site: Made) -> None:
    place, node = site.place, site.node
    node.run(f"rm -rf {place} /var/cache/sglang/uv")
    ran: list[Ran] = []
    run = threading.Thread(target=lambda: ran.append(site.make()))
    run.start()
    # As soon as uv installs: every shell of the run dies at once, uv itself is left alone.
    node.run(
        "for i in $(seq 1200); do "
        "uv=$(pgrep -f '^/opt/sglang/tools/uv-[0-9.]* pip install') && break; sleep 0.05; done; "
        "shell=$(ps -o ppid= -p $uv); kill -KILL $shell $(ps -o ppid= -p $shell)"
    )
    run.join(300)
    assert ran[0].code != 0
    half = node.run(f"ls {ENVIRONMENTS}").stdout.split()
    assert all(name.endswith(".new") for name in half)
    assert site.make().code == 0
    assert site.wanted() == []
    assert site.place == place


def test_a_package_that_is_not_the_locked_one_is_named_and_what_was_there_stays(
    site: Made, lab: Lab
) -> None:
    place, node = site.place, site.node
    folder = Path(site.data["wheel_lock"])
    good = folder.read_text()
    lock = read_lock(good)
    bad = tuple(
        one.model_copy(update={"hashes": ("sha256:" + "0" * 64,)}) if one.name == "idna" else one
        for one in lock.packages
    )
    folder.write_text(write_lock(lock.model_copy(update={"packages": bad})))
    ran = site.make()
    folder.write_text(good)
    assert ran.code != 0
    assert "PACKAGE_HASH: idna==" in ran.out + ran.err
    assert node.run(f"ls {ENVIRONMENTS}").stdout.split() == [Path(place).name]
    assert site.wanted() == []
