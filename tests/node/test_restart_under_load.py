"""A restart while clients keep sending, and one of a server that was marked unhealthy.

No router stands in front: the port itself is shut before the signal. The real SGLang, in its
container on its CPU device; one client comes over the node's network, by the address that Docker
translates, the others over loopback, through Docker's proxy, one of them on a connection it keeps.
"""

from __future__ import annotations

import json
import re
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from .harness.machine import Node
from .load import Load, Request, summary
from .site import Ran, Site, scheduler_of, service, show, stream, wait_for

UNIT = "sglang@chat.service"
HERE = Path(__file__).parent


@pytest.fixture(scope="module")
def node(node_factory: Callable[..., Node]) -> Iterator[Node]:
    """A host with an L4, Docker and the images in its store."""
    node = node_factory("busy", images=True, model=True)
    node.put("/root/load.py", (HERE / "load.py").read_text(encoding="utf-8"))
    yield node
    node.discard()


@pytest.fixture(scope="module")
def site(node: Node, registry: object, tmp_path_factory: pytest.TempPathFactory) -> Site:
    """One service that is reachable from outside, and runs."""
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


@dataclass
class Stopped:
    """What a restart under load left behind."""

    ran: Ran
    outside: list[Request]
    inside: list[Request]  # over loopback, a connection each
    kept: list[Request]  # over loopback, on one connection
    ended: float  # when the old server had ended, Unix time
    rules: str  # of the packet filter, while it drained
    log: str  # of the old server


def read_ledger(node: Node, name: str) -> list[Request]:
    lines = node.read(f"/root/{name}.ledger").splitlines()
    return [Request(**json.loads(line)) for line in lines]


@pytest.fixture(scope="module")
def stopped(site: Site, node: Node) -> Stopped:
    """Restart the service while three clients send."""
    invocation = show(node, UNIT, "InvocationID")["InvocationID"]
    load = Load(f"http://{node.address}:30000", "tiny", clients=1, seconds=300)
    outside = threading.Thread(target=load.run)
    outside.start()
    for name, words in (("inside", ""), ("kept", "--keep-alive")):
        node.run(
            f"python3 /root/load.py http://127.0.0.1:30000 --clients 1 --seconds 300 {words} "
            f"--ledger /root/{name}.ledger > /root/{name}.out 2>&1 & echo $! > /root/{name}.pid"
        )
    node.run(
        "(until iptables -t mangle -S | grep sglang-stop > /root/rules; do sleep 0.1; done) "
        ">/dev/null 2>&1 &"
    )
    time.sleep(6)
    ran = site.tool("restart")
    time.sleep(4)
    load.stopping.set()
    node.run("kill $(cat /root/inside.pid /root/kept.pid)")
    outside.join()
    node.run(
        "while kill -0 $(cat /root/inside.pid) || kill -0 $(cat /root/kept.pid); do sleep 0.2; done 2>/dev/null"
    )
    log = f"journalctl -u {UNIT} _SYSTEMD_INVOCATION_ID={invocation} --no-pager"
    last = node.run(f"{log} -o short-unix | tail -n 1").stdout
    return Stopped(
        ran=ran,
        outside=load.ledger,
        inside=read_ledger(node, "inside"),
        kept=read_ledger(node, "kept"),
        ended=float(last.split()[0]),
        rules=node.read("/root/rules"),
        log=node.run(f"{log} -o cat").stdout,
    )


def test_everything_that_was_admitted_is_answered(stopped: Stopped) -> None:
    for name in ("outside", "inside", "kept"):
        print(name, summary(getattr(stopped, name)))
    for ledger in (stopped.outside, stopped.inside):
        assert sum(one.end == "answered" for one in ledger) >= 5
        # Once it had ended, Docker's proxy takes connections that no server has yet: no loss.
        lost = [
            one
            for one in ledger
            if one.end in ("failed", "truncated") and (one.connected or 0) < stopped.ended
        ]
        assert lost == []
    assert [one for one in stopped.outside if one.end in ("failed", "truncated")] == []


def test_requests_on_a_connection_that_is_kept_are_answered_or_never_reach_it(
    stopped: Stopped,
) -> None:
    sent = [*stopped.outside, *stopped.inside, *stopped.kept]
    mine = [one for one in sent if one.end == "answered" and one.begun < stopped.ended]
    admitted = re.findall(r'"POST /v1/completions HTTP/1.1" (\d+)', stopped.log)
    # Each that the old server took on it answered, and its client had the whole of it.
    assert admitted == ["200"] * len(mine)
    assert [one for one in stopped.kept if one.end == "truncated"] == []


def test_clients_are_turned_away_while_it_drains_and_served_again_after(stopped: Stopped) -> None:
    refused = [one for one in stopped.outside if one.end == "turned away"]
    assert refused
    assert all("Connection refused" in one.why for one in refused)
    assert "30000" in stopped.rules
    assert stopped.outside[-1].end == "answered"
    assert stopped.inside[-1].end == "answered"


def test_the_restart_says_what_it_waited_for_and_ends_in_time(stopped: Stopped, node: Node) -> None:
    said = stopped.ran.err
    assert stopped.ran.code == 0
    assert "stopping: the drain may take" in said
    assert "s  until the server notices the signal" in said
    assert "new connections to 0.0.0.0 port 30000 are refused" in said
    assert "drained: the log says that no request remained" in said
    assert "no process of it is left" in said
    assert node.run("iptables-save | grep -c sglang-stop", check=False).stdout.strip() == "0"
    assert node.run("ls /run/sglang").stdout.split() == ["apply.lock"]


def test_a_server_that_was_marked_unhealthy_loses_nothing_at_a_restart(
    site: Site, node: Node
) -> None:
    scheduler = scheduler_of(node)
    running = stream(node, 4000)
    node.run(f"kill -STOP {scheduler}")
    status = "curl -s -o /dev/null -m 60 -w '%{http_code}' http://127.0.0.1:30000"
    try:
        assert node.run(f"{status}/health_generate").stdout == "503"
    finally:
        node.run(f"kill -CONT {scheduler}")
    assert node.run(f"{status}/ready").stdout == "503"
    ran = site.tool("restart")
    assert running.finish() == (4000, True)
    assert ran.code == 0
    assert "it has generated and is ready again" in ran.err
    assert "drained: the log says that no request remained" in ran.err


def test_the_history_has_the_one_that_runs(site: Site) -> None:
    ran = site.tool("history", "--json")
    (one,) = ran.document["nodes"][0]["services"][0]["deployments"]
    assert (one["number"], one["current"], one["previous"]) == (1, True, False)
    assert one["result"] == "ready, and it generates"
    assert one["first_answer_seconds"] > 0
    assert one["why"] == ["the first one"]


def test_a_way_back_from_one_that_does_not_start_fetches_nothing(site: Site, node: Node) -> None:
    site.data["services"][0]["arguments"]["log-level"] = "nonsense"
    assert site.tool("apply").code == 1
    links = "cd /var/lib/sglang/deployments/chat && readlink current previous"
    assert node.run(links).stdout.split() == ["2", "1"]
    # Nobody can be asked for anything.
    node.run("iptables -I OUTPUT -d 10.213.0.0/16 -p tcp --dport 5000 -j REJECT")
    ran = site.tool("rollback")
    assert ran.code == 0
    assert "from deployment 2 to 1" in ran.out
    assert "ready, and it generates" in ran.out
    assert node.run(links).stdout.split() == ["1", "2"]
    told = site.tool("history").out
    assert "gone back to from 2" in told
    assert "arguments.log-level: none → nonsense" in told
    # The inventory still asks for the other one: that is a change, with a number of its own.
    pending = site.tool("plan", "--json").document["nodes"][0]
    assert pending["services"][0]["deployment"] == 3


def test_there_is_no_way_back_to_what_is_not_there_or_never_served(site: Site, node: Node) -> None:
    before = show(node, UNIT, "InvocationID")
    ran = site.tool("rollback", "--to", "9")
    assert ran.code == 3
    assert "NO_WAY_BACK" in ran.out
    ran = site.tool("rollback", "--json")
    assert ran.code == 3
    (refusal,) = ran.document["nodes"][0]["services"][0]["refusals"]
    assert refusal["code"] == "NO_WAY_BACK"
    assert "deployment 2 of chat has never answered" in refusal["seen"]
    assert show(node, UNIT, "InvocationID") == before


# --- maintenance, starts that fail, and what is left of earlier deployments

DROP_IN = "/run/systemd/system/sglang@chat.service.d/99-test.conf"
FAILS = "echo 'server_args=ServerArgs(model_path=1)'; exit 1"
"""Stands for a server that fails in the first phase of its load."""


def test_a_stop_at_once_tells_its_loss_and_does_nothing_unasked(site: Site, node: Node) -> None:
    running = stream(node, 4000)
    ran = site.tool("stop", "--now")
    assert ran.code == 2
    assert "chat: 1 connection open: every answer in flight on them is lost" in ran.err
    assert "add --yes" in ran.err
    assert show(node, UNIT, "ActiveState")["ActiveState"] == "active"
    assert running.process.poll() is None
    began = time.monotonic()
    ran = site.tool("stop", "--now", "--yes")
    assert ran.code == 0
    assert time.monotonic() - began < 30
    assert not running.finish()[1]
    assert show(node, UNIT, "ActiveState", "MainPID") == {"ActiveState": "inactive", "MainPID": "0"}
    assert "sglang-chat" not in node.run("docker ps -a --format '{{.Names}}'").stdout


def test_a_node_that_is_drained_for_a_reboot_comes_back_with_it(site: Site, node: Node) -> None:
    ran = site.tool("drain", "--for", "reboot")
    assert ran.code == 0
    assert "drained: reboot it, then: sglang-node verify" in ran.out
    ran = site.tool("status")
    assert "drained for a reboot since" in ran.out
    assert "  - booted anew: not since it was drained" in ran.out
    node.reboot()
    wait_for(node, UNIT, ActiveState="active")
    told = site.tool("status", "--json").document["nodes"][0]["maintenance"]
    assert [one["what"] for one in told["steps"] if one["ok"]] == [
        "booted anew", "driver and libraries", "fabric", "GPUs", "chat",
    ]  # fmt: skip
    ran = site.tool("verify")
    assert ran.code == 0
    assert "back from its reboot: all of it is well, and verified" in ran.out
    assert "drained" not in site.tool("status").out


def test_status_says_who_stopped_it(site: Site) -> None:
    assert site.tool("stop").code == 0
    assert "inactive (stopped by the toolkit)" in site.tool("status").out


def fails_from_now_on(node: Node, what: str) -> None:
    """Let the unit start this in place of its server, and start it."""
    node.put(
        DROP_IN,
        f'[Service]\nRestartSec=1\nExecStart=\nExecStart=/bin/sh -c "sleep 1; {what}"\n',
    )
    node.run(
        f"systemctl daemon-reload && systemctl reset-failed {UNIT}; systemctl --no-block start {UNIT}"
    )
    wait_for(node, UNIT, timeout=60, ActiveState="failed")


def test_a_load_that_fails_twice_in_one_phase_is_not_tried_again(site: Site, node: Node) -> None:
    fails_from_now_on(node, FAILS)
    assert show(node, UNIT, "NRestarts") == {"NRestarts": "1"}
    ran = site.tool("status")
    assert ran.code == 1
    assert "not tried again: its start has failed twice in phase: starting" in ran.out
    time.sleep(3)  # longer than the pause between two starts
    assert show(node, UNIT, "ActiveState", "NRestarts") == {
        "ActiveState": "failed",
        "NRestarts": "1",
    }


def test_a_node_that_waits_for_a_reboot_says_so_and_starts_nothing_again(
    site: Site, node: Node
) -> None:
    smi = "/usr/bin/nvidia-smi"
    node.run(f"mv {smi} {smi}.real")
    node.put(
        smi,
        "#!/bin/sh\necho 'Failed to initialize NVML: Driver/library version mismatch'\nexit 18\n",
        0o755,
    )
    try:
        fails_from_now_on(node, "exit 1")
        assert show(node, UNIT, "NRestarts") == {"NRestarts": "0"}
        assert "this node waits for a reboot" in site.tool("status").out
    finally:
        node.run(f"mv {smi}.real {smi}; rm {DROP_IN}; systemctl daemon-reload")


OLD = r"""set -e
cd /var/lib/sglang/deployments/chat
for n in 3 4 5 6; do cp -a 1 $n; done
for n in 3 4; do
    kernels=/var/cache/sglang/000000000000000$n
    mkdir -p -m 0700 $kernels/home
    head -c 20000000 /dev/urandom > $kernels/home/kernel.so
    sed -i "s|^SGLANG_KERNELS=.*|SGLANG_KERNELS=\"$kernels\"|" $n/launch.env
done
docker images --digests --format '{{.Repository}}@{{.Digest}}' > /root/images
one=$(grep ^tiny/http /root/images)
other=$(grep ^lmsysorg /root/images | grep -vF "$(sed -n 's/^SGLANG_IMAGE="\(.*\)"/\1/p' 1/launch.env)" | head -n 1)
docker tag $other mine/sglang:1
sed -i "s|^SGLANG_IMAGE=.*|SGLANG_IMAGE=\"$one\"|" 3/launch.env
sed -i "s|^SGLANG_IMAGE=.*|SGLANG_IMAGE=\"$other\"|" 4/launch.env
find 3 4 5 6 -exec touch -h -d '100 days ago' {} +
mkdir /var/cache/sglang/of-somebody
echo "$one $other"
"""
"""Makes four more deployments, 100 days old, of which the two older ones have caches and images of
their own; the image of the second has a name of somebody's."""


def test_what_no_deployment_needs_is_collected_and_what_is_left_is_named(
    site: Site, node: Node
) -> None:
    ours, named = node.run(OLD).stdout.split()
    ran = site.tool("collect", "--dry-run")
    assert ran.code == 0
    # By default the three newest stay, whatever their age.
    assert ", 4, 5, 6" in ran.out
    assert "0000000000000004" not in ran.out
    there = "ls -d /var/lib/sglang/deployments/chat/* /var/cache/sglang/*"
    before = node.run(there).stdout
    ran = site.tool("collect", "--keep", "1", "--json")
    assert ran.code == 0
    (found,) = ran.document["nodes"]
    assert found["kept"]["chat"] in ([1, 2, 5, 6], [1, 5, 6])
    gone = [
        "/var/cache/sglang/0000000000000003",
        "/var/cache/sglang/0000000000000004",
        ours,
        "/var/lib/sglang/deployments/chat/3",
        "/var/lib/sglang/deployments/chat/4",
    ]
    assert found["collected"]["gone"] == gone
    assert found["collected"]["freed_bytes"] > 40_000_000
    assert {one["what"] for one in found["left"]} == {
        f"image {named}",
        "/var/cache/sglang/of-somebody",
    }
    assert set(before.split()) - set(node.run(there).stdout.split()) == {*gone} - {ours}
    store = node.run("docker images --digests --format '{{.Repository}}@{{.Digest}}'").stdout
    assert named in store
    assert ours not in store
    # Nothing of it is told twice, and what is left is told again.
    again = site.tool("collect", "--keep", "1")
    assert "nothing to collect" in again.out
    assert "left: /var/cache/sglang/of-somebody" in again.out
