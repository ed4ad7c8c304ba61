"""A service over several nodes, as a person runs it: all of its ranks, or none of them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.fake.command import recording, run
from tests.fake.test_exit_codes import GOOD
from tests.fake.test_upgrading import SECOND, site
from tests.unit.test_proving import printed as proved

A, B = "@fake/a", "@fake/b"
OVER_TWO: dict[str, Any] = {
    "nodes": [A, B],
    "tp_size": 2,
    "network": "host",
    "arguments": {"dist-init-addr": "10.0.0.1:20000"},
}
FULL = {": pull ": {"success": False, "stderr": ["no space left on device"]}}


@pytest.fixture
def over_two(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let the inventory's service be one over two nodes."""
    for key, value in OVER_TWO.items():
        monkeypatch.setitem(SECOND, key, value)


@pytest.mark.usefixtures("over_two")
def test_the_ranks_of_a_service_start_once_all_of_them_can(tmp_path: Path) -> None:
    ended = run("apply", site(tmp_path, recording(GOOD), recording(GOOD)), "--json")
    assert ended.code == 0, ended.err
    results = [ended.nodes[node]["verified"]["chat"]["result"] for node in (A, B)]
    assert results == ["ready, and it generates", "ready, as rank 1 of 2 for @fake/a"]
    for node in (A, B):
        met = f"{node}  Wait for all ranks of chat before they are stopped or started"
        start = f"{node}  Start chat"
        assert ended.err.index(met) < ended.err.index(start)


@pytest.mark.usefixtures("over_two")
def test_none_of_them_starts_where_one_cannot(tmp_path: Path) -> None:
    there = site(tmp_path, recording(GOOD), recording(GOOD), responses={"b": FULL})
    ended = run("apply", there, "--json")
    assert ended.code == 1
    (why,) = ended.nodes[A]["failures"]
    assert why == (
        "chat: @fake/b, which runs another rank of it, does not come as far: nothing was stopped "
        "or started here"
    )
    assert "Start chat" not in ended.err


@pytest.mark.usefixtures("over_two")
@pytest.mark.parametrize("command", ["plan", "apply"])
def test_one_of_them_alone_is_refused_with_the_limit_that_is_right(
    tmp_path: Path, command: str
) -> None:
    there = site(tmp_path, recording(GOOD), recording(GOOD))
    ended = run(command, there, "--json", "--limit", B)
    assert ended.code == 3
    (refusal,) = ended.nodes[B]["refusals"]
    assert refusal["code"] == "RANKS_APART"
    assert refusal["advice"].endswith("--limit @fake/a,@fake/b")


@pytest.mark.usefixtures("over_two")
def test_they_are_upgraded_in_one_batch_and_none_stays_where_another_fails(
    tmp_path: Path,
) -> None:
    good = recording(GOOD)
    bad = {": prove ": {"stdout": proved(stream=["200"], tool=None)}}
    there = site(tmp_path, good, good, responses={"a": bad})
    ended = run("upgrade", there, "--to", "0.5.23", "--yes", "--json", "--soak", "1s")
    assert ended.code == 1
    assert {node["upgrade"] for node in ended.nodes.values()} == {"failed"}
    assert ended.nodes[B]["why"] == "chat failed on @fake/a, which runs another rank of it"
    assert ": Prove chat" not in ended.err.replace(f"{A}  ", "")
    assert "batch" not in ended.err


def test_nodes_with_the_steps_of_two_services_the_other_way_round_are_changed(
    tmp_path: Path,
) -> None:
    # pyinfra's one order for all nodes ends with a cycle there.
    def services(keyed: str) -> dict[str, Any]:
        names = (("chat", 30000), ("second", 30001))
        several = [
            {
                **SECOND,
                "name": name,
                "port": port,
                "arguments": {"mem-fraction-static": 0.4},
                **({"api_key": {"env": "SERVER_KEY"}} if name == keyed else {}),
            }
            for name, port in names
        ]
        return {"sglang": {"services": several}}

    good = recording(GOOD)
    there = site(tmp_path, good, good, a=services("chat"), b=services("second"))
    ended = run("apply", there, "--json", env={"SERVER_KEY": "a-key-0123456789"})
    assert ended.code == 0, ended.err
    for node in (A, B):
        assert set(ended.nodes[node]["verified"]) == {"chat", "second"}
