"""The rules, each from both sides of its boundary, and every collected host case."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import yaml

from facts.records import ABSENT, Smi, Survey, Unknown
from plans.decision import Decision
from plans.gpus import gpu_class
from plans.images import known_images
from plans.rules import table
from plans.runtime import decide
from releases.table import HOST_RULES
from tests.unit.surveys import HOST, docker, gpu, survey, wish

RECORDED = Path(__file__).parents[1] / "recorded" / "host_cases.yaml"
CASES: list[dict[str, Any]] = yaml.safe_load(RECORDED.read_text())

CUDA13, CU129 = "lmsysorg/sglang:v0.5.23", "lmsysorg/sglang:v0.5.19-cu129"


def codes(decision: Decision) -> list[str]:
    """Return the codes of a decision's refusals."""
    return [one.code for one in decision.refusals]


def cautions(decision: Decision) -> list[str]:
    """Return the codes of a decision's cautions."""
    return [one.code for one in decision.cautions]


def of_case(case: dict[str, Any]) -> Survey:
    """Return the survey of a collected host case."""
    host = replace(
        HOST,
        architecture=case.get("arch", "x86_64"),
        wsl=case.get("wsl", False),
        vgpu_host=case.get("vgpu_host", False),
        tegra="l4t" in case,
        l4t_major=case.get("l4t", ABSENT),
    )
    if "gpu" not in case:
        failed = Smi(exit_code=case["rc"], text=case.get("text", ""), path="/usr/bin/nvidia-smi")
        return survey(host=host, smi=failed, gpus=(), driver=ABSENT)
    mig = case.get("mig", False)
    one = gpu(0, case["gpu"], case["sm"], mig_enabled=mig, mig_pending=mig)
    if case.get("nvswitch"):
        state = case.get("fabric", "Completed")
        one = replace(
            one, fabric_state=state, fabric_status="Success" if state == "Completed" else "N/A"
        )
    more: dict[str, Any] = {}
    if case.get("nvswitch"):
        more = {
            "nvswitch": True,
            "nvlsm": True,
            "fabricmanager": "active",
            "fabricmanager_version": case["driver"],
        }
    shown = case.get("cuda", ABSENT)
    shown = Unknown("unreadable", "ERR!") if shown == "ERR!" else shown
    return survey(one, driver=case["driver"], host=host, cuda_version=shown, **more)


def ids(case: dict[str, Any]) -> str:
    return f"{case['case']}-{case.get('gpu', case.get('text', 'no text'))}"


@pytest.mark.parametrize("case", CASES, ids=ids)
def test_host_case(case: dict[str, Any]) -> None:
    decision = decide(of_case(case), *wish())
    assert (decision.cuda_family or "refused") == case["image"], decision
    if "code" in case:
        assert codes(decision) == [case["code"]]
        assert decision.image is None


@pytest.mark.parametrize("case", [c for c in CASES if "forward_compat" in c], ids=ids)
def test_forward_compatibility_is_opt_in_and_only_where_the_lists_allow_it(
    case: dict[str, Any],
) -> None:
    decision = decide(of_case(case), *wish(forward_compat=True))
    assert decision.cuda_family == ("cuda13" if case["forward_compat"] else "cu129")
    assert ("FORWARD_COMPAT" in cautions(decision)) == case["forward_compat"]


@pytest.mark.parametrize("case", [c for c in CASES if c.get("image") == "refused"], ids=ids)
def test_the_override_helps_only_where_minor_version_compatibility_can(
    case: dict[str, Any],
) -> None:
    decision = decide(of_case(case), *wish(cu129_override=True))
    if not case.get("override"):
        assert decision.image is None
        return
    assert decision.kind == "image"
    assert decision.image == CU129
    assert decision.environment == {"NVIDIA_DISABLE_REQUIRE": "1"}
    assert decision.docker_arguments == ("--tmpfs=/usr/local/cuda-12.9/compat",)
    assert "CU129_OVERRIDE" in cautions(decision)
    assert decision.frozen


A100, RTX4090, A6000 = (
    ("NVIDIA A100-SXM4-80GB", "8.0"),
    ("NVIDIA GeForce RTX 4090", "8.9"),
    ("NVIDIA RTX A6000", "8.6"),
)
B200, B300, GB10 = ("NVIDIA B200", "10.0"), ("NVIDIA B300 SXM6 AC", "10.3"), ("NVIDIA GB10", "12.1")
H100, T4 = ("NVIDIA H100 80GB HBM3", "9.0"), ("Tesla T4", "7.5")

BOUNDARIES: list[tuple[tuple[str, str], str, str, str]] = [
    # GPU, architecture, driver, what is given
    (A100, "x86_64", "580", CUDA13),
    (A100, "x86_64", "580.65.06", CUDA13),
    (A100, "x86_64", "579.99", CU129),
    (A100, "x86_64", "575.51.03", CU129),
    (A100, "x86_64", "575.51.02", "DRIVER_BRANCH_ODD"),
    (A100, "x86_64", "570.26", CU129),
    (A100, "x86_64", "565.57.01", CU129),
    (A100, "x86_64", "560.35.05", CU129),
    (A100, "x86_64", "555.42.06", "DRIVER_BRANCH_ODD"),
    (A100, "x86_64", "550.54.14", CU129),
    (A100, "x86_64", "545.23.08", "DRIVER_BRANCH_ODD"),
    (A100, "x86_64", "535.54.03", CU129),
    (A100, "x86_64", "530.30.02", "DRIVER_BRANCH_ODD"),
    (A100, "x86_64", "525.60.13", "DRIVER_BRANCH_ODD"),
    (A100, "x86_64", "525.60.12", "DRIVER_TOO_OLD"),
    (A100, "aarch64", "580.65.06", "GPU_NO_KERNELS"),
    (H100, "aarch64", "580.65.06", CUDA13),
    (RTX4090, "x86_64", "580.65.06", CUDA13),
    (RTX4090, "x86_64", "575.51.03", CU129),
    (RTX4090, "x86_64", "575.51.02", "DRIVER_NO_FORWARD_COMPAT"),
    (RTX4090, "x86_64", "570.124.06", "DRIVER_NO_FORWARD_COMPAT"),
    (RTX4090, "x86_64", "525.60.12", "DRIVER_TOO_OLD"),
    (A6000, "x86_64", "575.51.03", CU129),
    (A6000, "x86_64", "570.124.06", "DRIVER_NO_FORWARD_COMPAT"),
    (B200, "x86_64", "570.133.20", CU129),
    (B200, "x86_64", "569.99", "DRIVER_TOO_OLD"),
    (B300, "x86_64", "580.65.06", CUDA13),
    (B300, "x86_64", "579.99", "DRIVER_TOO_OLD"),
    (GB10, "aarch64", "580.65.06", CUDA13),
    (GB10, "aarch64", "579.99", "DRIVER_TOO_OLD"),
    (GB10, "x86_64", "640.01", "GPU_NO_KERNELS"),
    (T4, "x86_64", "640.01", "GPU_TOO_OLD"),
]


@pytest.mark.parametrize(("what", "architecture", "driver", "expected"), BOUNDARIES)
def test_boundary(what: tuple[str, str], architecture: str, driver: str, expected: str) -> None:
    host = replace(HOST, architecture=architecture)
    decision = decide(survey(gpu(0, *what), driver=driver, host=host), *wish())
    assert [decision.image or codes(decision)[0]] == [expected], decision
    assert len(decision.refusals) <= 1


def test_what_is_needed_names_every_way_out() -> None:
    found = decide(survey(gpu(0, *RTX4090), driver="550.120"), *wish()).refusals[0]
    assert "driver 580 or newer" in found.needed
    assert "575.51.03 or newer" in found.needed
    assert "apt-get install" in found.advice
    assert "cu129_override" in found.advice


# --- the data itself


def test_a_rule_that_runs_an_image_asks_for_its_code_and_the_last_refuses_everything() -> None:
    rules = table().rules
    for rule in rules:
        if rule.then == "run":
            assert rule.when.code is True, rule.id
            assert rule.reason, rule.id
        else:
            assert all((rule.code, rule.seen, rule.needed, rule.advice)), rule.id
        assert rule.source.startswith("https://"), rule.id
    assert rules[-1].then == "refuse"
    assert not rules[-1].when.model_dump(exclude_none=True)
    assert len({rule.id for rule in rules}) == len(rules)


def test_every_word_of_the_rules_is_a_version_or_a_threshold() -> None:
    for rule in table().rules:
        for compare in (rule.when.capability, rule.when.driver, rule.when.toolkit, rule.when.l4t):
            for word in (compare.below, compare.at_least) if compare else ():
                assert word is None or word in HOST_RULES.thresholds or word[0].isdigit(), rule.id


# --- class


@pytest.mark.parametrize(
    ("brand", "name", "expected"),
    [
        ("NVIDIA", "NVIDIA H100 80GB HBM3", "datacenter"),
        ("NVIDIA", "NVIDIA Something New", "datacenter"),
        ("Tesla", "Tesla V100-SXM2-16GB", "datacenter"),
        ("GeForce", "NVIDIA GeForce RTX 4090", "geforce"),
        ("GeForce", "NVIDIA A100", "geforce"),
        ("Titan", "NVIDIA TITAN RTX", "geforce"),
        ("NVIDIA RTX", "NVIDIA RTX A6000", "rtxpro"),
        ("Quadro RTX", "Quadro RTX 8000", "rtxpro"),
        ("Quadro", "Quadro P6000", "rtxpro"),
        ("NVIDIA vWS", "NVIDIA A40-48Q", "vgpu"),
        ("NVIDIA", "NVIDIA GB10", "spark"),
        ("NVIDIA", "NVIDIA Thor", "tegra"),
        (ABSENT, "NVIDIA L40S", "datacenter"),
        (ABSENT, "NVIDIA GeForce RTX 3060", "geforce"),
        (ABSENT, "NVIDIA RTX A6000", "rtxpro"),
        ("Unknown", "NVIDIA L4", "datacenter"),
        (ABSENT, "Something else", "unknown"),
    ],
)
def test_class_is_told_by_brand_and_else_by_name(brand: Any, name: str, expected: str) -> None:
    assert gpu_class(gpu(0, name, brand=brand), HOST) == expected


def test_an_unknown_class_refuses_only_where_the_class_decides() -> None:
    odd = gpu(0, "Something else", "8.9")
    assert decide(survey(odd, driver="580.95.05"), *wish()).image == CUDA13
    assert codes(decide(survey(odd, driver="570.26"), *wish())) == ["GPU_CLASS_UNKNOWN"]


# --- release and image


def test_a_named_release_is_used_or_refused_with_the_one_that_would_run() -> None:
    old = survey(driver="550.90.07")
    decision = decide(old, *wish(release="0.5.22"))
    assert decision.kind == "refused"
    assert (decision.release, decision.image) == ("0.5.22", None)
    assert codes(decision) == ["DRIVER_TOO_OLD"]
    assert "0.5.19" in decision.refusals[0].advice
    assert decide(survey(), *wish(release="0.5.22")).image == "lmsysorg/sglang:v0.5.22"
    assert decide(survey(), *wish({"release": "0.5.22"}, release="0.5.23")).release == "0.5.22"


def test_the_last_cuda_12_image_runs_on_a_new_driver_where_it_is_named() -> None:
    decision = decide(survey(driver="595.71.05"), *wish(release="0.5.19"))
    assert decision.image == CU129
    assert decision.frozen is None


def test_a_gpu_without_code_in_the_named_release_is_told_which_has_it() -> None:
    decision = decide(survey(gpu(0, *B300), driver="595.71.05"), *wish(release="0.5.19"))
    assert codes(decision) == ["GPU_NO_KERNELS"]
    assert "0.5.23, 0.5.22" in decision.refusals[0].advice


def test_an_unknown_release_is_refused() -> None:
    decision = decide(survey(), *wish(release="0.4.0"))
    assert codes(decision) == ["RELEASE_UNKNOWN"]
    assert decision.image is None
    assert decision.release is None


def test_a_named_image_needs_its_release_and_is_used_as_given() -> None:
    decision = decide(survey(), *wish(image="registry.example/sglang:v0.5.22"))
    assert codes(decision) == ["IMAGE_NEEDS_RELEASE"]
    named = "registry.example/sglang:v0.5.19-cu129"
    decision = decide(survey(), *wish(image=named, release="0.5.19"))
    assert (decision.image, decision.cuda_family) == (named, "cu129")
    decision = decide(survey(), *wish(image="registry.example/sglang:mine", release="0.5.22"))
    assert (decision.image, decision.cuda_family) == ("registry.example/sglang:mine", "cuda13")


def test_latest_is_refused_by_name() -> None:
    decision = decide(survey(), *wish(image="lmsysorg/sglang:latest", release="0.5.22"))
    assert "MOVING_TAG" in codes(decision)


def test_a_node_held_back_by_its_driver_is_told_so_and_what_frees_it() -> None:
    decision = decide(survey(driver="550.90.07"), *wish())
    assert decision.release == "0.5.19"
    assert decision.frozen is not None
    assert decision.frozen.startswith("frozen at SGLang 0.5.19")
    assert "550.90.07" in decision.frozen
    assert "driver 580 or newer" in decision.frozen
    assert "FROZEN_RELEASE" in cautions(decision)
    assert decide(survey(), *wish()).frozen is None
    assert decide(survey(), *wish(release="0.5.22")).frozen is None


def test_forward_compatibility_needs_a_toolkit_that_has_its_hook() -> None:
    old = survey(gpu(0, *A100), driver="535.161.08")
    old = replace(old, docker=docker(old.nvidia.gpus, nvidia_ctk_version="1.17.4"))
    decision = decide(old, *wish(forward_compat=True))
    assert decision.image == CU129
    decision = decide(old, *wish(forward_compat=True, release="0.5.22"))
    assert codes(decision) == ["TOOLKIT_TOO_OLD"]


# --- several GPUs


def test_all_means_all_that_can_serve_and_the_others_are_named() -> None:
    there = survey(gpu(0, *T4), gpu(1, *A100), gpu(2, *A100), driver="580.95.05")
    decision = decide(there, *wish({"tp_size": 2}))
    assert decision.kind == "image"
    assert [one.index for one in decision.gpus] == [1, 2]
    assert [(one.index, "7.5" in one.reason) for one in decision.left_out] == [(0, True)]


def test_named_gpus_must_all_serve() -> None:
    there = survey(gpu(0, *T4), gpu(1, *A100), driver="580.95.05")
    decision = decide(there, *wish({"tp_size": 2, "gpus": [0, 1]}))
    assert codes(decision) == ["GPU_TOO_OLD"]
    assert decision.image is None
    decision = decide(there, *wish({"gpus": [1]}))
    assert [one.index for one in decision.gpus] == [1]


def test_the_most_restrictive_of_the_gpus_that_are_used_decides() -> None:
    there = survey(gpu(0, *A100), gpu(1, *A6000), driver="550.90.07")
    wanted = {"tp_size": 2, "gpus": [0, 1]}
    assert codes(decide(there, *wish(wanted))) == ["DRIVER_NO_FORWARD_COMPAT"]
    decision = decide(there, *wish(wanted, forward_compat=True, cu129_override=True))
    assert decision.image == CU129
    assert "GPU_MIXED" in cautions(decision)


def test_gpus_beyond_tp_size_are_left_out_and_said() -> None:
    there = survey(*(gpu(index) for index in range(4)))
    decision = decide(there, *wish({"tp_size": 2}))
    assert [one.index for one in decision.gpus] == [0, 1]
    assert [one.index for one in decision.left_out] == [2, 3]
    assert all("not needed" in one.reason for one in decision.left_out)
    decision = decide(there, *wish({"tp_size": 2, "arguments": {"dp-size": 2}}))
    assert [one.index for one in decision.gpus] == [0, 1, 2, 3]
    decision = decide(
        there, *wish({"tp_size": 2, "arguments": {"dp_size": 2, "enable-dp-attention": True}})
    )
    assert [one.index for one in decision.gpus] == [0, 1]


def test_more_than_there_are_is_refused_and_the_image_told() -> None:
    decision = decide(survey(gpu(0), gpu(1)), *wish({"tp_size": 4}))
    assert codes(decision) == ["TOO_FEW_GPUS"]
    assert decision.image == CUDA13


def test_names_that_name_nothing_are_refused_all_at_once() -> None:
    decision = decide(survey(), *wish({"gpus": [3, "GPU-0123"]}))
    assert codes(decision) == ["GPU_NOT_FOUND", "GPU_NOT_FOUND"]


@pytest.mark.parametrize(
    "sign",
    [
        {"fault": "[GPU requires reset]"},
        {"recovery_action": "Reset"},
        {"recovery_action": "Drain and Reset"},
        {"remapped_pending": True},
        {"remapped_failure": True},
        {"ecc_uncorrected": 3},
    ],
)
def test_a_degraded_gpu_is_left_out_of_all_and_refused_by_name(sign: dict[str, Any]) -> None:
    there = survey(gpu(0, **sign), gpu(1))
    decision = decide(there, *wish())
    assert decision.kind == "image"
    assert [one.index for one in decision.gpus] == [1]
    assert [one.index for one in decision.left_out] == [0]
    assert codes(decide(there, *wish({"gpus": [0]}))) == ["GPU_DEGRADED"]
    alone = decide(survey(gpu(0, **sign)), *wish())
    assert codes(alone) == ["NO_USABLE_GPU"]
    assert alone.image == CUDA13


# --- MIG


def split() -> Survey:
    from facts.records import MigDevice

    devices = tuple(MigDevice(n, n + 3, 0, uuid=f"MIG-{n}") for n in range(2))
    there = gpu(0, *A100, mig_enabled=True, mig_pending=True, mig_devices=devices)
    return survey(there, gpu(1, *A100))


def test_a_mig_device_is_used_where_it_is_named() -> None:
    decision = decide(split(), *wish({"gpus": ["MIG-1"]}))
    assert decision.kind == "image"
    assert decision.access is not None
    assert decision.access.arguments == ("--device=nvidia.com/gpu=MIG-1",)


def test_a_mig_device_takes_no_tensor_parallelism() -> None:
    assert "MIG_TENSOR_PARALLEL" in codes(decide(split(), *wish({"gpus": ["MIG-1"], "tp_size": 2})))
    both = decide(split(), *wish({"gpus": ["MIG-0", "MIG-1"], "tp_size": 2}))
    assert "MIG_TENSOR_PARALLEL" in codes(both)


def test_all_leaves_out_a_gpu_with_mig_and_its_name_alone_is_refused() -> None:
    decision = decide(split(), *wish())
    assert [one.index for one in decision.gpus] == [1]
    decision = decide(split(), *wish({"gpus": [0]}))
    assert codes(decision) == ["MIG_NOT_NAMED"]
    assert "MIG-0" in decision.refusals[0].advice


def test_a_mode_that_a_reset_will_change_is_refused() -> None:
    there = survey(gpu(0, *A100, mig_pending=True))
    assert codes(decide(there, *wish({"gpus": [0]}))) == ["MIG_PENDING"]


# --- in use


def test_gpu_memory_in_use_by_others_is_said() -> None:
    from facts.records import GpuProcess, ServiceState

    busy = gpu(0, processes=(GpuProcess(77, "python3", 9000),), memory_used_mib=9100)
    there = survey(busy)
    decision = decide(there, *wish())
    assert decision.kind == "image"
    assert "GPU_IN_USE" in cautions(decision)
    ours = replace(there, services={"chat": ServiceState("chat", active_state="active")})
    assert "GPU_IN_USE" not in cautions(decide(ours, *wish()))


def test_services_that_share_a_gpu_are_told() -> None:
    from tests.unit.surveys import wishes

    both = wishes({}, {})
    decision = decide(survey(), both.services[0], both)
    assert "GPU_SHARED" in cautions(decision)
    apart = wishes({"gpus": [0]}, {"gpus": [1]})
    decision = decide(survey(gpu(0), gpu(1)), apart.services[0], apart)
    assert "GPU_SHARED" not in cautions(decision)


# --- the host


def test_every_reason_is_given_at_once_and_the_image_all_the_same() -> None:
    there = survey(host=replace(HOST, uid=1000, user="me", can_sudo=False, http_client=ABSENT))
    there = replace(
        there,
        docker=docker(
            client=ABSENT, server_version=ABSENT, nvidia_ctk_version=ABSENT, cdi_devices=()
        ),
    )
    decision = decide(there, *wish(runtime="image"))
    assert codes(decision) == [
        "NEED_ROOT",
        "HTTP_CLIENT_MISSING",
        "DOCKER_MISSING",
        "TOOLKIT_MISSING",
    ]
    assert decision.image == CUDA13
    assert all(one.advice for one in decision.refusals)


@pytest.mark.parametrize(
    ("changes", "code"),
    [
        ({"os_id": "fedora", "os_version": "42", "os_name": "Fedora 42"}, "UNSUPPORTED_OS"),
        ({"os_version": "20.04", "os_name": "Ubuntu 20.04"}, "UNSUPPORTED_OS"),
        ({"os_id": ABSENT}, "UNSUPPORTED_OS"),
        ({"dgx_version": "5.5.0"}, "UNSUPPORTED_OS"),
        ({"architecture": "riscv64"}, "UNSUPPORTED_ARCHITECTURE"),
        ({"architecture": Unknown("unreadable")}, "UNSUPPORTED_ARCHITECTURE"),
        ({"uid": 1000, "can_sudo": ABSENT}, "NEED_ROOT"),
        ({"http_client": ABSENT}, "HTTP_CLIENT_MISSING"),
        ({"vgpu_host": True}, "VGPU_HOST"),
    ],
)
def test_host(changes: dict[str, Any], code: str) -> None:
    decision = decide(survey(host=replace(HOST, **changes)), *wish())
    assert code in codes(decision)
    allowed = decide(survey(host=replace(HOST, **changes)), *wish(unsupported=True))
    assert (code in codes(allowed)) == (code != "UNSUPPORTED_OS")


def test_a_user_without_root_is_told_the_key_of_the_inventory() -> None:
    host = replace(HOST, uid=1000, user="maria", can_sudo=False)
    (refusal,) = decide(survey(host=host), *wish()).refusals
    assert "'ssh_user': 'root' in the data of the host" in refusal.advice


@pytest.mark.parametrize(
    ("os_id", "version"),
    [
        ("ubuntu", "22.04"),
        ("ubuntu", "24.04"),
        ("debian", "12"),
        ("debian", "13"),
        ("rhel", "9.5"),
        ("rocky", "9.6"),
    ],
)
def test_supported_systems(os_id: str, version: str) -> None:
    host = replace(HOST, os_id=os_id, os_version=version)
    assert decide(survey(host=host), *wish()).kind == "image"


@pytest.mark.parametrize("version", ["6", "6.3.2", "7.2.0"])
def test_dgx_os_is_supported_by_its_own_number(version: str) -> None:
    assert decide(survey(host=replace(HOST, dgx_version=version)), *wish()).kind == "image"


def test_systemd() -> None:
    assert codes(decide(replace(survey(), systemd_version=248), *wish())) == ["SYSTEMD_TOO_OLD"]
    assert decide(replace(survey(), systemd_version=249), *wish()).kind == "image"
    assert codes(decide(replace(survey(), systemd_version=ABSENT), *wish())) == ["SYSTEMD_MISSING"]
    assert codes(decide(replace(survey(), systemd_state="offline"), *wish())) == ["SYSTEMD_MISSING"]
    allowed = decide(replace(survey(), systemd_version=248), *wish(unsupported=True))
    assert allowed.kind == "image"
    assert "UNSUPPORTED_HOST" in cautions(allowed)


@pytest.mark.parametrize(
    ("changes", "code"),
    [
        ({"snap": True}, "DOCKER_SNAP"),
        ({"rootless": True}, "DOCKER_ROOTLESS"),
        ({"server_version": "20.10.24"}, None),
        ({"server_version": "19.03.15"}, "DOCKER_TOO_OLD"),
        ({"server_version": ABSENT}, "DOCKER_DOWN"),
        (
            {"server_version": Unknown("unreadable", "permission denied while trying")},
            "DOCKER_NO_PERMISSION",
        ),
        ({"server_version": Unknown("unreadable", "no answer")}, "DOCKER_UNREADABLE"),
    ],
)
def test_docker(changes: dict[str, Any], code: str | None) -> None:
    there = survey()
    there = replace(there, docker=docker(there.nvidia.gpus, **changes))
    decision = decide(there, *wish(runtime="image"))
    assert codes(decision) == ([code] if code else [])
    assert decision.image == CUDA13


def test_smi_that_hangs_or_is_missing() -> None:
    for smi, code in (
        (Smi(exit_code=ABSENT), "SMI_MISSING"),
        (Smi(exit_code=Unknown("unreadable", "never returned")), "SMI_HUNG"),
        (Smi(exit_code=255, text="something new"), "SMI_FAILED"),
    ):
        decision = decide(survey(smi=smi, gpus=(), driver=ABSENT), *wish())
        assert codes(decision) == [code]


def test_parts_that_did_not_return() -> None:
    assert codes(decide(replace(survey(), unfinished=("docker",)), *wish(runtime="image"))) == [
        "SURVEY_UNFINISHED"
    ]
    decision = decide(replace(survey(), unfinished=("toolchain",)), *wish())
    assert decision.kind == "image"
    assert "SURVEY_UNFINISHED" in cautions(decision)


def test_nvidia_smi_that_hangs_is_one_refusal() -> None:
    hung = survey(smi=Smi(exit_code=Unknown("unreadable")), gpus=(), driver=ABSENT)
    for parts in (("nvidia-smi-query",), ("smi.query", "smi.table", "smi.xml")):
        hung = replace(hung, unfinished=parts)
        assert codes(decide(hung, *wish())) == ["SMI_HUNG"]
    # Where the list of GPUs came all the same, what did not come is told by itself.
    late = replace(survey(), unfinished=("smi.xml",))
    assert codes(decide(late, *wish())) == ["SURVEY_UNFINISHED"]


def test_module_and_library_of_two_versions() -> None:
    decision = decide(survey(module_version="580.65.06"), *wish())
    assert codes(decision) == ["DRIVER_MISMATCH"]


@pytest.mark.parametrize(
    ("changes", "code"),
    [
        ({"fabricmanager": "inactive", "fabricmanager_version": "580.95.05"}, "FABRIC_MANAGER"),
        ({"fabricmanager": ABSENT}, "FABRIC_MANAGER"),
        ({"fabricmanager": "active", "fabricmanager_version": "580.65.06"}, "FABRIC_MANAGER"),
        ({"fabricmanager": "active", "fabricmanager_version": "580.95.05"}, None),
    ],
)
def test_fabric_manager(changes: dict[str, Any], code: str | None) -> None:
    decision = decide(survey(gpu(0, *H100), nvswitch=True, **changes), *wish())
    assert codes(decision) == ([code] if code else [])
    assert decision.image == CUDA13


def test_a_fabric_that_is_not_ready_refuses_and_none_at_all_does_not() -> None:
    waiting = gpu(0, *B200, fabric_state="In Progress", fabric_status="N/A")
    decision = decide(survey(waiting, nvlsm=False), *wish())
    assert codes(decision) == ["FABRIC_NOT_READY", "NVLSM_MISSING"]
    none = gpu(0, *H100, fabric_state=Unknown("unsupported"))
    assert decide(survey(none), *wish()).kind == "image"


def test_a_geforce_whose_toolkit_enables_compatibility_libraries_is_warned() -> None:
    there = survey(gpu(0, *RTX4090), driver="580.95.05")
    new = replace(there, docker=docker(there.nvidia.gpus, nvidia_ctk_version="1.20.0"))
    assert "COMPAT_SAME_BRANCH" in cautions(decide(new, *wish()))
    assert "COMPAT_SAME_BRANCH" not in cautions(decide(there, *wish()))
    data = survey(gpu(0, *H100), driver="580.95.05")
    data = replace(data, docker=docker(data.nvidia.gpus, nvidia_ctk_version="1.20.0"))
    assert "COMPAT_SAME_BRANCH" not in cautions(decide(data, *wish()))


def test_every_release_of_the_table_has_an_image() -> None:
    assert [one.tag for one in known_images()] == [CUDA13, "lmsysorg/sglang:v0.5.22", CU129]
