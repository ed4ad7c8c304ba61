"""Nodes that are odd, full, read-only or hang: said with what mends it, and nothing is changed."""

from __future__ import annotations

import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from plans import scripts
from plans.deployment import PlannedFile

from .harness.machine import Node
from .harness.registry import Registry
from .site import Ran, Site, service, show

UNIT = "sglang@chat.service"
PROCESS = ("MainPID", "InvocationID", "ActiveState", "NRestarts")
STATE = "/var/lib/sglang"
DROP_INS = "/etc/systemd/system/sglang@chat.service.d"


@pytest.fixture(scope="module")
def node(node_factory: Callable[..., Node]) -> Iterator[Node]:
    """A host whose /tmp runs no program, whose shell greets and whose locale is another."""
    node = node_factory("odd", images=True)
    node.run(
        "mount -t tmpfs -o noexec,nosuid,size=64m tmpfs /tmp && "
        # A file system of its own, small enough to be filled.
        f"mkdir -p {STATE} && mount -t tmpfs -o size=40m tmpfs {STATE} && "
        "printf 'LANG=de_DE.UTF-8\\nLC_ALL=de_DE.UTF-8\\n' >> /etc/environment && "
        "printf 'export LC_ALL=de_DE.UTF-8 LANGUAGE=de\\n"
        'echo "*** Willkommen auf $(hostname) ***"\\necho "@ Wartung am Freitag" >&2\\n\' '
        "| cat - /root/.bashrc > /root/new && mv /root/new /root/.bashrc && "
        "cp /root/.bashrc /root/.profile && chsh -s /bin/bash root"
    )
    yield node
    node.discard()


@pytest.fixture(scope="module")
def site(node: Node, registry: Registry, tmp_path_factory: pytest.TempPathFactory) -> Site:
    """An inventory with one service on that host."""
    data = {"services": [service()], "registry": {"mirrors": {"docker.io": registry.url}}}
    return Site(tmp_path_factory.mktemp("site"), [node], data)


def state_of(node: Node) -> tuple[str, dict[str, str]]:
    """Return the sums of everything that the toolkit writes, and what the service is."""
    places = f"{STATE} {DROP_INS} /etc/systemd/system/sglang@.service"
    sums = node.run(
        f"find {places} -type l -printf '%p %l\\n' | sort; "
        f"find {places} -type f ! -name fill -exec sha256sum {{}} + | sort"
    ).stdout
    return sums, show(node, UNIT, *PROCESS)


@pytest.fixture
def unchanged(node: Node) -> Iterator[None]:
    """Whatever the test does: the service runs on in the same process, no file is another."""
    before = state_of(node)
    assert before[1]["ActiveState"] == "active"
    yield
    assert state_of(node) == before


def other(site: Site, registry: Registry, **keys: Any) -> Site:
    """Return the inventory with another wish, so that there is a change to make."""
    data = {**site.data, "services": [service(**(keys or {"output_cap": 3000}))]}
    site.folder.joinpath("other").mkdir(exist_ok=True)
    lock = site.folder / "sglang.lock"
    (site.folder / "other" / "sglang.lock").write_bytes(lock.read_bytes())
    return Site(site.folder / "other", site.nodes, data)


def refused(ran: Ran, code: str) -> dict[str, Any]:
    """Check that the node alone refuses, with this code; return the refusal."""
    assert ran.code == 3
    (told,) = ran.document["nodes"]
    assert told["changes"] == []
    found = {one["code"]: one for one in told["refusals"]}
    assert list(found) == [code]
    refusal: dict[str, Any] = found[code]
    return refusal


def test_noexec_tmp_another_locale_and_a_login_banner_change_nothing(
    site: Site, node: Node
) -> None:
    assert "Willkommen" in node.run("true").stdout, "the shell greets"
    ran = site.tool("apply")
    assert ran.code == 0
    assert "ready, and it generates" in ran.out
    ran = site.tool("plan")
    assert "unchanged, ready" in ran.out
    # What follows reads the output of commands itself.
    node.run("rm /root/.bashrc /root/.profile")


@pytest.mark.usefixtures("unchanged")
def test_a_drop_in_that_does_not_fit_the_disk_leaves_the_old_service_running(
    site: Site, node: Node, registry: Registry
) -> None:
    node.run(
        f"cp -a {DROP_INS} /root/kept && mount -t tmpfs -o size=4k tmpfs {DROP_INS} && "
        f"cp -a /root/kept/. {DROP_INS}/"
    )
    ran = other(site, registry).tool("apply", "--json")
    node.run(f"umount {DROP_INS} && rm -rf /root/kept {STATE}/deployments/chat/2")
    assert ran.code == 3
    (refusal,) = ran.document["nodes"][0]["refusals"]
    assert refusal["code"] == "DISK_FULL"
    assert "nothing was switched, and what ran before runs on" in refusal["seen"]
    assert f"KiB free on {DROP_INS} for {DROP_INS}/" in refusal["seen"]
    assert f"df -h {DROP_INS}" in refusal["advice"]


@pytest.mark.usefixtures("unchanged")
def test_a_full_disk_is_refused_before_and_a_write_that_fails_leaves_nothing(
    site: Site, node: Node, registry: Registry
) -> None:
    node.run(f"dd if=/dev/zero of={STATE}/fill bs=1M status=none || true")
    refusal = refused(other(site, registry).tool("apply", "--json"), "DISK_FULL")
    assert f"free on {STATE} for {STATE}" in refusal["seen"]
    assert f"df -h {STATE}" in refusal["advice"]
    # And where the disk fills between the plan and the write:
    files = (PlannedFile(f"{STATE}/deployments/chat/9/server.yaml", "x" * 300_000),)
    program = scripts.write_deployment(f"{STATE}/deployments/chat/9", files)
    done = node.run("sh -s", text=program, check=False)
    assert done.returncode != 0
    assert "DISK_FULL nothing was changed: 0 KiB free" in done.stdout
    assert f"df -h {STATE}" in done.stdout
    left = node.run(f"ls {STATE}/deployments/chat").stdout.split("\n")
    assert not [name for name in left if name.startswith("9")]
    node.run(f"rm {STATE}/fill")


@pytest.mark.usefixtures("unchanged")
def test_a_read_only_file_system_is_refused_with_its_mount(
    site: Site, node: Node, registry: Registry
) -> None:
    node.run(f"mount -o remount,ro {STATE}")
    refusal = refused(other(site, registry).tool("apply", "--json"), "READ_ONLY")
    node.run(f"mount -o remount,rw {STATE}")
    assert f"{STATE} lies on {STATE}" in refusal["seen"]
    assert f"mount -o remount,rw {STATE}" in refusal["advice"]


@pytest.mark.usefixtures("unchanged")
def test_an_nvidia_smi_that_hangs_is_abandoned_and_named(site: Site, node: Node) -> None:
    path = node.run("command -v nvidia-smi").stdout.split()[-1]
    node.run(
        f"mv {path} {path}.away && printf '#!/bin/sh\\ntrap \"\" TERM\\nexec sleep 600\\n' > {path}"
        f" && chmod 755 {path}"
    )
    refusal = refused(site.tool("apply", "--json"), "SMI_HUNG")
    node.run(f"mv {path}.away {path}")
    assert "did not end" in refusal["seen"]
    assert "reboot" in refusal["advice"]


@pytest.mark.usefixtures("unchanged")
def test_a_changed_host_key_is_refused_with_what_to_compare(
    site: Site, node: Node, tmp_path: Path
) -> None:
    keys = node.pyinfra()[1]
    subprocess.run(
        ["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", tmp_path / "other"], check=True
    )
    kind, key, *_ = (tmp_path / "other.pub").read_text(encoding="utf-8").split()
    known = tmp_path / "known"
    known.write_text(f"{keys['ssh_hostname']} {kind} {key}\n", encoding="utf-8")
    wrong = Site(tmp_path, [node], site.data, keys={"ssh_known_hosts_file": str(known)})
    before = known.read_text(encoding="utf-8")
    ran = wrong.tool("apply", "--json")
    assert ran.code == 1
    error = ran.document["nodes"][0]["error"]
    assert error["code"] == "UNREACHABLE"
    assert "another host key" in error["text"]
    assert f"ssh-keyscan {keys['ssh_hostname']} | ssh-keygen -lf -" in error["text"]
    assert f"ssh-keygen -f {known} -R" in error["text"]
    assert known.read_text(encoding="utf-8") == before
