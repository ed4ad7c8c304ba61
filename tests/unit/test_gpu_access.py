"""How GPUs reach the container: CDI, else the nvidia runtime, else --gpus, and the reason for it."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from facts.records import ABSENT, MigDevice, Survey, Unknown
from plans.decision import Decision
from plans.runtime import decide
from tests.unit.surveys import HOST, docker, gpu, survey, wish

UUID0 = "GPU-00000000-0000-0000-0000-000000000000"
UUID1 = "GPU-00000001-0000-0000-0000-000000000000"
NO_CDI: dict[str, Any] = {"cdi_dirs": (), "cdi_devices": ()}
PLAIN = ("io.containerd.runc.v2", "runc")


def node(count: int = 2, **changes: Any) -> Survey:
    """Return a node with this many L4s whose Docker differs from a healthy one by ``changes``."""
    there = survey(*(gpu(index) for index in range(count)))
    return replace(there, docker=docker(there.nvidia.gpus, **changes))


def access_of(decision: Decision) -> tuple[str, tuple[str, ...], dict[str, str]]:
    """Return mode, arguments and environment of a decision that was not refused."""
    assert decision.access is not None, decision.refusals
    return decision.access.mode, decision.access.arguments, dict(decision.access.environment)


def codes(decision: Decision) -> list[str]:
    """Return the codes of a decision's refusals."""
    return [one.code for one in decision.refusals]


def cautions(decision: Decision) -> list[str]:
    """Return the codes of a decision's cautions."""
    return [one.code for one in decision.cautions]


def test_cdi_names_the_chosen_gpus_by_uuid() -> None:
    decision = decide(node(), *wish({"gpus": [1]}))
    assert access_of(decision) == ("cdi", (f"--device=nvidia.com/gpu={UUID1}",), {})
    assert decision.access is not None
    assert "CDI" in decision.access.reason
    assert "LEGACY_ACCESS" not in cautions(decision)


def test_cdi_takes_devices_as_they_are_listed() -> None:
    indexes = node(cdi_devices=("nvidia.com/gpu=0", "nvidia.com/gpu=1", "nvidia.com/gpu=all"))
    decision = decide(indexes, *wish({"tp_size": 2}))
    assert access_of(decision)[1] == ("--device=nvidia.com/gpu=0", "--device=nvidia.com/gpu=1")
    only_all = node(cdi_devices=("nvidia.com/gpu=all",))
    assert access_of(decide(only_all, *wish({"tp_size": 2})))[1] == ("--device=nvidia.com/gpu=all",)


def test_all_is_not_given_where_some_are_wanted() -> None:
    only_all = node(cdi_devices=("nvidia.com/gpu=all",))
    mode, _, environment = access_of(decide(only_all, *wish({"gpus": [0]})))
    assert mode == "runtime"
    assert environment["NVIDIA_VISIBLE_DEVICES"] == UUID0


def test_under_wsl_the_one_device_is_all_and_cuda_sees_the_chosen() -> None:
    there = node(cdi_devices=("nvidia.com/gpu=all",))
    wsl = replace(
        there,
        host=replace(HOST, wsl=True),
        nvidia=replace(there.nvidia, cuda_version="13.0"),
    )
    mode, arguments, environment = access_of(decide(wsl, *wish({"gpus": [1]})))
    assert (mode, arguments) == ("cdi", ("--device=nvidia.com/gpu=all",))
    assert environment == {"CUDA_VISIBLE_DEVICES": UUID1}


def test_a_mig_device_is_named_by_its_uuid_or_its_place() -> None:
    device = MigDevice(1, 4, 0, uuid="MIG-1")
    split = gpu(
        0, "NVIDIA A100-SXM4-80GB", "8.0", mig_enabled=True, mig_pending=True, mig_devices=(device,)
    )
    there = survey(split)
    wanted = wish({"gpus": ["MIG-1"]})
    assert access_of(decide(there, *wanted))[1] == ("--device=nvidia.com/gpu=MIG-1",)
    placed = replace(there, docker=docker(cdi_devices=("nvidia.com/gpu=0:1",)))
    assert access_of(decide(placed, *wanted))[1] == ("--device=nvidia.com/gpu=0:1",)
    none = replace(there, docker=docker(**NO_CDI))
    assert access_of(decide(none, *wanted))[2]["NVIDIA_VISIBLE_DEVICES"] == "MIG-1"


def test_without_cdi_the_nvidia_runtime_is_cdi_underneath_from_1_18_on() -> None:
    decision = decide(node(**NO_CDI, nvidia_ctk_version="1.18.0"), *wish({"tp_size": 2}))
    assert access_of(decision) == (
        "runtime",
        ("--runtime=nvidia",),
        {
            "NVIDIA_VISIBLE_DEVICES": f"{UUID0},{UUID1}",
            "NVIDIA_DRIVER_CAPABILITIES": "compute,utility",
        },
    )
    assert decision.access is not None
    assert "CDI underneath" in decision.access.reason
    assert "LEGACY_ACCESS" not in cautions(decision)


@pytest.mark.parametrize(
    ("toolkit", "mode", "legacy"),
    [
        ("1.18.0", ABSENT, False),
        ("1.18.0", "auto", False),
        ("1.18.0", "legacy", True),
        ("1.17.8", ABSENT, True),
        ("1.17.8", "auto", True),
        ("1.17.8", "cdi", False),
        (Unknown("unreadable"), ABSENT, True),
    ],
)
def test_the_legacy_mode_of_the_runtime_is_warned_of(toolkit: Any, mode: Any, legacy: bool) -> None:
    there = node(**NO_CDI, nvidia_ctk_version=toolkit, nvidia_runtime_mode=mode)
    decision = decide(there, *wish())
    assert ("LEGACY_ACCESS" in cautions(decision)) == legacy
    if isinstance(toolkit, Unknown):
        assert any("assumed" in one.text for one in decision.cautions)


def test_without_a_runtime_it_is_gpus_with_quotes_for_dockers_csv() -> None:
    decision = decide(node(**NO_CDI, runtimes=PLAIN), *wish({"tp_size": 2}))
    mode, arguments, _ = access_of(decision)
    assert (mode, arguments) == ("gpus", (f'--gpus="device={UUID0},{UUID1}"',))
    assert "LEGACY_ACCESS" in cautions(decision)
    assert decision.access is not None
    assert "CDI is off" in decision.access.reason


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"cdi_dirs": ()}, "Docker's CDI is off"),
        ({"server_version": "24.0.9"}, "knows no CDI devices"),
        ({"server_version": "25.0.3", "nvidia_ctk_version": "1.19.0"}, "cannot read"),
        ({"cdi_devices": ()}, "no CDI specification"),
        ({"cdi_devices": ("nvidia.com/gpu=7",)}, "does not list"),
        ({"cdi_devices": ("intel.com/gpu=0",)}, "no CDI specification"),
    ],
)
def test_why_cdi_is_not_taken_is_said(changes: dict[str, Any], reason: str) -> None:
    decision = decide(node(1, **changes), *wish())
    assert decision.access is not None
    assert decision.access.mode == "runtime"
    assert reason in decision.access.reason


def test_docker_26_1_reads_what_toolkit_1_19_writes() -> None:
    there = node(1, server_version="26.1.0", nvidia_ctk_version="1.19.0")
    assert access_of(decide(there, *wish()))[0] == "cdi"


@pytest.mark.parametrize(
    ("changes", "code"),
    [
        ({**NO_CDI, "nvidia_ctk_version": ABSENT}, "TOOLKIT_MISSING"),
        ({"cdi_dirs": (), "nvidia_ctk_version": ABSENT}, "CDI_OFF"),
        ({"cdi_devices": ("nvidia.com/gpu=7",), "nvidia_ctk_version": ABSENT}, "CDI_STALE"),
        ({**NO_CDI, "nvidia_runtime_mode": "cdi"}, "GPU_ACCESS"),
        ({**NO_CDI, "nvidia_runtime_mode": "csv"}, "GPU_ACCESS"),
    ],
)
def test_no_way_to_the_gpus_is_refused_with_the_command(changes: dict[str, Any], code: str) -> None:
    decision = decide(node(1, runtimes=PLAIN, **changes), *wish(runtime="image"))
    assert codes(decision) == [code]
    assert "nvidia-ctk" in decision.refusals[0].advice
    assert decision.access is None
    assert decision.image is not None


def test_cdi_alone_is_enough() -> None:
    # Some DGX Sparks come with CDI and without the nvidia runtime.
    decision = decide(node(1, runtimes=PLAIN, nvidia_ctk_version=ABSENT), *wish())
    assert access_of(decision)[0] == "cdi"


def test_the_toolkits_commands_are_those_of_the_system() -> None:
    there = node(1, runtimes=PLAIN, **NO_CDI, nvidia_ctk_version=ABSENT)
    rhel = replace(there, host=replace(HOST, os_id="rhel", os_version="9.5", os_like=("fedora",)))
    for one, install in ((there, "apt-get install -y"), (rhel, "dnf install -y")):
        refused = decide(one, *wish(runtime="image")).refusals[0]
        assert f"{install} nvidia-container-toolkit" in refused.advice


def test_selinux_that_enforces_is_said() -> None:
    there = replace(node(1), host=replace(HOST, selinux="Enforcing"))
    assert "SELINUX_ENFORCING" in cautions(decide(there, *wish()))


def test_thor_takes_the_nvidia_runtime_before_cdi() -> None:
    there = survey(
        gpu(0, "NVIDIA Thor", "11.0"),
        driver="580.00",
        host=replace(HOST, architecture="aarch64", tegra=True, l4t_major=38),
    )
    assert access_of(decide(there, *wish()))[0] == "runtime"
