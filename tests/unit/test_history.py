"""What the history of a service tells, from a survey alone and from survey.sh run for real."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from facts.records import ManagedFile, ServiceState, Survey
from facts.request import SurveyRequest
from plans import paths
from plans.history import differences, histories, when
from tests.unit.deployments import CAP, applied, converged, fresh, one, plan
from tests.unit.surveys import wishes
from tests.unit.test_survey_program import SHELLS, run, survey
from tests.unit.wheels import KEY, TREE, wheel_converged


def with_text(node: Survey, number: int, name: str, document: Any) -> Survey:
    path = paths.Deployment("chat", number).file(name)
    text = document if isinstance(document, str) else json.dumps(document)
    return replace(node, files={**node.files, path: ManagedFile(path, True, text=text)})


def two() -> Survey:
    """A node whose second deployment has another argument than the first."""
    made = plan(converged(), wishes(CAP | {"arguments": {"max-running-requests": 8}}))
    node = applied(made, converged())
    state = replace(
        node.services["chat"],
        written={"1/plan.json": 1796000000, "2/plan.json": 1796010000, "2/record.json": 1796010060},
    )
    node = replace(node, services={"chat": state})
    node = with_text(node, 1, "record.json", {"result": "ready, and it generates"})
    record = {"result": "ready, and it generates", "first_answer_seconds": 41}
    return with_text(node, 2, "record.json", record)


def test_the_newest_comes_first_with_its_marks_and_how_it_went() -> None:
    (told,) = histories(two())
    newest, oldest = told.entries
    assert (newest.number, newest.mark) == (2, "current")
    assert (oldest.number, oldest.mark) == (1, "previous")
    assert newest.first_answer_seconds == 41
    assert newest.result == "ready, and it generates"
    assert newest.release == "0.5.23"
    assert newest.cells[6] == "2026-11-30T03:40:00Z"
    assert told.unread == 0


def test_why_it_was_made_is_what_differs_from_the_one_before() -> None:
    newest, oldest = histories(two())[0].entries
    assert newest.why == ("arguments.max-running-requests: none → 8",)
    assert oldest.why == ("the first one",)


def test_what_an_operator_may_hold_private_is_named_and_not_shown() -> None:
    wanted = wishes(CAP | {"environment": {"PRIVATE_NOTE": "hf_secret"}})
    node = applied(plan(converged(), wanted), converged())
    newest = histories(node)[0].entries[0]
    assert "container.env differs" in newest.why
    assert "hf_secret" not in str(newest)


def test_one_that_was_never_verified_or_cannot_be_read_says_so() -> None:
    node = with_text(two(), 2, "plan.json", "{")
    gone = paths.Deployment("chat", 1).file("record.json")
    node = replace(node, files={path: one for path, one in node.files.items() if path != gone})
    newest, oldest = histories(node)[0].entries
    assert newest.why == ("plan.json of it cannot be read",)
    assert newest.release is None
    assert newest.cells[3] == "unknown"
    assert oldest.result == "never verified"


@pytest.mark.parametrize("text", ["{", "[]", ""])
def test_a_record_that_cannot_be_read_is_no_deployment_that_was_never_verified(text: str) -> None:
    entry = histories(with_text(two(), 1, "record.json", text))[0].entries[1]
    assert entry.result == "record.json of it cannot be read"


def test_a_record_whose_text_was_not_read_is_not_taken_for_none() -> None:
    path = paths.Deployment("chat", 1).file("record.json")
    node = two()
    node = replace(node, files={**node.files, path: ManagedFile(path, True)})
    assert histories(node)[0].entries[1].result == "record.json of it cannot be read"


def test_an_environment_is_told_by_its_key_and_what_differs_by_name() -> None:
    old, new = "72e76f0011223344", "8a90b1c2d3e4f506"
    node = wheel_converged()
    plan_json = json.loads(str(node.files[paths.Deployment("chat", 1).file("plan.json")].text))
    assert plan_json["environment"]["key"] == KEY

    def with_environment(node: Survey, number: int, **keys: Any) -> Survey:
        environment = plan_json["environment"] | keys
        document = plan_json | {"environment": environment}
        return with_text(node, number, "plan.json", document)

    state = replace(node.services["chat"], deployments=(1, 2, 3), current=3, previous=2)
    node = replace(node, services={"chat": state})
    node = with_environment(node, 1, key=old, cuda_home=TREE.replace(KEY, old))
    node = with_environment(node, 2, key=new, cuda_home=TREE.replace(KEY, new))
    gone = ["torch 2.9", "numpy 2"]
    node = with_environment(node, 3, key=new, cuda_home="/usr/local/cuda-13.0", departures=gone)
    third, second, first = histories(node)[0].entries
    assert (first.runs, first.cells[4]) == (f"wheel {old}", f"wheel {old}")
    assert first.runtime == "wheel"
    assert second.why == (f"runs: wheel {old} → wheel {new}",)
    assert third.why == (
        "CUDA_HOME: lib/python3.12/site-packages/nvidia/cu13 → /usr/local/cuda-13.0",
        "departures: none → torch 2.9, numpy 2",
    )


def test_one_that_was_gone_back_to_says_from_where() -> None:
    record = {"result": "ready, and it generates", "rolled_back_from": 2}
    oldest = histories(with_text(two(), 1, "record.json", record))[0].entries[1]
    assert oldest.why == ("the first one", "gone back to from 2")


def test_deployments_that_were_not_asked_for_are_counted() -> None:
    node = two()
    state = replace(node.services["chat"], deployments=(1, 2, 3, 4, 5))
    (told,) = histories(replace(node, services={"chat": state}))
    assert told.unread == 3
    assert told.as_dict()["unread"] == 3


def test_a_node_without_deployments_has_no_history() -> None:
    assert histories(fresh()) == []
    assert histories(fresh(services={"chat": ServiceState("chat")})) == []
    assert histories(two(), ("other",)) == []


def test_many_differences_are_named_and_counted() -> None:
    before = {"service": {f"k{n}": 1 for n in range(9)}}
    after = {"service": {f"k{n}": "x" * 100 for n in range(9)}}
    told = differences(before, after)
    assert told[-1] == "and 3 more"
    assert told[0].endswith("…")
    assert differences(before, before) == ()


@pytest.mark.parametrize("plan_json", [{"service": 3, "image": []}, {"build": None, "files": []}])
def test_a_plan_of_another_form_breaks_nothing(plan_json: dict[str, Any]) -> None:
    newest = histories(with_text(two(), 2, "plan.json", plan_json))[0].entries[0]
    assert newest.runs is None
    assert newest.as_dict()["current"] is True


def test_a_time_that_cannot_be_is_unknown() -> None:
    assert when(None) is None
    assert when(10**18) is None
    assert when(0) == "1970-01-01T00:00:00Z"


# --- what survey.sh reads for it


@pytest.fixture(params=list(SHELLS.values()), ids=list(SHELLS))
def shell(request: pytest.FixtureRequest) -> list[str]:
    found: list[str] = request.param
    return found


def service_with(directory: Path, count: int) -> Path:
    root = directory / "deployments" / "chat"
    for number in range(1, count + 1):
        here = root / str(number)
        here.mkdir(parents=True)
        (here / "plan.json").write_text(f'{{"release": "0.5.{number}"}}\n')
        (here / "record.json").write_text("{}\n")
        (here / "start.json").write_text("{}\n")
        (here / "launch.env").write_text(f"SGLANG_DEPLOYMENT={number}\n")
        (here / "server.yaml").write_text("port: 30000\n")
        (here / "ready-gate").write_text("exit 0\n")
        (here / "container.env").write_text("TOKEN=hf_secret\n")
    (root / f"{count + 1}.new").mkdir()  # of a run that was cut
    (root / f"{count + 1}.new" / "plan.json").write_text("{}\n")
    (root / "current").symlink_to(str(count))
    (root / "previous").symlink_to(str(count - 1))
    return directory / "deployments"


def texts(seen: Survey, root: Path) -> set[str]:
    return {
        str(Path(path).relative_to(root / "chat"))
        for path, file in seen.files.items()
        if path.startswith(str(root)) and isinstance(file.text, str)
    }


def test_past_deployments_are_read_only_where_they_are_asked_for(
    shell: list[str], tmp_path: Path
) -> None:
    root = service_with(tmp_path, 3)
    output, _ = run(shell, SurveyRequest(deployments=str(root)))
    assert {name.split("/")[0] for name in texts(survey(output), root)} == {"3"}


def test_the_newest_of_them_are_read_and_no_more_than_asked(
    shell: list[str], tmp_path: Path
) -> None:
    root = service_with(tmp_path, 12)
    output, _ = run(shell, SurveyRequest(deployments=str(root), history=3))
    seen = survey(output)
    read = texts(seen, root)
    assert {name.split("/")[0] for name in read} == {"12", "11", "10", "9"}
    assert "11/plan.json" in read
    assert "11/record.json" in read
    assert f"{root}/chat/11/ready-gate" not in seen.files
    assert f"{root}/chat/11/container.env" not in seen.files
    state = seen.services["chat"]
    assert state.deployments == tuple(range(1, 13))
    assert state.written["7/plan.json"] > 1_700_000_000
    assert set(state.written) == {
        f"{n}/{name}.json" for n in range(1, 13) for name in ("plan", "record", "start")
    }


@pytest.mark.parametrize(("whole", "number"), [("previous", 4), ("2", 2)])
def test_every_file_is_summed_of_the_one_that_is_asked_for_whole(
    shell: list[str], tmp_path: Path, whole: str, number: int
) -> None:
    root = service_with(tmp_path, 5)
    output, _ = run(shell, SurveyRequest(deployments=str(root), history=9, whole=whole))
    assert "hf_secret" not in output
    seen = survey(output)
    gate = seen.files[f"{root}/chat/{number}/ready-gate"]
    assert isinstance(gate.sha256, str)
    others = {1, 2, 3, 4} - {number}
    assert all(f"{root}/chat/{other}/ready-gate" not in seen.files for other in others)


@pytest.mark.parametrize("whole", ["previous", "back"])
def test_a_switch_cut_between_its_two_links_is_read_as_ended(
    shell: list[str], tmp_path: Path, whole: str
) -> None:
    root = service_with(tmp_path, 5)
    (root / "chat/current").unlink()
    (root / "chat/current").symlink_to("5")
    (root / "chat/.previous").symlink_to("3")
    for there in (True, False):
        output, _ = run(shell, SurveyRequest(deployments=str(root), history=1, whole=whole))
        seen = survey(output)
        assert (seen.services["chat"].current, seen.services["chat"].previous) == (5, 3)
        assert f"{root}/chat/3/ready-gate" in seen.files
        if there:
            (root / "chat/previous").unlink()  # at the first switch there was none
    # Both are there: neither was renamed yet, and the plan of what it led to is read.
    (root / "chat/.current").symlink_to("2")
    (root / "chat/previous").symlink_to("4")
    seen = survey(run(shell, SurveyRequest(deployments=str(root)))[0])
    assert (seen.services["chat"].current, seen.services["chat"].previous) == (5, 4)
    assert f"{root}/chat/2/plan.json" in seen.files
    assert f"{root}/chat/4/plan.json" not in seen.files


def test_the_one_that_a_cut_way_back_led_to_is_read_whole(shell: list[str], tmp_path: Path) -> None:
    root = service_with(tmp_path, 5)
    (root / "chat/5/back").symlink_to("4")
    output, _ = run(shell, SurveyRequest(deployments=str(root), history=1, whole="back"))
    seen = survey(output)
    assert seen.files[f"{root}/chat/5/back"].link == "4"
    assert isinstance(seen.files[f"{root}/chat/5/ready-gate"].sha256, str)
    assert f"{root}/chat/4/ready-gate" not in seen.files


def test_the_plan_that_is_told_is_the_one_that_was_written() -> None:
    made = one(plan())
    document = json.loads(made.files[-1].text)
    (entry,) = histories(converged())[0].entries
    assert entry.build == document["build"]["key"]
    assert entry.runs == document["image"]["run"]
    assert entry.runtime == "image"
