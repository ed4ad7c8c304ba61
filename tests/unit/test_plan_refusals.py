"""What the planning refuses or leaves unresolved, beside the decision: all of it at once."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import pytest

from facts.records import ABSENT, Space
from locks.records import Lock, Unresolved
from plans.plan import NodePlan
from tests.unit.deployments import CAP, IMAGE, codes, converged, fresh, kinds, lock, one, plan
from tests.unit.surveys import HOST, wishes

LOCAL = CAP | {"model": "/srv/models/qwen"}


def caution_codes(of: NodePlan) -> list[str]:
    """Return the codes of a plan's cautions."""
    return [caution.code for caution in of.cautions]


def spaces(**more: Space) -> dict[str, Space]:
    """Return the spaces of a fresh node, and more."""
    return {**fresh().spaces, **{one.path: one for one in more.values()}}


def test_an_answer_without_a_limit_is_refused_as_an_unbounded_stop() -> None:
    made = plan(wanted=wishes({}))
    assert codes(made) == ["UNBOUNDED_STOP"]
    assert "output_cap" in made.refusals[0].advice


def test_all_reasons_are_said_at_once() -> None:
    node = fresh()
    full = Space("/var/lib/docker", True, "/var/lib/docker", mount="/", free_bytes=1)
    made = plan(
        replace(node, spaces={"/var/lib/docker": full}, docker=node.docker),
        wishes({"arguments": {"no-such-flag": 1}, "environment": {"HF_HOME": "/x"}}),
    )
    assert set(codes(made)) == {
        "UNBOUNDED_STOP",
        "FLAG_UNKNOWN",
        "ENVIRONMENT_REFUSED",
        "DISK_FULL",
    }


def test_a_model_path_that_is_not_there_is_refused() -> None:
    gone = Space("/srv/models/qwen", False, "/srv")
    made = plan(replace(fresh(), spaces=spaces(model=gone)), wishes(LOCAL))
    assert codes(made) == ["MODEL_PATH_MISSING"]
    assert "/srv/models/qwen" in made.refusals[0].seen
    assert "/srv)" in made.refusals[0].seen


def test_a_model_path_needs_no_hub_and_is_mounted_read_only() -> None:
    there = Space("/srv/models/qwen", True, "/srv/models/qwen")
    made = plan(
        replace(fresh(), spaces=spaces(model=there)),
        wishes(LOCAL),
        Lock(images=lock().images),
    )
    assert made.unresolved == ()
    assert "start" in kinds(made)
    launch = next(f for f in one(made).files if f.path.endswith("launch.env")).text
    assert "--volume=/srv/models/qwen:/srv/models/qwen:ro" in launch
    container = next(f for f in one(made).files if f.path.endswith("container.env")).text
    assert "HF_HUB_OFFLINE=1" in container


def test_a_disk_without_room_for_the_image_is_refused_with_both_sizes() -> None:
    full = Space("/var/lib/docker", True, "/var/lib/docker", mount="/data", free_bytes=10**10)
    made = plan(replace(fresh(), spaces={"/var/lib/docker": full}))
    assert codes(made) == ["DISK_FULL"]
    assert "10.0 GB free on /data" in made.refusals[0].seen
    assert "about 35.0 GB" in made.refusals[0].needed


def test_a_disk_without_room_is_no_matter_once_the_image_is_there() -> None:
    full = Space("/var/lib/docker", True, "/var/lib/docker", mount="/", free_bytes=1)
    assert plan(replace(converged(), spaces={"/var/lib/docker": full})).converged


def test_room_that_could_not_be_read_is_said() -> None:
    made = plan(replace(fresh(), spaces={}))
    assert codes(made) == []
    assert caution_codes(made) == ["SPACE_UNKNOWN", "SPACE_UNKNOWN"]
    assert "Docker's store" in made.cautions[0].text
    assert "/var/lib/sglang, /etc/systemd/system" in made.cautions[1].text


def test_the_store_of_the_containerd_image_store_is_the_one_that_counts() -> None:
    node = fresh()
    full = Space("/var/lib/containerd", True, "/var/lib/containerd", mount="/", free_bytes=1)
    docker = replace(node.docker, image_store_dir="/var/lib/containerd")
    made = plan(replace(node, docker=docker, spaces=spaces(full=full)))
    assert codes(made) == ["DISK_FULL"]


def test_without_a_lock_the_plan_says_what_is_to_be_resolved_and_what_will_be_done() -> None:
    made = plan(no_lock=True)
    assert made.unresolved == (f"{IMAGE}: not locked", "Qwen/Qwen3-8B@main: not locked")
    assert kinds(made) == ["image", "deployment", "start"]
    assert not made.converged
    assert not made.refused


def test_a_lock_that_could_not_resolve_something_says_why_and_which_command_helps() -> None:
    why = Unresolved(
        kind="image",
        what=IMAGE,
        code="REGISTRY_DOWN",
        why="no answer",
        command="sglang-node lock site.py",
    )
    made = plan(locked=Lock(models=lock().models, unresolved=(why,)))
    assert made.unresolved == (f"{IMAGE}: no answer (sglang-node lock site.py)",)


def test_a_converged_node_whose_lock_is_gone_is_not_called_unchanged() -> None:
    made = plan(converged(), no_lock=True)
    assert not made.converged
    assert "restart" in kinds(made)


def test_an_image_without_the_nodes_architecture_is_refused_with_those_it_has() -> None:
    made = plan(
        locked=lock(platforms={"linux/arm64": lock().images[IMAGE].platforms["linux/amd64"]})
    )
    assert codes(made) == ["IMAGE_MISSING_ARCHITECTURE"]
    assert "aarch64" in made.refusals[0].seen
    assert "x86_64" in made.refusals[0].needed


def test_an_architecture_that_could_not_be_read_is_refused() -> None:
    made = plan(replace(fresh(), host=replace(HOST, architecture=ABSENT)))
    assert made.refused
    assert made.changes == ()


def test_a_service_that_is_open_is_warned_of_and_one_on_loopback_is_not() -> None:
    assert "OPEN_WITHOUT_KEY" in caution_codes(plan(wanted=wishes(CAP | {"address": "0.0.0.0"})))
    assert "OPEN_WITHOUT_KEY" in caution_codes(plan(wanted=wishes(CAP | {"address": "10.0.0.5"})))
    for address in ("127.0.0.1", "::1"):
        assert caution_codes(plan(wanted=wishes(CAP | {"address": address}))) == []


def test_a_key_that_the_server_itself_would_hold_is_warned_of() -> None:
    made = plan(wanted=wishes(CAP | {"api_key": {"env": "KEY"}}))
    assert any("server_info" in caution.text for caution in made.cautions)


@pytest.mark.parametrize(
    ("arguments", "code"),
    [
        ({"no-such-flag": 1}, "FLAG_UNKNOWN"),
        ({"port": 1}, "FLAG_RESERVED"),
        ({"model-path": "x"}, "FLAG_RESERVED"),
        ({"mem-fraction-static": None}, "ARGUMENT_REFUSED"),
        ({"disaggregation-mode": "prefill"}, "PREFILL_DECODE"),
        (
            {"disaggregation_mode": "decode", "disaggregation-bootstrap-port": 8998},
            "PREFILL_DECODE",
        ),
        ({"chat-template": "-x"}, "ARGUMENT_REFUSED"),
        ({"mem-fraction-static": "much"}, "ARGUMENT_REFUSED"),
    ],
)
def test_an_argument_that_would_not_arrive_is_refused(arguments: dict[str, Any], code: str) -> None:
    made = plan(wanted=wishes(CAP | {"arguments": arguments}))
    assert codes(made) == [code]


def test_a_line_break_that_only_a_command_line_could_carry_is_refused() -> None:
    # --config cannot carry this flag, and a line of launch.env holds no line break.
    made = plan(wanted=wishes(CAP | {"arguments": {"lora-paths": ["a=/b\nc"]}}))
    assert codes(made) == ["ARGUMENT_REFUSED"]
    assert "lora-paths" in made.refusals[0].seen
    assert codes(plan(wanted=wishes(CAP | {"arguments": {"chat-template": "a\nb"}}))) == []


@pytest.mark.parametrize(
    "name", ["HF_HOME", "HOME", "SGLANG_MAX_NEW_TOKENS_LIMIT", "CUDA_VISIBLE_DEVICES"]
)
def test_a_variable_that_the_toolkit_sets_is_refused_without_its_value(name: str) -> None:
    made = plan(wanted=wishes(CAP | {"environment": {name: "the-value"}}))
    assert codes(made) == ["ENVIRONMENT_REFUSED"]
    assert "the-value" not in json.dumps(made.as_dict())


def test_a_service_that_refuses_takes_the_changes_of_its_node_away() -> None:
    half = {"arguments": {"mem-fraction-static": 0.4}}
    made = plan(wanted=wishes(CAP | half, half))
    assert codes(made) == ["UNBOUNDED_STOP"]
    assert made.refusals[0].service == "chat1"
    assert made.changes == ()


def test_the_json_of_a_plan_has_the_names_that_scripts_read() -> None:
    for made in (plan(), plan(no_lock=True), plan(wanted=wishes({})), plan(converged())):
        document = json.loads(json.dumps(made.as_dict()))
        assert set(document) >= {
            "node",
            "decision",
            "release",
            "image",
            "refusals",
            "reasons",
            "changes",
        }
        assert document["image"] == IMAGE
        for refusal in document["refusals"]:
            assert set(refusal) >= {"code", "seen", "needed", "advice"}


def test_the_stop_deadline_is_told_with_its_arithmetic() -> None:
    assert any(
        reason == "a stop may take 60 + 410 + 5 + 5 + 15 + 60 = 555 s" for reason in plan().reasons
    )
