"""A rolling upgrade of three nodes behind one door whose new version fails, in four ways.

Not among the default tests: `scripts/test tests/long/test_fleet_failures.py -s`, as root; about
three minutes for each way on two cores. Each time the first node goes back by itself, the others
are not touched, no request is lost, the exit code is 1, and one sentence says why.
"""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.node.fleet import FleetSite, Loaded, fleet_nodes, fleet_site, under_load
from tests.node.harness.machine import Node
from tests.node.harness.mirror import Mirror
from tests.node.harness.registry import Registry
from tests.node.site import Ran, show

pytestmark = pytest.mark.timeout(1800)

UNIT = "sglang@chat.service"
PLACE = "/var/lib/sglang/deployments/chat"
EMPTY = "/srv/models/empty"


@pytest.fixture(scope="module")
def nodes(node_factory: Callable[..., Node]) -> Iterator[list[Node]]:
    """Three hosts with Docker and both images in their stores."""
    yield from fleet_nodes(node_factory)


@pytest.fixture(scope="module")
def site(
    nodes: list[Node], registry: Registry, mirror: Mirror, tmp_path_factory: pytest.TempPathFactory
) -> FleetSite:
    """All three serve 0.5.22 behind the door of the last."""
    site = fleet_site(tmp_path_factory.mktemp("site"), nodes, registry, mirror)
    assert site.tool("apply", timeout=1500).code == 0
    assert site.tool("lock", "--to", "0.5.23").code == 0
    return site


class Failing:
    """One upgrade that is to fail: what is changed of the service, and what is done meanwhile."""

    def __init__(self, site: FleetSite, capsys: pytest.CaptureFixture[str]) -> None:
        self.site, self.capsys = site, capsys
        self.first = site.nodes[0]
        self.problem: BaseException | None = None

    def run(
        self, what: str, change: dict[str, Any], soak: str, meanwhile: Callable[[Path], None]
    ) -> str:
        """Upgrade under load; check all that holds however it fails; return why it failed."""
        site, nodes = self.site, self.site.nodes
        before = [show(node, UNIT, "InvocationID") for node in nodes]
        current = links(self.first)[0]
        (chat,) = site.data["services"]
        site.data["services"] = [{**chat, **change}]
        events = site.folder / "events"
        events.unlink(missing_ok=True)

        def act() -> Ran:
            words = ("--to", "0.5.23", "--soak", soak, "--yes", "--json")
            other = threading.Thread(target=self._meanwhile, args=(meanwhile, events))
            other.start()
            ran = site.tool("upgrade", *words, "--events", str(events), timeout=1200)
            other.join()
            return ran

        try:
            found = under_load(nodes[-1], act)
        finally:
            site.data["services"] = [chat]
        if self.problem is not None:
            raise self.problem
        return self._checked(what, found, before, current)

    def _meanwhile(self, meanwhile: Callable[[Path], None], events: Path) -> None:
        try:
            meanwhile(events)
        except BaseException as error:
            self.problem = error

    def _checked(self, what: str, found: Loaded, before: list[dict[str, str]], current: str) -> str:
        ends = [one["upgrade"] for one in found.ran.document["nodes"]]
        (told,) = [one for one in found.ran.err.splitlines() if "the upgrade to SGLang" in one]
        with self.capsys.disabled():
            print(f"\n{found.line(what)}; exit {found.ran.code}; {ends}\n  {told}")
        assert found.ran.code == 1
        assert ends == ["failed", "not begun", "not begun"]
        assert f"went back to deployment {current}, SGLang 0.5.2" in told
        after = [show(node, UNIT, "InvocationID") for node in self.site.nodes]
        assert after[1:] == before[1:]
        assert after[0] != before[0]
        assert links(self.first)[0] == current
        assert found.not_answered == []
        assert found.rotation.least == 2
        assert found.rotation.seen[-1] == 3
        return str(found.ran.document["nodes"][0]["why"])


@pytest.fixture
def failing(site: FleetSite, capsys: pytest.CaptureFixture[str]) -> Failing:
    return Failing(site, capsys)


def links(node: Node) -> list[str]:
    return node.run(f"cd {PLACE} && readlink current previous || :").stdout.split()


def nothing(events: Path) -> None:
    """Do nothing meanwhile."""


def until(events: Path, step: str) -> None:
    """Wait until the run is at a step, by its own events."""
    end = time.monotonic() + 900
    while not (events.exists() and step in events.read_text(encoding="utf-8")):
        assert time.monotonic() < end, f"never at {step}"
        time.sleep(0.2)


def schedulers(node: Node) -> set[str]:
    """Return the process ids of the schedulers that run on a node."""
    listing = (
        "docker top sglang-chat -eo pid,args 2>/dev/null | awk '/sglang::scheduler/ {print $1}'"
    )
    return {*node.run(f"{listing} || :").stdout.split()}


def test_a_wrong_flag(failing: Failing) -> None:
    (chat,) = failing.site.data["services"]
    change = {"arguments": {**chat["arguments"], "log-level": "nonsense"}}
    why = failing.run("a wrong flag", change, "10s", nothing)
    assert why.startswith("chat did not start: ")
    assert "NONSENSE" in why


def test_a_crash_after_twenty_seconds_of_good_service(failing: Failing) -> None:
    def crash(events: Path) -> None:
        until(events, "Watch chat")
        time.sleep(20)
        (scheduler,) = schedulers(failing.first)
        failing.first.run(f"kill -9 {scheduler}")

    why = failing.run("a crash after 20 s", {"arguments": arguments(failing)}, "5m", crash)
    assert "s into its soak" in why


def test_empty_answers(failing: Failing, site: FleetSite) -> None:
    for node in site.nodes:
        node.run(f"cp -a /srv/models/tiny {EMPTY}")
        settings = json.loads(node.read(f"{EMPTY}/generation_config.json"))
        size = json.loads(node.read(f"{EMPTY}/config.json"))["vocab_size"]
        # Whatever it draws is the end of its answer.
        settings["eos_token_id"] = list(range(size))
        node.put(f"{EMPTY}/generation_config.json", json.dumps(settings))
    why = failing.run("empty answers", {"model": EMPTY}, "10s", nothing)
    assert "text" in why


def test_one_that_is_never_ready(failing: Failing) -> None:
    before = schedulers(failing.first)

    def stop(events: Path) -> None:
        until(events, "Restart chat")
        end = time.monotonic() + 300
        while not (new := schedulers(failing.first) - before):
            assert time.monotonic() < end, "no new scheduler"
            time.sleep(0.2)
        failing.first.run(f"kill -STOP {' '.join(new)}")

    why = failing.run("never ready", {"silence_limit": 45}, "10s", stop)
    assert why.startswith("chat did not start: ")


def arguments(failing: Failing) -> dict[str, Any]:
    """Return the service's arguments with one more, so that it is another deployment."""
    (chat,) = failing.site.data["services"]
    return {**chat["arguments"], "max-running-requests": 16}
