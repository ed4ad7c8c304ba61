"""The lock: its file, its look-ups, where it lives, and how it is made."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from locks.hub import HubOptions, ModelRefused
from locks.lockfile import HEADER, LockError, parse_lock, read_lock, render_lock, write_lock
from locks.make import ImageRequest, ModelRequest, make_lock
from locks.patience import Patience
from locks.records import (
    Lock,
    LockedFile,
    LockedImage,
    LockedModel,
    PlatformImage,
    Unresolved,
)
from locks.references import ReferenceRefused
from locks.registry import RegistryOptions
from locks.transport import Limits
from locks.where import lock_path
from tests.unit.lock_servers import (
    Asked,
    Reply,
    free_port,
    make_image,
    one_line,
    played,
    push,
    real_registry,
)

NOW = "2026-01-31T12:00:00Z"
LATER = "2026-02-28T12:00:00+01:00"
PLACE = Path("inventories/sglang.lock")
COMMIT = "0123456789abcdef0123456789abcdef01234567"


def platform(letter: str) -> PlatformImage:
    return PlatformImage(
        manifest_digest="sha256:" + letter * 64,
        manifest_media_type="application/vnd.oci.image.manifest.v1+json",
        config_digest="sha256:" + "0" * 64,
        config_media_type="application/vnd.oci.image.config.v1+json",
        compressed_bytes=12_000_000_000,
    )


def sample() -> Lock:
    image = LockedImage(
        asked="lmsysorg/sglang:v0.5.22",
        registry="docker.io",
        repository="lmsysorg/sglang",
        tag="v0.5.22",
        index_digest="sha256:" + "1" * 64,
        index_media_type="application/vnd.oci.image.index.v1+json",
        platforms={"linux/arm64": platform("a"), "linux/amd64": platform("b")},
        answered_by="registry-1.docker.io",
        resolved_at=NOW,
    )
    files = (
        LockedFile(path="model.safetensors", size_bytes=7, sha256="c" * 64),
        LockedFile(path="config.json", size_bytes=5, git_blob="d" * 40),
    )
    model = LockedModel(
        repo="Qwen/Qwen3-8B",
        asked_revision="main",
        commit=COMMIT,
        files=files,
        resolved_at=NOW,
    )
    why = Unresolved(
        kind="image",
        what="a/b:v1",
        code="REGISTRY_NOT_FOUND",
        why="It is not there.",
        command="sglang-node lock site.py",
    )
    return Lock(
        images={image.asked: image}, models={"Qwen/Qwen3-8B@main": model}, unresolved=(why,)
    )


# -- look-ups ----------------------------------------------------------------------------------


def test_an_image_is_found_by_any_spelling_of_its_reference() -> None:
    lock = sample()
    for text in ("lmsysorg/sglang:v0.5.22", "docker.io/lmsysorg/sglang:v0.5.22"):
        found = lock.image(text)
        assert found is not None
        assert found.for_architecture("x86_64") == platform("b")
        assert found.for_architecture("aarch64") == platform("a")
        assert found.for_architecture("ppc64le") is None
    for text in ("lmsysorg/sglang:v0.5.23", "lmsysorg/sglang:latest", "", "nonsense\0"):
        assert lock.image(text) is None


def test_a_model_is_found_by_the_revision_that_was_asked_for() -> None:
    model = sample().model("Qwen/Qwen3-8B", "main")
    assert model is not None
    assert (model.commit, model.total_bytes) == (COMMIT, 12)
    assert sample().model("Qwen/Qwen3-8B", COMMIT) is None


def test_what_is_unresolved_says_why() -> None:
    why = sample().why_not("a/b:v1")
    assert why is not None
    assert why.code == "REGISTRY_NOT_FOUND"
    assert sample().why_not("lmsysorg/sglang:v0.5.22") is None


# -- the file ----------------------------------------------------------------------------------


def test_a_lock_that_is_written_reads_back_the_same_and_says_who_made_it(tmp_path: Path) -> None:
    path = tmp_path / "new" / "sglang.lock"
    assert read_lock(path) is None
    assert write_lock(path, sample())
    text = path.read_text()
    assert "Nothing in it is written by hand" in text.split("\n{")[0]
    again = read_lock(path)
    assert again is not None
    assert again.image("lmsysorg/sglang:v0.5.22") == sample().image("lmsysorg/sglang:v0.5.22")
    assert render_lock(again) == render_lock(sample()) == path.read_bytes()
    assert [file.name for file in path.parent.iterdir()] == ["sglang.lock"]


def test_a_lock_that_says_the_same_is_left_alone(tmp_path: Path) -> None:
    path = tmp_path / "sglang.lock"
    write_lock(path, sample())
    before = path.stat()
    assert not write_lock(path, sample())
    assert path.stat().st_mtime_ns == before.st_mtime_ns


def test_a_link_to_a_lock_stays_a_link(tmp_path: Path) -> None:
    (tmp_path / "link").symlink_to(tmp_path / "real")
    write_lock(tmp_path / "link", sample())
    assert (tmp_path / "link").is_symlink()
    assert (tmp_path / "real").is_file()


def test_the_order_in_the_file_does_not_depend_on_the_order_of_asking() -> None:
    lock = sample()
    image = lock.images["lmsysorg/sglang:v0.5.22"]
    turned = image.model_copy(update={"platforms": dict(reversed(image.platforms.items()))})
    model = lock.models["Qwen/Qwen3-8B@main"]
    files = model.model_copy(update={"files": tuple(reversed(model.files))})
    other = lock.model_copy(
        update={"images": {turned.asked: turned}, "models": {"Qwen/Qwen3-8B@main": files}}
    )
    assert render_lock(other) == render_lock(lock)


def broken(data: bytes) -> LockError:
    with pytest.raises(LockError) as failed:
        parse_lock(data, PLACE)
    assert str(PLACE) in str(failed.value)
    assert "run `sglang-node lock` again" in str(failed.value)
    assert str(failed.value).isprintable()
    return failed.value


def test_a_lock_of_a_newer_schema_is_refused_with_what_to_do() -> None:
    error = broken(b'{"schema_version": 3, "anything": {}}')
    assert error.key == "schema_version"
    assert "Update sglang-node" in str(error)


@pytest.mark.parametrize(
    ("data", "says"),
    [
        (b"", "line 1"),
        (b"# only a comment\n", "line 2"),
        (b"\xff", "not UTF-8"),
        (b"[]", "no JSON object"),
        (b"{}", "schema_version"),
        (b'{"schema_version": true}', "schema_version"),
        (b'{"schema_version": 1, "schema_version": 1}', "stands twice"),
        (b'{"schema_version": 1, "extra": 1}', "extra"),
        (b'{"schema_version": NaN}', "NaN"),
        (b'{"schema_version": ' + b"9" * 5000 + b"}", "digits"),
        (b"[" * 100_000, "nested too deeply"),
        (b"{\n<<<<<<< HEAD\n=======\n>>>>>>> other\n}", "unfinished git merge"),
    ],
    ids=range(12),
)
def test_a_broken_lock_is_refused_with_file_key_and_what_to_do(data: bytes, says: str) -> None:
    assert says in str(broken(data))


@pytest.mark.parametrize(
    ("where", "value"),
    [
        (("images", "lmsysorg/sglang:v0.5.22", "index_digest"), "sha256:123"),
        (("images", "lmsysorg/sglang:v0.5.22", "asked"), "a/b:v2"),
        (("images", "lmsysorg/sglang:v0.5.22", "resolved_at"), "yesterday"),
        (("models", "Qwen/Qwen3-8B@main", "commit"), "main"),
        (("models", "Qwen/Qwen3-8B@main", "files", 0, "size_bytes"), -1),
        (("models", "Qwen/Qwen3-8B@main", "files", 0, "path"), "../../etc/passwd"),
        (("models", "Qwen/Qwen3-8B@main", "files", 0, "sha256"), "e" * 64),
        (("unresolved", 0, "why"), "two\nlines"),
    ],
)
def test_a_value_changed_by_hand_into_nonsense_is_named(where: tuple[Any, ...], value: Any) -> None:
    data = json.loads(render_lock(sample()).decode().removeprefix(HEADER))
    place = data
    for part in where[:-1]:
        place = place[part]
    place[where[-1]] = value
    assert str(where[0]) in str(broken(json.dumps(data).encode()))


def test_a_folder_in_the_place_of_a_lock_is_an_error_with_its_reason(tmp_path: Path) -> None:
    (tmp_path / "sglang.lock").mkdir()
    with pytest.raises(LockError, match="cannot be read: Is a directory"):
        read_lock(tmp_path / "sglang.lock")
    with pytest.raises(LockError, match="cannot be written"):
        write_lock(tmp_path / "sglang.lock", sample())


WHOLE = render_lock(sample())


@settings(deadline=None)
@given(st.binary(max_size=300))
def test_any_bytes_are_a_lock_or_an_error(data: bytes) -> None:
    try:
        parse_lock(data, PLACE)
    except LockError as error:
        one_line(error)


@settings(deadline=None)
@given(st.integers(0, len(WHOLE)), st.integers(0, 40), st.binary(max_size=8))
def test_a_damaged_lock_is_a_lock_or_an_error(start: int, length: int, new: bytes) -> None:
    try:
        parse_lock(WHOLE[:start] + new + WHOLE[start + length :], PLACE)
    except LockError as error:
        one_line(error)


ANY_JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(max_size=5),
    lambda one: st.lists(one, max_size=3) | st.dictionaries(st.text(max_size=5), one, max_size=3),
    max_leaves=8,
)


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(st.fixed_dictionaries({"images": ANY_JSON, "models": ANY_JSON, "unresolved": ANY_JSON}))
def test_any_json_is_a_lock_or_an_error(data: dict[str, Any]) -> None:
    try:
        parse_lock(json.dumps({"schema_version": 1, **data}).encode(), PLACE)
    except LockError as error:
        one_line(error)


# -- where it lives ----------------------------------------------------------------------------


def test_a_lock_lies_beside_the_inventory_or_in_the_user_s_configuration(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path))
    (tmp_path / "hosts").write_text("")
    assert lock_path("inventories/site.py") == Path("inventories/sglang.lock")
    assert lock_path(str(tmp_path / "hosts")) == tmp_path / "sglang.lock"
    assert lock_path("@local") == tmp_path / "sglang-node" / "locks" / "@local.lock"
    names = ["gpu1", "gpu1,gpu2", "gpu1_gpu2", "@ssh/gpu1", "..", "", "a/../../b", "x" * 5000, "\0"]
    places = [lock_path(name) for name in names]
    assert len(set(places)) == len(names)
    assert {place.parent for place in places} == {tmp_path / "sglang-node" / "locks"}
    assert all(len(place.name) < 200 for place in places)


# -- making it ---------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def registry(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    with real_registry(tmp_path_factory.mktemp("registry")) as host:
        yield host


def options(tmp_path: Path) -> RegistryOptions:
    limits = Limits(connect_s=2, read_s=2, patience=Patience(attempts=1))
    return RegistryOptions(docker_config=tmp_path / "config.json", limits=limits)


def test_a_lock_is_made_once_kept_and_moved_only_by_a_refresh(
    registry: str, tmp_path: Path
) -> None:
    name = f"{registry}/lmsysorg/sglang:v0.5.22"
    first, second = make_image("linux/amd64", "linux/arm64"), make_image("linux/amd64", words="new")
    lines: list[str] = []

    def run(now: str, existing: Lock | None, refresh: bool = False) -> Lock:
        wanted = [ImageRequest(name, ("x86_64", "aarch64"))]
        return make_lock(
            wanted,
            [],
            now=now,
            existing=existing,
            registry_options=options(tmp_path),
            progress=lines.append,
            refresh=refresh,
        )

    push(registry, "lmsysorg/sglang", "v0.5.22", first)
    made = run(NOW, None)
    assert made.images[name].index_digest == first.digest
    assert made.unresolved == ()
    push(registry, "lmsysorg/sglang", "v0.5.22", second)
    lines.clear()
    assert run(LATER, made) == made
    assert lines == []
    moved = run(LATER, made, refresh=True)
    assert moved.images[name].index_digest == second.digest
    assert moved.images[name].resolved_at == LATER
    assert f"{name} moved: {first.digest} → {second.digest}" in lines
    (why,) = moved.unresolved
    assert (why.what, why.code) == (name, "ARCHITECTURE_MISSING")
    assert run(NOW, moved, refresh=True).images == moved.images


def test_what_cannot_be_resolved_stands_in_the_lock_with_the_command(
    registry: str, tmp_path: Path
) -> None:
    push(registry, "good", "v1", make_image("linux/amd64"))
    gone = f"127.0.0.1:{free_port()}"
    digest = "sha256:" + "9" * 64
    wanted = [f"{registry}/good:v1", f"{registry}/absent:v1", f"{gone}/a:v1", f"{gone}/b@{digest}"]
    lock = make_lock(
        [ImageRequest(text) for text in wanted],
        [ModelRequest("Qwen/Qwen3-8B")],
        now=NOW,
        registry_options=options(tmp_path),
        hub_options=HubOptions(f"http://{gone}", patience=Patience(attempts=1)),
    )
    assert sorted(lock.images) == sorted([wanted[0], wanted[3]])
    codes = {one.what: one.code for one in lock.unresolved}
    assert codes == {
        wanted[1]: "REGISTRY_NOT_FOUND",
        wanted[2]: "REGISTRY_UNREACHABLE",
        wanted[3]: "REGISTRY_UNREACHABLE",
        "Qwen/Qwen3-8B@main": "HUB_UNREACHABLE",
    }
    # Whoever reads it may have another inventory; and what the sentence says to run stands there once.
    assert all(one.command == "sglang-node lock TARGET" for one in lock.unresolved)
    whys = {one.what: one.why for one in lock.unresolved}
    assert whys[wanted[2]].endswith(f": curl -sI http://{gone}/v2/"), whys[wanted[2]]
    assert whys["Qwen/Qwen3-8B@main"].count("curl") == 1
    by_digest = lock.image(wanted[3])
    assert by_digest is not None
    assert by_digest.pinned == f"{gone}/b@{digest}"
    assert by_digest.for_architecture("x86_64") is None
    assert parse_lock(render_lock(lock), PLACE).images == lock.images


def test_a_refresh_that_fails_keeps_what_was_known(tmp_path: Path) -> None:
    lines: list[str] = []
    known = sample()
    image = known.images["lmsysorg/sglang:v0.5.22"]
    gone = f"127.0.0.1:{free_port()}"
    asked = f"{gone}/a:v1"
    image = image.model_copy(update={"asked": asked, "registry": gone})
    lock = make_lock(
        [ImageRequest(asked)],
        [ModelRequest("Qwen/Qwen3-8B")],
        now=LATER,
        existing=known.model_copy(update={"images": {asked: image}}),
        registry_options=options(tmp_path),
        hub_options=HubOptions(f"http://{gone}", patience=Patience(attempts=1)),
        progress=lines.append,
        refresh=True,
    )
    assert lock.images == {asked: image}
    assert lock.models == known.models
    assert {one.code for one in lock.unresolved} == {"REGISTRY_UNREACHABLE", "HUB_UNREACHABLE"}
    assert any("stays as it was locked" in line for line in lines)


def test_a_model_is_locked_kept_and_moved_by_a_refresh() -> None:
    commits = [COMMIT, "f" * 40, "f" * 40]
    lines: list[str] = []

    def answer(one: Asked) -> Reply:
        if not one.path.startswith("/api/models/"):
            return Reply(404)
        files = [{"rfilename": "config.json", "size": 5, "blobId": "d" * 40}]
        return Reply(
            body=json.dumps({"id": "a/b", "sha": commits.pop(0), "siblings": files}).encode()
        )

    with played(answer) as server:
        hub = HubOptions(f"http://{server.host}", "hf_x")

        def run(existing: Lock | None, refresh: bool) -> Lock:
            return make_lock(
                [],
                [ModelRequest("a/b")],
                now=NOW,
                existing=existing,
                hub_options=hub,
                progress=lines.append,
                refresh=refresh,
            )

        made = run(None, False)
        assert run(made, False) == made
        moved = run(made, True)
        assert run(moved, True) == moved
    assert commits == []
    assert lines[1:] == [f"a/b@main moved: {COMMIT} → {'f' * 40}", "a/b@main has not moved"]


def test_what_nobody_asks_for_any_more_goes_unless_the_lock_is_shared() -> None:
    assert make_lock([], [], now=NOW, existing=sample()) == Lock()
    assert make_lock([], [], now=NOW, existing=sample(), prune=False) == sample()


def test_bad_input_is_an_exception_before_anybody_is_asked() -> None:
    with pytest.raises(ReferenceRefused, match="latest"):
        make_lock([ImageRequest("lmsysorg/sglang:latest")], [], now=NOW)
    with pytest.raises(ModelRefused, match="folder on a node"):
        make_lock([], [ModelRequest("/models/mine")], now=NOW)
    with pytest.raises(ValueError, match="ISO time"):
        make_lock([], [], now="2026-01-31T12:00:00")
