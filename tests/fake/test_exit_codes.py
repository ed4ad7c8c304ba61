"""The exit codes that scripts use, each by a run that ends with it; and whole applies."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest

from locks.lockfile import write_lock
from locks.records import Lock
from tests.fake.command import CHAT, Ended, fake, inventory, recording, run
from tests.unit.deployments import lock
from tests.unit.test_canary import lines as canary_lines
from tests.unit.test_verification import lines as verify_lines

GOOD = "dgx-spark"


def whole_lock() -> Lock:
    """Return a lock that has all that the demonstration's nodes may come to."""
    there = lock().images["lmsysorg/sglang:v0.5.23"]
    (platform,) = there.platforms.values()
    both = {"linux/amd64": platform, "linux/arm64": platform}
    newest = there.model_copy(update={"platforms": both})
    older = newest.model_copy(
        update={"asked": "lmsysorg/sglang:v0.5.19-cu129", "tag": "v0.5.19-cu129"}
    )
    return Lock(images={one.asked: one for one in (newest, older)}, models=lock().models)


def site(folder: Path, *, survey: Any = None, responses: Any = None, **more: Any) -> Path:
    """Write an inventory of one node with its whole lock beside it."""
    name, data = fake("a", survey if survey is not None else recording(GOOD))
    data["fake_responses"] |= TRIED | (responses or {})
    path = inventory(folder, (name, data), **more)
    write_lock(folder / "sglang.lock", whole_lock())
    return path


TRIED = {": try ": {"stdout": canary_lines("a GB10 that computes")}}

VERIFIED = {
    **TRIED,
    ": verify ": {"stdout": verify_lines()},
    ": switch ": {"stdout": ["loading weights, 12 s"]},
}


def test_0_where_the_plan_is_whole(tmp_path: Path) -> None:
    assert run("plan", site(tmp_path)).code == 0


def test_4_where_changes_are_pending_and_one_asks(tmp_path: Path) -> None:
    ended = run("plan", site(tmp_path), "--check", "--json")
    assert ended.code == 4
    kinds = [change["kind"] for change in ended.nodes["@fake/a"]["changes"]]
    assert kinds[:2] == ["deployment", "image"]
    assert kinds[-1] == "start"


def test_3_where_a_node_is_refused(tmp_path: Path) -> None:
    assert run("plan", site(tmp_path, survey=recording("t4"))).code == 3


def test_2_where_the_words_or_the_data_are_wrong(tmp_path: Path) -> None:
    for words in (
        ["plan"],
        ["plan", "nowhere.py"],
        ["plan", site(tmp_path), "--no-such-option"],
        ["plan", site(tmp_path), "--model", "a/b"],
        ["plan", "host", "--tp-size", "2"],
        ["nonsense"],
    ):
        ended = run(*words)
        assert ended.code == 2, words
        assert "Traceback" not in ended.err
    (tmp_path / "sglang.lock").write_text("{", encoding="utf-8")
    broken = run("plan", tmp_path / "site.py")
    assert broken.code == 2
    assert "sglang.lock" in broken.err


@pytest.mark.parametrize(
    ("more", "says"),
    [
        ({"registry": {"mirrors": {"docker.io": "nonsense"}}}, "write https://HOST"),
        ({"registry": {"mirrors": {"docker.io": "http://192.0.2.1:5000"}}}, "listed as insecure"),
        ({"image": "lmsysorg/sglang:latest", "release": "0.5.23"}, "moves"),
        ({"image": "??", "release": "0.5.23"}, "is not an image reference"),
    ],
)
def test_2_where_what_the_lock_shall_ask_cannot_be_asked(
    tmp_path: Path, more: dict[str, Any], says: str
) -> None:
    host = fake("a", recording("b200-pair"))
    ended = run("lock", inventory(tmp_path, host, **more))
    assert ended.code == 2
    assert says in ended.err
    assert "Traceback" not in ended.err
    assert not (tmp_path / "sglang.lock").exists()


def test_an_apply_does_what_the_plan_says_and_verifies(tmp_path: Path) -> None:
    ended = run("apply", site(tmp_path, responses=VERIFIED), "--json")
    assert ended.code == 0, ended.err
    node = ended.nodes["@fake/a"]
    assert node["verified"]["chat"]["ok"] is True
    assert node["verified"]["chat"]["first_answer_seconds"] == 41
    assert node["failures"] == node["refusals"] == []
    for said in ("Fetch the image of chat", "Write the deployment", "Start chat", "Verify chat"):
        assert said in ended.err
    assert "loading weights, 12 s" in ended.err, "progress is shown while it is made"


def test_1_where_something_fails_on_a_node_with_its_last_word(tmp_path: Path) -> None:
    full = {"success": False, "stderr": ["no space left on device"]}
    ended = run("apply", site(tmp_path, responses={": pull ": full, **VERIFIED}), "--json")
    assert ended.code == 1
    (failure,) = ended.nodes["@fake/a"]["failures"]
    assert "could not be fetched: no space left on device" in failure
    assert ended.nodes["@fake/a"]["verified"] == {}


def test_a_fetch_that_fills_the_disk_is_told_with_the_command(tmp_path: Path) -> None:
    said = ["3 of 9 layers unpacked", "failed to register layer: write /x: no space left on device"]
    responses = {": pull ": {"success": False, "stdout": said}, **VERIFIED}
    ended = run("apply", site(tmp_path, responses=responses), "--json")
    assert ended.code == 1
    (failure,) = ended.nodes["@fake/a"]["failures"]
    assert "failed to register layer" in failure
    assert "df -h" in failure


def test_a_switch_that_cannot_write_says_that_the_service_runs_on(tmp_path: Path) -> None:
    switch = {
        "success": False,
        "stdout": ["nothing was switched: a file could not be put in its place: df -h /etc"],
        "stderr": ["install: error writing '/etc/x.new': No space left on device"],
    }
    ended = run("apply", site(tmp_path, responses={": switch ": switch}), "--json")
    assert ended.code == 1
    (failure,) = ended.nodes["@fake/a"]["failures"]
    assert failure.startswith("chat: install: error writing")
    assert "did not start" not in failure


def test_a_start_that_fails_is_told_by_what_its_log_means(tmp_path: Path) -> None:
    log = ["the start has failed: exit-code", "torch.OutOfMemoryError: CUDA out of memory."]
    responses = {": switch ": {"success": False, "stdout": log}}
    ended = run("apply", site(tmp_path, responses=responses), "--json")
    assert ended.code == 1
    (failure,) = ended.nodes["@fake/a"]["failures"]
    assert failure.startswith("chat did not start: ")
    assert "memory" in failure


def test_a_start_that_ends_with_a_traceback_is_told_by_its_last_line(tmp_path: Path) -> None:
    log = [
        "the start has failed: exit-code",
        "the last lines of the log of this start:",
        "[2026-11-30 04:08:35 TP0] Traceback (most recent call last):",
        '  File "/opt/x.py", line 1, in load',
        "KeyError: 'first'",
        "",
        "During handling of the above exception, another exception occurred:",
        "Traceback (most recent call last):",
        '  File "/opt/x.py", line 2, in load',
        "    raise ValueError()",
        "",
        "ValueError: the config has no such layer",
        "sglang@chat.service: Main process exited, code=exited, status=1/FAILURE",
    ]
    responses = {": switch ": {"success": False, "stdout": log}}
    ended = run("apply", site(tmp_path, responses=responses), "--json")
    (failure,) = ended.nodes["@fake/a"]["failures"]
    assert failure.startswith("chat did not start: the start has failed: exit-code")
    assert failure.endswith("ValueError: the config has no such layer")


def test_3_where_the_node_moved_since_it_was_planned(tmp_path: Path) -> None:
    moved = {"success": False, "stdout": ["@refused STALE_PLAN the main process is 7"]}
    ended = run("apply", site(tmp_path, responses={": switch ": moved}), "--json")
    assert ended.code == 3
    (refusal,) = ended.nodes["@fake/a"]["refusals"]
    assert (refusal["code"], refusal["seen"]) == ("STALE_PLAN", "the main process is 7")


def test_3_where_cuda_does_not_start_in_the_image_and_nothing_was_switched(tmp_path: Path) -> None:
    bad = {": try ": {"stdout": canary_lines("error 804, compatibility on a GeForce")}}
    ended = run("apply", site(tmp_path, responses=VERIFIED | bad), "--json")
    assert ended.code == 3
    (refusal,) = ended.nodes["@fake/a"]["refusals"]
    assert (refusal["code"], refusal["service"]) == ("COMPAT_UNSUPPORTED", "chat")
    assert ended.nodes["@fake/a"]["verified"] == {}
    assert "Start chat" not in ended.err


def test_5_where_it_does_not_generate(tmp_path: Path) -> None:
    bad = {": verify ": {"stdout": verify_lines("boom", status="500")}, ": switch ": ""}
    ended = run("apply", site(tmp_path, responses=bad), "--json")
    assert ended.code == 5
    verdict = ended.nodes["@fake/a"]["verified"]["chat"]
    assert verdict["ok"] is False
    assert "status 500" in verdict["result"]


def test_an_apply_of_a_refused_node_runs_nothing_there_and_goes_on(tmp_path: Path) -> None:
    name, data = fake("good", recording(GOOD))
    data["fake_responses"] |= VERIFIED
    path = inventory(tmp_path, fake("bad", recording("mismatch")), (name, data))
    write_lock(tmp_path / "sglang.lock", whole_lock())
    ended = run("apply", path, "--json")
    assert ended.code == 3
    assert ended.nodes["@fake/bad"]["refusals"][0]["code"] == "DRIVER_MISMATCH"
    assert ended.nodes["@fake/good"]["verified"]["chat"]["ok"] is True
    assert "@fake/bad  " not in re.sub(r"@fake/bad  refused[^\n]*", "", ended.err)


SECRET = "hf_" + "Q" * 32


@pytest.mark.parametrize("verbosity", ["", "-v", "-vv", "-vvv"])
def test_no_secret_is_printed_at_any_verbosity(tmp_path: Path, verbosity: str) -> None:
    service = CHAT | {"environment": {"PRIVATE_NOTE": SECRET}}
    path = site(tmp_path, responses=VERIFIED, services=[service])
    for command in (["plan", "--diff", "--out", str(tmp_path / "out")], ["apply", "--diff"]):
        words = [command[0], path, *command[1:], "--json", *([verbosity] if verbosity else [])]
        ended: Ended = run(*words)
        assert ended.code == 0, ended.err
        assert SECRET not in ended.out + ended.err
    assert SECRET not in (tmp_path / "out").read_text(encoding="utf-8")


def test_a_lock_that_lacks_something_names_it_and_the_command(tmp_path: Path) -> None:
    path = site(tmp_path)
    write_lock(tmp_path / "sglang.lock", replace_images())
    ended = run("plan", path, "--json")
    assert ended.code == 0
    assert ended.nodes["@fake/a"]["unresolved"] == ["lmsysorg/sglang:v0.5.23: not locked"]
    assert "sglang-node lock" in ended.err
    assert json.loads(ended.out)


def replace_images() -> Lock:
    """Return the whole lock without its images."""
    return Lock(models=whole_lock().models)


def test_3_where_another_apply_works_on_the_node(tmp_path: Path) -> None:
    said = "apply of alice@ops (pid 123) since 2026-11-30T12:03:05+0000 works on this node"
    refused = {"success": False, "stdout": ["@lock 0-1-a", f"@refused APPLY_RUNNING {said}"]}
    ended = run("apply", site(tmp_path, responses={": pull ": refused}), "--json")
    assert ended.code == 3
    (refusal,) = ended.nodes["@fake/a"]["refusals"]
    assert (refusal["code"], refusal["seen"]) == ("APPLY_RUNNING", said)


@pytest.mark.parametrize("command", ["survey", "plan", "apply", "status", "verify", "stop"])
def test_1_where_the_only_node_is_lost_at_its_survey(tmp_path: Path, command: str) -> None:
    ended = run(command, site(tmp_path, survey={"success": False, "stdout": []}), "--json")
    assert ended.code == 1
    assert ended.nodes["@fake/a"]["error"]["code"] == "SURVEY_FAILED"


def test_the_operators_word_for_a_reload_is_taken_by_plan_apply_and_remove(tmp_path: Path) -> None:
    assert run("plan", site(tmp_path), "--allow-daemon-reload").code == 0
    assert run("remove", site(tmp_path), "--yes", "--allow-daemon-reload").code == 0
    assert run("apply", site(tmp_path, responses=VERIFIED), "--allow-daemon-reload").code == 0


def test_1_where_what_was_asked_for_cannot_be_kept_with_the_file_s_name(tmp_path: Path) -> None:
    place = tmp_path / "not" / "there"
    for words in (("--html", place), ("--out", place), ("--events", place)):
        ended = run("plan", site(tmp_path), "--json", *words)
        assert ended.code == 1
        assert f"{place} could not be written: No such file or directory" in ended.err
        assert ended.json["error"]["code"] == "FILE"


def test_a_command_that_ends_before_its_nodes_gives_one_document_too(tmp_path: Path) -> None:
    for words in (
        ["plan", "nowhere.py"],
        ["plan"],
        ["plan", site(tmp_path), "--frob"],
        ["apply", site(tmp_path), "--batch", "0"],
        ["remove", site(tmp_path)],
    ):
        ended = run(*words, "--json")
        assert ended.code == 2
        assert ended.json["nodes"] == []
        assert ended.json["error"]["code"] == "USAGE"
