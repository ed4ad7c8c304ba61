"""history and rollback as a person runs them, over a node that is not there but was surveyed."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from facts.parsing import parse_survey
from locks.lockfile import write_lock
from plans import paths
from plans.deployment import PlannedFile, drop_in_file, unit_file
from plans.make import make_plan
from plans.plan import ServicePlan
from plans.version import VERSION
from tests.fake.command import fake, inventory, recording, run
from tests.fake.test_exit_codes import GOOD, VERIFIED, whole_lock
from tests.unit.deployments import CAP, applied
from tests.unit.surveys import wishes
from tests.unit.test_verification import lines as verify_lines

NODE = "@fake/a"
RECORD = '{"result": "ready, and it generates", "first_answer_seconds": 41}\n'


def file_lines(file: PlannedFile, path: str = "") -> Iterator[str]:
    """Give the lines by which a survey tells of a file."""
    path = path or file.path
    yield from ("@ file rc=0", f" {path}")
    yield f" regular file|{file.mode[1:]}|root:root|{len(file.text)}"
    yield f" {file.sha256}"
    if file.mode != "0600":
        yield from ("@ text rc=0", f" {path}", *(f" {line}" for line in file.text.split("\n")))


def deployed_lines(given: Mapping[str, str] | None = None) -> list[str]:
    """Return the survey of a node on which deployment 2 runs and 1 ran before; ``given``: words of
    their plans, and what stands there instead."""
    bare = recording(GOOD)
    node = parse_survey(bare, NODE)
    first = _one(make_plan(node, wishes(CAP), whole_lock(), VERSION))
    after = applied(make_plan(node, wishes(CAP), whole_lock(), VERSION), node)
    wanted = wishes(CAP | {"arguments": {"max-running-requests": 8}})
    second = _one(make_plan(after, wanted, whole_lock(), VERSION))
    assert (first.number, second.number) == (1, 2)
    assert second.launch is not None
    image = {
        "Repository": "lmsysorg/sglang", "Tag": "<none>", "ID": "sha256:" + "3" * 64,
        "Digest": second.launch.image.rpartition("@")[2],
    }  # fmt: skip
    lines: list[str] = []
    for line in bare:
        if line == "@ end":
            break
        lines.append(line)
        if line == "@ docker.images rc=0":
            lines.append(f" {json.dumps(image)}")
    lines += [
        "@ services.show rc=0",
        *(f" {one}" for one in (
            "Id=sglang@chat.service", "LoadState=loaded", "ActiveState=active", "SubState=running",
            "Result=success", "UnitFileState=enabled", "MainPID=4242", "NRestarts=0",
            f"InvocationID={'ab' * 16}", "NeedDaemonReload=no", f"FragmentPath={paths.UNIT}",
            f"DropInPaths={paths.drop_in('chat')}",
        )),
        "@ deployment rc=0", " chat", " current 2", " previous 1", " number 1", " number 2",
        *(f" written 179600000{n} {n}/{name}.json" for n in (1, 2) for name in ("plan", "record")),
    ]  # fmt: skip
    for file in (*first.files, *second.files, unit_file(), drop_in_file(second.launch)):
        if file.path.endswith(paths.PLAN_JSON):
            for old, new in (given or {}).items():
                file = replace(file, text=file.text.replace(old, new))
        lines += file_lines(file)
    for number in (1, 2):
        path = paths.Deployment("chat", number).file(paths.RECORD_JSON)
        lines += file_lines(PlannedFile(path, RECORD))
    assert first.weights is not None
    model = first.weights.directory
    lines += [
        "@ space rc=0", f" {model}", f" {model}", f" {model}",
        " Filesystem 1024-blocks Used Available Capacity Mounted on",
        " /dev/sda1 1000000000 1000 999999000 1% /",
        "@ end",
    ]  # fmt: skip
    return lines


def _one(plan: Any) -> ServicePlan:
    (service,) = plan.services
    assert isinstance(service, ServicePlan)
    assert service.launch is not None, plan.refusals or plan.unresolved
    return service


def site(folder: Path, lines: list[str], **responses: Any) -> Path:
    """Write an inventory of that node with its whole lock beside it."""
    name, data = fake("a", lines)
    data["fake_responses"] |= VERIFIED | responses
    path = inventory(folder, (name, data))
    write_lock(folder / "sglang.lock", whole_lock())
    return path


@pytest.fixture(scope="module")
def lines() -> list[str]:
    return deployed_lines()


def test_history_tells_both_and_why(tmp_path: Path, lines: list[str]) -> None:
    ended = run("history", site(tmp_path, lines), "--json")
    assert ended.code == 0
    (chat,) = ended.nodes[NODE]["services"]
    assert [one["number"] for one in chat["deployments"]] == [2, 1]
    assert chat["deployments"][0]["why"] == ["arguments.max-running-requests: none → 8"]
    assert chat["deployments"][1]["previous"] is True
    ended = run("history", site(tmp_path, lines), "--service", "other")
    assert ended.code == 1
    assert "NOT_DEPLOYED" in ended.err


def test_rollback_switches_verifies_and_records(tmp_path: Path, lines: list[str]) -> None:
    back = {": go back with ": {"stdout": ["draining: requests 1"]}}
    ended = run("rollback", site(tmp_path, lines, **back), "--json")
    assert ended.code == 0, ended.err
    node = ended.nodes[NODE]
    (chat,) = node["services"]
    assert (chat["from"], chat["to"], chat["planned_again"]) == (2, 1, [])
    assert [one["kind"] for one in chat["changes"]] == ["deployment", "restart"]
    assert node["verified"]["chat"]["ok"] is True
    assert "Go back to deployment 1 of chat" in ended.err
    assert "change it before the next apply" in ended.err


def came_back(lines: list[str]) -> list[str]:
    """Return the survey of a node where going back from 1 to 2 was cut before its record."""
    path = paths.Deployment("chat", 2).file(paths.BACK)
    file = ["@ file rc=0", f" {path}", " symbolic link|777|root:root|1", " -> 1"]
    return [*lines[:-1], *file, lines[-1]]


@pytest.mark.parametrize("words", [(), ("--to", "2")])
def test_one_that_was_cut_is_gone_on_with_and_not_turned_round(
    tmp_path: Path, lines: list[str], words: tuple[str, ...]
) -> None:
    ended = run("rollback", site(tmp_path, came_back(lines)), *words, "--json")
    assert ended.code == 0, ended.err
    (chat,) = ended.nodes[NODE]["services"]
    assert (chat["to"], [one["kind"] for one in chat["changes"]]) == (2, ["deployment", "verify"])
    assert "rollback --to NUMBER" in chat["changes"][0]["why"]
    assert "Verify chat" in ended.err
    # Whoever means the other one says so.
    ended = run("rollback", site(tmp_path, came_back(lines)), "--to", "1", "--json")
    (chat,) = ended.nodes[NODE]["services"]
    assert (chat["from"], chat["to"]) == (2, 1)


@pytest.mark.parametrize(
    ("unended", "answer", "code"), [(True, "200", 1), (False, "200", 0), (True, "500", 5)]
)
def test_a_way_back_ends_where_a_later_verify_is_answered(
    tmp_path: Path, lines: list[str], unended: bool, answer: str, code: int
) -> None:
    # That the link is to go is seen where that fails.
    failed = {"stdout": [], "exit_code": 1, "success": False}
    node = came_back(lines) if unended else lines
    answers = {"stdout": verify_lines(status=answer)}
    responses = {": end the way back of chat": failed, ": verify ": answers}
    ended = run("verify", site(tmp_path, node, **responses), "--json")
    assert ended.code == code, ended.err
    assert ended.nodes[NODE]["verified"]["chat"]["ok"] is (answer == "200")
    assert ("could not be ended" in ended.err) is (code == 1)


def test_a_refused_way_back_runs_nothing_there(tmp_path: Path, lines: list[str]) -> None:
    ended = run("rollback", site(tmp_path, lines), "--to", "7")
    assert ended.code == 3
    assert "NO_WAY_BACK" in ended.out
    assert "Go back" not in ended.err


def test_a_switch_that_fails_is_told_as_any_other(tmp_path: Path, lines: list[str]) -> None:
    failed = {"stdout": ["the start has failed: exit-code"], "exit_code": 1, "success": False}
    ended = run("rollback", site(tmp_path, lines, **{": go back with ": failed}), "--json")
    assert ended.code == 1
    assert "did not start" in ended.nodes[NODE]["failures"][0]


def test_where_the_driver_has_changed_it_is_planned_again_with_the_old_wishes(
    tmp_path: Path, lines: list[str]
) -> None:
    driver = parse_survey(recording(GOOD), NODE).nvidia.driver_version
    assert isinstance(driver, str)
    newer = f"{int(driver.split('.')[0]) + 5}.10.01"
    of_the_machine = lines.index("@ services.show rc=0")
    moved = [line.replace(driver, newer) for line in lines[:of_the_machine]]
    moved += lines[of_the_machine:]
    ended = run("rollback", site(tmp_path, moved), "--json")
    node = ended.nodes[NODE]
    (chat,) = node["services"]
    assert (
        f"the driver was {driver.split('.')[0]} and is {newer.split('.')[0]}"
        in chat["planned_again"]
    )
    assert node["plan"]["refusals"] == []
    assert "deployment" in [one["kind"] for one in node["plan"]["changes"]]
    assert node["plan"]["services"][0]["deployment"] == 3
    assert ended.code == 0, ended.err


def test_rollback_asks_for_what_it_goes_back_to_the_one_time_that_it_asks(
    tmp_path: Path, lines: list[str]
) -> None:
    name, data = fake("a", {"success": False, "stdout": ["another question"]})
    data["fake_responses"] = {"whole=back": lines} | data["fake_responses"] | VERIFIED
    path = inventory(tmp_path, (name, data))
    write_lock(tmp_path / "sglang.lock", whole_lock())
    ended = run("rollback", path, "--json")
    assert ended.code == 0, ended.err
