"""The door before one real server: an upgrade and the way back under load lose nothing, and keys
belong to it.

The real sglang-router 0.3.2, in an environment of its own from a mirror; SGLang is the real one on
its CPU device, in its container. Clients come over the node's network.
"""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import pairwise

import pytest

from tests.unit.certificates import pair

from .harness.machine import Node
from .harness.mirror import Mirror
from .harness.registry import Registry
from .load import Load, Request, summary
from .site import COUNTED_PORT, Ran, Site, commands_of, count_commands, service, show

UNIT = "sglang@chat.service"
DOOR = "sglang-door.service"
KEY = "a-key-of-the-door-0123456789"
OTHER_KEY = "the-next-key-of-the-door-987"


@pytest.fixture(scope="module")
def node(node_factory: Callable[..., Node]) -> Iterator[Node]:
    """A host with an L4, Docker and the images in its store."""
    node = node_factory("doored", images=True)
    count_commands(node)
    yield node
    node.discard()


@pytest.fixture(scope="module")
def site(
    node: Node, registry: Registry, mirror: Mirror, tmp_path_factory: pytest.TempPathFactory
) -> Site:
    """One service on loopback, and the door with a key on the node's own addresses."""
    return Site(
        tmp_path_factory.mktemp("site"),
        [node],
        {
            "services": [service()],
            "registry": {"mirrors": {"docker.io": registry.url}},
            "mirrors": mirror.keys,
            "door": {
                "host": "0.0.0.0",
                "port": 8000,
                "keys": [{"env": "DOOR_KEY"}],
                "wait": 600,
                "lock": str(mirror.locks["door"]),
            },
        },
        port=COUNTED_PORT,
        environment={"DOOR_KEY": KEY},
    )


@pytest.fixture(scope="module")
def applied(site: Site) -> Ran:
    """The first apply."""
    ran = site.tool("apply")
    assert ran.code == 0
    return ran


@dataclass
class Answer:
    """What the door said."""

    status: int
    head: str
    body: str


def ask(node: Node, path: str, *, key: str | None = KEY, words: str = "") -> Answer:
    """Ask the door at the node's address on the network."""
    given = f"-H 'Authorization: Bearer {key}'" if key else ""
    out = node.run(
        f"curl -s -i --path-as-is -m 30 -w '\\n%{{http_code}}' {given} {words} "
        f"http://{node.address}:8000{path}"
    ).stdout.replace("\r", "")
    whole, _, status = out.rpartition("\n")
    head, _, body = whole.partition("\n\n")
    return Answer(int(status), head, body)


def state(node: Node) -> str:
    return node.run("grep ^server /run/sglang-door/state").stdout.split()[2]


def test_the_plan_names_the_door_and_apply_puts_it_after_its_server(applied: Ran) -> None:
    said = applied.out + applied.err
    assert "sglang-router 0.3.2" in said
    assert said.index("ready, and it generates") > 0
    assert "the door stands: 0.0.0.0 port 8000, before chat" in said


def test_a_client_with_the_key_is_served_and_one_without_is_not(applied: Ran, node: Node) -> None:
    body = '-H \'Content-Type: application/json\' -d \'{"model": "tiny", "prompt": "a"}\''
    good = ask(node, "/v1/completions", words=body)
    assert good.status == 200
    assert json.loads(good.body)["usage"]["completion_tokens"] > 0
    for key in (None, "another-key-0123456789"):
        bad = ask(node, "/v1/completions", key=key, words=body)
        assert (bad.status, "Bearer" in bad.head) == (401, True)


def test_what_gives_keys_away_or_changes_servers_is_not_reachable_through_it(
    applied: Ran, node: Node
) -> None:
    for path in (
        "/server_info", "/get_server_info", "/get_model_info", "/workers", "/flush_cache",
        "/engine_metrics", "/metrics", "//server_info", "/v1/../server_info", "/%73erver_info",
    ):  # fmt: skip
        assert ask(node, path).status == 404, path
        assert ask(node, path, key=None).status == 401, path
    # Nor on the router's own ports, which only loopback has, without keys that nobody else knows:
    # one is its metrics', which says the same whatever is asked.
    listeners = node.run("ss -Hltnp").stdout
    mine = [line.split()[3] for line in listeners.splitlines() if "router" in line]
    assert len(mine) == 2
    assert all(one.startswith("127.0.0.1:") for one in mine)
    words = "-H 'Content-Type: application/json' -d '{\"url\": \"http://127.0.0.1:9\"}'"
    said = [
        node.run(
            f"curl -s -m 5 -w ' %{{http_code}}' -X POST http://{one}/workers "
            f"-H 'Authorization: Bearer {KEY}' {words}"
        ).stdout
        for one in mine
    ]
    assert sorted(one.split()[-1] for one in said) == ["200", "401"]
    assert not any("accepted" in one for one in said)


def test_no_key_stands_in_an_argument_list_a_unit_or_a_log(applied: Ran, node: Node) -> None:
    node.put("/root/pattern", KEY, 0o600)
    looked = node.run(
        "cat /proc/[0-9]*/cmdline /proc/[0-9]*/environ 2>/dev/null | grep -caF -f /root/pattern;"
        "journalctl -o cat --no-pager | grep -cF -f /root/pattern;"
        f"systemctl show {DOOR} | grep -cF -f /root/pattern;"
        "grep -rlF -f /root/pattern /etc /var/lib/sglang /run --exclude-dir=credentials;"
        "true"
    ).stdout.split()
    assert looked == ["0", "0", "0", "/etc/sglang/credentials/door/keys"] or looked == [
        "0",
        "0",
        "0",
    ]
    keys = "stat -c '%a %U' /etc/sglang/credentials/door/keys"
    assert node.run(keys).stdout.split() == ["600", "root"]
    assert KEY not in applied.out + applied.err


def test_a_second_apply_costs_one_command_and_changes_nothing(
    applied: Ran, site: Site, node: Node
) -> None:
    commands_of(node)
    before = show(node, DOOR, "InvocationID", "MainPID")
    ran = site.tool("apply")
    assert ran.code == 0
    assert "unchanged, ready" in ran.out
    assert len(commands_of(node)) == 1
    assert show(node, DOOR, "InvocationID", "MainPID") == before


@dataclass
class Restarted:
    """What an upgrade and a rollback under load left behind."""

    up: Ran
    back: Ran
    ledger: list[Request]
    seconds: list[float]


@pytest.fixture(scope="module")
def restarted(applied: Ran, site: Site, node: Node) -> Restarted:
    """Upgrade the only server, and roll it back, while three clients send."""
    assert site.tool("lock", "--to", "0.5.23").code == 0
    load = Load(
        f"http://{node.address}:8000", "tiny", clients=3, seconds=900, timeout_s=700, key=KEY
    )
    sending = threading.Thread(target=load.run)
    sending.start()
    time.sleep(5)
    times = [time.monotonic()]
    up = site.tool("upgrade", "--to", "0.5.23", "--soak", "3s", "--yes")
    times.append(time.monotonic())
    time.sleep(2)
    back = site.tool("rollback")
    times.append(time.monotonic())
    time.sleep(4)
    load.stopping.set()
    sending.join()
    return Restarted(up, back, load.ledger, [after - at for at, after in pairwise(times)])


def test_an_upgrade_and_a_rollback_of_the_only_server_under_load_lose_nothing(
    restarted: Restarted, node: Node, capsys: pytest.CaptureFixture[str]
) -> None:
    found = summary(restarted.ledger)
    with capsys.disabled():
        up, back = restarted.seconds
        print(f"\nbehind the door: upgrade in {up:.0f} s, rollback in {back:.0f} s: {found}")
    assert (restarted.up.code, restarted.back.code) == (0, 0)
    links = "cd /var/lib/sglang/deployments/chat && readlink current previous"
    assert node.run(links).stdout.split() == ["1", "2"]
    assert len(restarted.ledger) >= 12
    assert [one for one in restarted.ledger if one.end != "answered"] == []
    # Some did wait at the door: the server was away meanwhile.
    assert found["longest_wait_seconds"] > 5


def test_the_server_leaves_the_rotation_before_it_stops_and_is_back_after(
    restarted: Restarted, node: Node
) -> None:
    for said in (restarted.up.err, restarted.back.err):
        assert "chat is out of the door's rotation" in said
        assert said.index("out of the door's rotation") < said.index("drained: the log says")
    assert node.run("ls /run/sglang/door").stdout == ""
    assert state(node) == "in"


def test_status_shows_the_door_in_a_line(restarted: Restarted, site: Site) -> None:
    ran = site.tool("status", "--json")
    assert ran.code == 0
    door = ran.document["nodes"][0]["door"]
    assert (door["runtime"], door["state"]) == ("sglang-router", "serving: chat in")
    assert door["drift"] == []


@dataclass
class Changed:
    """What changes at the door under load left behind: the process that served after each."""

    codes: list[int]
    plans: list[str]
    fronts: list[str]
    keepers: list[str]
    ledger: list[Request]


@pytest.fixture(scope="module")
def changed(restarted: Restarted, site: Site, node: Node) -> Changed:
    """Give the door another key, then other settings, then a restart, while clients stream."""
    at = f"http://{node.address}:8000"
    loads = [
        Load(at, "tiny", clients=2, seconds=900, think_s=0.2, tokens=tokens, key=KEY, keep_alive=kept)
        for tokens, kept in ((40, False), (40, True), (400, False))
    ]  # fmt: skip
    sending = [threading.Thread(target=one.run) for one in loads]
    for one in sending:
        one.start()
    found = Changed([], [], [front(node)], [show(node, DOOR, "MainPID")["MainPID"]], [])

    def then(code: int, plan: str) -> None:
        time.sleep(2)
        found.codes.append(code)
        found.plans.append(plan)
        found.fronts.append(front(node))
        found.keepers.append(show(node, DOOR, "MainPID")["MainPID"])

    try:
        time.sleep(2)
        site.data["door"]["keys"] = [{"env": "DOOR_KEY"}, {"env": "NEXT_KEY"}]
        site.environment["NEXT_KEY"] = OTHER_KEY
        ran = site.tool("apply")
        then(ran.code, ran.out)
        site.data["door"] |= {"wait": 3, "host": node.address}
        ran = site.tool("apply")
        then(ran.code, ran.out)
        then(node.run(f"systemctl restart {DOOR}").returncode, "")
    finally:
        for load in loads:
            load.stopping.set()
        for one in sending:
            one.join()
    found.ledger.extend(request for load in loads for request in load.ledger)
    return found


def front(node: Node) -> str:
    """Return the process of the door that serves."""
    return node.run("sed -n 's/^pid //p' /run/sglang-door/state").stdout.strip()


def test_nothing_that_changes_at_the_door_costs_a_client_a_request(
    changed: Changed, capsys: pytest.CaptureFixture[str]
) -> None:
    found = summary(changed.ledger)
    with capsys.disabled():
        print(f"\nkeys, settings and a restart of the door under load: {found}")
    assert changed.codes == [0, 0, 0]
    assert found["streamed"] > 10
    assert [one for one in changed.ledger if one.end != "answered"] == []


def test_keys_are_taken_by_the_process_that_serves_and_settings_by_one_beside_it(
    changed: Changed, node: Node
) -> None:
    first, with_key, with_settings, after_restart = changed.fronts
    assert first == with_key
    assert len({with_key, with_settings, after_restart}) == 3
    # systemd saw no restart until it was asked for one.
    assert changed.keepers[0] == changed.keepers[1] == changed.keepers[2] != changed.keepers[3]
    assert "2 keys of clients" in changed.plans[0]
    assert "it takes what changes while it serves" in changed.plans[1]
    for key in (KEY, OTHER_KEY):
        assert ask(node, "/v1/models", key=key).status == 200


def test_who_connects_while_a_door_that_crashed_starts_anew_waits_for_it(
    changed: Changed, node: Node
) -> None:
    before = show(node, DOOR, "MainPID")["MainPID"]
    node.run(f"kill -9 {before}; sleep 0.5")
    assert ask(node, "/v1/models").status == 200
    assert show(node, DOOR, "MainPID")["MainPID"] not in (before, "0")
    # Of the process alone that serves, its keeper starts another.
    node.run(f"kill -9 {front(node)}; sleep 0.5")
    assert ask(node, "/v1/models").status == 200


def test_the_door_goes_on_as_before_where_what_is_in_place_does_not_start(
    changed: Changed, node: Node
) -> None:
    before = front(node)
    door = "/var/lib/sglang/door"
    node.run(f"cp -r {door}/$(readlink {door}/current) {door}/broken")
    node.run(f"echo 'raise SystemExit(3)' > {door}/broken/door.py")
    kept = node.run(f"readlink {door}/current").stdout.strip()
    node.run(f"ln -sfn broken {door}/current")
    assert node.run("systemctl start sglang-door-renew", check=False).returncode == 1
    node.run(f"ln -sfn {kept} {door}/current && rm -r {door}/broken")
    assert "goes on as before" in node.run("journalctl -u sglang-door-renew -o cat").stdout
    assert (front(node), ask(node, "/v1/models").status) == (before, 200)
    # Nobody else is listened to: not even root.
    there = "import socket as s; c = s.socket(s.AF_UNIX); c.connect('/run/sglang-door/control');"
    there += "c.sendall(b'{}'); c.shutdown(1); c.recv(99)"
    node.run(f'python3 -c "{there}"', check=False)
    assert "was not listened to" in node.run("journalctl -u sglang-door -n 20 -o cat").stdout
    assert ask(node, "/v1/models", key=None).status == 401


def test_where_no_server_comes_back_in_time_a_request_gets_503_with_retry_after(
    changed: Changed, site: Site, node: Node
) -> None:
    # What a cut run leaves behind: out of rotation, and nobody lets it back in.
    node.run("echo passing > /run/sglang/door/chat")
    node.run("for i in $(seq 40); do grep -q out- /run/sglang-door/state && exit; sleep 0.5; done")
    words = '-H \'Content-Type: application/json\' -d \'{"model": "tiny", "prompt": "a"}\''
    away = ask(node, "/v1/completions", words=words)
    assert away.status == 503
    assert "Retry-After: 15" in away.head
    assert "no server came back within 3 s" in away.body
    assert ask(node, "/health", key=None).status == 503
    plan = site.tool("plan")
    assert "let chat back into rotation" in plan.out
    assert site.tool("apply").code == 0
    assert ask(node, "/v1/completions", words=words).status == 200


LIVE = "/etc/letsencrypt/live/llm"


def renew(node: Node, name: str = "llm.example.org", *, key: str | None = None) -> str:
    """Write a certificate and its key where certbot has them on the node; return the certificate."""
    certificate, its = pair(name)
    node.run(f"mkdir -p -m 0700 {LIVE}")
    node.put(f"{LIVE}/fullchain.pem", certificate)
    node.put(f"{LIVE}/privkey.pem", key or its, 0o600)
    return certificate


def by_tls(node: Node, certificate: str, words: str = "") -> str:
    """Ask the door by its name, trusting this certificate alone; return the status, or 000."""
    node.put("/root/trusted.pem", certificate)
    at = f"--resolve llm.example.org:8000:{node.address} https://llm.example.org:8000/v1/models"
    return node.run(
        f"curl -s -o /dev/null -w '%{{http_code}}' --cacert /root/trusted.pem {words} "
        f"-H 'Authorization: Bearer {KEY}' {at}",
        check=False,
    ).stdout


def test_the_door_speaks_tls_with_files_of_the_node_and_takes_renewed_ones_without_a_restart(
    changed: Changed, site: Site, node: Node
) -> None:
    site.data["door"]["tls"] = {
        "certificate": f"{LIVE}/fullchain.pem",
        "key": f"{LIVE}/privkey.pem",
        "name": "llm.example.org",
    }
    # What clients would not take is refused before anything changes.
    renew(node, key=pair()[1])
    ran = site.tool("apply")
    assert (ran.code, "DOOR_CERTIFICATE_KEY" in ran.out) == (3, True)
    assert ask(node, "/v1/models").status == 200
    first = renew(node)
    ran = site.tool("apply")
    assert ran.code == 0
    assert "its certificate is for llm.example.org, until" in ran.out
    assert by_tls(node, first) == "200"
    assert by_tls(node, first, "--tlsv1.1 --tls-max 1.1 --ciphers DEFAULT@SECLEVEL=0") == "000"
    assert "unchanged, ready" in site.tool("apply").out
    before = front(node)
    second = renew(node)
    node.run("systemctl start sglang-door-renew")
    assert (by_tls(node, second), by_tls(node, first)) == ("200", "000")
    # One of which the key was not written yet: the door goes on with what it has.
    renew(node, key=pair()[1])
    assert node.run("systemctl start sglang-door-renew", check=False).returncode != 0
    assert (by_tls(node, second), front(node)) == ("200", before)
    timer = show(node, "sglang-door-renew.timer", "ActiveState")
    assert timer == {"ActiveState": "active"}
    of_key = node.run(f"sed -n 2p {LIVE}/privkey.pem").stdout.strip()
    node.put("/root/pattern", of_key, 0o600)
    found = node.run(
        "journalctl -o cat --no-pager | grep -cF -f /root/pattern;"
        "grep -rlF -f /root/pattern /etc/systemd /var/lib/sglang /run --exclude-dir=credentials; true"
    ).stdout
    assert found.strip() == "0"


def test_remove_takes_the_door_away(changed: Changed, site: Site, node: Node) -> None:
    assert site.tool("remove", "--yes").code == 0
    left = (
        "ls -d /var/lib/sglang/door /etc/systemd/system/sglang-door* /etc/sglang /run/sglang/door"
    )
    assert node.run(f"{left} 2>/dev/null; true").stdout == ""
    assert show(node, DOOR, "LoadState")["LoadState"] == "not-found"
