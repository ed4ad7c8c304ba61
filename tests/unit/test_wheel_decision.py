"""The wheel runtime: which hosts, drivers and GPUs it runs on, and what `auto` takes."""

from __future__ import annotations

from dataclasses import replace
from itertools import product
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from facts.records import ABSENT, Docker, MigDevice, Program, ServiceState, Survey, Unknown
from plans.choice import IN_LAUNCH
from plans.decision import Decision
from plans.images import known_images
from plans.rules import table, version_of
from plans.runtime import decide
from plans.wheel.compilers import compiler_of, environment_of, major_of
from plans.wheel.data import host_needs
from plans.wheel.offers import known_wheels
from plans.wishes import Service, Wishes
from releases.table import HOST_RULES
from releases.wheels import wheel_lock, write_lock
from tests.unit.deployments import plan
from tests.unit.surveys import HOST, docker, gpu, survey, wish, wishes
from tests.unit.test_decision_properties import surveys

NO_DOCKER = Docker()

L4, A100, H100 = ("NVIDIA L4", "8.9"), ("NVIDIA A100-SXM4-80GB", "8.0"), ("NVIDIA H100", "9.0")
B200, B300, GB10 = ("NVIDIA B200", "10.0"), ("NVIDIA B300 SXM6 AC", "10.3"), ("NVIDIA GB10", "12.1")
RTX4090, RTX5090 = ("NVIDIA GeForce RTX 4090", "8.9"), ("NVIDIA GeForce RTX 5090", "12.0")
T4, ORIN, THOR = ("Tesla T4", "7.5"), ("Orin (nvgpu)", "8.7"), ("NVIDIA Thor", "11.0")
RUBIN = ("NVIDIA Rubin", "10.7")


def codes(decision: Decision) -> list[str]:
    """Return the codes of a decision's refusals."""
    return [one.code for one in decision.refusals]


def bare(*cards: Any, **more: Any) -> Survey:
    """Return a healthy node with a driver alone: no Docker, no toolkit, no compiler."""
    return replace(survey(*cards, **more), docker=NO_DOCKER)


def compilers(*lines: tuple[str, str]) -> dict[str, Any]:
    return {"compilers": tuple(Program(path, version) for path, version in lines)}


def with_compilers(*lines: tuple[str, str]) -> Survey:
    there = bare()
    return replace(there, toolchain=replace(there.toolchain, **compilers(*lines)))


# --- the grid

GRID = list(
    product(
        ("525.60.13", "570.26", "575.57.08", "579.99", "580", "580.65.06", "595.71.05", "620.10"),
        (L4, A100, H100, B200, B300, RTX4090, RTX5090, GB10, T4, RUBIN),
        ("x86_64", "aarch64"),
    )
)


def expected(driver: str, card: tuple[str, str], architecture: str) -> str:
    """Return what the wheel runtime gives, worked out apart from its rules."""
    capability = card[1]
    if capability == "7.5":
        return "GPU_TOO_OLD"
    if architecture == "aarch64" and capability.startswith("8."):
        return "GPU_NO_KERNELS"
    if capability == "10.7":
        return "GPU_UNKNOWN"
    if architecture == "x86_64" and capability == "12.1":
        return "GPU_NO_KERNELS"
    return "wheel" if int(driver.split(".")[0]) >= 580 else "DRIVER_TOO_OLD"


@pytest.mark.parametrize(("driver", "card", "architecture"), GRID)
def test_the_driver_and_what_the_packages_have_code_for_decide(
    driver: str, card: tuple[str, str], architecture: str
) -> None:
    there = bare(gpu(0, *card), driver=driver, host=replace(HOST, architecture=architecture))
    decision = decide(there, *wish(runtime="wheel"))
    assert [decision.kind, *codes(decision)] == (
        ["wheel"]
        if (wanted := expected(driver, card, architecture)) == "wheel"
        else ["refused", wanted]
    )
    assert decision.image is None
    assert decision.runtime == "wheel"
    if decision.kind == "wheel":
        assert (decision.release, decision.cuda_family) == ("0.5.23", "cuda13")
        assert decision.access is None
        assert decision.docker_arguments == ()


SYSTEMS = [
    # id, version, glibc, what the wheel runtime says
    ("ubuntu", "22.04", "2.35", []),
    ("ubuntu", "24.04", "2.39", []),
    ("debian", "12", "2.36", []),
    ("debian", "13", "2.41", []),
    ("rocky", "9.6", "2.34", []),
    ("rocky", "8.10", "2.28", ["UNSUPPORTED_OS", "WHEEL_GLIBC"]),
    ("ubuntu", "20.04", "2.31", ["UNSUPPORTED_OS", "WHEEL_GLIBC"]),
    ("debian", "11", "2.31", ["UNSUPPORTED_OS", "WHEEL_GLIBC"]),
    ("alpine", "3.21", Unknown("malformed", "musl libc (x86_64)"), ["UNSUPPORTED_OS", "WHEEL_GLIBC"]),
    ("ubuntu", "24.04", Unknown("unreadable"), ["WHEEL_GLIBC"]),
]  # fmt: skip


@pytest.mark.parametrize(("os_id", "version", "glibc", "said"), SYSTEMS)
def test_the_system_and_its_c_library(
    os_id: str, version: str, glibc: Any, said: list[str]
) -> None:
    host = replace(HOST, os_id=os_id, os_version=version, glibc=glibc)
    decision = decide(bare(host=host), *wish(runtime="wheel"))
    assert codes(decision) == said
    # With Docker the image runs all the same: it brings its own C library.
    image = decide(survey(host=host), *wish(unsupported=True))
    assert image.kind == "image"


def test_musl_is_named() -> None:
    host = replace(HOST, glibc=Unknown("malformed", "musl libc (x86_64)"))
    (refusal,) = decide(bare(host=host), *wish(runtime="wheel")).refusals
    assert "musl" in refusal.seen
    assert "runtime: image" in refusal.advice


@pytest.mark.parametrize(
    ("changes", "card", "code"),
    [
        ({"tegra": True, "l4t_major": 36}, ORIN, "WHEEL_TEGRA"),
        ({"tegra": True, "l4t_major": 38}, THOR, "WHEEL_TEGRA"),
        ({"vgpu_host": True}, L4, "VGPU_HOST"),
        ({"wsl": True}, L4, "WSL_DRIVER_TOO_OLD"),
        ({"architecture": "riscv64"}, L4, "UNSUPPORTED_ARCHITECTURE"),
    ],
)
def test_hosts_where_it_does_not_work(
    changes: dict[str, Any], card: tuple[str, str], code: str
) -> None:
    there = bare(gpu(0, *card), driver="595.78", host=replace(HOST, **changes))
    assert codes(decide(there, *wish(runtime="wheel"))) == [code]


def test_wsl_serves_where_windows_offers_cuda_13() -> None:
    there = bare(driver="581.15", host=replace(HOST, wsl=True), cuda_version="13.0")
    decision = decide(there, *wish())
    assert decision.kind == "wheel"
    assert "WSL" in {one.code for one in decision.cautions}


# --- the release


def test_a_release_is_taken_as_it_is_named_or_else_the_newest_that_is_locked() -> None:
    assert decide(bare(), *wish()).release == "0.5.23"
    assert decide(bare(), *wish(release="v0.5.22")).release == "0.5.22"


def test_a_release_without_a_lock_points_to_its_image() -> None:
    decision = decide(survey(), *wish(runtime="wheel", release="0.5.19"))
    assert codes(decision) == ["WHEELS_NOT_LOCKED"]
    assert "lmsysorg/sglang:v0.5.19-cu129" in decision.refusals[0].advice
    unknown = decide(survey(), *wish(runtime="wheel", release="0.4.0"))
    assert codes(unknown) == ["RELEASE_UNKNOWN"]
    assert unknown.release is None, "flags and paths are looked up by it"


def test_every_locked_release_is_offered_for_both_architectures_newest_first() -> None:
    for architecture in ("x86_64", "aarch64"):
        assert [one.release for one in known_wheels(architecture)] == ["0.5.23", "0.5.22"]
    assert known_wheels("riscv64") == ()


def test_an_old_driver_is_told_which_image_it_runs() -> None:
    decision = decide(survey(driver="570.133.20"), *wish(runtime="wheel"))
    assert codes(decision) == ["DRIVER_TOO_OLD"]
    assert "runtime image would work: lmsysorg/sglang:v0.5.19-cu129" in decision.reasons


def test_no_compatibility_library_comes_without_a_container() -> None:
    asked = wish(runtime="wheel", forward_compat=True, cu129_override=True)
    assert codes(decide(survey(driver="570.133.20"), *asked)) == ["DRIVER_TOO_OLD"]


# --- the GPUs


def test_a_mig_device_is_used_where_it_is_named() -> None:
    card = gpu(0, *A100, mig_enabled=True, mig_pending=True)
    there = bare(replace(card, mig_devices=(MigDevice(0, 3, 0, uuid="MIG-1"),)))
    decision = decide(there, *wish({"gpus": ["MIG-1"]}))
    assert (decision.kind, [one.index for one in decision.gpus]) == ("wheel", [0])
    assert codes(decide(there, *wish({"gpus": ["MIG-2"]}, runtime="wheel"))) == ["GPU_NOT_FOUND"]


# --- the compiler

UBUNTU, RHEL, OLD = (
    ("/usr/bin/g++", "13.3.0"),
    ("/usr/bin/g++", "11.5.0"),
    ("/usr/bin/g++", "8.5.0"),
)
NEW, NEW_C = ("/usr/bin/g++", "16.1.1"), ("/usr/bin/c++", "16.1.1")
BESIDE, CLANG = ("/usr/bin/g++-14", "14.2.0"), ("/usr/bin/c++", "19.1.7")
OWN = ("/home/me/bin/g++", "13.3.0")


@pytest.mark.parametrize(
    ("there", "path", "named", "said"),
    [
        ((), None, False, []),
        ((UBUNTU,), "/usr/bin/g++", False, []),
        ((RHEL,), "/usr/bin/g++", False, []),
        ((NEW,), None, False, ["COMPILER_UNFIT"]),
        ((OLD,), None, False, ["COMPILER_UNFIT"]),
        ((NEW, NEW_C, BESIDE), "/usr/bin/g++-14", True, []),
        ((CLANG,), None, False, ["COMPILER_UNFIT"]),
        ((OWN,), None, False, []),
        ((("/usr/bin/gcc", "16.1"),), None, False, []),
    ],
)
def test_a_compiler_is_one_that_nvcc_takes_in_the_path_of_the_unit(
    there: tuple[tuple[str, str], ...], path: str | None, named: bool, said: list[str]
) -> None:
    node = with_compilers(*there)
    found = compiler_of(node, "13.0", "chat")
    assert (found.path, found.named, [one.code for one in found.refusals]) == (path, named, said)
    assert found.install == (path is None and not said)
    decision = decide(node, *wish(runtime="wheel"))
    assert codes(decision) == said
    if named:
        assert environment_of(node, "13.0", "chat") == {
            "CXX": "/usr/bin/g++-14",
            "CC": "/usr/bin/gcc-14",
            "NVCC_CCBIN": "/usr/bin/g++-14",
        }
        assert decision.environment["CXX"] == "/usr/bin/g++-14"
    else:
        assert "CXX" not in decision.environment


@pytest.mark.parametrize(
    ("there", "path"),
    [((), None), ((UBUNTU,), "/usr/bin/g++"), ((NEW_C,), "/usr/bin/c++"), ((BESIDE,), None)],
)
def test_for_a_cuda_of_which_no_range_is_known_the_compiler_that_is_there_is_taken(
    there: tuple[tuple[str, str], ...], path: str | None
) -> None:
    found = compiler_of(with_compilers(*there), "12.8", "chat")
    assert (found.path, found.install, found.refusals) == (path, path is None, ())


def test_on_the_cpu_device_no_compiler_for_cuda_is_asked() -> None:
    asked = wish({"arguments": {"device": "cpu"}}, runtime="wheel")
    assert decide(with_compilers(NEW), *asked).kind == "wheel"


def test_a_compiler_that_says_no_version_is_none_that_fits() -> None:
    assert major_of(Program("/usr/bin/g++", Unknown("unreadable"))) is None
    unread = bare()
    programs = (Program("/usr/bin/g++", Unknown("unreadable")),)
    unread = replace(unread, toolchain=replace(unread.toolchain, compilers=programs))
    assert codes(decide(unread, *wish(runtime="wheel"))) == ["COMPILER_UNFIT"]


# --- auto


def test_auto_takes_the_image_where_docker_is_whole_and_says_what_the_wheel_is() -> None:
    decision = decide(survey(), *wish())
    assert (decision.kind, decision.runtime) == ("image", "image")
    assert any(one.startswith("runtime image: auto takes the image") for one in decision.reasons)
    assert "runtime wheel would work as well: write `runtime: wheel`" in decision.reasons
    old = decide(survey(driver="550.90.07"), *wish())
    assert old.kind == "image"
    assert any("runtime wheel would need driver 580" in one for one in old.reasons)


def test_auto_takes_the_wheel_where_docker_is_broken_and_says_what_the_image_needs() -> None:
    decision = decide(bare(), *wish())
    assert (decision.kind, decision.refusals) == ("wheel", ())
    assert any(one.startswith("runtime wheel: auto takes") for one in decision.reasons)
    (needs,) = [one for one in decision.reasons if one.startswith("runtime image would need")]
    assert "Docker 20.10 or newer (DOCKER_MISSING)" in needs
    assert "(TOOLKIT_MISSING)" in needs


def test_where_neither_works_the_image_s_reasons_are_the_refusals() -> None:
    decision = decide(bare(driver="550.90.07"), *wish())
    assert codes(decision) == ["DOCKER_MISSING", "TOOLKIT_MISSING"]
    assert decision.image == "lmsysorg/sglang:v0.5.19-cu129"
    assert any("runtime wheel would need driver 580" in one for one in decision.reasons)


OF_22 = wheel_lock("0.5.22", "x86_64")
assert OF_22 is not None
LOCK = write_lock(OF_22)


@pytest.mark.parametrize(
    ("text", "release", "code", "seen"),
    [
        (LOCK[:3000], None, "WHEELS_DAMAGED", "wheels/own.txt: "),
        (LOCK[:3000], "0.5.22", "WHEELS_DAMAGED", "wheels/own.txt: "),
        (LOCK, "0.5.23", "WHEELS_WRONG_RELEASE", "wheels/own.txt is of SGLang 0.5.22"),
    ],
)
def test_the_fault_of_a_lock_that_is_named_is_told_before_what_the_image_would_need(
    text: str, release: str | None, code: str, seen: str
) -> None:
    own = {"path": "wheels/own.txt", "text": text}
    asked = wish({"output_cap": 512}, wheel_lock=own, **({"release": release} if release else {}))
    decision = decide(bare(), *asked)
    assert (decision.runtime, codes(decision)) == ("wheel", [code])
    assert decision.refusals[0].seen.startswith(seen)
    assert any("runtime image would need Docker 20.10" in one for one in decision.reasons)
    assert [one.code for one in plan(bare(), asked[1]).refusals] == [code]
    # Where Docker is whole the image runs, as with any other fault of the packages.
    assert decide(survey(), *asked).kind == "image"


def test_a_release_that_no_runtime_knows_asks_for_no_docker() -> None:
    decision = decide(bare(), *wish(release="0.5.99"))
    assert codes(decision) == ["RELEASE_UNKNOWN"]
    # What both runtimes say beside it is told as well.
    both = decide(bare(), *wish({"gpus": [7]}, release="0.5.99"))
    assert codes(both) == ["RELEASE_UNKNOWN", "GPU_NOT_FOUND"]


def test_an_image_that_is_named_is_a_wish_for_the_image() -> None:
    asked = wish(image="registry.example/sglang:v0.5.23", release="0.5.23")
    decision = decide(bare(), *asked)
    assert (decision.runtime, codes(decision)) == ("image", ["DOCKER_MISSING", "TOOLKIT_MISSING"])


def deployed(there: Survey, runtime: str) -> Survey:
    """Return a node on which the service is deployed in a runtime."""
    launch = {IN_LAUNCH[runtime]: "x"}  # type: ignore[index]
    state = ServiceState("chat", active_state="active", current=1, launch=launch)
    return replace(there, services={"chat": state})


def test_a_service_keeps_its_runtime_while_that_can_work() -> None:
    kept = decide(deployed(survey(), "wheel"), *wish())
    assert kept.kind == "wheel"
    assert any("is deployed in the runtime wheel, and auto keeps it" in one for one in kept.reasons)
    assert decide(deployed(survey(), "image"), *wish()).kind == "image"


@pytest.mark.parametrize(
    "changes",
    [
        {"server_version": ABSENT},
        {"server_version": Unknown("unreadable", "no answer")},
        {"server_version": Unknown("unreadable", "permission denied")},
    ],
)
def test_no_service_changes_its_runtime_because_docker_is_down_for_a_minute(
    changes: dict[str, Any],
) -> None:
    there = survey()
    there = replace(there, docker=docker(there.nvidia.gpus, **changes))
    assert decide(there, *wish()).kind == "wheel"
    decision = decide(deployed(there, "image"), *wish())
    assert (decision.kind, decision.runtime) == ("refused", "image")
    assert any("auto keeps it, though it needs" in one for one in decision.reasons)


def test_a_service_changes_its_runtime_where_its_own_cannot_work_any_more() -> None:
    gone = decide(deployed(bare(), "image"), *wish())
    assert gone.kind == "wheel"
    assert any("which cannot work any more" in one for one in gone.reasons)
    older = decide(deployed(survey(driver="550.90.07"), "wheel"), *wish())
    assert (older.kind, older.release) == ("image", "0.5.19")


def test_a_slip_in_the_lock_that_is_named_changes_no_service_s_runtime() -> None:
    own = {"path": "wheels/own.txt", "text": LOCK[:3000]}
    decision = decide(deployed(survey(), "wheel"), *wish(wheel_lock=own))
    assert (decision.runtime, codes(decision)) == ("wheel", ["WHEELS_DAMAGED"])
    assert any("runtime image would work as well" in one for one in decision.reasons)


def test_parts_that_one_runtime_does_not_need_stop_the_other_not() -> None:
    there = replace(bare(), unfinished=("docker", "docker-images"))
    decision = decide(there, *wish(runtime="wheel"))
    assert decision.kind == "wheel"
    assert [one.code for one in decision.cautions] == ["SURVEY_UNFINISHED"] * 2
    late = replace(bare(), unfinished=("toolchain",))
    assert codes(decide(late, *wish(runtime="wheel"))) == ["SURVEY_UNFINISHED"]


def test_services_of_two_runtimes_that_share_a_gpu_are_told() -> None:
    both = wishes({"runtime": "wheel"}, {"runtime": "image"})
    decision = decide(survey(), both.services[0], both)
    assert "GPU_SHARED" in {one.code for one in decision.cautions}


# --- what holds of every decision


@st.composite
def nodes(draw: st.DrawFn) -> Survey:
    """Draw a node of any kind, with or without Docker, compiler, C library."""
    there = draw(surveys())
    glibc = draw(st.one_of(st.sampled_from(["2.28", "2.34", "2.39"]), st.just(ABSENT)))
    tools = draw(st.sampled_from([(), (UBUNTU,), (NEW,), (NEW, BESIDE)]))
    there = replace(
        there,
        host=replace(there.host, glibc=glibc),
        toolchain=replace(there.toolchain, **compilers(*tools)),
        docker=draw(st.sampled_from([there.docker, NO_DOCKER])),
        unfinished=draw(st.sampled_from([(), (), ("docker",), ("toolchain",)])),
    )
    return (
        deployed(there, runtime)
        if (runtime := draw(st.sampled_from(["", "", *IN_LAUNCH])))
        else there
    )


@st.composite
def asked(draw: st.DrawFn, *runtimes: str) -> tuple[Service, Wishes]:
    service: dict[str, Any] = {"tp_size": draw(st.integers(1, 3))}
    more: dict[str, Any] = {"unsupported": draw(st.booleans())}
    if release := draw(st.sampled_from([None, None, "0.5.19", "0.5.22", "0.5.99"])):
        more["release"] = release
    return wish(service, runtime=draw(st.sampled_from(runtimes)), **more)


@settings(max_examples=120, deadline=None)
@given(nodes(), asked("wheel", "auto"))
def test_no_wheel_below_driver_580_and_none_without_code(
    there: Survey, wanted: tuple[Service, Wishes]
) -> None:
    decision = decide(there, *wanted)
    assert decision == decide(there, *wanted)
    if decision.kind != "wheel":
        return
    least = HOST_RULES.thresholds["cuda13_minimum_driver"].value
    assert there.host.wsl or (version_of(there.nvidia.driver_version) or ()) >= (int(least),)
    assert not there.host.tegra
    assert decision.image is None
    assert decision.release in {one.release for one in known_wheels(str(there.host.architecture))}
    assert decision.gpus
    assert decision.reasons
    assert there.host.glibc in ("2.34", "2.39")


@settings(max_examples=120, deadline=None)
@given(nodes(), asked("auto"))
def test_auto_refuses_nothing_that_one_of_both_runs_on_a_node_without_the_service(
    there: Survey, wanted: tuple[Service, Wishes]
) -> None:
    service, all_of_it = wanted
    fresh = replace(there, services={})
    ways = [
        decide(fresh, service, all_of_it.model_copy(update={"runtime": runtime}))
        for runtime in ("image", "wheel")
    ]
    decision = decide(fresh, service, all_of_it)
    assert (decision.kind == "refused") == all(one.kind == "refused" for one in ways)
    # On a node that has it, one way more is kept: that of a passing fault.
    if decide(there, service, all_of_it).kind == "refused" != decision.kind:
        told = {one.code for one in decide(there, service, all_of_it).refusals}
        assert told <= set(host_needs().passing)


# --- the data


def test_the_rules_of_packages_ask_for_code_and_the_last_refuses_everything() -> None:
    rules = table("wheel").rules
    for rule in rules:
        if rule.then == "run":
            assert rule.when.code is True, rule.id
            assert rule.reason, rule.id
        else:
            assert all((rule.code, rule.seen, rule.needed, rule.advice)), rule.id
        assert rule.source.startswith("https://"), rule.id
        assert set(rule.cautions) <= set(table("wheel").cautions)
    assert rules[-1].then == "refuse"
    assert not rules[-1].when.model_dump(exclude_none=True)
    assert len({rule.id for rule in rules}) == len(rules)


def test_packages_have_code_for_no_more_than_the_image_of_their_release() -> None:
    images = {one.release: one for one in known_images() if one.family == "cuda13"}
    for architecture in ("x86_64", "aarch64"):
        for one in known_wheels(architecture):
            mine = one.capabilities[architecture]
            assert mine
            assert mine <= images[one.release].capabilities[architecture]
            assert host_needs().compilers_of(one.cuda) is not None
