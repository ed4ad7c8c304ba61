"""An upgrade under load, one that does not start, and one that crashes while it is watched.

The real SGLang in its two images, on its CPU device, behind no router: clients that are turned
away ask again.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from .harness.machine import Node
from .load import Load, summary
from .site import ROOT, Ran, Site, scheduler_of, service, show

UNIT = "sglang@chat.service"
PLACE = "/var/lib/sglang/deployments/chat"


@pytest.fixture(scope="module")
def node(node_factory: Callable[..., Node]) -> Iterator[Node]:
    """A host with an L4, Docker and both images in its store."""
    node = node_factory("upgraded", images=True, model=True)
    yield node
    node.discard()


@pytest.fixture(scope="module")
def site(node: Node, registry: object, tmp_path_factory: pytest.TempPathFactory) -> Site:
    """One service of 0.5.22 that is reachable from outside, and runs."""
    site = Site(
        tmp_path_factory.mktemp("site"),
        [node],
        {
            "services": [service(address="0.0.0.0")],
            "registry": {"mirrors": {"docker.io": registry.url}},  # type: ignore[attr-defined]
        },
    )
    assert site.tool("apply").code == 0
    return site


def links(node: Node) -> list[str]:
    return node.run(f"cd {PLACE} && readlink current previous || :").stdout.split()


def record(node: Node, number: int) -> Any:
    return json.loads(node.read(f"{PLACE}/{number}/record.json"))


def at_step(step: str, site: Site, *words: str) -> subprocess.Popen[str]:
    """Start an upgrade; return once it is at a step, by its own events."""
    site.write()
    events = site.folder / "events"
    events.unlink(missing_ok=True)
    program = [sys.executable, "-m", "cli", "upgrade", str(site.inventory), *words]
    tool = subprocess.Popen(
        [*program, "--events", str(events)],
        cwd=ROOT,
        env={**os.environ, "NO_COLOR": "1"},
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    while tool.poll() is None:
        if events.exists() and step in events.read_text(encoding="utf-8"):
            return tool
        time.sleep(0.2)
    raise AssertionError(tool.communicate())


def killed_at(step: str, site: Site, *words: str) -> None:
    """Start an upgrade, and kill the controller at a step of it."""
    tool = at_step(step, site, *words)
    time.sleep(1)
    tool.kill()
    tool.communicate()


def under_load(node: Node, act: Callable[[], Ran]) -> tuple[Ran, Load]:
    """Do something while two clients send."""
    load = Load(f"http://{node.address}:30000", "tiny", clients=2, seconds=300)
    sends = threading.Thread(target=load.run)
    sends.start()
    try:
        time.sleep(2)
        ran = act()
        time.sleep(3)
    finally:
        load.stopping.set()
        sends.join()
    print(summary(load.ledger))
    return ran, load


def test_the_lock_is_asked_for_first(site: Site) -> None:
    ran = site.tool("upgrade", "--to", "0.5.23", "--yes")
    assert ran.code == 3
    assert f"sglang-node lock {site.inventory} --to 0.5.23" in ran.err
    assert site.tool("lock", "--to", "0.5.23").code == 0


def test_an_upgrade_loses_nothing(site: Site, node: Node) -> None:
    def act() -> Ran:
        # The controller is killed while the new one is watched: the next run goes on from there.
        killed_at("Watch chat", site, "--to", "0.5.23", "--soak", "5m", "--yes")
        assert record(node, 2)["upgrade"] == "begun"
        serving.append(show(node, UNIT, "InvocationID"))
        return site.tool("upgrade", "--to", "0.5.23", "--soak", "6s", "--yes")

    serving: list[dict[str, str]] = []
    assert "kernels are compiled anew" in site.tool("upgrade", "--to", "0.5.23").out
    ran, load = under_load(node, act)
    assert ran.code == 0
    assert serving == [show(node, UNIT, "InvocationID")]
    assert "sglang.services[chat].release to '0.5.23' (it says 0.5.22)" in ran.err
    assert links(node) == ["2", "1"]
    assert (record(node, 2)["upgrade"], record(node, 2)["soak_seconds"]) == ("proved", 6)
    ends = summary(load.ledger)
    assert ends["failed"] == ends["truncated"] == 0
    assert ends["answered"] >= 5
    assert load.ledger[-1].end == "answered"


def test_a_second_run_changes_nothing(site: Site, node: Node) -> None:
    before = show(node, UNIT, "InvocationID")
    ran = site.tool("upgrade", "--to", "0.5.23", "--yes", "--json")
    assert ran.code == 0
    assert ran.document["nodes"][0]["upgrade"] == "unchanged"
    assert show(node, UNIT, "InvocationID") == before


def test_one_that_does_not_start_goes_back_by_itself(site: Site, node: Node) -> None:
    site.data["services"][0]["release"] = "0.5.23"
    site.data["services"][0]["arguments"]["log-level"] = "nonsense"
    ran, load = under_load(
        node, lambda: site.tool("upgrade", "--to", "0.5.22", "--soak", "6s", "--yes", "--json")
    )
    del site.data["services"][0]["arguments"]["log-level"]
    assert ran.code == 1
    (one,) = ran.document["nodes"]
    assert one["upgrade"] == "failed"
    assert one["why"].startswith("chat did not start: ")
    assert "went back to deployment 2, SGLang 0.5.23" in one["then"]
    assert links(node) == ["2", "3"]
    assert "no attribute 'NONSENSE'" in node.read(f"{PLACE}/3/failed.log")
    assert "stop gate: asked for by the toolkit" in node.read(f"{PLACE}/3/before.log")
    ends = summary(load.ledger)
    assert ends["failed"] == ends["truncated"] == 0
    assert load.ledger[-1].end == "answered"


def test_one_that_crashes_while_it_is_watched_goes_back_by_itself(site: Site, node: Node) -> None:
    serving, release = links(node)[0], site.data["services"][0]["release"]
    other = {"0.5.22": "0.5.23", "0.5.23": "0.5.22"}[release]
    assert site.tool("lock", "--to", other).code == 0
    tool = at_step("Watch chat", site, "--to", other, "--soak", "5m", "--yes")
    time.sleep(3)
    failing = links(node)[0]
    node.run(f"kill -9 {scheduler_of(node)}")
    out, err = tool.communicate(timeout=600)
    print(out, err)
    assert tool.returncode == 1
    assert "s into its soak" in err
    assert f"went back to deployment {serving}, SGLang {release}" in err
    assert links(node) == [serving, failing]
    assert record(node, int(failing))["upgrade"] == "failed"
    assert "ready, and it generates" in out
    # Nobody who goes back without a number meets it again.
    ran = site.tool("rollback")
    assert ran.code == 3
    assert f"an upgrade to deployment {failing} of chat failed" in ran.out
