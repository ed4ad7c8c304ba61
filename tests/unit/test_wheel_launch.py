"""What a service of the wheel runtime is started from: its units, and the files of its deployment."""

from __future__ import annotations

import json
import re
from dataclasses import replace
from typing import Any

import pytest

from plans import paths
from plans.secrets import NodeSecrets, Secret
from plans.wheel.launch import devices_unit_file, wheel_unit_file
from releases.table import RELEASES, get_release
from tests.unit import readers
from tests.unit.deployments import CAP, fresh, one
from tests.unit.surveys import gpu, survey, wishes
from tests.unit.wheels import KEY, TREE, environment, wheel_plan

UNIT = wheel_unit_file("chat").text
SETTINGS = readers.unit(UNIT)
DEVICES = readers.unit(devices_unit_file().text)
CURRENT = paths.current("%i")


def made(service: dict[str, Any] | None = None, **words: Any) -> dict[str, Any]:
    """Return the files of a new deployment by name."""
    plan = one(wheel_plan(wanted=wishes(CAP | (service or {})), **words))
    return {file.name: file for file in plan.files}


def text(name: str, **service: Any) -> str:
    """Return the text of one file of a new deployment."""
    found: str = made(service)[name].text
    return found


# --- the unit


def test_a_stop_signals_the_server_alone_and_it_drains() -> None:
    assert SETTINGS["KillMode"] == ["mixed"]
    assert SETTINGS["SuccessExitStatus"] == ["143"]
    assert SETTINGS["Restart"] == ["always"]
    assert SETTINGS["Type"] == ["exec"]
    assert SETTINGS["NotifyAccess"] == ["all"]


def test_no_shell_stands_between_systemd_and_the_server() -> None:
    (start,) = SETTINGS["ExecStart"]
    words = start.split(" ")
    environment = "${SGLANG_ENVIRONMENT}/bin"
    assert words[:4] == ["/usr/bin/env", f"{environment}/python3", f"{environment}/sglang", "serve"]
    assert not {"sh", "/bin/sh", "bash", "-c"} & set(words)


def test_the_server_reads_its_arguments_from_a_credential() -> None:
    (start,) = SETTINGS["ExecStart"]
    assert "--config ${CREDENTIALS_DIRECTORY}/server.yaml" in start
    assert SETTINGS["LoadCredential"] == [f"server.yaml:{CURRENT}/{paths.CONFIG}"]


def test_what_runs_as_root_takes_nothing_from_where_the_server_may_write() -> None:
    env = f"/usr/bin/env HOME=/root PATH={paths.UNIT_PATH} /bin/sh {CURRENT}"
    assert SETTINGS["ExecStartPost"] == [f"+{env}/{paths.GATE}"]
    assert SETTINGS["ExecStartPre"] == [f"-+{env}/{paths.STOP_GATE} open"]
    assert SETTINGS["ExecStop"] == [f"-+{env}/{paths.STOP_GATE} shut"]
    assert SETTINGS["ExecStopPost"] == [f"-+{env}/{paths.STOP_GATE} after"]


def test_systemd_249_knows_every_setting_of_the_units() -> None:
    for settings in (SETTINGS, DEVICES):
        assert not {
            "RestartSteps",
            "RestartMaxDelaySec",
            "RestartMode",
            "SetCredentialEncrypted",
        } & set(settings)
    assert "%d" not in re.sub(r"(?m)^#.*$", "", UNIT)


def test_the_devices_are_made_before_the_server_starts() -> None:
    assert paths.DEVICES_UNIT_NAME in SETTINGS["Wants"][0]
    assert paths.DEVICES_UNIT_NAME in SETTINGS["After"][0]
    assert "nvidia-modprobe -u -c 0" in DEVICES["ExecStart"][0]
    assert DEVICES["Type"] == ["oneshot"]
    assert SETTINGS["DevicePolicy"] == ["closed"]
    assert "char-nvidia* rw" in SETTINGS["DeviceAllow"]


def test_what_breaks_cuda_or_compiling_is_left_out_and_explained() -> None:
    for directive in ("MemoryDenyWriteExecute", "PrivateDevices", "ProcSubset", "PrivateUsers"):
        assert directive not in SETTINGS
        assert f"#   {directive}" in UNIT
    assert "AF_NETLINK" in SETTINGS["RestrictAddressFamilies"][0]
    assert not any("@resources" in one for one in SETTINGS["SystemCallFilter"])


def test_the_text_is_the_same_for_every_service() -> None:
    assert wheel_unit_file("chat").text == wheel_unit_file("embed").text
    assert wheel_unit_file("chat").path == "/etc/systemd/system/sglang@chat.service"


# --- the deployment


def test_a_deployment_has_all_that_it_takes_to_go_back_to_it() -> None:
    assert set(made()) == {
        paths.SERVER_YAML,
        paths.LAUNCH_ENV,
        paths.SERVICE_ENV,
        paths.CONFIG,
        paths.CACHE,
        paths.GATE,
        paths.STOP_GATE,
        paths.PLAN_JSON,
        "probe.json",
        "probe-plain.json",
        paths.DROP_IN_NAME,
        "sglang@chat.service",
        paths.DEVICES_UNIT_NAME,
    }


def test_every_variable_of_the_unit_is_in_the_file_it_reads() -> None:
    assert SETTINGS["EnvironmentFile"] == [f"{CURRENT}/{paths.SERVICE_ENV}"]
    there = readers.environment_file(text(paths.SERVICE_ENV))
    names = re.findall(r"\$\{?([A-Z][A-Z_]+)\}?", SETTINGS["ExecStart"][0])
    assert set(names) - set(there) == {"CREDENTIALS_DIRECTORY"}


def test_every_variable_of_the_gate_is_in_the_launch_file() -> None:
    files = made()
    there = readers.environment_file(files[paths.LAUNCH_ENV].text)
    for name in set(re.findall(r"\$\{?(SGLANG_[A-Z_]+)", files[paths.GATE].text)):
        assert name in there, name


def test_what_the_gate_needs_is_not_in_the_server_s_environment() -> None:
    # SGLang itself reads SGLANG_PORT, as the first of its inner ports.
    there = readers.environment_file(text(paths.SERVICE_ENV))
    assert {name for name in there if name.startswith("SGLANG_")} == {
        "SGLANG_DEPLOYMENT",
        "SGLANG_ENVIRONMENT",
        "SGLANG_MODEL",
        "SGLANG_SERVER_ARGUMENTS",
        "SGLANG_ENABLE_HEALTH_ENDPOINT_GENERATION",
        "SGLANG_MAX_NEW_TOKENS_LIMIT",
        *(
            one.variable
            for one in get_release("0.5.23").caches
            if one.variable.startswith("SGLANG_")
        ),
    }


def test_programs_are_found_in_the_environment_then_in_cuda_then_in_the_system() -> None:
    there = readers.environment_file(text(paths.SERVICE_ENV))
    assert there["PATH"] == (f"/opt/sglang/environments/{KEY}/bin:{TREE}/bin:{paths.UNIT_PATH}")
    assert there["CUDA_HOME"] == TREE


def test_without_a_compiler_there_is_no_cuda_home() -> None:
    files = made(made=environment(cuda_home=None))
    there = readers.environment_file(files[paths.SERVICE_ENV].text)
    assert "CUDA_HOME" not in there
    assert there["PATH"] == f"/opt/sglang/environments/{KEY}/bin:{paths.UNIT_PATH}"


@pytest.mark.parametrize("release", ["0.5.23"])
def test_every_cache_of_a_release_is_in_the_environment(release: str) -> None:
    assert release in RELEASES
    files = made()
    there = readers.environment_file(files[paths.SERVICE_ENV].text)
    for cache in get_release(release).caches:
        assert there[cache.variable].startswith((files[paths.CACHE].link, "/var/lib/sglang/hub"))


def test_gpus_are_chosen_by_their_uuid() -> None:
    there = readers.environment_file(text(paths.SERVICE_ENV))
    assert there["CUDA_VISIBLE_DEVICES"] == "GPU-00000000-0000-0000-0000-000000000000"
    assert there["CUDA_DEVICE_ORDER"] == "PCI_BUS_ID"


def test_several_gpus_are_numbers_to_sglang_as_it_reads_each_as_one() -> None:
    cards = survey(*(gpu(index) for index in range(4)))
    node = replace(fresh(), nvidia=cards.nvidia, docker=cards.docker)
    files = one(wheel_plan(node, wishes(CAP | {"gpus": [1, 3], "tp_size": 2}))).files
    (written,) = (file.text for file in files if file.name == paths.SERVICE_ENV)
    there = readers.environment_file(written)
    assert (there["CUDA_VISIBLE_DEVICES"], there["CUDA_DEVICE_ORDER"]) == ("1,3", "PCI_BUS_ID")


def test_a_service_on_the_cpu_device_sees_no_gpu() -> None:
    there = readers.environment_file(text(paths.SERVICE_ENV, arguments={"device": "cpu"}))
    assert there["CUDA_VISIBLE_DEVICES"] == ""


def test_values_of_the_environment_arrive_as_they_are() -> None:
    value = "a b\t\"c\" 'd' $HOME %i \\ ünï #"
    there = readers.environment_file(text(paths.SERVICE_ENV, environment={"X": value}))
    assert there["X"] == value


def test_what_is_private_is_in_one_file_that_only_root_reads() -> None:
    secret = "hf_" + "Z" * 30
    plan = wheel_plan(wanted=wishes(CAP | {"environment": {"PRIVATE_NOTE": secret}}))
    for file in one(plan).files:
        assert (secret in file.text) is (file.name == paths.SERVICE_ENV), file.path
    assert made()[paths.SERVICE_ENV].mode == "0600"
    assert secret not in json.dumps(plan.as_dict())
    assert all(secret not in change.diff + change.what + change.why for change in plan.changes)


def test_a_service_without_keys_reads_the_file_that_everyone_reads() -> None:
    assert made()[paths.CONFIG].link == paths.SERVER_YAML


def test_a_service_with_keys_reads_the_file_that_only_root_reads() -> None:
    keys = {"api_key": {"env": "CHAT_KEY"}}
    secret = "k" * 32
    read = NodeSecrets(keys={"chat": {"api-key": Secret(secret)}})
    plan = wheel_plan(wanted=wishes(CAP | keys), secrets=read)
    files = {file.name: file for file in one(plan).files}
    assert files[paths.CONFIG].link == paths.key_file("chat", 1)
    there = readers.environment_file(files[paths.LAUNCH_ENV].text)
    assert there["SGLANG_CONFIG"] == paths.key_file("chat", 1)
    assert all(secret not in file.text for file in files.values())


def test_only_the_caches_of_its_own_build_can_be_written() -> None:
    assert SETTINGS["ReadWritePaths"] == [f"{CURRENT}/{paths.CACHE}"]
    assert SETTINGS["ProtectSystem"] == ["strict"]
    plan = one(wheel_plan())
    assert plan.launch is not None
    assert made()[paths.CACHE].link == plan.launch.cache_directory


def test_the_drop_in_has_the_wished_limits_and_shared_memory() -> None:
    given = {"memlock": 1_000_000, "nofile": 4096}
    settings = readers.unit(text(paths.DROP_IN_NAME, ulimits=given, shm_size="8g"))
    assert settings["LimitMEMLOCK"] == ["1000000"]
    assert settings["LimitNOFILE"] == ["4096"]
    assert settings["LimitSTACK"] == ["67108864"]
    assert settings["TemporaryFileSystem"] == ["/dev/shm:mode=1777,size=8g"]
    assert readers.unit(text(paths.DROP_IN_NAME))["LimitMEMLOCK"] == ["infinity"]
    assert "size=4096\n" in text(paths.DROP_IN_NAME, shm_size="4096b")


def test_a_model_in_a_hidden_directory_is_let_in() -> None:
    settings = readers.unit(text(paths.DROP_IN_NAME, model="/home/me/models/qwen"))
    assert settings["BindReadOnlyPaths"] == ["/home/me/models/qwen"]
    assert "BindReadOnlyPaths" not in readers.unit(text(paths.DROP_IN_NAME, model="/srv/qwen"))


def test_of_caches_in_a_hidden_directory_only_its_own_are_let_in() -> None:
    hidden = wishes(CAP, paths={"caches": "/home/me/caches"})
    plan = one(wheel_plan(wanted=hidden))
    (drop_in,) = (file.text for file in plan.files if file.name == paths.DROP_IN_NAME)
    assert plan.launch is not None
    assert plan.launch.cache_directory.startswith("/home/me/caches/")
    assert readers.unit(drop_in)["BindPaths"] == [plan.launch.cache_directory]
    assert "BindPaths" not in readers.unit(text(paths.DROP_IN_NAME))


def test_the_server_listens_where_the_operator_says_on_the_node_s_own_network() -> None:
    yaml = text(paths.SERVER_YAML, address="10.1.2.3")
    assert "host: 10.1.2.3\n" in yaml
    assert "nccl-port: 22000\n" in yaml
    codes = [caution.code for caution in wheel_plan().cautions]
    assert "HOST_NETWORK" in codes
    assert "WISH_OF_CONTAINER" not in codes


def test_wishes_of_a_container_are_said_not_to_apply() -> None:
    plan = wheel_plan(wanted=wishes(CAP | {"network": "bridge", "read_only": False}))
    said = [one.text for one in plan.cautions if one.code == "WISH_OF_CONTAINER"]
    assert len(said) == 2
    assert "WRITABLE_ROOT" not in [one.code for one in plan.cautions]


def test_the_plan_that_is_kept_names_the_environment_and_every_file() -> None:
    files = made()
    document = json.loads(files[paths.PLAN_JSON].text)
    assert document["image"] is None
    assert document["environment"]["key"] == KEY
    assert document["build"]["runtime"] == KEY
    assert {paths.wheel_unit("chat"), paths.DEVICES_UNIT, paths.drop_in("chat")} <= set(
        document["files"]
    )
    assert document["files"][files[paths.CONFIG].path] == "-> server.yaml"
