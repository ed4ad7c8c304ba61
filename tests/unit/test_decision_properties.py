"""What holds of every decision, whatever the host."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from facts.records import ABSENT, Gpu, Smi, Survey, Unknown
from plans.decision import Decision
from plans.gpus import capability_of
from plans.images import known_images
from plans.runtime import decide
from plans.wishes import Service, Wishes
from tests.unit.surveys import HOST, docker, survey, wish

UNKNOWN = st.sampled_from(
    [
        ABSENT,
        Unknown("unreadable", "[Unknown Error]"),
        Unknown("unsupported", "[N/A]"),
        Unknown("malformed", "?"),
    ]
)
NAMES = st.sampled_from(
    [
        "NVIDIA L4",
        "NVIDIA A100-SXM...",
        "NVIDIA GeForce ...",
        "NVIDIA GeForce RTX 4090",
        "NVIDIA RTX A6000",
        "NVIDIA B200",
        "NVIDIA B300 SXM6 AC",
        "NVIDIA GB10",
        "NVIDIA Thor",
        "Orin (nvgpu)",
        "Tesla T4",
        "NVIDIA A40-48Q",
        "NVIDIA Rubin",
        "",
    ]
)
CAPABILITIES = st.one_of(
    UNKNOWN,
    st.builds("{}.{}".format, st.integers(3, 20), st.integers(0, 9)),
    st.sampled_from(["8.0", "8.6", "8.9", "9.0", "10.0", "10.3", "12.0", "12.1"]),
    st.sampled_from(["", "9", "sm_90"]),
)
BRANDS = st.one_of(
    UNKNOWN,
    st.sampled_from(["NVIDIA", "GeForce", "Tesla", "NVIDIA RTX", "NVIDIA vCS", "Titan", "New"]),
)
DRIVERS = st.one_of(
    UNKNOWN,
    st.builds(
        "{}.{:02d}.{:02d}".format, st.integers(440, 700), st.integers(0, 99), st.integers(0, 9)
    ),
    st.sampled_from(["580", "580.00", "575.51.03", "525.60.13", "[N/A]", "535.54.03", "570.26"]),
)
FLAGS = st.one_of(UNKNOWN, st.booleans())


@st.composite
def gpus(draw: st.DrawFn) -> tuple[Gpu, ...]:
    """Draw up to four GPUs, of any kind and state."""
    count = draw(st.integers(0, 4))
    return tuple(
        Gpu(
            index=index,
            name=draw(NAMES),
            uuid=draw(st.one_of(UNKNOWN, st.just(f"GPU-{index}"))),
            compute_capability=draw(CAPABILITIES),
            brand=draw(BRANDS),
            mig_enabled=draw(FLAGS),
            mig_pending=draw(FLAGS),
            recovery_action=draw(st.one_of(UNKNOWN, st.sampled_from(["None", "Reset"]))),
            ecc_uncorrected=draw(st.one_of(UNKNOWN, st.just(0))),
            fault=draw(st.sampled_from([None, None, None, "ERR!"])),
        )
        for index in range(count)
    )


@st.composite
def surveys(draw: st.DrawFn) -> Survey:
    """Draw a node: most facts healthy or unknown, its GPUs and driver of any kind."""
    there = draw(gpus())
    driver = draw(DRIVERS)
    base = survey(driver=driver)
    host = replace(
        HOST,
        architecture=draw(st.one_of(UNKNOWN, st.sampled_from(["x86_64", "aarch64", "x86_64"]))),
        wsl=draw(st.sampled_from([False, False, True])),
        tegra=draw(st.sampled_from([False, False, True])),
        l4t_major=draw(st.one_of(UNKNOWN, st.integers(30, 40))),
        can_sudo=draw(st.one_of(st.just(True), FLAGS)),
        http_client=draw(st.one_of(UNKNOWN, st.just("curl"))),
    )
    version = draw(st.one_of(UNKNOWN, st.sampled_from(["29.1.0", "24.0.9", "20.10.1", "19.3"])))
    engine = docker(
        there,
        server_version=version,
        nvidia_ctk_version=draw(
            st.one_of(UNKNOWN, st.sampled_from(["1.17.4", "1.18.1", "1.20.0"]))
        ),
        runtimes=draw(st.sampled_from([("runc", "nvidia"), ("runc",)])),
        cdi_dirs=draw(st.sampled_from([("/etc/cdi",), ()])),
    )
    smi = draw(
        st.sampled_from(
            [
                Smi(exit_code=0, source="query"),
                Smi(exit_code=0, source="query"),
                Smi(exit_code=2, source="table"),
                Smi(exit_code=9, text="couldn't communicate with the NVIDIA driver"),
                Smi(exit_code=Unknown("unreadable")),
            ]
        )
    )
    cuda = draw(st.one_of(UNKNOWN, st.sampled_from(["12.9", "13.0", "13.3"])))
    return replace(
        base,
        host=host,
        nvidia=replace(base.nvidia, gpus=there, module_version=driver, smi=smi, cuda_version=cuda),
        docker=engine,
        systemd_version=draw(st.one_of(UNKNOWN, st.sampled_from([255, 249, 245]))),
    )


@st.composite
def asked(draw: st.DrawFn) -> tuple[Service, Wishes]:
    """Draw what an operator may ask."""
    service: dict[str, Any] = {"tp_size": draw(st.integers(1, 4))}
    if draw(st.booleans()):
        service["gpus"] = draw(st.lists(st.integers(0, 4), min_size=1, max_size=3, unique=True))
    more: dict[str, Any] = {
        name: draw(st.booleans()) for name in ("forward_compat", "cu129_override", "unsupported")
    }
    release = draw(st.sampled_from([None, "0.5.19", "0.5.22", "0.5.23", "0.5.99"]))
    if release:
        more["release"] = release
    return wish(service, **more)


def code_missing(decision: Decision, there: Survey) -> list[Gpu]:
    """Return the GPUs of a decision that its image has no code for."""
    image = next(one for one in known_images() if one.tag == decision.image)
    return [
        gpu
        for gpu in decision.gpus
        if not image.has_code(capability_of(gpu), there.host.architecture)
    ]


@settings(max_examples=250, deadline=None)
@given(surveys(), asked())
def test_no_gpu_gets_an_image_without_code_for_it(
    there: Survey, wanted: tuple[Service, Wishes]
) -> None:
    decision = decide(there, *wanted)
    if decision.image is not None:
        assert not code_missing(decision, there)


@settings(max_examples=80, deadline=None)
@given(surveys(), asked())
def test_a_named_release_is_never_replaced(there: Survey, wanted: tuple[Service, Wishes]) -> None:
    service, wishes = wanted
    named = wishes.release_of(service)
    decision = decide(there, service, wishes)
    if named is not None:
        assert decision.release in (named, None)
        assert decision.image is None or decision.release == named
        assert decision.release is not None or decision.kind == "refused"


@settings(max_examples=80, deadline=None)
@given(surveys(), asked())
def test_refused_and_refusals_go_together(there: Survey, wanted: tuple[Service, Wishes]) -> None:
    decision = decide(there, *wanted)
    assert (decision.kind == "refused") == bool(decision.refusals)
    for one in decision.refusals:
        assert one.code
        assert one.seen
        assert one.needed
        assert one.advice
    if decision.kind == "image":
        assert decision.image
        assert decision.release
        assert decision.access
        assert decision.gpus
        assert decision.reasons


@settings(max_examples=60, deadline=None)
@given(surveys(), asked())
def test_decisions_are_deterministic(there: Survey, wanted: tuple[Service, Wishes]) -> None:
    assert decide(there, *wanted) == decide(there, *wanted)


@settings(max_examples=150, deadline=None)
@given(surveys(), asked())
def test_unknown_facts_never_give_a_plan_silently(
    there: Survey, wanted: tuple[Service, Wishes]
) -> None:
    decision = decide(there, *wanted)
    if decision.kind == "refused":
        return
    host, nvidia = there.host, there.nvidia
    assert isinstance(host.architecture, str)
    assert isinstance(host.http_client, str)
    assert isinstance(there.systemd_version, int)
    if decision.kind == "image":
        assert isinstance(there.docker.server_version, str)
    else:
        assert isinstance(host.glibc, str)
    assert nvidia.smi.exit_code in (0, 2)
    tegra_or_wsl = host.tegra or host.wsl or any("Thor" in one.name for one in decision.gpus)
    assert isinstance(nvidia.driver_version, str) or tegra_or_wsl
    said = {one.code for one in decision.cautions}
    for one in decision.gpus:
        if isinstance(one.compute_capability, Unknown):
            assert "ASSUMED_CAPABILITY" in said
        if isinstance(one.mig_enabled, Unknown) and one.mig_enabled.why != "unsupported":
            assert "ASSUMED_HEALTH" in said


@settings(max_examples=80, deadline=None)
@given(surveys(), asked())
def test_what_is_risky_is_opted_in_and_said(there: Survey, wanted: tuple[Service, Wishes]) -> None:
    service, wishes = wanted
    decision = decide(there, service, wishes)
    said = {one.code for one in decision.cautions}
    if "NVIDIA_DISABLE_REQUIRE" in decision.environment:
        assert wishes.cu129_override
        assert "CU129_OVERRIDE" in said
    assert "FORWARD_COMPAT" not in said or wishes.forward_compat
    if decision.frozen:
        assert "FROZEN_RELEASE" in said


@settings(max_examples=80, deadline=None)
@given(surveys(), asked())
def test_every_gpu_of_the_node_is_used_or_left_out_with_a_reason(
    there: Survey, wanted: tuple[Service, Wishes]
) -> None:
    service, wishes = wanted
    decision = decide(there, service, wishes)
    if decision.kind != "refused" and service.gpus == "all":
        named = {one.index for one in decision.gpus} | {one.index for one in decision.left_out}
        assert named == {one.index for one in there.nvidia.gpus}
        assert all(one.reason for one in decision.left_out)
