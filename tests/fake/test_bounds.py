"""How a run over many nodes is limited, and how one goes on with those that failed."""

from __future__ import annotations

from pathlib import Path

import pytest

from locks.lockfile import write_lock

from .command import fake, inventory, recording, run
from .test_exit_codes import GOOD as APPLIED
from .test_exit_codes import VERIFIED, whole_lock

GOOD = "two-l4-no-toolkit"


@pytest.fixture
def state(tmp_path: Path) -> dict[str, str]:
    """An environment whose state directory is the test's own."""
    return {"XDG_STATE_HOME": str(tmp_path / "state")}


@pytest.fixture
def site(tmp_path: Path) -> Path:
    good, bad = recording(GOOD), ["Welcome to Ubuntu"]
    names = [fake("a", good), fake("b", bad), fake("c", good), fake("d", bad)]
    return inventory(tmp_path, *names)


def retry_of(err: str) -> str:
    """Return the words that a run names for going on with its failed nodes."""
    return err.rpartition("these alone: --limit ")[2].splitlines()[0]


def test_the_failed_nodes_are_kept_and_a_next_run_takes_them_alone(
    site: Path, state: dict[str, str]
) -> None:
    ended = run("survey", site, env=state)
    assert ended.code == 1
    assert "2 of 4 nodes failed: @fake/b, @fake/d" in ended.err
    again = run("survey", site, "--json", "--limit", retry_of(ended.err), env=state)
    assert list(again.nodes) == ["@fake/b", "@fake/d"]


def test_refused_failed_and_unreached_nodes_are_told_apart_in_line_file_and_document(
    tmp_path: Path, state: dict[str, str]
) -> None:
    lost = ("127.0.0.1", {"ssh_port": 1, "ssh_config_file": "/dev/null"})
    hosts = [fake("old", recording("t4")), fake("b", ["Welcome to Ubuntu"]),
             fake("new", recording(APPLIED)), lost, fake("torn", recording("mismatch"))]  # fmt: skip
    site = inventory(tmp_path, *hosts)
    write_lock(tmp_path / "sglang.lock", whole_lock())
    ended = run("plan", site, "--json", env=state)
    assert "5 nodes: 1 to change, 2 refused, 1 failed, 1 not reached\n" in ended.err
    said = (
        "1 of 5 nodes failed: @fake/b; 1 not reached: 127.0.0.1; 2 refused: @fake/old, @fake/torn; "
        "these alone: --limit @"
    )
    assert said in ended.err
    assert Path(retry_of(ended.err)[1:]).read_text(encoding="utf-8").splitlines() == [
        "@fake/old  # refused",
        "@fake/b  # failed",
        "127.0.0.1  # not reached",
        "@fake/torn  # refused",
    ]
    again = run("survey", site, "--json", "--limit", retry_of(ended.err), env=state)
    assert list(again.nodes) == ["@fake/old", "@fake/b", "127.0.0.1", "@fake/torn"]


def test_the_file_of_failed_nodes_goes_once_a_run_went_well(
    site: Path, state: dict[str, str]
) -> None:
    path = Path(retry_of(run("survey", site, env=state).err)[1:])
    assert path.read_text(encoding="utf-8") == "@fake/b  # failed\n@fake/d  # failed\n"
    assert path.stat().st_mode & 0o777 == 0o600
    assert run("survey", site, "--limit", "@fake/a", env=state).code == 0
    assert not path.exists()


def test_a_state_directory_that_cannot_be_written_to_fails_no_run(
    site: Path, tmp_path: Path
) -> None:
    (tmp_path / "file").write_text("", encoding="utf-8")
    ended = run("survey", site, env={"XDG_STATE_HOME": str(tmp_path / "file")})
    assert ended.code == 1
    assert "Traceback" not in ended.err
    assert "these alone" not in ended.err


def test_excluded_nodes_are_not_contacted(site: Path, state: dict[str, str]) -> None:
    ended = run("survey", site, "--json", "--exclude", "@fake/[bd]", env=state)
    assert ended.code == 0
    assert list(ended.nodes) == ["@fake/a", "@fake/c"]


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--exclude", "nobody"], "--exclude nobody: no host or group of that name"),
        (["--exclude", "@fake/*"], "--exclude leaves no host"),
        (["--limit", "@/not/there"], "--limit @/not/there: no file, host or group of that name"),
        (["--max-fail", "many"], "--max-fail 'many': write a number of nodes"),
        (["--max-fail", "101%"], "--max-fail '101%'"),
        (["--max-fail", "1", "--fail-fast"], "give one of them"),
        (["--node-limit", "0"], "--node-limit 0: write seconds"),
    ],
)
def test_wrong_limits_are_refused_before_any_node_is_contacted(
    site: Path, state: dict[str, str], words: list[str], said: str
) -> None:
    ended = run("survey", site, *words, env=state)
    assert ended.code == 2
    assert said in ended.err
    assert ended.out == ""


def test_a_file_of_names_is_checked_against_the_inventory(
    site: Path, tmp_path: Path, state: dict[str, str]
) -> None:
    names = tmp_path / "names"
    names.write_text("# those of rack 7\n@fake/a  # the first\nelsewhere\n", encoding="utf-8")
    ended = run("survey", site, "--limit", f"@{names}", env=state)
    assert ended.code == 2
    assert f"--limit @{names}: elsewhere is no host of this inventory" in ended.err
    names.write_text("\n# nobody\n", encoding="utf-8")
    assert "names no host" in run("survey", site, "--limit", f"@{names}", env=state).err


def test_a_node_that_takes_too_long_is_given_up_and_the_others_go_on(
    tmp_path: Path, state: dict[str, str]
) -> None:
    slow = fake("slow", recording(GOOD))
    slow[1]["fake_delay"] = 30
    site = inventory(tmp_path, fake("a", recording(GOOD)), slow)
    ended = run("survey", site, "--json", "--node-limit", "4", env=state)
    assert ended.code == 1
    assert ended.nodes["@fake/slow"]["error"]["text"] == "given up after 4 s (--node-limit)"
    assert ended.nodes["@fake/a"]["survey"]["schema"] == 1


def test_a_node_that_hangs_takes_nothing_of_the_time_of_others(
    tmp_path: Path, state: dict[str, str]
) -> None:
    hangs, good = fake("hangs", recording(APPLIED)), fake("good", recording(APPLIED))
    hangs[1]["fake_delay"], good[1]["fake_delay"] = 600, 0.05
    good[1]["fake_responses"] |= VERIFIED
    site = inventory(tmp_path, hangs, good)
    write_lock(tmp_path / "sglang.lock", whole_lock())
    ended = run("apply", site, "--json", "--node-limit", "5", env=state)
    assert ended.code == 1
    assert ended.nodes["@fake/hangs"]["error"]["code"] == "NODE_LIMIT"
    assert ended.nodes["@fake/good"]["verified"]["chat"]["ok"], ended.err


def test_the_plan_of_a_fleet_is_written_as_one_html_file(
    site: Path, tmp_path: Path, state: dict[str, str]
) -> None:
    html = tmp_path / "plan.html"
    ended = run("plan", site, "--html", html, env=state)
    assert ended.code == 1
    written = html.read_text(encoding="utf-8")
    assert all(f"@fake/{name}" in written for name in "abcd")
    assert html.stat().st_mode & 0o777 == 0o600


def test_nodes_with_the_same_plan_are_printed_once(site: Path, state: dict[str, str]) -> None:
    ended = run("plan", site, "--exclude", "@fake/[bd]", env=state)
    assert "@fake/a, @fake/c  (2 nodes)" in ended.out
    assert ended.out.count("TOOLKIT_MISSING") == 1


def test_once_too_many_failed_nothing_more_is_begun_and_what_was_not_is_told(
    tmp_path: Path, state: dict[str, str]
) -> None:
    bad = fake("bad", recording("dgx-spark"))
    bad[1]["fake_responses"][": pull"] = {"success": False, "stdout": ["no space left"]}
    slow = fake("slow", recording("b200-pair"))
    slow[1]["fake_delay"] = 1.5
    site = inventory(tmp_path, bad, slow)
    write_lock(tmp_path / "sglang.lock", whole_lock())
    ended = run("apply", site, "--json", "--fail-fast", env=state)
    assert ended.code == 1
    (said,) = ended.nodes["@fake/slow"]["failures"]
    assert said.startswith("stopped, 1 of 2 nodes failed (--max-fail 0): done: ")
    assert "not begun: " in said
    assert "Verify chat" in said
    # Done with nothing or with something, it is one for the next run.
    assert (ended.nodes["@fake/slow"].get("begun", True)) is ("done: nothing" not in said)
    word = "failed" if "begun" not in ended.nodes["@fake/slow"] else "not begun"
    kept = Path(retry_of(ended.err)[1:]).read_text(encoding="utf-8")
    assert kept == f"@fake/bad  # failed\n@fake/slow  # {word}\n"
    # As many as may fail stop nobody: the slow one then fails for a reason of its own.
    ended = run("apply", site, "--json", "--max-fail", "1", env=state)
    assert not any("--max-fail" in one for one in ended.nodes["@fake/slow"]["failures"])


def test_a_step_that_takes_too_long_is_given_up_and_named(
    tmp_path: Path, state: dict[str, str]
) -> None:
    slow = fake("slow", recording("b200-pair"))
    slow[1]["fake_delay"] = 2.5
    site = inventory(tmp_path, slow)
    write_lock(tmp_path / "sglang.lock", whole_lock())
    ended = run("apply", site, "--json", "--node-limit", "6", env=state)
    assert ended.code == 1
    (said,) = ended.nodes["@fake/slow"]["failures"]
    assert said.startswith("given up after 6 s (--node-limit) at: ")
    assert "what it began there may go on" in said
