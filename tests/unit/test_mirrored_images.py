"""A mirror of an image registry, on the node: the name an image is pulled and run by."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import pytest

from facts.parsing import parse_survey
from facts.records import Docker, LocalImage, Survey
from plans.plan import NodePlan
from tests.unit.deployments import (
    CAP,
    CONFIG,
    INDEX,
    MANIFEST,
    PINNED,
    applied,
    converged,
    fresh,
    kinds,
    lock,
    one,
    plan,
)
from tests.unit.surveys import wishes

MIRROR = "https://mirror.example.org/hub/"
BY_MIRROR = f"mirror.example.org/hub/lmsysorg/sglang@{INDEX}"


def with_mirror(url: str = MIRROR, registry: str = "docker.io") -> Any:
    return wishes(CAP, registry={"mirrors": {registry: url}})


def with_docker(node: Survey, **changes: Any) -> Survey:
    return replace(node, docker=replace(node.docker, **changes))


def runs(of: NodePlan) -> str:
    launch = one(of).launch
    assert launch is not None
    return launch.image


def cautions(of: NodePlan) -> list[str]:
    return [caution.code for caution in of.cautions if caution.code == "MIRROR_WITHOUT_TLS"]


def test_an_image_is_pulled_and_run_by_the_mirror_s_name_and_the_locked_digest() -> None:
    made = plan(wanted=with_mirror())
    assert one(made).pull == BY_MIRROR
    assert runs(made) == BY_MIRROR
    assert not cautions(made)


def test_once_applied_nothing_changes_any_more() -> None:
    made = plan(wanted=with_mirror())
    image = LocalImage("mirror.example.org/hub/lmsysorg/sglang", None, INDEX, CONFIG)
    after = with_docker(applied(made), images=(image,))
    assert plan(after, with_mirror()).converged


def test_a_mirror_that_is_named_later_changes_nothing_on_a_node_that_has_the_image() -> None:
    assert plan(converged(), with_mirror()).converged


def test_an_image_that_is_there_under_the_mirror_s_name_alone_is_run_by_it() -> None:
    # Docker keeps an image under the name it was pulled by, and finds it under no other.
    image = LocalImage("mirror.example.org/hub/lmsysorg/sglang", None, MANIFEST, CONFIG)
    made = plan(with_docker(fresh(), images=(image,)))
    assert "image" not in kinds(made)
    assert runs(made) == f"mirror.example.org/hub/lmsysorg/sglang@{MANIFEST}"


def test_where_docker_has_the_mirror_itself_the_plain_name_is_pulled() -> None:
    for there in (MIRROR, MIRROR.rstrip("/")):
        made = plan(with_docker(fresh(), mirrors=(there,)), with_mirror())
        assert one(made).pull == PINNED


def test_docker_s_own_mirrors_are_of_docker_hub_alone() -> None:
    locked = lock(
        asked="registry.example.org/sglang:v0.5.23",
        registry="registry.example.org",
        repository="sglang",
    )
    wanted = wishes(
        CAP | {"image": "registry.example.org/sglang:v0.5.23", "release": "0.5.23"},
        registry={"mirrors": {"registry.example.org": MIRROR}},
    )
    made = plan(with_docker(fresh(), mirrors=(MIRROR,)), wanted, locked)
    assert one(made).pull == f"mirror.example.org/hub/sglang@{INDEX}"


@pytest.mark.parametrize("url", ["http://127.0.0.1:5000", "https://localhost", "http://[::1]:5000"])
def test_a_mirror_on_the_controller_s_own_loopback_is_the_controller_s_alone(url: str) -> None:
    assert one(plan(wanted=with_mirror(url))).pull == PINNED


@pytest.mark.parametrize(
    ("insecure", "said"),
    [
        ((), True),
        (("10.0.0.5:5000",), False),
        (("10.0.0.0/8",), False),
        (("127.0.0.0/8", "docker.io"), True),
    ],
)
def test_a_mirror_without_tls_that_docker_does_not_take_is_told_with_what_daemon_json_needs(
    insecure: tuple[str, ...], said: bool
) -> None:
    made = plan(with_docker(fresh(), insecure=insecure), with_mirror("http://10.0.0.5:5000"))
    assert one(made).pull == f"10.0.0.5:5000/lmsysorg/sglang@{INDEX}"
    assert bool(cautions(made)) is said
    if said:
        (text,) = [c.text for c in made.cautions if c.code == "MIRROR_WITHOUT_TLS"]
        assert '{"insecure-registries": ["10.0.0.5:5000"]}' in text


def test_the_survey_reads_what_docker_says_of_mirrors_and_of_registries_without_tls() -> None:
    info = {
        "ServerVersion": "28.3.3",
        "RegistryConfig": {
            "Mirrors": ["https://mirror.example.org/"],
            "InsecureRegistryCIDRs": ["::1/128", "127.0.0.0/8"],
            "IndexConfigs": {
                "docker.io": {"Name": "docker.io", "Secure": True},
                "10.0.0.5:5000": {"Name": "10.0.0.5:5000", "Secure": False},
            },
        },
    }
    assert docker_of(info).mirrors == ("https://mirror.example.org/",)
    assert docker_of(info).insecure == ("10.0.0.5:5000", "127.0.0.0/8", "::1/128")
    odd_ones: list[Any] = [None, [], {"Mirrors": 7, "IndexConfigs": ["y"], "Insecure": 3}]
    for odd in odd_ones:
        found = docker_of({"ServerVersion": "28.3.3", "RegistryConfig": odd})
        assert (found.mirrors, found.insecure) == ((), ())


def docker_of(info: dict[str, Any]) -> Docker:
    lines = ["sglang-survey 1 0.1.0", "@ docker.info rc=0", f" {json.dumps(info)}", "@ end"]
    return parse_survey(lines, "node").docker
