"""A hundred nodes of which ten are each broken in another way: the ninety do not notice."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import paramiko
import pytest

from cli.retry import names_in
from locks.lockfile import write_lock
from tests.fake.command import CHAT, Ended, fake, recording, run
from tests.fake.test_exit_codes import VERIFIED, whole_lock
from tests.fake.test_reaching_nodes import known_as, port
from tests.unit.test_canary import lines as canary_lines
from tests.unit.test_verification import lines as verify_lines

__all__ = ["port"]  # pytest takes a fixture from here

GOOD = "dgx-spark"
LIMIT_S = 20
"""Seconds of its own that a node may take: the slow one needs more, on any machine."""

FULL = {"success": False, "stdout": ["write /x: no space left on device"]}
NO_START = {"success": False, "stdout": ["torch.OutOfMemoryError: CUDA out of memory."]}

CUT = '''
class Cut(dict):
    """The answer of a node whose connection is cut while a command runs there."""

    def get(self, *words):
        raise ConnectionResetError("Connection reset by peer")

'''


class Cut(dict[str, Any]):
    """Stands for the class of that name in the inventory."""

    def __repr__(self) -> str:
        return "Cut()"


def without_root() -> list[str]:
    """Return the recorded survey of a node where the user may not become root."""
    lines = recording(GOOD)
    user = lines.index("@ user rc=0")
    return [
        *lines[: user + 1],
        " 1000",
        " maria",
        "@ sudo rc=1",
        "!sudo: a password is required",
        *lines[user + 3 :],
    ]


def node(name: str, lines: Any = None, **answers: Any) -> tuple[str, dict[str, Any]]:
    """Return a node that can be deployed to, but for these answers to its programs."""
    host, data = fake(name, recording(GOOD) if lines is None else lines)
    given = {f": {program} ": answer for program, answer in answers.items()}
    data["fake_responses"] |= given | VERIFIED
    data["fake_responses"] |= given  # also where it has one of that name
    return host, data


REASONS = {
    "127.0.0.1": "UNREACHABLE",
    "gpu-key": "UNREACHABLE",
    "@fake/garbage": "SURVEY_FAILED",
    "@fake/driver": "DRIVER_MISMATCH",
    "@fake/rootless": "NEED_ROOT",
    "@fake/cuda": "COMPAT_UNSUPPORTED",
    "@fake/slow": f"given up after {LIMIT_S} s (--node-limit) at: ",
    "@fake/full": "no space left on device",
    "@fake/cut": "the connection was lost at: ",
    "@fake/silent": "status 500",
}
"""What each broken node ends with: a code, or words of its sentence."""


@dataclass(frozen=True)
class Fleet:
    """A run over a hundred nodes, and one over those of them that are well."""

    site: Path
    env: dict[str, str]
    ended: Ended
    without: Ended
    events: list[dict[str, Any]]


@pytest.fixture(scope="module")
def fleet(tmp_path_factory: pytest.TempPathFactory, port: int) -> Fleet:
    """The hundred nodes, applied with the ten among them and without."""
    folder = tmp_path_factory.mktemp("fleet")
    other = paramiko.ECDSAKey.generate()
    (folder / "known").write_text(known_as(other, port), encoding="utf-8")
    reached = {
        "ssh_user": "nobody",
        "ssh_known_hosts_file": str(folder / "known"),
        "ssh_config_file": "/dev/null",
    }
    slow = node("slow")
    slow[1]["fake_delay"] = LIMIT_S * 0.4  # its survey is in time, its third command is not
    canary = {"stdout": canary_lines("error 804, compatibility on a GeForce")}
    broken = [
        ("127.0.0.1", reached | {"ssh_port": 1}),
        ("gpu-key", reached | {"ssh_port": port, "ssh_hostname": "127.0.0.1"}),
        node("garbage", ["Welcome to Ubuntu", "%%%"]),
        node("driver", recording("mismatch")),
        node("rootless", without_root()),
        node("cuda", **{"try": canary}),
        slow,
        node("full", pull=FULL),
        node("cut", switch=Cut()),
        node("silent", verify={"stdout": verify_lines("boom", status="500")}),
    ]
    assert [name for name, _ in broken] == list(REASONS)
    hosts: list[Any] = []
    for number in range(90):
        hosts.append(node(f"gpu-{number:02}"))
        if number % 9 == 4:
            hosts.append(broken[number // 9])
    site = folder / "site.py"
    data = {"sglang": {"services": [CHAT]}}
    site.write_text(f"{CUT}\nnodes = ({hosts!r}, {data!r})\n", encoding="utf-8")
    write_lock(folder / "sglang.lock", whole_lock())
    env = {"XDG_STATE_HOME": str(folder / "state")}
    words = ["apply", site, "--json"]
    without = run(*words, "--limit", "@fake/gpu-*", env=env)
    more = ["--node-limit", LIMIT_S, "--events", folder / "events"]
    ended = run(*words, *more, env=env)
    told = (folder / "events").read_text(encoding="utf-8").splitlines()
    return Fleet(site, env, ended, without, [json.loads(line) for line in told])


def test_the_ninety_end_as_they_would_without_the_ten(fleet: Fleet) -> None:
    assert fleet.without.code == 0, fleet.without.err
    well = fleet.without.nodes
    assert len(well) == 90
    assert all(one["verified"]["chat"]["ok"] for one in well.values())
    assert {name: one for name, one in fleet.ended.nodes.items() if name in well} == well


@pytest.mark.parametrize("name", REASONS)
def test_each_broken_node_ends_by_its_own_reason(fleet: Fleet, name: str) -> None:
    one = fleet.ended.nodes[name]
    error = one.get("error", {})
    said = [error.get("code", ""), *(refusal["code"] for refusal in one.get("refusals", ()))]
    said += one.get("failures", ())
    said += [verdict["result"] for verdict in one.get("verified", {}).values()]
    told = [word for word in said if word]
    assert len(told) == 1, told
    assert REASONS[name] in told[0]


def test_the_run_is_told_in_the_inventory_s_order_without_a_traceback(fleet: Fleet) -> None:
    assert fleet.ended.code == 1
    assert len(fleet.ended.nodes) == 100
    assert list(fleet.ended.nodes)[5:7] == ["127.0.0.1", "@fake/gpu-05"]
    assert "Traceback" not in fleet.ended.err


def test_a_broken_node_does_nothing_more_once_it_failed(fleet: Fleet) -> None:
    begun: dict[str, list[str]] = {}
    for one in fleet.events:
        if one["event"] == "step-started":
            begun.setdefault(one["node"], []).append(one["step"])
    assert not set(REASONS) - {"@fake/cuda", "@fake/slow", "@fake/full", "@fake/cut",
                               "@fake/silent"} & set(begun)  # fmt: skip
    assert begun["@fake/full"][-1] == "Fetch the image of chat"
    assert begun["@fake/cuda"][-1] == "Try CUDA in the image of chat"
    assert begun["@fake/cut"][-1] == "Start chat"
    assert begun["@fake/silent"] == begun["@fake/gpu-00"]


def test_the_ten_are_kept_and_a_next_run_takes_them_alone(fleet: Fleet) -> None:
    words = fleet.ended.err.rpartition("these alone: --limit ")[2].splitlines()[0]
    kept = names_in(Path(words[1:]))
    assert kept == list(REASONS)
    more = ["--json", "--node-limit", 2]  # which are asked is what is tried here
    again = run("survey", fleet.site, "--limit", words, *more, env=fleet.env)
    assert list(again.nodes) == list(REASONS)
