"""What the unit says must stay, and what becomes of a server where it does not.

Each unit here is the project's own with one thing changed. They run the real SGLang
in a real container; its scheduler is killed, or it is stopped with a stream in flight.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator

import pytest

from plans import paths
from plans.deployment import unit_file

from .harness.machine import Node
from .harness.registry import Registry
from .site import Site, scheduler_of, service, show, stream, wait_for

UNIT = "sglang@chat.service"
TOKENS = 3000


@pytest.fixture(scope="module")
def node(node_factory: Callable[..., Node]) -> Iterator[Node]:
    """A host that has the images."""
    node = node_factory("kept", images=True)
    yield node
    node.discard()


@pytest.fixture(scope="module", autouse=True)
def served(node: Node, registry: Registry, tmp_path_factory: pytest.TempPathFactory) -> None:
    """A service on that host, as the tool makes it."""
    data = {"services": [service()], "registry": {"mirrors": {"docker.io": registry.url}}}
    assert Site(tmp_path_factory.mktemp("site"), [node], data).tool("apply").code == 0


def put_unit(node: Node, old: str = "", new: str = "") -> None:
    """Write the project's unit with one thing changed; nothing runs from it yet."""
    text = unit_file().text
    (command,) = (line for line in text.splitlines() if line.startswith("ExecStart="))
    if old:
        assert command.count(old) == 1, "the unit does not say any more what this test changes"
        text = text.replace(command, command.replace(old, new))
    node.run(f"systemctl stop {UNIT}")
    node.put(paths.UNIT, text)
    node.run(f"systemctl daemon-reload && systemctl reset-failed {UNIT} 2>/dev/null; true")


def start(node: Node, old: str = "", new: str = "") -> None:
    """Start the service from the unit with one thing changed; it is ready on return."""
    put_unit(node, old, new)
    node.run(f"systemctl start {UNIT}")


def status_after_a_crash(node: Node) -> tuple[str, str]:
    """Kill the scheduler; return the code and status with which the main process ended."""
    node.run(f"kill -9 {scheduler_of(node)}")
    wait_for(node, UNIT, SubState="auto-restart")
    said = show(node, UNIT, "ExecMainStatus", "Result")
    return said["ExecMainStatus"], said["Result"]


def test_with_init_a_crash_ends_as_a_failure(node: Node) -> None:
    assert status_after_a_crash(node) == ("137", "exit-code")


def test_without_init_a_crash_looks_like_success(node: Node) -> None:
    start(node, " --init ", " ")
    assert status_after_a_crash(node) == ("0", "success")


def test_without_init_a_stop_while_it_loads_is_not_heard(node: Node) -> None:
    seen = {}
    for name, old in (("with", ""), ("without", " --init ")):
        put_unit(node, old, " ")
        node.run(f"systemctl start --no-block {UNIT}; sleep 5")
        pid = node.run("docker inspect -f '{{.State.Pid}}' sglang-chat").stdout.strip()
        assert int(pid) > 0
        node.run(f"systemctl stop --no-block {UNIT}")
        began = time.monotonic()
        node.run(f"for i in $(seq 30); do kill -0 {pid} 2>/dev/null || exit 0; sleep 0.5; done")
        seen[name] = (time.monotonic() - began, node.run(f"kill -0 {pid}", check=False).returncode)
        node.run("docker rm --force sglang-chat", check=False)
        wait_for(node, UNIT, ActiveState="inactive")
    print(seen)
    assert seen["with"][1] != 0
    assert seen["with"][0] < 10
    assert seen["without"][1] == 0


def test_with_a_shell_before_the_server_a_stop_loses_the_stream(node: Node) -> None:
    start(node, " sglang serve ", """ sh -c 'sglang serve "$$@"; true' sh """)
    running = stream(node, TOKENS)
    node.run(f"systemctl stop {UNIT}")
    tokens, done = running.finish()
    log = node.run(f"journalctl -u {UNIT} -o cat -n 200 --no-pager").stdout
    print(tokens, done)
    assert not done
    assert tokens < TOKENS
    assert "Remaining number of requests 0" not in log.rpartition("Started")[2]


def test_the_unit_as_it_is_loses_nothing(node: Node) -> None:
    start(node)
    running = stream(node, TOKENS)
    node.run(f"systemctl stop {UNIT}")
    assert running.finish() == (TOKENS, True)
    assert show(node, UNIT, "ActiveState", "Result", "ExecMainStatus") == {
        "ActiveState": "inactive",
        "Result": "success",
        "ExecMainStatus": "0",
    }


def test_the_kill_mode_spares_the_docker_client_and_not_the_server(node: Node) -> None:
    start(node)
    node.put(f"{paths.drop_in_dir('chat')}/50-mode.conf", "[Service]\nKillMode=control-group\n")
    node.run("systemctl daemon-reload")
    assert show(node, UNIT, "KillMode") == {"KillMode": "control-group"}
    running = stream(node, TOKENS)
    node.run(f"systemctl stop {UNIT}")
    print(running.finish())
