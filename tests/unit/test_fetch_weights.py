"""The program that fetches weights, with the hub's real client, from a small hub on loopback."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from tests.played_hub import COMMIT, Hub, safetensors, serving

PROGRAM = Path(__file__).parents[2] / "templates/fetch_weights.py"
REPO = "Qwen/Qwen3-8B"
LARGE = 24_000_000
"""Bytes of a shard: the client keeps whole blocks of 10 MiB where a connection breaks."""
BLOCK = 10 * 1024 * 1024
INDEX = {
    "weight_map": {
        "a": "model-00001-of-00002.safetensors",
        "b": "model-00002-of-00002.safetensors",
    }
}
SHARD = "model-00001-of-00002.safetensors"
SECRET = "hf_neverShownAnywhere"


def model(length: int = 300_000, **changes: Any) -> Hub:
    """Return a hub with a model in two shards, the first with so many bytes."""
    files = {
        "config.json": b'{"architectures": ["Qwen3ForCausalLM"]}',
        "model.safetensors.index.json": json.dumps(INDEX).encode(),
        SHARD: safetensors(length),
        "model-00002-of-00002.safetensors": safetensors(1000),
        "tokenizer/vocab.txt": b"hello\n" * 10,
        "empty.txt": b"",
        "empty_too.txt": b"",
    }
    return Hub(REPO, files, **changes)


@dataclass
class Ran:
    """How the program ended."""

    code: int
    out: list[str] = field(default_factory=list)
    err: str = ""

    @property
    def failed(self) -> str:
        """The code and sentence of its failure; there is exactly one."""
        (line,) = [one for one in self.out if one.startswith("@failed ")]
        return line.removeprefix("@failed ")


@dataclass
class Site:
    """A node's directory of weights, and the program over it."""

    folder: Path
    hub: Hub
    endpoint: str
    parallel: int = 3

    @property
    def cache(self) -> Path:
        return self.folder / "home/hub/models--Qwen--Qwen3-8B"

    @property
    def snapshot(self) -> Path:
        return self.cache / "snapshots" / COMMIT

    @property
    def marker(self) -> Path:
        return self.folder / "home/sglang/marker"

    def start(self, **environment: str) -> subprocess.Popen[str]:
        job = self.folder / "job.json"
        data = {
            "repo": REPO,
            "commit": COMMIT,
            "home": str(self.folder / "home"),
            "marker": str(self.marker),
            "parallel": self.parallel,
            "files": self.hub.listed(),
        }
        job.write_text(json.dumps(data))
        clean = {k: v for k, v in os.environ.items() if not k.startswith("HF_")}
        return subprocess.Popen(
            [sys.executable, str(PROGRAM), str(job)],
            env={
                **clean,
                "HF_HOME": str(self.folder / "home"),
                "HF_ENDPOINT": self.endpoint,
                "HOME": str(self.folder),
                **environment,
            },
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )

    def run(self, **environment: str) -> Ran:
        process = self.start(**environment)
        out, err = process.communicate(timeout=60)
        assert SECRET not in out + err
        return Ran(process.returncode, out.splitlines(), err)

    def is_whole(self) -> bool:
        """Whether the snapshot holds exactly the hub's files, and nothing is left beside."""
        for path, body in self.hub.files.items():
            if (self.snapshot / path).read_bytes() != body:
                return False
        left = [one.name for one in self.cache.rglob("*") if one.name.endswith((".part", ".new"))]
        return self.marker.is_file() and not left

    def forget(self) -> None:
        self.hub.asked.clear()


def test_every_file_comes_and_the_client_finds_it_offline(tmp_path: Path) -> None:
    with serving(hub := model()) as endpoint:
        site = Site(tmp_path, hub, endpoint)
        ran = site.run()
    assert ran.code == 0, ran.err
    assert site.is_whole()
    assert ran.out[-1].startswith("7 of 7 files, 301.3 kB of 301.3 kB: ")
    # The hub is gone: SGLang's own way of asking still finds the files.
    told = subprocess.run(
        [
            sys.executable,
            "-c",
            "import sys; from huggingface_hub import snapshot_download, hf_hub_download\n"
            f"print(snapshot_download({REPO!r}, revision={COMMIT!r}, "
            "allow_patterns=['*.safetensors'], local_files_only=True))\n"
            f"print(hf_hub_download({REPO!r}, 'config.json', revision={COMMIT!r}))",
        ],
        env={**os.environ, "HF_HOME": str(tmp_path / "home"), "HF_HUB_OFFLINE": "1"},
        capture_output=True,
        text=True,
        check=True,
    )
    assert told.stdout.split() == [str(site.snapshot), str(site.snapshot / "config.json")]


def test_a_second_run_asks_the_hub_nothing(tmp_path: Path) -> None:
    with serving(hub := model()) as endpoint:
        site = Site(tmp_path, hub, endpoint)
        assert site.run().code == 0
        site.forget()
        ran = site.run()
    assert ran.code == 0
    assert hub.asked == []
    assert all(line.endswith("was there") for line in ran.out)
    assert site.is_whole()


def test_the_files_of_one_content_are_fetched_once(tmp_path: Path) -> None:
    with serving(hub := model()) as endpoint:
        hub.files["again.safetensors"] = hub.files[SHARD]
        site = Site(tmp_path, hub, endpoint)
        assert site.run().code == 0
    assert len(hub.ranges(SHARD)) + len(hub.ranges("again.safetensors")) == 1
    assert site.is_whole()


def test_a_connection_that_breaks_is_gone_on_with_where_it_broke(tmp_path: Path) -> None:
    with serving(hub := model(LARGE, cuts={SHARD: [11_000_000, 11_000_000]})) as endpoint:
        site = Site(tmp_path, hub, endpoint)
        ran = site.run()
    assert ran.code == 0, ran.out
    assert site.is_whole()
    assert hub.ranges(SHARD) == [None, f"bytes={BLOCK}-", f"bytes={2 * BLOCK}-"]


def test_a_run_that_was_killed_is_gone_on_with_by_the_next(tmp_path: Path) -> None:
    # It breaks after each request until the program is killed.
    with serving(hub := model(LARGE, cuts={SHARD: [11_000_000] + [0] * 50})) as endpoint:
        site = Site(tmp_path, hub, endpoint)
        process = site.start()
        part = site.cache / "blobs"
        end = time.monotonic() + 30
        while time.monotonic() < end:
            # Small files come and go beside it.
            with contextlib.suppress(FileNotFoundError):
                if any(one.stat().st_size == BLOCK for one in part.glob("*.part")):
                    break
            time.sleep(0.05)
        process.send_signal(signal.SIGKILL)
        process.communicate()
        assert [one.stat().st_size for one in part.glob("*.part")] == [BLOCK]
        hub.cuts.clear()
        site.forget()
        ran = site.run()
    assert ran.code == 0, ran.out
    assert hub.ranges(SHARD) == [f"bytes={BLOCK}-"]
    assert site.is_whole()


def test_a_gated_model_is_one_sentence_and_nothing_more(tmp_path: Path) -> None:
    with serving(hub := model(token=SECRET)) as endpoint:
        site = Site(tmp_path, hub, endpoint)
        ran = site.run()
    assert ran.code == 1
    assert ran.failed.startswith("HUB_GATED ")
    assert "with no token: the model is gated (HTTP 401)" in ran.failed
    assert ran.out == [f"@failed {ran.failed}"]
    assert len(hub.asked) == 1
    assert not site.marker.exists()


def test_the_token_of_the_file_opens_it(tmp_path: Path) -> None:
    token = tmp_path / "token"
    token.write_text(f"{SECRET}\n")
    with serving(hub := model(token=SECRET)) as endpoint:
        site = Site(tmp_path, hub, endpoint)
        hub.apart = hub.host.replace("127.0.0.1", "localhost")
        ran = site.run(HF_TOKEN_PATH=str(token))
        assert ran.code == 0, ran.out
        assert f"Bearer {SECRET}" in hub.tokens
        # Another host serves the large files, and is no friend.
        assert hub.tokens_apart == {None}
        hub.token = "another"
        (tmp_path / "second").mkdir()
        ran = Site(tmp_path / "second", hub, endpoint).run(HF_TOKEN_PATH=str(token))
    assert ran.failed.startswith("HUB_GATED ")
    assert "with the node's token: the model is gated (HTTP 403)" in ran.failed


@pytest.mark.parametrize(
    ("status", "error", "code"),
    [
        (404, "RepoNotFound", "HUB_NOT_FOUND"),
        (404, "RevisionNotFound", "HUB_REVISION_NOT_FOUND"),
        (404, "EntryNotFound", "HUB_GARBAGE"),
        (403, None, "HUB_UNAUTHORIZED"),
        (418, None, "HUB_GARBAGE"),
    ],
)
def test_each_refusal_of_the_hub_has_its_code(
    status: int, error: str | None, code: str, tmp_path: Path
) -> None:
    with serving(hub := model(status=status, error=error)) as endpoint:
        ran = Site(tmp_path, hub, endpoint).run()
    assert ran.code == 1
    assert ran.failed.startswith(f"{code} ")
    assert ran.failed.isprintable()


def test_a_hub_that_is_down_is_one_sentence(tmp_path: Path) -> None:
    with serving(hub := model()) as endpoint:
        site = Site(tmp_path, hub, endpoint)
    site.endpoint = "http://127.0.0.1:9"
    ran = site.run()
    assert ran.code == 1
    assert ran.failed.startswith("HUB_UNREACHABLE http://127.0.0.1:9 was asked for ")


def test_what_is_not_what_the_lock_has_is_fetched_twice_and_refused(tmp_path: Path) -> None:
    body = bytearray(safetensors(300_000))
    body[200_000] ^= 1
    with serving(hub := model(changed={SHARD: bytes(body)})) as endpoint:
        site = Site(tmp_path, hub, endpoint)
        ran = site.run()
        assert ran.code == 1
        assert ran.failed.startswith(f"WEIGHTS_DAMAGED {SHARD} of {REPO} came twice")
        assert hub.ranges(SHARD) == [None, None]
        assert not site.marker.exists()
        assert not (site.snapshot / SHARD).exists()
        hub.changed.clear()
        assert site.run().code == 0
    assert site.is_whole()


def test_a_part_that_was_damaged_is_fetched_from_its_beginning(tmp_path: Path) -> None:
    with serving(hub := model()) as endpoint:
        site = Site(tmp_path, hub, endpoint)
        part = site.cache / "blobs" / f"{hub.listed()[3][2]}.part"
        assert hub.listed()[3][0] == SHARD
        part.parent.mkdir(parents=True)
        part.write_bytes(b"x" * 150_000)
        ran = site.run()
    assert ran.code == 0
    assert hub.ranges(SHARD) == ["bytes=150000-", None]
    assert site.is_whole()


def test_a_file_that_changed_on_the_disk_is_fetched_again(tmp_path: Path) -> None:
    with serving(hub := model()) as endpoint:
        site = Site(tmp_path, hub, endpoint)
        assert site.run().code == 0
        site.forget()
        blob = (site.snapshot / SHARD).resolve()
        changed = bytearray(blob.read_bytes())
        changed[100] ^= 1
        blob.write_bytes(changed)
        os.utime(blob, (1, 1))
        ran = site.run()
    assert ran.code == 0
    assert hub.ranges(SHARD) == [None]
    assert site.is_whole()


def test_files_that_an_operator_brought_are_hashed_and_not_fetched(tmp_path: Path) -> None:
    with serving(hub := model()) as endpoint:
        site = Site(tmp_path, hub, endpoint)
        for path, body in hub.files.items():
            (site.snapshot / path).parent.mkdir(parents=True, exist_ok=True)
            (site.snapshot / path).write_bytes(body)
        (site.snapshot / "config.json").write_bytes(b"?" * len(hub.files["config.json"]))
        ran = site.run()
    assert ran.code == 0
    assert [path for _, path, _ in hub.asked] == [f"/{REPO}/resolve/{COMMIT}/config.json"]
    assert site.is_whole()


def test_no_more_files_are_read_at_once_than_was_said(tmp_path: Path) -> None:
    with serving(hub := model()) as endpoint:
        for number in range(20):
            hub.files[f"more-{number}.safetensors"] = safetensors(400_000 + number)
        site = Site(tmp_path, hub, endpoint, parallel=2)
        assert site.run().code == 0
    assert hub.most_at_once <= 2


def test_a_file_that_takes_long_shows_how_far_it_is(tmp_path: Path) -> None:
    with serving(hub := model(LARGE, cuts={SHARD: [11_000_000, 1]})) as endpoint:
        ran = Site(tmp_path, hub, endpoint).run(SGLANG_WEIGHTS_PROGRESS_S="0.3")
    assert ran.code == 0
    assert any(line.startswith(f"{SHARD}: ") and line.endswith(" of 24.0 MB") for line in ran.out)


def test_a_directory_that_cannot_be_written_is_said(tmp_path: Path) -> None:
    (tmp_path / "home").write_text("a file")
    with serving(hub := model()) as endpoint:
        ran = Site(tmp_path, hub, endpoint).run()
    assert ran.code == 1
    assert ran.failed.startswith("WEIGHTS_NOT_WRITTEN ")
