"""What a service is started from: the unit, and the files of its deployment."""

from __future__ import annotations

import json
import re
import subprocess
from typing import Any

import pytest

from plans import paths
from plans.deployment import container_environment, unit_file
from plans.probe import probes
from plans.wishes import WishesError
from releases.table import RELEASES, get_release
from tests.unit import readers
from tests.unit.deployments import CAP, PINNED, VERSION, fresh, lock, one, plan
from tests.unit.surveys import wish, wishes

UNIT = unit_file().text
SETTINGS = readers.unit(UNIT)


def files(**service: Any) -> dict[str, str]:
    """Return the texts of a new deployment by file name."""
    made = one(plan(wanted=wishes(CAP | service)))
    return {file.path.rsplit("/", 1)[1]: file.text for file in made.files}


# --- the unit


def test_a_stop_signals_the_main_process_alone() -> None:
    assert SETTINGS["KillMode"] == ["mixed"]


def test_no_shell_stands_between_docker_s_init_and_the_server() -> None:
    (start,) = SETTINGS["ExecStart"]
    words = start.split(" ")
    assert words[:3] == ["/usr/bin/docker", "run", "--rm"]
    assert "--init" in words
    assert not {"sh", "/bin/sh", "bash", "-c", "--entrypoint"} & set(words)
    assert words[words.index("${SGLANG_IMAGE}") + 1 :][:2] == ["sglang", "serve"]
    assert "-d" not in words
    assert "--detach" not in words


def test_a_start_never_pulls_and_names_the_image_by_what_the_deployment_says() -> None:
    (start,) = SETTINGS["ExecStart"]
    assert "--pull=never" in start
    assert ":latest" not in UNIT
    assert readers.environment_file(files()["launch.env"])["SGLANG_IMAGE"] == PINNED


def test_the_container_is_in_a_slice_of_the_service() -> None:
    assert f"--cgroup-parent={paths.slice_of('%i')}" in SETTINGS["ExecStart"][0]
    assert f"--name={paths.container_of('%i')}" in SETTINGS["ExecStart"][0]


def test_an_orphaned_container_is_removed_before_and_after() -> None:
    for key in ("ExecStartPre", "ExecStopPost"):
        assert "docker rm --force sglang-%i" in SETTINGS[key][0]


def test_the_gate_runs_after_the_start_and_may_extend_it() -> None:
    assert SETTINGS["ExecStartPost"] == [f"/bin/sh {paths.current('%i')}/{paths.GATE}"]
    assert SETTINGS["NotifyAccess"] == ["all"]
    assert SETTINGS["Type"] == ["exec"]


def test_systemd_249_knows_every_setting_of_the_unit() -> None:
    assert "%d" not in UNIT
    assert not {"RestartSteps", "RestartMaxDelaySec", "RestartMode"} & set(SETTINGS)


def test_the_unit_s_paths_are_those_of_the_layout() -> None:
    current = paths.current("%i")
    assert SETTINGS["EnvironmentFile"] == [f"{current}/{paths.LAUNCH_ENV}"]
    assert SETTINGS["ConditionPathExists"] == [f"{current}/{paths.LAUNCH_ENV}"]


# --- the deployment


def test_a_deployment_has_all_that_it_takes_to_go_back_to_it() -> None:
    assert set(files()) == {
        *paths.DEPLOYMENT_FILES,
        "probe.json",
        "probe-plain.json",
        paths.DROP_IN_NAME,
        paths.UNIT_NAME,
    }


def test_every_variable_of_the_unit_is_in_the_launch_file() -> None:
    there = readers.environment_file(files()["launch.env"])
    for key in ("ExecStart", "ExecStartPre", "ExecStartPost"):
        for name in re.findall(r"\$\{?([A-Z][A-Z_]+)\}?", SETTINGS[key][0]):
            assert name in there, name


def test_every_variable_of_the_gate_is_in_the_launch_file_or_systemds() -> None:
    made = files()
    there = readers.environment_file(made["launch.env"])
    for name in set(re.findall(r"\$\{?(SGLANG_[A-Z_]+)", made[paths.GATE])):
        assert name in there, name


@pytest.mark.parametrize("release", sorted(RELEASES))
def test_every_cache_of_a_release_is_in_the_container_s_environment(release: str) -> None:
    if release == "0.5.23":
        launch = one(plan()).launch
    else:
        entry = get_release(release)
        image = entry.images[0].tag
        locked = lock(asked=image, tag=image.partition(":")[2])
        launch = one(plan(wanted=wishes(CAP | {"release": release}), locked=locked)).launch
    assert launch is not None
    environment = container_environment(launch)
    for cache in get_release(release).caches:
        value = environment[cache.variable]
        assert value.startswith((launch.cache_directory, "/var/lib/sglang/hub")), cache.variable


def test_the_server_is_made_to_keep_the_cap_that_the_deadline_counts_on() -> None:
    environment = readers.docker_env_file(files(output_cap=777)["container.env"])
    assert environment["SGLANG_MAX_NEW_TOKENS_LIMIT"] == "777"
    assert environment["SGLANG_ENABLE_HEALTH_ENDPOINT_GENERATION"] == "false"


def test_what_is_private_is_in_one_file_that_only_root_reads() -> None:
    secret = "hf_" + "Z" * 30
    made = plan(wanted=wishes(CAP | {"environment": {"PRIVATE_NOTE": secret}}))
    for file in one(made).files:
        assert (secret in file.text) is file.path.endswith(paths.CONTAINER_ENV), file.path
        assert file.mode == ("0600" if file.path.endswith(paths.CONTAINER_ENV) else file.mode)
    assert one(made).files[2].mode == "0600"
    assert secret not in json.dumps(made.as_dict())
    assert all(secret not in change.diff + change.what + change.why for change in made.changes)


def test_values_of_the_environment_arrive_as_they_are() -> None:
    value = "a b\t\"c\" 'd' $HOME %i \\ ünï #"
    environment = readers.docker_env_file(files(environment={"X": value})["container.env"])
    assert environment["X"] == value


def test_the_service_is_published_where_the_operator_says() -> None:
    for address, shown, asked in (
        ("127.0.0.1", "127.0.0.1:30000:30000", "127.0.0.1"),
        ("0.0.0.0", "0.0.0.0:30000:30000", "127.0.0.1"),
        ("10.1.2.3", "10.1.2.3:30000:30000", "10.1.2.3"),
        ("::1", "[::1]:30000:30000", "[::1]"),
        ("::", "[::]:30000:30000", "[::1]"),
    ):
        launch = readers.environment_file(files(address=address)["launch.env"])
        words = readers.split_words(launch["SGLANG_DOCKER_ARGUMENTS"])
        assert f"--publish={shown}" in words
        assert launch["SGLANG_PROBE_HOST"] == asked


def test_an_address_with_a_zone_is_refused() -> None:
    # Docker publishes no such address, and % is special to systemd.
    with pytest.raises(WishesError, match="address"):
        wishes(CAP | {"address": "fe80::1%eth0"})


def test_a_model_s_name_of_any_letters_reaches_the_gate_as_json() -> None:
    name = 'we"ird $HOME ünï'
    launch = readers.environment_file(files(served_name=name)["launch.env"])
    assert json.loads(launch["SGLANG_MODEL_ID_JSON"]) == name


def test_the_plan_that_is_kept_says_why_and_has_the_sum_of_every_file() -> None:
    made = one(plan())
    document = json.loads(made.files[-1].text)
    assert document["toolkit"] == VERSION
    assert document["reasons"]
    assert document["image"]["run"] == PINNED
    for file in made.files[:-1]:
        assert document["files"][file.path] == file.sha256
    assert {paths.UNIT, paths.drop_in("chat")} <= set(document["files"])
    assert "environment" not in document["service"]


def test_caches_are_apart_for_whatever_compiled_code_depends_on() -> None:
    base = one(plan()).launch
    assert base is not None
    keys = {base.build.key}
    for service in (
        {"arguments": {"quantization": "fp8"}},
        {"model": "/srv/models/x"},
    ):
        launch = one(plan(wanted=wishes(CAP | service))).launch
        assert launch is not None
        keys.add(launch.build.key)
    assert len(keys) == 3
    same = one(plan(wanted=wishes(CAP | {"arguments": {"chunked-prefill-size": 64}}))).launch
    assert same is not None
    assert same.build.key == base.build.key


@pytest.mark.parametrize(
    ("kind", "body"),
    [
        ("generate", '{"choices": [], "usage": {"prompt_tokens": 9, "completion_tokens": 12}}'),
        ("generate", '{"usage":{"prompt_tokens":9,"completion_tokens":1}}'),
        ("embed", '{"data": [{"embedding": [0.1, -0.2]}]}'),
        ("rerank", '[{"score": 0.93, "index": 0}]'),
        ("rerank", '[{"score":-4.1}]'),
    ],
)
def test_the_gate_knows_a_good_answer(kind: str, body: str) -> None:
    service, _ = wish({"kind": kind})
    for one_probe in probes(service):
        assert grep(one_probe.expect, body)
        assert json.loads(one_probe.body)["model"] == service.public_name


def test_the_gate_does_not_take_an_answer_of_no_tokens() -> None:
    service, _ = wish({})
    for one_probe in probes(service):
        assert not grep(one_probe.expect, '{"usage": {"completion_tokens": 0}}')


def grep(pattern: str, text: str) -> bool:
    """Say whether grep finds a basic regular expression in a text."""
    done = subprocess.run(["grep", "-q", "--", pattern], input=text, text=True, check=False)
    return done.returncode == 0


def test_two_surveys_of_one_node_give_the_same_files() -> None:
    first, second = one(plan(fresh())), one(plan(fresh()))
    assert first.files == second.files
