"""upgrade as a person runs it, over nodes that are not there but were surveyed."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from locks.lockfile import write_lock
from tests.fake.command import fake, inventory, recording, run
from tests.fake.test_exit_codes import GOOD, VERIFIED, whole_lock
from tests.fake.test_going_back import NODE, RECORD, deployed_lines
from tests.unit.deployments import CAP
from tests.unit.test_proving import printed as proved
from tests.unit.test_soaking import printed as soaked

BEGUN = json.dumps({**json.loads(RECORD), "upgrade": "begun"})
SECOND = {
    "name": "chat", "model": "Qwen/Qwen3-8B", "arguments": {"max-running-requests": 8}, **CAP,
}  # fmt: skip
GOES_WELL: dict[str, Any] = {
    **VERIFIED,
    ": prove ": {"stdout": proved(tool=None)},
    ": watch ": {"stdout": soaked()},
}
EMPTY = soaked(answer=['{"choices": [{"message": {"content": ""}}]}', "200"])
WORDS = ("--to", "0.5.23", "--yes", "--json")


@pytest.fixture(scope="module")
def cut() -> list[str]:
    """Return the survey of a node on which an upgrade to deployment 2 was cut while it soaked."""
    return [line.replace(RECORD.strip(), BEGUN) for line in deployed_lines()]


def site(folder: Path, *surveys: list[str], responses: Any = (), **more: Any) -> Path:
    """Write an inventory of nodes with these surveys, and the lock beside it."""
    hosts = []
    for name, lines in zip("abcdef", surveys, strict=False):
        host, data = fake(name, lines, **more.pop(name, {}))
        mine = {**GOES_WELL, **(responses.get(name, {}) if responses else {})}
        hosts.append((host, {**data, "fake_responses": data["fake_responses"] | mine}))
    path = inventory(folder, *hosts, services=[SECOND], **more)
    write_lock(folder / "sglang.lock", whole_lock())
    return path


def test_a_new_release_is_verified_proved_and_watched(tmp_path: Path) -> None:
    ended = run("upgrade", site(tmp_path, recording(GOOD)), *WORDS, "--soak", "90s")
    assert ended.code == 0, ended.err
    assert ended.nodes[NODE]["upgrade"] == "done"
    steps = ["Start chat", "Verify chat", "Prove chat", "Watch chat for 90 s"]
    places = [ended.err.index(step) for step in steps]
    assert places == sorted(places)
    assert places == sorted(places)
    assert "sglang.release to '0.5.23'; the next apply would else take" in ended.err


def test_one_that_was_cut_is_proved_again_and_nothing_else_is_done(
    tmp_path: Path, cut: list[str]
) -> None:
    ended = run("upgrade", site(tmp_path, cut), *WORDS)
    assert ended.code == 0, ended.err
    assert ended.nodes[NODE]["upgrade"] == "done"
    assert "Prove chat" in ended.err
    assert "art chat" not in ended.err


@pytest.mark.parametrize(
    ("responses", "why"),
    [
        ({": watch ": {"stdout": EMPTY}}, "chat: at the end of its soak the answer has no text"),
        (
            {": watch ": {"stdout": soaked(ready=["503"], seconds=["20"])}},
            "chat: its ready endpoint says 503, 20 s into its soak",
        ),
        ({": prove ": {"stdout": proved(stream=["200"], tool=None)}}, "chat: a stream ended"),
    ],
)
def test_one_that_does_not_stand_it_goes_back_by_itself(
    tmp_path: Path, cut: list[str], responses: Any, why: str
) -> None:
    ended = run("upgrade", site(tmp_path, cut, responses={"a": responses}), *WORDS)
    assert ended.code == 1
    node = ended.nodes[NODE]
    assert node["upgrade"] == "failed"
    assert node["why"].startswith(why)
    assert node["then"].startswith("went back to deployment 1, SGLang 0.5.23")
    (told,) = [line for line in ended.err.splitlines() if "the upgrade to SGLang" in line]
    assert why in told
    places = [ended.err.index(one) for one in ("Keep the logs of chat", "Go back to deployment 1")]
    assert places == sorted(places)
    assert "now set" not in ended.err
    assert places == sorted(places)


def test_where_no_record_can_be_written_it_goes_back_and_says_that_it_answers(
    tmp_path: Path, cut: list[str]
) -> None:
    why = "base64: write error: No space left on device"
    last = "nothing was recorded in /x/record.json; is the disk full or read-only? df -h /x"
    full = {"success": False, "stderr": [why, last]}
    ended = run("upgrade", site(tmp_path, cut, responses={"a": {": record ": full}}), *WORDS)
    assert ended.code == 1
    node = ended.nodes[NODE]
    assert why in node["why"]
    assert "df -h /x" in node["why"]
    assert node["then"].startswith("it went back to deployment 1, SGLang 0.5.23 and answers, but: ")
    assert "record.json of chat could not be written" in node["then"]


def test_where_nothing_was_switched_what_served_serves_on(tmp_path: Path) -> None:
    full = {"success": False, "stderr": ["no space left on device"]}
    there = site(tmp_path, recording(GOOD), responses={"a": {": pull ": full}})
    ended = run("upgrade", there, *WORDS)
    assert ended.code == 1
    assert "what served before serves on" in ended.nodes[NODE]["then"]
    assert "Go back" not in ended.err


def test_one_whose_time_is_over_is_not_taken_back(tmp_path: Path) -> None:
    there = site(tmp_path, recording(GOOD), a={"fake_delay": 2.0})
    ended = run("upgrade", there, *WORDS, "--soak", "1s", "--node-limit", "15")
    assert ended.code == 1
    assert "given up after 15 s (--node-limit)" in ended.nodes[NODE]["why"]
    assert "run the same command again: it goes on from there" in ended.nodes[NODE]["then"]
    assert "Go back" not in ended.err


def test_the_first_batch_that_fails_stops_the_run(tmp_path: Path) -> None:
    good = recording(GOOD)
    bad = {": watch ": {"stdout": EMPTY}}
    there = site(tmp_path, good, good, good, responses={"b": bad})
    state = {"XDG_STATE_HOME": str(tmp_path / "state")}
    ended = run("upgrade", there, *WORDS, env=state)
    assert ended.code == 1
    # The next run takes up what failed and what was not begun with.
    assert "1 of 3 nodes failed: @fake/b; 1 not begun: @fake/c; these alone: --limit @" in ended.err
    (kept,) = (tmp_path / "state").rglob("*.txt")
    assert kept.read_text(encoding="utf-8") == "@fake/b  # failed\n@fake/c  # not begun\n"
    assert "3 nodes: 1 changed and ready, 1 failed, 1 not begun\n" in ended.err
    ends = {name: node["upgrade"] for name, node in ended.nodes.items()}
    assert ends == {"@fake/a": "done", "@fake/b": "failed", "@fake/c": "not begun"}
    assert "batch 1 of 3: @fake/a" in ended.err
    assert "stopped at this batch: not begun with: @fake/c" in ended.err
    assert "@fake/c  Verify chat" not in ended.err


def test_two_of_a_rack_are_never_in_one_batch(tmp_path: Path) -> None:
    good = recording(GOOD)
    racks = {"a": {"rack": "r1"}, "b": {"rack": "r1"}, "c": {"rack": "r2"}, "d": {"rack": "r2"}}
    there = site(tmp_path, good, good, good, good, spread="rack", **racks)
    ended = run("upgrade", there, *WORDS, "--batch", "100%")
    assert ended.code == 0, ended.err
    assert "batch 1 of 2: @fake/a, @fake/c" in ended.err
    assert "release 0.5.23: asked for by name" in ended.err  # and not in the inventory
    assert "batch 2 of 2: @fake/b, @fake/d" in ended.err


@pytest.mark.parametrize("command", [["upgrade", *WORDS], ["apply", "--batch", "1", "--json"]])
def test_no_other_of_a_rack_is_taken_down_while_one_cannot_be_reached(
    tmp_path: Path, command: list[str]
) -> None:
    good = recording(GOOD)
    racks = {"a": {"rack": "r1"}, "b": {"rack": "r1"}, "c": {"rack": "r2"}}
    there = site(tmp_path, ["Welcome to Ubuntu"], good, good, spread="rack", **racks)
    name, *more = command
    ended = run(name, there, *more, env={"XDG_STATE_HOME": str(tmp_path / "state")})
    assert ended.code == 1
    assert (
        "@fake/b: not begun with: @fake/a, of the same rack r1 (spread), could not be reached or "
        "read, and counts as down"
    ) in ended.err
    assert "@fake/b  Start chat" not in ended.err
    assert ended.nodes["@fake/c"]["verified"]["chat"]["ok"] is True
    assert "1 of 3 nodes failed: @fake/a; 1 not begun: @fake/b; these alone" in ended.err


@pytest.mark.parametrize("command", [["upgrade", *WORDS, "--batch", "100%"], ["apply", "--json"]])
def test_no_more_start_from_one_nfs_server_than_the_inventory_lets(
    tmp_path: Path, command: list[str]
) -> None:
    mounted = " 10.0.0.5:/hub /var/lib nfs4 rw,relatime 0 0"
    good = recording(GOOD)
    good.insert(good.index("@ mounts rc=0") + 4, mounted)
    there = site(tmp_path, good, good, good, recording(GOOD), shared_starts=2)
    told = "10.0.0.5:/hub (nfs4): 3 nodes start from it, 2 at once (shared_starts: 2): 2 nodes x 1 rank x 8 "
    planned = run("plan", there)
    assert told in planned.err
    name, *more = command
    ended = run(name, there, *more)
    assert ended.code == 0, ended.err
    assert told in ended.err
    assert "batch 1 of 2: @fake/a, @fake/b, @fake/d\n" in ended.err
    assert "batch 2 of 2: @fake/c\n" in ended.err


def test_what_the_lock_does_not_have_is_refused_with_the_command(tmp_path: Path) -> None:
    there = site(tmp_path, recording(GOOD))
    ended = run("upgrade", there, "--to", "0.5.22", "--yes", "--json")
    assert ended.code == 3
    assert ended.nodes[NODE]["upgrade"] == "refused"
    assert f"sglang-node lock {there} --to 0.5.22" in ended.err


def test_words_that_cannot_be_meant_are_refused_before_any_node_is_asked(tmp_path: Path) -> None:
    there = site(tmp_path, recording(GOOD))
    for words, said in (
        (("--to", "9.9.9", "--yes"), "--to 9.9.9"),
        (("--to", "0.5.23", "--soak", "long"), "--soak 'long'"),
        (("--to", "0.5.23", "--soak", "5h", "--yes"), "--soak 5h: longer than the 14400 s"),
        (("--to", "0.5.23", "--service", "other"), "--service other: the inventory has chat"),
        (("--to", "0.5.23", "--batch", "0", "--yes"), "--batch '0'"),
        (("--to", "0.5.23"), "add --yes"),
    ):
        ended = run("upgrade", there, *words)
        assert ended.code == 2
        assert said in ended.err
        assert "Start chat" not in ended.err


def test_hooks_run_here_before_the_stop_and_after_the_soak(tmp_path: Path, cut: list[str]) -> None:
    told = tmp_path / "told"
    hooks = {
        moment: [{"run": f'echo {moment} "$NODE $SERVICE $PORT $RELEASE" >> {told}'}]
        for moment in ("before_stop", "after_verify")
    }
    there = site(tmp_path, cut, hooks=hooks)
    rest = f"{NODE} chat 30000 0.5.23\n"
    assert run("restart", there).code == 0
    assert told.read_text() == f"before_stop {rest}after_verify {rest}"
    told.unlink()
    ended = run("upgrade", there, *WORDS)
    assert ended.code == 0, ended.err
    assert told.read_text() == f"after_verify {rest}"
    assert ended.err.index("Watch chat") < ended.err.index("Run hook 1 of after_verify for chat")


def test_a_hook_that_fails_before_the_stop_stops_that_node_before_it(
    tmp_path: Path, cut: list[str]
) -> None:
    hooks = {"before_stop": [{"run": "echo no such pool; exit 3"}]}
    ended = run("restart", site(tmp_path, cut, hooks=hooks), "--json")
    assert ended.code == 1
    (failure,) = ended.nodes[NODE]["failures"]
    assert failure.startswith("chat: hook 1 of before_stop (on this machine) failed")
    assert failure.endswith(": no such pool")
    assert "Restart chat" not in ended.err


def test_a_hook_that_takes_too_long_is_ended(tmp_path: Path, cut: list[str]) -> None:
    hooks = {"before_stop": [{"run": "sleep 300", "limit": 0.5}]}
    ended = run("stop", site(tmp_path, cut, hooks=hooks), "--json")
    assert ended.code == 1
    assert "took over 0.5 s" in ended.nodes[NODE]["failures"][0]
    assert "Stop chat" not in ended.err


def test_a_hook_that_fails_after_the_proof_leaves_what_serves(
    tmp_path: Path, cut: list[str]
) -> None:
    hooks = {"after_verify": [{"run": "exit 1", "on": "node"}]}
    failed = {": run hook ": {"success": False, "stdout": ["the pool is locked"]}}
    there = site(tmp_path, cut, hooks=hooks, responses={"a": failed})
    ended = run("upgrade", there, *WORDS)
    assert ended.code == 1
    node = ended.nodes[NODE]
    assert "hook 1 of after_verify (on the node)" in node["why"]
    assert node["then"] == "what runs stays; once that is mended run the same command again"
    assert "Go back" not in ended.err


def test_apply_takes_batches_too_and_stops_at_the_first_that_fails(tmp_path: Path) -> None:
    good = recording(GOOD)
    bad = {": switch ": {"success": False, "stdout": ["the start has failed: exit-code"]}}
    there = site(tmp_path, good, good, good, responses={"a": bad})
    ended = run("apply", there, "--batch", "2", "--json")
    assert ended.code == 1
    assert "did not start" in ended.nodes["@fake/a"]["failures"][0]
    assert ended.nodes["@fake/b"]["verified"]["chat"]["ok"] is True
    assert ended.nodes["@fake/c"]["begun"] is False
    assert "1 of 3 nodes failed: @fake/a; 1 not begun: @fake/c; these alone: --limit @" in ended.err
    assert "@fake/c  Start chat" not in ended.err


def test_verify_can_be_as_hard_as_an_upgrade(tmp_path: Path, cut: list[str]) -> None:
    weak = {": prove ": {"stdout": proved(once8=["", "000"], tool=None)}}
    ended = run("verify", site(tmp_path, cut, responses={"a": weak}), "--hard", "--json")
    assert ended.code == 1
    assert "of 8 generations at a time 1 failed" in ended.nodes[NODE]["failures"][0]
    assert run("verify", site(tmp_path, cut), "--hard").code == 0


def test_where_the_switch_changes_nothing_what_serves_returns_to_the_rotation(
    tmp_path: Path, cut: list[str]
) -> None:
    told = tmp_path / "told"
    hooks = {m: [{"run": f"echo {m} >> {told}"}] for m in ("before_stop", "after_verify")}
    full = {"success": False, "stdout": ["nothing was switched: a file could not be put there"]}
    # Other arguments than deployment 2 has: the third is written, and the switch to it fails.
    there = site(tmp_path, cut, hooks=hooks, responses={"a": {": switch ": full}})
    there.write_text(there.read_text().replace("'max-running-requests': 8", "'log-level': 'info'"))
    ended = run("upgrade", there, *WORDS)
    assert ended.code == 1
    assert ended.nodes[NODE]["then"].endswith("serves on, back in the rotation")
    assert told.read_text() == "before_stop\nafter_verify\n"
