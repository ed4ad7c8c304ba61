"""The hub, asked by its own client, on a small server that answers what that client asks."""

import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from locks.hub import HubError, HubOptions, ModelRefused, resolve_model
from locks.make import ModelRequest, make_lock
from locks.patience import Patience
from locks.records import Lock, LockedModel
from tests.unit.lock_servers import Asked, Reply, free_port, played

NOW = "2026-01-31T12:00:00Z"
COMMIT = "0123456789abcdef0123456789abcdef01234567"
SECRET = "hf_neverShownAnywhere"
WEIGHTS = {"size": 7_000_000_000, "sha256": "ab" * 32, "pointerSize": 135}
MODEL = {
    "id": "Qwen/Qwen3-8B",
    "sha": COMMIT,
    "siblings": [
        {"rfilename": "model.safetensors", "size": 7_000_000_000, "blobId": "c" * 40,
         "lfs": WEIGHTS},
        {"rfilename": "config.json", "size": 726, "blobId": "d" * 40},
    ],
}  # fmt: skip


def hub(reply: Reply) -> Callable[[Asked], Reply]:
    """Answer a question for a model with `reply`, and all else with 404."""

    def answer(one: Asked) -> Reply:
        return reply if one.path.startswith("/api/models/") else Reply(404)

    return answer


def ask(host: str, revision: str = "main", waits: list[float] | None = None) -> LockedModel:
    wait = (waits if waits is not None else []).append
    options = HubOptions(f"http://{host}", SECRET, 0.5, Patience(attempts=3, sleep=wait))
    return resolve_model("Qwen/Qwen3-8B", revision, now=NOW, options=options)


def fails(code: str, host: str, revision: str = "main") -> HubError:
    with pytest.raises(HubError) as failed:
        ask(host, revision)
    assert failed.value.code == code, str(failed.value)
    assert SECRET not in str(failed.value)
    assert "Qwen/Qwen3-8B" in str(failed.value)
    return failed.value


def test_a_branch_becomes_a_commit_with_files_sizes_and_checksums() -> None:
    with played(hub(Reply(body=json.dumps(MODEL).encode()))) as server:
        found = ask(server.host)
        (asked,) = [one for one in server.asked if one.path.startswith("/api/models/")]
    assert asked.path.lower() == "/api/models/qwen/qwen3-8b/revision/main?blobs=true"
    assert asked.headers["authorization"] == f"Bearer {SECRET}"
    assert (found.commit, found.total_bytes) == (COMMIT, 7_000_000_726)
    config, weights = found.files
    assert (config.path, config.git_blob, config.sha256) == ("config.json", "d" * 40, None)
    assert (weights.size_bytes, weights.sha256) == (7_000_000_000, "ab" * 32)
    assert weights.git_blob is None


def test_a_commit_that_is_asked_for_must_be_the_one_that_comes() -> None:
    with played(hub(Reply(body=json.dumps(MODEL).encode()))) as server:
        assert ask(server.host, COMMIT).commit == COMMIT
        fails("HUB_GARBAGE", server.host, "f" * 40)


@pytest.mark.parametrize(
    ("reply", "code", "says"),
    [
        (Reply(401, {"X-Error-Code": "GatedRepo"}), "HUB_GATED", "Accept its terms"),
        (Reply(403, {"X-Error-Code": "GatedRepo"}), "HUB_GATED", "hf auth login"),
        (Reply(401), "HUB_NOT_FOUND", "or it is private"),
        (Reply(404, {"X-Error-Code": "RepoNotFound"}), "HUB_NOT_FOUND", "spelling"),
        (Reply(404), "HUB_NOT_FOUND", "spelling"),
        (Reply(404, {"X-Error-Code": "RevisionNotFound"}), "HUB_REVISION_NOT_FOUND", "branches"),
        (
            Reply(401, {"X-Error-Message": "Invalid credentials in Authorization header"}),
            "HUB_UNAUTHORIZED",
            "token was refused",
        ),
        (Reply(403, {"X-Error-Message": "no"}), "HUB_UNAUTHORIZED", "token was refused"),
        (
            Reply(403, {"X-Error-Message": "Access to this resource is disabled."}),
            "HUB_NOT_FOUND",
            "shut",
        ),
        (Reply(429, {"Retry-After": "300"}), "HUB_RATE_LIMITED", "too many"),
        (Reply(500), "HUB_UNAVAILABLE", "HTTP 500"),
        (Reply(400), "HUB_GARBAGE", "HTTP 400"),
        (Reply(body=b"<html>Log in</html>"), "HUB_GARBAGE", "JSON"),
        (Reply(body=b"[]"), "HUB_GARBAGE", "there came"),
        (Reply(body=b"{}"), "HUB_GARBAGE", "there came"),
        (Reply(hang_s=1.0), "HUB_UNREACHABLE", "no answer"),
        (Reply(raw=b"SSH-2.0-OpenSSH_9.2\r\n"), "HUB_GARBAGE", "HTTP"),
    ],
    ids=range(17),
)
def test_every_refusal_of_the_hub_has_a_code_and_a_sentence(
    reply: Reply, code: str, says: str
) -> None:
    with played(hub(reply)) as server:
        assert says in str(fails(code, server.host))


@pytest.mark.parametrize(
    "change",
    [
        {"rfilename": "../../etc/cron.d/x"},
        {"rfilename": "/etc/passwd"},
        {"rfilename": "a\nb"},
        {"size": None},
        {"size": -1},
        {"blobId": None},
    ],
    ids=range(6),
)
def test_a_file_list_that_would_leave_its_folder_or_lacks_a_checksum_is_refused(
    change: dict[str, object],
) -> None:
    file = {"rfilename": "config.json", "size": 1, "blobId": "d" * 40, **change}
    body = json.dumps({**MODEL, "siblings": [file]}).encode()
    with played(hub(Reply(body=body))) as server:
        fails("HUB_GARBAGE", server.host)


def test_a_hub_that_fails_once_is_asked_again() -> None:
    replies = [Reply(503), Reply(body=json.dumps(MODEL).encode())]
    waits: list[float] = []
    with played(lambda one: replies.pop(0) if "/api/models/" in one.path else Reply(404)) as server:
        assert ask(server.host, waits=waits).commit == COMMIT
    assert waits == [0.5]


def test_a_hub_that_is_not_there_is_unreachable() -> None:
    fails("HUB_UNREACHABLE", f"127.0.0.1:{free_port()}")


@pytest.mark.parametrize(
    ("repo", "revision"),
    [
        ("/models/mine", "main"),
        ("../x", "main"),
        ("a/b/c", "main"),
        ("", "main"),
        ("a/b", ""),
        ("a/b", "main branch"),
        ("a/b", "../x"),
    ],
)
def test_what_is_no_model_is_refused_before_anybody_is_asked(repo: str, revision: str) -> None:
    with pytest.raises(ModelRefused):
        resolve_model(repo, revision, now=NOW)


def test_the_environment_chooses_the_hub_and_offline_is_honoured(tmp_path: Path) -> None:
    """In a process of its own: the hub's client reads its environment when it is imported."""
    program = (
        "import sys\n"
        "from locks.hub import HubError, resolve_model\n"
        "assert not [name for name in sys.modules if name.startswith('huggingface')]\n"
        "try:\n"
        f"    print(resolve_model('Qwen/Qwen3-8B', 'main', now='{NOW}').commit)\n"
        "except HubError as error:\n"
        "    print(error.code)\n"
    )
    with played(hub(Reply(body=json.dumps(MODEL).encode()))) as server:
        environment = {**os.environ, "HF_ENDPOINT": f"http://{server.host}", "HF_TOKEN": SECRET}
        environment["HF_HOME"] = str(tmp_path)
        for offline, expected in (("0", COMMIT), ("1", "HUB_OFFLINE")):
            environment["HF_HUB_OFFLINE"] = offline
            done = subprocess.run(
                [sys.executable, "-c", program], env=environment, capture_output=True, text=True
            )
            assert done.stdout.strip() == expected, done.stderr
        asked = [one for one in server.asked if one.path.startswith("/api/models/")]
    assert [one.headers["authorization"] for one in asked] == [f"Bearer {SECRET}"]


# --- config.json and the index: how much memory the model takes

CONFIG = {
    "model_type": "qwen3", "num_hidden_layers": 36, "head_dim": 128, "torch_dtype": "bfloat16",
    "layer_types": ["full_attention"] * 36, "vocab_size": 151936, "id2label": {"0": "x"},
}  # fmt: skip
INDEXED = {
    **MODEL,
    "siblings": [
        {"rfilename": "config.json", "size": 726, "blobId": "d" * 40},
        {"rfilename": "model.safetensors.index.json", "size": 900, "blobId": "e" * 40},
    ],
}


def whole_hub(config: Reply, index: Reply | None = None) -> Callable[[Asked], Reply]:
    """Answer for the model of INDEXED, its config and its index."""
    total = json.dumps({"metadata": {"total_size": 16381470720}, "weight_map": {}})

    def answer(one: Asked) -> Reply:
        if one.path.startswith("/api/models/"):
            return Reply(body=json.dumps(INDEXED).encode())
        if one.path == f"/Qwen/Qwen3-8B/resolve/{COMMIT}/config.json":
            return config
        if one.path == f"/Qwen/Qwen3-8B/resolve/{COMMIT}/model.safetensors.index.json":
            return index or Reply(body=total.encode())
        return Reply(404)

    return answer


def test_a_lock_keeps_what_a_config_says_of_memory_and_the_index_of_bytes() -> None:
    with played(whole_hub(Reply(body=json.dumps(CONFIG).encode()))) as server:
        found = ask(server.host)
        assert {one.headers.get("authorization") for one in server.asked} == {f"Bearer {SECRET}"}
    assert found.config == {
        "head_dim": 128, "layer_types": {"full_attention": 36}, "model_type": "qwen3",
        "num_hidden_layers": 36, "torch_dtype": "bfloat16",
    }  # fmt: skip
    assert (found.index_bytes, found.config_why) == (16381470720, None)
    again = Lock.model_validate(Lock(models={"Qwen/Qwen3-8B@main": found}).to_json())
    assert again.models["Qwen/Qwen3-8B@main"] == found


@pytest.mark.parametrize(
    ("reply", "says"),
    [
        (Reply(401, {"X-Error-Code": "GatedRepo"}), "gated or private (HTTP 401)"),
        (Reply(403), "sglang-node lock --refresh"),
        (Reply(404), "HTTP 404"),
        (Reply(503), "HTTP 503"),
        (Reply(hang_s=1.0), "no answer"),
        (Reply(raw=b"SSH-2.0-OpenSSH_9.2\r\n"), "no answer"),
        (Reply(body=b"<html>Log in</html>"), "not its JSON"),
        (Reply(body=b"[]"), "not its JSON"),
        (Reply(body=b"[" * 100_000), "not its JSON"),
    ],
    ids=range(9),
)
def test_a_config_that_cannot_be_read_leaves_the_model_locked_and_says_why(
    reply: Reply, says: str
) -> None:
    with played(whole_hub(reply)) as server:
        found = ask(server.host)
    assert (found.commit, found.config) == (COMMIT, None)
    assert found.config_why is not None
    assert says in found.config_why
    assert "config.json" in found.config_why
    assert SECRET not in found.config_why


def test_an_index_that_cannot_be_read_leaves_the_config_known() -> None:
    config = Reply(body=json.dumps(CONFIG).encode())
    for index in (Reply(500), Reply(body=b"{"), Reply(body=b'{"metadata": {"total_size": -1}}')):
        with played(whole_hub(config, index)) as server:
            found = ask(server.host)
        assert found.config is not None
        assert found.index_bytes is None


def test_a_lock_of_an_older_toolkit_is_read_and_gets_its_config_by_a_refresh() -> None:
    with played(whole_hub(Reply(body=json.dumps(CONFIG).encode()))) as server:
        new = ask(server.host)
        data = new.model_dump(exclude={"config", "index_bytes", "config_why"})
        old = Lock.model_validate({"models": {"Qwen/Qwen3-8B@main": data}})
        assert old.models["Qwen/Qwen3-8B@main"].config is None
        options = HubOptions(f"http://{server.host}", SECRET, 0.5)
        wanted = [ModelRequest("Qwen/Qwen3-8B", "main")]
        for refresh, known in ((False, False), (True, True)):
            made = make_lock(
                [], wanted, existing=old, now=NOW, refresh=refresh, hub_options=options
            )
            assert (made.models["Qwen/Qwen3-8B@main"].config is not None) == known
