"""Runs for some of a node's services, and hooks around stops of every kind, over nodes not there."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path
from typing import Any

import pytest

from facts.parsing import parse_survey
from locks.lockfile import write_lock
from plans import paths
from plans.deployment import PlannedFile
from plans.maintenance import Mark
from tests.fake.command import fake, inventory, recording, run
from tests.fake.served import RECORD, served
from tests.fake.test_exit_codes import GOOD, whole_lock
from tests.fake.test_going_back import NODE, deployed_lines, file_lines
from tests.fake.test_upgrading import GOES_WELL, SECOND, WORDS

BOTH = [SECOND, {**SECOND, "name": "chat1", "port": 30001}]
DOOR = {"port": 8000, "servers": ["chat", "chat1"]}
RUNS = ["@ door rc=0", " link 0123456789abcdef", " ActiveState=active", " MainPID=99"]
OTHER = ["@ deployment rc=0", " chat1", " current 1", " number 1"]


@pytest.fixture(scope="module")
def lines() -> list[str]:
    return deployed_lines()


def site(folder: Path, survey: list[str], responses: Any = None, **more: Any) -> Path:
    """Write an inventory of one node with this survey, and the lock beside it."""
    name, data = fake("a", survey)
    data["fake_responses"] |= GOES_WELL | (responses or {})
    path = inventory(folder, (name, data), **{"services": [SECOND], **more})
    write_lock(folder / "sglang.lock", whole_lock())
    return path


def with_more(survey: list[str], *more: str) -> list[str]:
    """Return a survey that says more."""
    return [*survey[:-1], *more, survey[-1]]


def hooks(told: Path, **ends: str) -> dict[str, Any]:
    """Return hooks that tell a file that they ran, and end as is said of them."""
    moments = ("before_stop", "after_verify")
    return {m: [{"run": f"echo {m} $SERVICE >> {told}; {ends.get(m, ':')}"}] for m in moments}


# --- the door


def test_an_upgrade_of_one_service_leaves_the_door_of_both(tmp_path: Path) -> None:
    share = {"arguments": {"mem-fraction-static": 0.4}}
    both = [{**one, **share} for one in BOTH]
    there = site(tmp_path, with_more(recording(GOOD), *RUNS), services=both, door=DOOR)
    ended = run("upgrade", there, *WORDS, "--service", "chat")
    assert ended.code == 0, ended.err
    assert ended.nodes[NODE]["upgrade"] == "done"
    assert "door" not in ended.nodes[NODE]
    assert "Prepare the door" not in ended.err
    assert "Set up the door" not in ended.err
    assert "the door" in run("plan", there).out


@pytest.mark.parametrize("more", [{"services": BOTH, "door": DOOR}, {}])
def test_a_way_back_that_is_planned_again_leaves_the_door(
    tmp_path: Path, lines: list[str], more: dict[str, Any]
) -> None:
    driver = parse_survey(recording(GOOD), NODE).nvidia.driver_version
    assert isinstance(driver, str)
    newer = f"{int(driver.split('.')[0]) + 5}.10.01"
    machine = lines.index("@ services.show rc=0")
    moved = [line.replace(driver, newer) for line in lines[:machine]] + lines[machine:]
    there = site(tmp_path, with_more(moved, *RUNS), **more)
    ended = run("rollback", there, "--service", "chat", "--json")
    assert ended.code == 0, ended.err
    assert "door" not in ended.nodes[NODE]["plan"]
    assert "Prepare the door" not in ended.err
    assert "Set up the door" not in ended.err


@pytest.mark.parametrize(
    ("others", "only", "goes"),
    [
        ([], (), True),
        ([], ("chat",), True),
        (OTHER, ("chat",), False),
        (OTHER, ("chat", "chat1"), True),
    ],
)
def test_the_door_goes_with_the_last_service(
    tmp_path: Path, lines: list[str], others: list[str], only: tuple[str, ...], goes: bool
) -> None:
    there = site(tmp_path, with_more(lines, *others, *RUNS))
    named = [word for name in only for word in ("--service", name)]
    ended = run("remove", there, "--yes", "--allow-daemon-reload", *named)
    assert ended.code == 0, ended.err
    assert ("Take the door away" in ended.err) is goes


# --- hooks


def test_a_service_is_taken_out_before_it_is_removed(tmp_path: Path, lines: list[str]) -> None:
    told = tmp_path / "told"
    there = site(tmp_path, lines, hooks=hooks(told))
    ended = run("remove", there, "--yes", "--allow-daemon-reload")
    assert ended.code == 0, ended.err
    assert told.read_text() == "before_stop chat\n"
    steps = [ended.err.index(one) for one in ("Run hook 1 of before_stop for chat", "Remove")]
    assert steps == sorted(steps)


def test_a_node_that_is_drained_leaves_the_rotation_first(tmp_path: Path, lines: list[str]) -> None:
    told, at = tmp_path / "told", lines.index("@ clock rc=127")
    lines = [*lines[:at], "@ clock rc=0", " 1796000000", *lines[at + 1 :]]
    ended = run("drain", site(tmp_path, lines, hooks=hooks(told)))
    assert ended.code == 0, ended.err
    assert told.read_text() == "before_stop chat\n"
    assert ended.err.index("Run hook 1 of before_stop") < ended.err.index("Drain chat")
    ended = run("drain", site(tmp_path, lines, hooks=hooks(told, before_stop="exit 3")))
    assert ended.code == 1
    assert "Drain chat" not in ended.err


@pytest.mark.parametrize(
    ("boot", "ends", "enters", "back"),
    [
        ("another", ":", True, True),
        ("another", "exit 3", True, False),
        ("this", ":", False, False),
    ],
)
def test_a_drained_node_enters_the_rotation_before_its_mark_goes(
    tmp_path: Path, lines: list[str], boot: str, ends: str, enters: bool, back: bool
) -> None:
    this = parse_survey(lines, NODE).host.boot_id
    mark = Mark("reboot", str(this) if boot == "this" else boot, 1796000000, ("chat",))
    marked = with_more(lines, *file_lines(PlannedFile(paths.MAINTENANCE, mark.text())))
    told = tmp_path / "told"
    ended = run("verify", site(tmp_path, marked, hooks=hooks(told, after_verify=ends)))
    assert (ended.code == 0) is back, ended.err
    assert told.exists() is enters
    if back:
        assert told.read_text() == "after_verify chat\n"
        steps = ("Verify chat", "Run hook 1 of after_verify for chat", "End the maintenance")
        assert [ended.err.index(one) for one in steps] == sorted(map(ended.err.index, steps))
        assert "back from its reboot" in ended.out + ended.err


def test_a_hook_that_failed_after_an_apply_is_run_by_the_next(tmp_path: Path) -> None:
    told = tmp_path / "told"
    done = "Record that chat is back"
    bare = site(tmp_path, recording(GOOD), hooks=hooks(told, after_verify="exit 3"))
    ended = run("apply", bare)
    assert ended.code == 1
    assert done not in ended.err
    # What the record says then, as the first of the two writes leaves it.
    begun = json.dumps({**json.loads(RECORD), "after_verify": "to run"}) + "\n"
    there = served(GOOD, {"services": [SECOND]})
    told.unlink()
    ended = run("apply", site(tmp_path, there, hooks=hooks(told)), "--json")
    assert (ended.code, ended.nodes[NODE]["changes"], told.exists()) == (0, [], False)
    sums = [hashlib.sha256(text.encode()).hexdigest() for text in (RECORD, begun)]
    said = {f" {RECORD.strip()}": f" {begun.strip()}", f" {sums[0]}": f" {sums[1]}"}
    cut = [said.get(line, line) for line in there]
    ended = run("apply", site(tmp_path, cut, hooks=hooks(told)), "--json")
    assert ended.code == 0, ended.err
    (change,) = ended.nodes[NODE]["changes"]
    assert (change["kind"], change["why"]) == (
        "verify",
        "the hooks after its last verify did not all run",
    )
    assert told.read_text() == "after_verify chat\n"
    assert ended.err.index("Run hook 1 of after_verify") < ended.err.index(done)
