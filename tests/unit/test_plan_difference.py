"""What changes on a node: nothing where it is as planned, and each single difference by itself."""

from __future__ import annotations

from dataclasses import replace
from io import StringIO
from typing import Any

import pytest
from rich.console import Console

from cli import report
from facts.records import (
    ABSENT,
    Answer,
    Listener,
    LocalImage,
    ManagedFile,
    Survey,
    Unknown,
)
from plans import paths
from plans.fleet import folded
from plans.plan import NodePlan
from plans.states import drifted
from tests.unit.deployments import (
    CAP,
    CONFIG,
    INDEX,
    MANIFEST,
    PINNED,
    applied,
    codes,
    converged,
    edited,
    fresh,
    kinds,
    lock,
    one,
    plan,
    with_file,
    with_state,
)
from tests.unit.surveys import wishes

NEW = ["deployment", "image", "unit", "drop-in", "daemon-reload", "enable", "start"]
RESTARTED = ["deployment", "restart"]


def why(of: NodePlan, kind: str) -> str:
    """Return why a plan makes the change of this kind."""
    (found,) = [change.why for change in of.changes if change.kind == kind]
    return found


def test_a_new_node_gets_everything_and_is_started_last() -> None:
    made = plan()
    assert made.decision == "image"
    assert kinds(made) == NEW
    assert not made.converged
    service = one(made)
    assert (service.number, service.act, service.pull) == (1, "start", PINNED)
    assert service.guard is not None
    assert (service.guard.current, service.guard.main_pid, service.guard.port_free) == (
        None,
        0,
        30000,
    )
    assert set(service.guard.sums.values()) == {"absent"}


def test_the_same_inputs_give_the_same_plan() -> None:
    assert plan() == plan()
    assert plan().as_dict() == plan().as_dict()
    assert plan(converged()) == plan(converged())


def test_a_node_that_is_as_planned_gets_no_change() -> None:
    made = plan(converged())
    assert made.converged
    assert made.changes == ()
    service = one(made)
    assert (service.act, service.ready, service.number, service.new_deployment) == (
        "none",
        True,
        1,
        False,
    )
    assert (service.unit, service.drop_in, service.pull) == (None, None, None)


def test_two_services_share_the_unit_which_is_planned_once() -> None:
    half = CAP | {"gpus": [0], "arguments": {"mem-fraction-static": 0.4}}
    wanted = wishes(half, half)
    made = plan(wanted=wanted)
    assert [change.service for change in made.changes if change.kind == "unit"] == ["chat"]
    assert kinds(made).count("start") == 2
    assert plan(applied(made), wanted).converged


@pytest.mark.parametrize(
    ("change", "files"),
    [
        ({"arguments": {"mem-fraction-static": 0.7}}, {"server.yaml"}),
        ({"environment": {"NCCL_DEBUG": "INFO"}}, {"container.env"}),
        ({"served_name": "qwen"}, {"server.yaml", "launch.env", "probe.json", "probe-plain.json"}),
        ({"shm_size": "8g"}, {"launch.env"}),
        ({"ulimits": {"nofile": 4096}}, {"launch.env"}),
        ({"silence_limit": 60.0}, {"launch.env", "10-toolkit.conf"}),
        ({"start_limit": 7200.0}, {"10-toolkit.conf"}),
        ({"tokens_per_second": 10.0}, {"launch.env", "10-toolkit.conf"}),
        ({"output_cap": 100}, {"launch.env", "container.env", "10-toolkit.conf"}),
    ],
)
def test_a_wish_that_changes_gives_a_new_deployment_and_one_restart(
    change: dict[str, Any], files: set[str]
) -> None:
    made = plan(converged(), wishes(CAP | change))
    drop_in = "10-toolkit.conf" in files
    assert kinds(made) == (
        ["deployment", "drop-in", "daemon-reload", "restart"] if drop_in else RESTARTED
    )
    named = why(made, "deployment").split(" of the current")[0].split(", ")
    assert set(named) == files
    assert one(made).number == 2
    assert one(made).guard is not None
    assert one(made).guard.current == 1  # type: ignore[union-attr]


def test_what_only_the_plan_says_of_a_service_changes_nothing() -> None:
    # The revision is a name for the same commit: the same model, the same caches.
    assert plan(converged(), wishes(CAP | {"revision": "v2"})).converged


def test_another_version_of_the_toolkit_with_the_same_files_changes_nothing() -> None:
    assert plan(replace(converged(), version="9.9")).converged


def test_another_digest_of_the_image_is_fetched_and_deployed() -> None:
    other = "sha256:" + "9" * 64
    made = plan(converged(), locked=lock(index_digest=other, platforms=platforms("8", "7")))
    # Nothing moves in /etc/systemd: no daemon-reload comes of a new image.
    assert kinds(made) == ["deployment", "image", "restart"]
    assert one(made).pull == f"lmsysorg/sglang@{other}"
    assert one(made).launch is not None
    # Compiled kernels never cross builds, and the digest is part of the build.
    before = one(plan()).launch
    assert before is not None
    assert one(made).launch.cache_directory != before.cache_directory  # type: ignore[union-attr]


def platforms(manifest: str, config: str) -> dict[str, Any]:
    """Return the platforms of an image with other digests."""
    (platform,) = lock().images["lmsysorg/sglang:v0.5.23"].platforms.values()
    changed = platform.model_dump() | {
        "manifest_digest": "sha256:" + manifest * 64,
        "config_digest": "sha256:" + config * 64,
    }
    return {"linux/amd64": changed}


def test_an_image_that_was_removed_is_fetched_again_and_nothing_restarts() -> None:
    node = converged()
    made = plan(replace(node, docker=replace(node.docker, images=())))
    assert kinds(made) == ["image"]
    assert one(made).act == "none"


@pytest.mark.parametrize("shown", [INDEX, MANIFEST])
def test_an_image_counts_as_pulled_by_the_digest_of_index_or_manifest(shown: str) -> None:
    node = fresh()
    image = LocalImage("lmsysorg/sglang", None, shown, CONFIG)
    made = plan(replace(node, docker=replace(node.docker, images=(image,))))
    assert "image" not in kinds(made)
    assert one(made).launch is not None
    assert one(made).launch.image == PINNED  # type: ignore[union-attr]


@pytest.mark.parametrize("image_id", [CONFIG, MANIFEST, INDEX])
def test_an_image_loaded_from_a_file_is_taken_by_its_id(image_id: str) -> None:
    # docker load keeps no digest of a registry. Docker's own store has the configuration's as the
    # id, containerd's that of a manifest, and neither is found by the other's.
    node = fresh()
    image = LocalImage("lmsysorg/sglang", "v0.5.23", None, image_id)
    made = plan(replace(node, docker=replace(node.docker, images=(image,))))
    assert "image" not in kinds(made)
    assert one(made).pull is None
    assert one(made).launch.image == image_id  # type: ignore[union-attr]


def test_an_image_loaded_from_a_file_is_kept_while_it_runs_also_once_it_was_pulled() -> None:
    node = fresh()
    loaded = LocalImage("lmsysorg/sglang", "v0.5.23", None, CONFIG)
    made = plan(replace(node, docker=replace(node.docker, images=(loaded,))))
    after = applied(made)
    both = (loaded, LocalImage("lmsysorg/sglang", None, INDEX, CONFIG))
    assert plan(replace(after, docker=replace(after.docker, images=both))).converged


def test_another_image_with_the_same_tag_is_not_taken_for_the_locked_one() -> None:
    node = fresh()
    image = LocalImage("lmsysorg/sglang", "v0.5.23", None, "sha256:" + "7" * 64)
    made = plan(replace(node, docker=replace(node.docker, images=(image,))))
    assert one(made).pull == PINNED


def test_a_drop_in_that_is_gone_comes_back_with_one_reload_and_restart() -> None:
    node = converged()
    path = paths.drop_in("chat")
    gone = with_file(
        node, path, lambda f: replace(f, exists=False, sha256=ABSENT, mode=ABSENT, text=ABSENT)
    )
    made = plan(gone)
    assert kinds(made) == ["drop-in", "daemon-reload", "restart"]
    assert one(made).number == 1
    assert why(made, "drop-in") == "not there yet"


def test_a_unit_of_another_version_is_replaced_without_being_taken_for_an_edit() -> None:
    node = converged()
    old = node
    for path in (paths.UNIT, paths.Deployment("chat", 1).file(paths.UNIT_NAME)):
        old = with_file(old, path, lambda f: replace(f, sha256="0" * 64, text="old\n"))
    written = old.services["chat"].plan
    assert isinstance(written, str)
    sha = node.files[paths.UNIT].sha256
    assert isinstance(sha, str)
    made = plan(with_state(old, plan=written.replace(sha, "0" * 64)))
    assert codes(made) == []
    assert kinds(made) == ["deployment", "unit", "daemon-reload", "restart"]
    assert "-old\n" in made.changes[1].diff


def test_another_mode_of_a_file_is_a_difference() -> None:
    path = paths.Deployment("chat", 1).file(paths.CONTAINER_ENV)
    made = plan(with_file(converged(), path, lambda f: replace(f, mode="0644")))
    assert kinds(made) == RESTARTED


def test_a_service_that_does_not_start_with_the_node_is_enabled_and_not_restarted() -> None:
    made = plan(with_state(converged(), unit_file_state="disabled"))
    assert kinds(made) == ["enable"]


def test_a_unit_that_systemd_has_not_read_again_is_read_and_not_restarted() -> None:
    made = plan(with_state(converged(), need_daemon_reload=True))
    assert kinds(made) == ["daemon-reload"]
    assert one(made).daemon_reload


@pytest.mark.parametrize(
    ("active", "result", "said"),
    [
        ("inactive", "success", "it is inactive"),
        ("failed", "exit-code", "it is failed (exit-code)"),
        ("deactivating", "success", "it is stopping"),
        (Unknown("absent"), Unknown("absent"), "it is not there yet"),
    ],
)
def test_a_service_that_does_not_run_is_started_from_its_deployment(
    active: Any, result: Any, said: str
) -> None:
    made = plan(with_state(converged(), active_state=active, result=result))
    assert kinds(made) == ["start"]
    assert why(made, "start").startswith(said)
    assert one(made).number == 1


def test_a_service_that_still_starts_is_waited_for_and_verified() -> None:
    made = plan(with_state(converged(), active_state="activating", sub_state="start-post"))
    assert kinds(made) == ["verify"]
    assert one(made).act == "wait"


@pytest.mark.parametrize(
    ("answer", "said"),
    [
        (Answer(200, ("gpt2",)), "gpt2"),
        (Answer(503, ("Qwen/Qwen3-8B",)), "503"),
        (Answer(Unknown("unreadable", "timeout"), Unknown("unreadable")), "unreadable (timeout)"),
        (Answer(200, Unknown("malformed")), "200"),
        (Unknown("unreadable"), "unreadable"),
    ],
)
def test_a_service_that_does_not_answer_as_ours_is_verified_and_left_running(
    answer: Any, said: str
) -> None:
    made = plan(with_state(converged(), answer=answer))
    assert kinds(made) == ["verify"]
    assert said in why(made, "verify")
    assert (one(made).act, one(made).ready) == ("verify", False)


@pytest.mark.parametrize(
    ("current", "previous", "number"), [(1, ABSENT, 2), (4, 3, 5), (2, 3, 4), (7, ABSENT, 8)]
)
def test_a_new_deployment_is_numbered_after_current_and_previous(
    current: int, previous: Any, number: int
) -> None:
    there = tuple(sorted(n for n in (current, previous) if isinstance(n, int)))
    node = with_state(converged(), current=current, previous=previous, deployments=there)
    assert one(plan(node, wishes(CAP | {"shm_size": "1g"}))).number == number


@pytest.mark.parametrize("active", ["active", "inactive"])
@pytest.mark.parametrize("previous", [1, 80])
def test_a_current_that_leads_nowhere_is_named_and_counts_for_no_number(
    active: str, previous: int
) -> None:
    node = with_state(
        converged(),
        current=77,
        previous=previous,
        deployments=(1, 2),
        launch={},
        plan=ABSENT,
        active_state=active,
    )
    assert drifted(node, node.services["chat"])[0] == (
        "current leads to deployment 77, which is not there"
    )
    made = plan(node)
    assert one(made).number == 3, "after the highest that is there"
    assert why(made, "deployment") == "current leads to deployment 77, which is not there"
    guard = one(made).guard
    assert guard is not None
    assert guard.current == 77, "the link is compared before it is switched"


def test_the_diff_shows_texts_and_never_what_only_root_reads() -> None:
    secret = "hf_" + "s" * 30
    node = converged(wishes(CAP | {"environment": {"PRIVATE_NOTE": secret}}))
    wanted = wishes(
        CAP
        | {"environment": {"PRIVATE_NOTE": secret[::-1]}, "arguments": {"chunked-prefill-size": 99}}
    )
    made = plan(node, wanted)
    diff = made.changes[0].diff
    assert "+chunked-prefill-size: 99" in diff
    assert "container.env: only root reads it" in diff
    assert secret not in repr(made.as_dict()) + diff
    assert secret[::-1] not in repr(made.as_dict()) + diff


EDITED = [
    paths.UNIT,
    paths.drop_in("chat"),
    paths.Deployment("chat", 1).file(paths.SERVER_YAML),
    paths.Deployment("chat", 1).file(paths.CONTAINER_ENV),
    paths.Deployment("chat", 1).file(paths.GATE),
]


@pytest.mark.parametrize("path", EDITED)
def test_a_file_that_was_edited_by_hand_is_refused_and_named(path: str) -> None:
    made = plan(with_file(converged(), path, edited))
    assert codes(made) == ["FILE_EDITED"]
    assert path in made.refusals[0].seen
    assert made.changes == ()
    assert made.decision == "refused"
    assert made.image == "lmsysorg/sglang:v0.5.23"


@pytest.mark.parametrize("path", EDITED)
def test_an_edit_that_is_refused_is_shown_and_what_only_root_reads_is_not(path: str) -> None:
    (refusal,) = plan(with_file(converged(), path, edited)).refusals
    if path.endswith("container.env"):
        assert "only root reads it" in refusal.diff
        assert "# mine" not in refusal.diff
    else:
        assert f"--- {path}" in refusal.diff
        assert "-# mine" in refusal.diff
    assert "diff" not in refusal.as_dict()


def test_an_edit_whose_text_was_not_read_does_not_look_like_a_new_file() -> None:
    def summed(file: ManagedFile) -> ManagedFile:
        return replace(edited(file), text=ABSENT)

    (refusal,) = plan(with_file(converged(), EDITED[4], summed)).refusals
    assert refusal.diff == f"--- {EDITED[4]}: its text was not read; its checksum changes\n"


def test_nodes_with_other_edits_are_shown_apart() -> None:
    one = replace(plan(with_file(converged(), EDITED[2], edited)), node="gpu-1")
    other = with_file(
        converged(), EDITED[2], lambda file: replace(edited(file), text="# its own\n")
    )
    assert len(folded([one, replace(one, node="gpu-2")])) == 1
    assert len(folded([one, replace(plan(other), node="gpu-2")])) == 2


@pytest.mark.parametrize(
    ("path", "kept"),
    [
        (paths.UNIT, "as a drop-in (systemctl edit sglang@chat.service)"),
        (paths.drop_in("chat"), "as a drop-in (systemctl edit sglang@chat.service)"),
        (EDITED[2], "into the inventory ('arguments' of the service)"),
        (EDITED[3], "into the inventory ('environment' of the service)"),
        (EDITED[4], "into the inventory (the service)"),
    ],
)
def test_where_an_edit_is_kept_depends_on_the_file(path: str, kept: str) -> None:
    (refusal,) = plan(with_file(converged(), path, edited)).refusals
    assert f"{kept}, then apply with --discard-edits" in refusal.advice
    assert ("systemctl edit" in refusal.advice) == path.startswith("/etc/systemd/")


def test_the_edit_is_printed_with_its_refusal_where_a_diff_is_asked_for() -> None:
    made = plan(with_file(converged(), EDITED[2], edited))
    for diff in (True, False):
        out = Console(file=StringIO(), width=200)
        report.plan(out, made, diff=diff)
        assert isinstance(out.file, StringIO)
        assert ("-# mine" in out.file.getvalue()) is diff


@pytest.mark.parametrize("path", EDITED)
def test_an_edit_is_replaced_where_the_operator_says_so(path: str) -> None:
    made = plan(with_file(converged(), path, edited), discard_edits=True)
    assert codes(made) == []
    assert [c.code for c in made.cautions].count("FILE_EDITED") == 1
    in_deployment = "deployments" in path
    assert kinds(made)[-1] == "restart"
    assert ("deployment" in kinds(made)) is in_deployment
    assert one(made).number == (2 if in_deployment else 1)
    assert any("-# mine" in change.diff for change in made.changes) or "container.env" in path


def test_a_drop_in_of_the_operator_is_left_alone() -> None:
    node = with_state(
        converged(), drop_ins=(paths.drop_in("chat"), f"{paths.drop_in_dir('chat')}/override.conf")
    )
    assert plan(node).converged


# --- refusals of the node


def test_a_masked_unit_is_refused() -> None:
    assert codes(plan(with_state(converged(), unit_file_state="masked"))) == ["UNIT_MASKED"]


@pytest.mark.parametrize("address", ["127.0.0.1", "0.0.0.0", "::"])
def test_a_port_that_another_process_has_is_refused_by_its_name(address: str) -> None:
    listener = Listener(address, 30000, 77, "nginx")
    made = plan(fresh_with(listener))
    assert codes(made) == ["PORT_TAKEN"]
    assert "nginx (pid 77)" in made.refusals[0].seen


def test_a_port_of_our_own_service_is_free_for_it() -> None:
    ours = Listener("127.0.0.1", 30000, 4243, "docker-proxy")
    assert plan(replace(converged(), listeners=(ours,))).converged


def test_a_port_that_our_own_service_gives_up_is_not_asked_for() -> None:
    made = plan(converged(), wishes(CAP | {"port": 30005}))
    assert kinds(made) == RESTARTED
    assert one(made).guard.port_free == 30005  # type: ignore[union-attr]


def test_a_port_of_a_launch_that_is_no_number_is_nobodys() -> None:
    for text in ("²", "", "99999999999", "x"):
        node = with_state(converged(), launch={"SGLANG_PORT": text})
        made = plan(replace(node, listeners=(Listener("127.0.0.1", 30000, 1, ABSENT),)))
        assert codes(made) == ["PORT_TAKEN"]


def fresh_with(listener: Listener) -> Survey:
    """Return the survey of a new node on which something listens."""
    return replace(fresh(), listeners=(listener,))


def test_what_runs_is_not_written_over_where_its_link_is_lost() -> None:
    lost: dict[str, Any] = {"current": ABSENT, "previous": ABSENT, "deployments": (1, 2, 3)}
    assert one(plan(with_state(converged(), **lost))).number == 4
    # What never ran, such as one whose canary failed, is.
    assert one(plan(with_state(converged(), **lost, active_state="inactive"))).number == 1
