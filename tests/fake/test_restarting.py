"""restart over several nodes, batch after batch, as a person runs it."""

from __future__ import annotations

import json
from pathlib import Path

from tests.fake.command import run
from tests.fake.test_going_back import deployed_lines
from tests.fake.test_upgrading import site
from tests.unit.test_verification import lines as verify_lines

BAD = {": verify ": {"stdout": verify_lines("boom", status="500")}}


def test_the_first_batch_that_fails_is_the_last(tmp_path: Path) -> None:
    good = deployed_lines()
    there = site(tmp_path, good, good, good, responses={"b": BAD})
    ended = run("restart", there, "--batch", "1", "--json")
    assert ended.code == 1
    assert "batch 1 of 3: @fake/a\n" in ended.err
    assert "stopped at this batch: not begun with: @fake/c" in ended.err
    assert "@fake/c  Restart chat" not in ended.err
    assert ended.nodes["@fake/a"]["verified"]["chat"]["ok"] is True
    assert ended.nodes["@fake/b"]["verified"]["chat"]["ok"] is False
    assert ended.nodes["@fake/c"]["begun"] is False


def test_all_at_once_is_what_it_does_without_a_word(tmp_path: Path) -> None:
    good = deployed_lines()
    ended = run("restart", site(tmp_path, good, good, responses={"a": BAD}), "--json")
    assert ended.code == 5
    assert "batch" not in ended.err
    assert ended.nodes["@fake/b"]["verified"]["chat"]["ok"] is True


def test_two_of_a_rack_never_restart_together_and_none_while_the_other_is_lost(
    tmp_path: Path,
) -> None:
    good, lost = deployed_lines(), ["Welcome to Ubuntu"]
    racks = {name: {"rack": rack} for name, rack in zip("abcde", "12112", strict=True)}
    there = site(tmp_path, good, good, good, good, lost, spread="rack", **racks)
    ended = run("restart", there, "--batch", "100%", "--json")
    assert ended.code == 1
    assert "batch 2 of 3: @fake/c\n" in ended.err
    assert "@fake/b: not begun with: @fake/e, of the same rack 2 (spread)" in ended.err
    assert "@fake/b  Restart chat" not in ended.err
    assert ended.nodes["@fake/b"]["begun"] is False
    assert ended.nodes["@fake/d"]["verified"]["chat"]["ok"] is True


def rank(number: int, *nodes: str) -> list[str]:
    """Return the survey of a node on which a rank of a service over several nodes is deployed."""
    given = {
        '"nodes": [],': f'"nodes": {json.dumps(nodes)},',
        '"rank": null,': f'"rank": {number},',
        '"tp_size": 1,': '"tp_size": 2,',
        '"network": "bridge",': '"network": "host",',
        '"max-running-requests": 8': '"dist-init-addr": "10.0.0.1:20000"',
    }
    return deployed_lines(given)


def test_a_rank_alone_is_refused_before_the_first_batch(tmp_path: Path) -> None:
    there = site(tmp_path, deployed_lines(), rank(0, "@fake/b", "@fake/x"), deployed_lines())
    ended = run("restart", there, "--batch", "1", "--json")
    assert ended.code == 3, ended.err
    assert [one["code"] for one in ended.nodes["@fake/b"]["refusals"]] == ["RANKS_APART"]
    assert "@fake/b  Restart chat" not in ended.err
    assert "batch 2 of 2: @fake/c\n" in ended.err


def test_ranks_that_are_deployed_are_in_one_batch_whatever_the_inventory_says(
    tmp_path: Path,
) -> None:
    nodes = ("@fake/a", "@fake/b")
    there = site(tmp_path, rank(0, *nodes), rank(1, *nodes), deployed_lines())
    ended = run("restart", there, "--batch", "1", "--json")
    assert "batch 1 of 2: @fake/a, @fake/b\n" in ended.err
    assert "RANKS_APART" not in ended.err


def test_a_size_that_is_none_is_refused_before_a_node_is_asked(tmp_path: Path) -> None:
    ended = run("restart", site(tmp_path, deployed_lines()), "--batch", "half")
    assert ended.code == 2
    assert "write a number of nodes, such as 3, or a part, such as 10%" in ended.err
