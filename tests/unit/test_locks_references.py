"""Image references: what they name, and which are refused by name."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from locks.references import ReferenceRefused, is_nearby, parse_reference
from tests.unit.lock_servers import one_line

DIGEST = "sha256:" + "ab" * 32


@pytest.mark.parametrize(
    ("text", "host", "repository", "points_to"),
    [
        ("lmsysorg/sglang:v0.5.22", "registry-1.docker.io", "lmsysorg/sglang", "v0.5.22"),
        ("docker.io/lmsysorg/sglang:v0.5.22", "registry-1.docker.io", "lmsysorg/sglang", "v0.5.22"),
        ("ubuntu:24.04", "registry-1.docker.io", "library/ubuntu", "24.04"),
        ("index.docker.io/ubuntu:24.04", "registry-1.docker.io", "library/ubuntu", "24.04"),
        ("localhost/a:1", "localhost", "a", "1"),
        ("127.0.0.1:5000/team/a:1", "127.0.0.1:5000", "team/a", "1"),
        ("[::1]:5000/a:1", "[::1]:5000", "a", "1"),
        ("nvcr.io/nvidia/sglang:26.01-py3", "nvcr.io", "nvidia/sglang", "26.01-py3"),
        (f"ghcr.io/a/b@{DIGEST}", "ghcr.io", "a/b", DIGEST),
        (f"ghcr.io/a/b:v1@{DIGEST}", "ghcr.io", "a/b", DIGEST),
    ],
)
def test_a_reference_names_a_host_a_repository_and_a_tag_or_digest(
    text: str, host: str, repository: str, points_to: str
) -> None:
    reference = parse_reference(text)
    assert (reference.host, reference.repository) == (host, repository)
    assert reference.points_to == points_to
    assert parse_reference(reference.canonical).canonical == reference.canonical


@pytest.mark.parametrize(
    "tag", ["latest", "LATEST", "latest-cu130", "latest-runtime", "nightly", "nightly-dev-1"]
)
def test_a_tag_that_moves_is_refused_by_name_with_what_to_write_instead(tag: str) -> None:
    with pytest.raises(ReferenceRefused) as refused:
        parse_reference(f"lmsysorg/sglang:{tag}")
    assert refused.value.code == "MOVING_TAG"
    assert tag in str(refused.value)
    assert "lmsysorg/sglang:v0.5.22" in str(refused.value)
    assert "lmsysorg/sglang@sha256:" in str(refused.value)


@pytest.mark.parametrize("tag", ["dev", "dev-cu13", "main"])
def test_a_development_tag_is_refused_as_well(tag: str) -> None:
    with pytest.raises(ReferenceRefused, match=tag):
        parse_reference(f"host:5000/a/b:{tag}")


def test_no_tag_at_all_means_latest_and_is_refused() -> None:
    with pytest.raises(ReferenceRefused, match="names no tag, which means latest") as refused:
        parse_reference("host:5000/sglang")
    assert refused.value.code == "MOVING_TAG"


def test_a_digest_beside_a_moving_tag_pins_it() -> None:
    assert parse_reference(f"a/b:latest@{DIGEST}").points_to == DIGEST


def test_a_runtime_image_is_allowed_and_flagged() -> None:
    assert parse_reference("lmsysorg/sglang:v0.5.22-runtime").runtime_variant
    assert not parse_reference("lmsysorg/sglang:v0.5.22").runtime_variant


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("", "repository"),
        ("a/b:", "tag after the colon is missing"),
        ("https://docker.io/a/b:v1", "leave out"),
        ("A/b:v1", "no capital letters"),
        ("a/b:v 1", "a tag has letters"),
        ("a/b:v1\n", "a tag has letters"),
        ("a//b:v1", "repository"),
        ("a/b@sha256:123", "64 hexadecimal"),
        ("a/b@sha512:" + "ab" * 64, "64 hexadecimal"),
        ("host:99999/a:v1", "neither a host nor"),
        ("user@host.example/a:v1", "64 hexadecimal"),
        ("ho_st.example/a:v1", "neither a host nor"),
        ("a/../b:v1", "repository"),
    ],
)
def test_a_malformed_reference_is_refused_with_what_is_wrong(text: str, why: str) -> None:
    with pytest.raises(ReferenceRefused, match=why) as refused:
        parse_reference(text)
    assert refused.value.code == "BAD_REFERENCE"


@settings(deadline=None)
@given(st.text() | st.from_regex(r"[a-z.:/@\[\]0-9-]{1,40}"))
def test_any_text_is_a_reference_or_is_refused(text: str) -> None:
    try:
        reference = parse_reference(text)
    except ReferenceRefused as refused:
        one_line(refused)
    else:
        assert reference.points_to
        assert parse_reference(reference.canonical).canonical == reference.canonical


@pytest.mark.parametrize(
    ("host", "near"),
    [
        ("127.0.0.1:5000", True),
        ("127.9.9.9", True),
        ("localhost:5000", True),
        ("[::1]:5000", True),
        ("10.1.2.3:5000", True),
        ("192.168.0.9", True),
        ("[fd00::1]", True),
        ("8.8.8.8", False),
        ("169.254.169.254", False),
        ("0.0.0.0", False),
        ("registry.lan:5000", False),
        ("localhost.example", False),
    ],
)
def test_only_this_machine_and_private_addresses_are_near(host: str, near: bool) -> None:
    assert is_nearby(host) is near
