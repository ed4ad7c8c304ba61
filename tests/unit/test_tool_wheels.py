"""uv for a node is fetched from the inventory's index of packages, by the controller's real pip."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from pyinfra.api.exceptions import ConnectError

from operations import environment
from operations.outcomes import outcome_of
from operations.tool_wheels import ToolMissing, fetch_uv, index_words
from tests.unit.lock_servers import Reply, played


def test_pip_asks_the_mirror_and_no_other_index(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("PIP_FIND_LINKS", raising=False)
    monkeypatch.setenv("PIP_CONFIG_FILE", "/dev/null")
    with played(lambda one: Reply(404)) as mirror:
        with pytest.raises(ToolMissing, match=r"uv \S+ could not be fetched on this machine"):
            fetch_uv("x86_64", f"http://{mirror.host}/simple", tmp_path)
        assert {one.path for one in mirror.asked} == {"/simple/uv/"}


def test_an_index_without_tls_is_asked_too_and_none_is_the_controller_s_own() -> None:
    assert index_words(None) == ()
    assert index_words("https://m.example.org/simple") == (
        "--index-url",
        "https://m.example.org/simple",
    )
    assert index_words("http://10.0.0.5:8080/simple")[2:] == ("--trusted-host", "10.0.0.5:8080")


class Lost:
    """A host whose connection is gone when a file is sent to it."""

    print_prefix = ""

    def put_file(self, *words: Any, **named: Any) -> bool:
        # What pyinfra makes of paramiko's SSHException there.
        raise ConnectError("Unable to establish SFTP connection.")


def test_a_connection_lost_as_uv_is_sent_fails_that_node_alone(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    brought = SimpleNamespace(compressed=b"uv", sha256="00")
    monkeypatch.setattr(environment, "fetch_uv", lambda *words: brought)
    host: Any = Lost()
    state: Any = SimpleNamespace(print_output=False, print_input=False)
    ok, _ = environment.Bring("x86_64").execute(state, host, {})
    assert not ok
    (said,) = outcome_of(host).failures
    assert said.startswith("uv could not be sent to the node (Unable to establish SFTP")
