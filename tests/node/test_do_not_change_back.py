"""What the unit says must stay, and what becomes of a server where it does not.

Each unit here is the project's own with one thing changed. They run the real SGLang
in a real container; its scheduler is killed, or it is stopped with a stream in flight.
"""

from __future__ import annotations

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


def status_after_a_crash(node: Node) -> tuple[str, str]:
    """Kill the scheduler; return the code and status with which the main process ended."""
    node.run(f"kill -9 {scheduler_of(node)}")
    wait_for(node, UNIT, SubState="auto-restart")
    said = show(node, UNIT, "ExecMainStatus", "Result")
    return said["ExecMainStatus"], said["Result"]


def test_with_init_a_crash_ends_as_a_failure(node: Node) -> None:
    assert status_after_a_crash(node) == ("137", "exit-code")


def test_without_init_a_crash_looks_like_success(node: Node) -> None:
    put_unit(node, " --init ", " ")
    node.run(f"systemctl start {UNIT}")
    assert status_after_a_crash(node) == ("0", "success")


def heard_a_stop(node: Node) -> bool:
    """Whether the server ends within eight seconds of a stop while it still loads."""
    node.run(f"systemctl start --no-block {UNIT}; sleep 5")
    pid = int(node.run("docker inspect -f '{{.State.Pid}}' sglang-chat").stdout)
    assert pid > 0
    assert show(node, UNIT, "ActiveState") == {"ActiveState": "activating"}
    node.run(f"systemctl stop --no-block {UNIT}")
    node.run(f"for i in $(seq 16); do kill -0 {pid} 2>/dev/null || exit 0; sleep 0.5; done")
    heard = node.run(f"kill -0 {pid}", check=False).returncode != 0
    node.run(f"docker rm --force sglang-chat; systemctl stop {UNIT}", check=False)
    return heard


def test_without_init_a_stop_while_it_loads_is_not_heard(node: Node) -> None:
    put_unit(node)
    assert heard_a_stop(node)
    put_unit(node, " --init ", " ")
    assert not heard_a_stop(node)


def test_with_a_shell_before_the_server_a_stop_loses_the_stream(node: Node) -> None:
    put_unit(node, " sglang serve ", """ sh -c 'sglang serve "$$@"; true' sh """)
    node.run(f"systemctl start {UNIT}")
    running = stream(node, TOKENS)
    node.run(f"systemctl stop {UNIT}")
    # The client sees a clean end all the same: the stream came with status 200.
    assert running.finish() == (0, False)
    # And systemd a success: nothing but the missing line of the log would tell.
    assert show(node, UNIT, "Result") == {"Result": "success"}
