"""The door's node, reached for another one: over a connection that was lost meanwhile, or not at all."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
from paramiko import SSHException
from pyinfra.connectors.util import CommandOutput, OutputLine

from operations import fardoor
from plans.fardoor import AtDoor

ONE = AtDoor("gpu-a", "10.0.0.2:30000", of_node=False)


class Host:
    """A host whose first tries end so; the rest go well."""

    name = "gpu-a"
    connected = True

    def __init__(self, *ends: Exception) -> None:
        self.ends, self.connects = list(ends), 0

    def connect(self, **_: Any) -> None:
        self.connects += 1
        self.connected = True

    def run_shell_command(self, *_: Any, **given: Any) -> tuple[bool, CommandOutput]:
        if self.ends:
            raise self.ends.pop(0)
        return True, CommandOutput([OutputLine("stdout", "is out")])


def told(host: Host, monkeypatch: pytest.MonkeyPatch) -> tuple[bool, str]:
    monkeypatch.setattr(fardoor, "pop_global_arguments", lambda *_: ({"_sudo": True}, []))
    state = SimpleNamespace(inventory=[host], activated_hosts=set(), print_input=False)
    command = fardoor._Elsewhere(ONE, "true", "tell", "chat", leaves=True)
    return command._run(state)  # type: ignore[arg-type]


@pytest.mark.parametrize("lost", [EOFError(), OSError("broken pipe"), SSHException("not active")])
def test_a_connection_that_was_lost_meanwhile_is_made_anew_once(
    lost: Exception, monkeypatch: pytest.MonkeyPatch
) -> None:
    host = Host(lost)
    assert told(host, monkeypatch) == (True, "is out")
    assert host.connects == 1


def test_a_node_that_stays_away_is_a_failure_that_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    ok, why = told(Host(OSError("no route to host"), OSError("no route to host")), monkeypatch)
    assert not ok
    assert why.startswith("that node was not reached (no route to host); where its door is no more")


def test_a_failure_without_words_is_named_by_its_kind(monkeypatch: pytest.MonkeyPatch) -> None:
    ok, why = told(Host(TimeoutError(), TimeoutError()), monkeypatch)
    assert (ok, "TimeoutError" in why) == (False, True)
