"""The registry client: against Debian's real registry, and against small ones that misbehave."""

import base64
import json
import os
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import parse_qs, urlsplit

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from locks.challenges import parse_challenges
from locks.credentials import Credentials, find_credentials
from locks.manifests import NotAManifest, children, media_type_of, single
from locks.patience import Patience, seconds_of
from locks.records import LockedImage
from locks.references import parse_reference
from locks.registry import RegistryClient, RegistryError, RegistryOptions
from locks.transport import Limits
from tests.unit.lock_servers import (
    Asked,
    Image,
    Reply,
    free_port,
    make_image,
    one_line,
    played,
    push,
    real_registry,
    serving,
)

NOW = "2026-01-31T12:00:00Z"
USER = ("operator", "pass:wörd/%20 'secret'")
BOTH = ("linux/amd64", "linux/arm64")


def options(tmp_path: Path, **more: object) -> RegistryOptions:
    """Options for the tests: nobody waits, and docker's configuration is not the user's own."""
    waits: list[float] = []
    limits = Limits(connect_s=2, read_s=0.3, answer_s=2, patience=Patience(sleep=waits.append))
    values = {"docker_config": tmp_path / "config.json", "limits": limits, **more}
    return RegistryOptions(**values)  # type: ignore[arg-type]


def resolve(text: str, chosen: RegistryOptions) -> LockedImage:
    return RegistryClient(chosen).resolve(parse_reference(text), now=NOW)


def fails(code: str, text: str, chosen: RegistryOptions) -> RegistryError:
    with pytest.raises(RegistryError) as failed:
        resolve(text, chosen)
    assert failed.value.code == code, str(failed.value)
    assert "pass:" not in str(failed.value)
    assert failed.value.host in str(failed.value)
    return failed.value


@pytest.fixture(scope="module")
def registry(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    with real_registry(tmp_path_factory.mktemp("registry")) as host:
        yield host


@pytest.fixture(scope="module")
def locked_registry(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    with real_registry(tmp_path_factory.mktemp("locked-registry"), USER) as host:
        push(host, "a/b", "v1", make_image(*BOTH), USER)
        yield host


# -- a real registry ---------------------------------------------------------------------------


@pytest.mark.parametrize("docker", [False, True], ids=["oci", "docker"])
def test_a_tag_of_a_real_registry_is_resolved_for_both_architectures(
    registry: str, tmp_path: Path, docker: bool
) -> None:
    image = make_image(*BOTH, docker=docker)
    push(registry, "lmsysorg/sglang", "v1", image)
    found = resolve(f"{registry}/lmsysorg/sglang:v1", options(tmp_path))
    assert found.index_digest == image.digest
    assert found.index_media_type == image.media_type
    assert found.answered_by == registry
    assert found.pinned == f"{registry}/lmsysorg/sglang@{image.digest}"
    for architecture, platform in (("x86_64", "linux/amd64"), ("aarch64", "linux/arm64")):
        one = found.for_architecture(architecture)
        assert one is not None
        assert one.manifest_digest == image.platforms[platform]
        assert one.config_digest in image.blobs
        assert one.compressed_bytes == image.sizes[platform]
    assert found.for_architecture("riscv64") is None


def test_a_real_image_without_an_index_says_its_platform_in_its_config(
    registry: str, tmp_path: Path
) -> None:
    image = make_image("linux/arm64", index=False)
    push(registry, "single", "v1", image)
    found = resolve(f"{registry}/single:v1", options(tmp_path))
    assert found.architectures() == ("aarch64",)
    assert found.index_digest == image.digest


def test_a_reference_by_digest_gets_its_platforms_from_a_real_registry(
    registry: str, tmp_path: Path
) -> None:
    image = make_image(*BOTH)
    push(registry, "by-digest", "v1", image)
    found = resolve(f"{registry}/by-digest@{image.digest}", options(tmp_path))
    assert found.tag is None
    assert found.architectures() == ("x86_64", "aarch64")


def test_a_head_request_tells_where_a_real_tag_points(registry: str, tmp_path: Path) -> None:
    image = make_image(*BOTH, words="head")
    push(registry, "head", "v1", image)
    client = RegistryClient(options(tmp_path))
    assert client.digest(parse_reference(f"{registry}/head:v1")) == image.digest


def test_a_missing_tag_of_a_real_registry_is_not_found(registry: str, tmp_path: Path) -> None:
    error = fails("REGISTRY_NOT_FOUND", f"{registry}/nobody/nothing:v1", options(tmp_path))
    assert "MANIFEST_UNKNOWN" in str(error) or "NAME_UNKNOWN" in str(error)


def test_an_architecture_that_a_real_tag_lacks_is_an_error_that_says_which_exist(
    registry: str, tmp_path: Path
) -> None:
    push(registry, "x86-only", "v1", make_image("linux/amd64", "windows/amd64"))
    reference = parse_reference(f"{registry}/x86-only:v1")
    with pytest.raises(RegistryError, match="linux/amd64") as failed:
        RegistryClient(options(tmp_path)).resolve(reference, now=NOW, architectures=["aarch64"])
    assert failed.value.code == "ARCHITECTURE_MISSING"
    push(registry, "neither", "v1", make_image("linux/s390x", "linux/arm/v7"))
    error = fails("ARCHITECTURE_MISSING", f"{registry}/neither:v1", options(tmp_path))
    assert "linux/s390x, linux/arm/v7" in str(error)


def test_a_proxy_in_the_environment_is_not_asked_for_this_machine(
    registry: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    push(registry, "proxied", "v1", make_image(*BOTH))
    for name in ("http_proxy", "https_proxy", "HTTP_PROXY", "HTTPS_PROXY", "ALL_PROXY"):
        monkeypatch.setenv(name, f"http://127.0.0.1:{free_port()}")
    monkeypatch.delenv("NO_PROXY", raising=False)
    monkeypatch.delenv("no_proxy", raising=False)
    assert resolve(f"{registry}/proxied:v1", options(tmp_path)).platforms


# -- logins ------------------------------------------------------------------------------------


def test_a_real_registry_with_a_password_refuses_us_without_one(
    locked_registry: str, tmp_path: Path
) -> None:
    error = fails("REGISTRY_UNAUTHORIZED", f"{locked_registry}/a/b:v1", options(tmp_path))
    assert f"docker login {locked_registry}" in str(error)
    assert error.command == f"docker login {locked_registry}"


def test_a_login_given_explicitly_opens_a_real_registry(
    locked_registry: str, tmp_path: Path
) -> None:
    chosen = options(tmp_path, credentials={locked_registry: Credentials(*USER)})
    assert resolve(f"{locked_registry}/a/b:v1", chosen).platforms
    assert USER[1] not in repr(chosen)


def test_what_docker_login_left_behind_opens_a_real_registry(
    locked_registry: str, tmp_path: Path
) -> None:
    auth = base64.b64encode(":".join(USER).encode()).decode()
    config = {"auths": {locked_registry: {"auth": auth}}}
    (tmp_path / "config.json").write_text(json.dumps(config))
    assert resolve(f"{locked_registry}/a/b:v1", options(tmp_path)).platforms


def test_a_wrong_password_is_refused_by_a_real_registry_and_its_source_is_named(
    locked_registry: str, tmp_path: Path
) -> None:
    wrong = Credentials(USER[0], "pass:wrong", source="a test")
    chosen = options(tmp_path, credentials={locked_registry: wrong})
    error = fails("REGISTRY_UNAUTHORIZED", f"{locked_registry}/a/b:v1", chosen)
    assert "The login from a test does not open it" in str(error)


def helper(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, script: str) -> None:
    program = tmp_path / "docker-credential-played"
    program.write_text(f"#!/bin/sh\n{script}\n")
    program.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}{os.pathsep}{os.environ['PATH']}")


def test_a_credential_helper_opens_a_real_registry(
    locked_registry: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    answer = json.dumps({"ServerURL": locked_registry, "Username": USER[0], "Secret": USER[1]})
    (tmp_path / "answer").write_text(answer)
    wanted = f'[ "$1 $(cat)" = "get {locked_registry}" ]'
    helper(tmp_path, monkeypatch, f"{wanted} && cat {tmp_path}/answer")
    (tmp_path / "config.json").write_text('{"credsStore": "played"}')
    assert resolve(f"{locked_registry}/a/b:v1", options(tmp_path)).platforms
    (tmp_path / "config.json").write_text(
        json.dumps({"credHelpers": {locked_registry: "played"}, "credsStore": "absent"})
    )
    assert resolve(f"{locked_registry}/a/b:v1", options(tmp_path)).platforms


@pytest.mark.parametrize(
    ("script", "note"),
    [
        ("echo credentials not found in native keychain; exit 1", None),
        ("echo pass:word >&2; exit 3", "exit code 3"),
        ("echo pass:word", "not JSON"),
    ],
)
def test_a_helper_that_fails_gives_no_credentials_and_a_note_without_its_output(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, script: str, note: str | None
) -> None:
    helper(tmp_path, monkeypatch, script)
    (tmp_path / "config.json").write_text('{"credsStore": "played"}')
    found = find_credentials("nvcr.io", tmp_path / "config.json")
    assert found.credentials is None
    assert (found.note is None) if note is None else (note in str(found.note))
    assert "pass:" not in str(found)


@pytest.mark.parametrize(
    "text",
    ["{", "[]", '{"auths": []}', '{"auths": {"nvcr.io": {"auth": "%%%"}}}', "[" * 100_000],
)
def test_a_broken_docker_configuration_is_no_credentials(tmp_path: Path, text: str) -> None:
    (tmp_path / "config.json").write_text(text)
    assert find_credentials("nvcr.io", tmp_path / "config.json").credentials is None


def test_docker_hub_stands_under_its_old_name_in_docker_s_configuration(tmp_path: Path) -> None:
    config = {"auths": {"https://index.docker.io/v1/": {"username": "a", "password": "b"}}}
    (tmp_path / "config.json").write_text(json.dumps(config))
    found = find_credentials("docker.io", tmp_path / "config.json").credentials
    assert found is not None
    assert found.username == "a"


# -- bearer tokens -----------------------------------------------------------------------------


def bearer(image: Image, seen: list[str], wants_basic: str | None = None) -> object:
    """A registry that wants a token, and gives it to anybody or to one user."""

    def answer(one: Asked) -> Reply:
        url = urlsplit(one.path)
        said = one.headers.get("Authorization")
        if url.path == "/token":
            form = parse_qs(one.body.decode()) or parse_qs(url.query)
            seen.append(f"{one.method} {form.get('scope', [''])[0]} {said}")
            if wants_basic is not None and said != wants_basic and "refresh_token" not in form:
                return Reply(401)
            return Reply(body=b'{"access_token": "t0ken"}')
        if said != "Bearer t0ken":
            realm = f"http://{one.headers['Host']}/token"
            challenge = f'Bearer realm="{realm}",service="s",scope="repository:a/b:pull"'
            return Reply(401, {"WWW-Authenticate": challenge})
        return serving(image, "v1")(one)

    return answer


def test_an_anonymous_token_is_fetched_once_and_used_for_all(tmp_path: Path) -> None:
    seen: list[str] = []
    with played(bearer(make_image(*BOTH), seen)) as server:  # type: ignore[arg-type]
        assert resolve(f"{server.host}/a/b:v1", options(tmp_path)).platforms
    assert seen == ["GET repository:a/b:pull None"]


def test_a_token_is_fetched_with_the_user_s_password_or_identity_token(tmp_path: Path) -> None:
    seen: list[str] = []
    user = Credentials(*USER)
    with played(bearer(make_image(*BOTH), seen, user.basic())) as server:  # type: ignore[arg-type]
        text = f"{server.host}/a/b:v1"
        assert resolve(text, options(tmp_path, credentials={server.host: user})).platforms
        token = Credentials("", identity_token="pass:identity")
        assert resolve(text, options(tmp_path, credentials={server.host: token})).platforms
        fails("REGISTRY_UNAUTHORIZED", text, options(tmp_path))
    assert [line.split()[0] for line in seen] == ["GET", "POST", "GET"]


@pytest.mark.parametrize(
    "realm", ["http://tokens.example/t", "ftp://a.example", "https://a;b/", "https://u@a.example/"]
)
def test_a_login_is_not_sent_to_a_realm_without_tls_or_sense(tmp_path: Path, realm: str) -> None:
    def answer(one: Asked) -> Reply:
        return Reply(401, {"WWW-Authenticate": f'Bearer realm="{realm}"'})

    with played(answer) as server:
        fails("REGISTRY_GARBAGE", f"{server.host}/a/b:v1", options(tmp_path))


def test_a_password_does_not_follow_a_redirect_to_another_host(tmp_path: Path) -> None:
    image = make_image("linux/amd64", index=False)
    with played(serving(image, "v1")) as store:

        def answer(one: Asked) -> Reply:
            if one.headers.get("Authorization") is None:
                return Reply(401, {"WWW-Authenticate": 'Basic realm="r"'})
            if "/blobs/" in one.path:
                return Reply(307, {"Location": f"http://{store.host}{one.path}?signature=pass:x"})
            return serving(image, "v1")(one)

        with played(answer) as server:
            chosen = options(tmp_path, credentials={server.host: Credentials(*USER)})
            assert resolve(f"{server.host}/a/b:v1", chosen).platforms
        assert [one.headers.get("Authorization") for one in store.asked] == [None]


# -- registries that misbehave -----------------------------------------------------------------


def test_too_many_requests_are_waited_for_as_long_as_the_server_says(tmp_path: Path) -> None:
    image, waits = make_image(*BOTH), list[float]()
    refusals = [Reply(429, {"Retry-After": "7"}), Reply(503)]

    def answer(one: Asked) -> Reply:
        if one.path == "/v2/":
            return Reply()
        return refusals.pop(0) if refusals else serving(image, "v1")(one)

    with played(answer) as server:
        chosen = options(tmp_path, limits=Limits(patience=Patience(sleep=waits.append)))
        assert resolve(f"{server.host}/a/b:v1", chosen).platforms
    assert waits == [7.0, 1.0]


def test_a_server_that_asks_for_an_hour_is_left_alone_and_the_hour_is_said(tmp_path: Path) -> None:
    with played(lambda one: Reply(429, {"Retry-After": "3600"})) as server:
        error = fails("REGISTRY_RATE_LIMITED", f"{server.host}/a/b:v1", options(tmp_path))
        assert "in 3600 s" in str(error)
        assert len([one for one in server.asked if one.path != "/v2/"]) == 1


def test_a_registry_that_keeps_failing_is_asked_four_times(tmp_path: Path) -> None:
    with played(lambda one: Reply(500)) as server:
        error = fails("REGISTRY_UNAVAILABLE", f"{server.host}/a/b:v1", options(tmp_path))
        assert "HTTP 500" in str(error)
        assert len([one for one in server.asked if one.path != "/v2/"]) == 4


@pytest.mark.parametrize(
    "reply",
    [
        Reply(body=b"<html>Please log in</html>", headers={"Content-Type": "text/html"}),
        Reply(body=b"[]"),
        Reply(body=b"{}"),
        Reply(body=b'{"schemaVersion": 1, "mediaType": "x/y"}'),
        Reply(body=b'{"manifests": [{"digest": "sha256:1"}]}'),
        Reply(body=b"[" * 200_000),
        Reply(body=b"x" * (5 * 1024 * 1024)),
        Reply(body=b"{}", headers={"Docker-Content-Digest": "md5:1"}),
        Reply(raw=b"SSH-2.0-OpenSSH_9.2\r\n"),
        Reply(302, {"Location": "http://elsewhere.example/"}),
        Reply(302, {"Location": "/v2/again"}),
        Reply(302, {"Location": "http://[/"}),
        Reply(418),
        Reply(401),
    ],
    ids=range(14),
)
def test_what_is_no_manifest_is_garbage_and_not_a_traceback(tmp_path: Path, reply: Reply) -> None:
    with played(lambda one: reply) as server:
        fails("REGISTRY_GARBAGE", f"{server.host}/a/b:v1", options(tmp_path))


def test_a_changed_body_is_a_digest_mismatch(tmp_path: Path) -> None:
    image, other = make_image(*BOTH), make_image(*BOTH, words="other")
    image.manifests[image.digest] = other.manifests[other.digest]
    with played(serving(image, "v1")) as server:
        error = fails("DIGEST_MISMATCH", f"{server.host}/a/b:v1", options(tmp_path))
        assert image.digest in str(error)
        assert other.digest in str(error)
        fails("DIGEST_MISMATCH", f"{server.host}/a/b@{image.digest}", options(tmp_path))


def test_a_changed_manifest_below_an_honest_index_is_a_digest_mismatch(tmp_path: Path) -> None:
    image, other = make_image(*BOTH), make_image(*BOTH, words="other")
    place = image.platforms["linux/arm64"]
    image.manifests[place] = other.manifests[other.platforms["linux/arm64"]]
    with played(serving(image, "v1")) as server:
        fails("DIGEST_MISMATCH", f"{server.host}/a/b:v1", options(tmp_path))


def test_a_silent_registry_is_unreachable_after_the_read_timeout(tmp_path: Path) -> None:
    def answer(one: Asked) -> Reply:
        return Reply() if one.path == "/v2/" else Reply(hang_s=1.5)

    with played(answer) as server:
        error = fails("REGISTRY_UNREACHABLE", f"{server.host}/a/b:v1", options(tmp_path))
        assert "silence" in str(error)


def test_a_port_where_nobody_listens_is_unreachable_and_the_sentence_says_so(
    tmp_path: Path,
) -> None:
    host = f"127.0.0.1:{free_port()}"
    error = fails("REGISTRY_UNREACHABLE", f"{host}/a/b:v1", options(tmp_path))
    assert "refused the connection" in str(error)
    assert error.command == f"curl -sI http://{host}/v2/"


def test_a_body_that_breaks_off_is_unreachable(tmp_path: Path) -> None:
    raw = b"HTTP/1.1 200 OK\r\nContent-Length: 1000\r\n\r\nshort"
    with played(lambda one: Reply(raw=raw)) as server:
        fails("REGISTRY_UNREACHABLE", f"{server.host}/a/b:v1", options(tmp_path))


def test_a_host_that_is_not_near_is_never_asked_without_tls(tmp_path: Path) -> None:
    client = RegistryClient(options(tmp_path))
    assert not client._transport.plain_allowed("registry.example:5000")
    listed = RegistryClient(options(tmp_path, insecure=frozenset({"registry.example"})))
    assert listed._transport.plain_allowed("registry.example:5000")


def test_a_near_registry_with_tls_is_asked_with_it_and_never_without(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with real_registry(tmp_path, tls=True) as host:
        text = f"{host}/a/b:v1"
        error = fails("REGISTRY_UNREACHABLE", text, options(tmp_path))
        assert "certificate is not trusted" in str(error)
        assert "REQUESTS_CA_BUNDLE" in str(error)
        monkeypatch.setenv("REQUESTS_CA_BUNDLE", str(tmp_path / "certificate.pem"))
        fails("REGISTRY_NOT_FOUND", text, options(tmp_path))


# -- mirrors -----------------------------------------------------------------------------------


def test_a_mirror_is_asked_first_with_its_path_before_the_repository(tmp_path: Path) -> None:
    image = make_image(*BOTH)
    with played(serving(image, "v1", "/v2/hub/lmsysorg/sglang/")) as mirror:
        chosen = options(tmp_path, mirrors={"docker.io": f"http://{mirror.host}/hub"})
        found = resolve("lmsysorg/sglang:v1", chosen)
    assert (found.registry, found.answered_by) == ("docker.io", mirror.host)
    assert found.pinned == f"docker.io/lmsysorg/sglang@{image.digest}"


def test_a_mirror_that_lies_is_passed_over_and_said_aloud(registry: str, tmp_path: Path) -> None:
    image, other = make_image(*BOTH, words="true"), make_image(*BOTH, words="false")
    push(registry, "mirrored", "v1", image)
    lie = make_image(*BOTH)
    lie.manifests[image.digest] = other.manifests[other.digest]
    lines: list[str] = []
    with played(serving(lie, "v0")) as mirror:
        chosen = options(tmp_path, mirrors={registry: f"http://{mirror.host}"})
        reference = parse_reference(f"{registry}/mirrored@{image.digest}")
        found = RegistryClient(chosen, lines.append).resolve(reference, now=NOW)
    assert found.answered_by == registry
    assert "DIGEST_MISMATCH" in lines[0]


def test_when_mirror_and_registry_both_fail_the_error_tells_of_both(tmp_path: Path) -> None:
    host = f"127.0.0.1:{free_port()}"
    with played(lambda one: Reply(404)) as mirror:
        chosen = options(tmp_path, mirrors={host: f"http://{mirror.host}"})
        error = fails("REGISTRY_UNREACHABLE", f"{host}/a/b:v1", chosen)
    assert mirror.host in str(error)


@pytest.mark.parametrize(
    "url",
    [
        "mirror.example",
        "http://mirror.example",
        "https://u:pass:x@m.example",
        "https://",
        "http://[",
    ],
)
def test_a_mirror_that_is_no_safe_address_is_refused_at_once(tmp_path: Path, url: str) -> None:
    with pytest.raises(ValueError, match="not usable") as refused:
        RegistryClient(options(tmp_path, mirrors={"docker.io": url}))
    assert "pass:" not in str(refused.value)


# -- parts -------------------------------------------------------------------------------------


def test_challenges_are_read_with_quotes_commas_and_several_at_once() -> None:
    text = 'Basic realm="a, \\"b\\"", Bearer realm="https://a/t",service=s , scope="x:y:pull,push"'
    basic, token = parse_challenges(text)
    assert (basic.scheme, basic.parameters) == ("basic", {"realm": 'a, "b"'})
    assert token.parameters == {"realm": "https://a/t", "service": "s", "scope": "x:y:pull,push"}


@settings(deadline=None)
@given(st.text(max_size=200))
def test_any_header_is_challenges_or_none(text: str) -> None:
    parse_challenges(text)
    wait = seconds_of(text)
    assert wait is None or wait >= 0


@settings(deadline=None)
@given(
    st.binary()
    | st.recursive(
        st.none() | st.integers() | st.text(max_size=5),
        lambda one: (
            st.lists(one, max_size=3)
            | st.dictionaries(
                st.sampled_from(["manifests", "config", "layers", "mediaType", "size", "platform"]),
                one,
            )
        ),
    ).map(lambda data: json.dumps(data).encode())
)
def test_any_body_is_a_manifest_or_refused(body: bytes) -> None:
    for read in (
        lambda: media_type_of(body, None),
        lambda: children(body),
        lambda: single(body, ""),
    ):
        try:
            read()
        except NotAManifest as error:
            one_line(error)
