"""The program that checks weights, over directories as they come: whole, cut, closed, pointers."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.played_hub import safetensors

PROGRAM = Path(__file__).parents[2] / "templates/check_weights.py"
INDEX = {"weight_map": {"a": "model-1.safetensors", "b": "model-2.safetensors"}}


@pytest.fixture
def model(tmp_path: Path) -> Path:
    """A model in two shards that is as it should be."""
    folder = tmp_path / "model"
    folder.mkdir()
    (folder / "config.json").write_text('{"architectures": ["Qwen3ForCausalLM"]}')
    (folder / "model.safetensors.index.json").write_text(json.dumps(INDEX))
    (folder / "model-1.safetensors").write_bytes(safetensors(5000))
    (folder / "model-2.safetensors").write_bytes(safetensors(100))
    (folder / "tokenizer.json").write_text("{}")
    return folder


def check(model: Path, files: Any = None, user: int | None = None) -> tuple[int, str]:
    """Run the check; return its exit status and last line."""
    job = model.parent / "job.json"
    job.write_text(json.dumps({"directory": str(model), "files": files}))
    words = [sys.executable, str(PROGRAM), str(job)]
    if user is not None:
        # This Python itself may be closed to another user: what it needs is imported before.
        become = (
            "import __future__, contextlib, json, os, pathlib, sys, typing\n"
            f"code = open({str(PROGRAM)!r}).read()\n"
            f"os.setgroups([]); os.setgid({user}); os.setuid({user})\n"
            f"sys.argv = ['check', {str(job)!r}]\n"
            "exec(compile(code, 'check', 'exec'), {'__name__': '__main__'})"
        )
        words = [sys.executable, "-c", become]
    done = subprocess.run(words, capture_output=True, text=True, timeout=30, check=False)
    assert done.stderr == ""
    return done.returncode, done.stdout.splitlines()[-1]


def test_a_whole_model_is_told_with_its_architecture(model: Path) -> None:
    code, line = check(model, [["config.json", 39], ["model-2.safetensors", len(safetensors(100))]])
    assert code == 0
    seen = json.loads(line.removeprefix("@weights "))
    assert seen["architectures"] == ["Qwen3ForCausalLM"]
    assert seen["files"] == 2
    assert seen["bytes"] == len(safetensors(5000)) + len(safetensors(100))


def cut(model: Path) -> None:
    os.truncate(model / "model-1.safetensors", 3000)


def pointer(model: Path) -> None:
    text = "version https://git-lfs.github.com/spec/v1\noid sha256:ab\nsize 5000\n"
    (model / "model-1.safetensors").write_text(text)


def without(name: str) -> Callable[[Path], None]:
    return lambda model: (model / name).unlink()


def written(name: str, text: str) -> Callable[[Path], None]:
    def change(model: Path) -> None:
        (model / name).write_text(text)

    return change


def dangling(model: Path) -> None:
    (model / "model-2.safetensors").unlink()
    (model / "model-2.safetensors").symlink_to("../blobs/gone")


def without_weights(model: Path) -> None:
    for name in ("model-1.safetensors", "model-2.safetensors", "model.safetensors.index.json"):
        (model / name).unlink()


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        (cut, "model-1.safetensors has 3.0 kB of 5.1 kB: its copy was cut."),
        (pointer, "model-1.safetensors is a pointer of Git LFS, not the file itself: git lfs pull"),
        (without("model-2.safetensors"), "model.safetensors.index.json names model-2.safetensors"),
        (dangling, "model.safetensors.index.json names model-2.safetensors, which is not in"),
        (written("model-2.safetensors", ""), "names model-2.safetensors, which is not in"),
        (written("model-2.safetensors", "<html>"), "does not begin as safetensors do"),
        (written("extra.safetensors", ""), "extra.safetensors is empty"),
        (without("config.json"), "config.json is not there"),
        (written("config.json", "[1]"), "config.json is no JSON object"),
        (written("config.json", "{"), "config.json is no JSON object"),
        (written("model.safetensors.index.json", "{}"), "is not an index of weights"),
        (without_weights, "there are no weights in"),
    ],
)
def test_what_is_not_whole_is_one_sentence(
    change: Callable[[Path], None], sentence: str, model: Path
) -> None:
    change(model)
    code, line = check(model)
    assert code == 1
    assert line.startswith("@failed WEIGHTS_INCOMPLETE ")
    assert sentence in line


def test_a_file_of_another_size_than_the_lock_s_is_told(model: Path) -> None:
    code, line = check(model, [["tokenizer.json", 3]])
    assert code == 1
    assert line.endswith("tokenizer.json has 2 bytes, the lock says 3.")


@pytest.mark.parametrize("name", ["", "model-1.safetensors", "config.json", "tokenizer.json"])
def test_what_another_user_closed_is_named_with_its_owner(
    name: str, model: Path, request: pytest.FixtureRequest
) -> None:
    if os.geteuid() != 0:
        pytest.skip("not root: cannot act as another user")
    # pytest's own directories are closed to others.
    apart = tempfile.mkdtemp()
    request.addfinalizer(lambda: shutil.rmtree(apart))
    Path(apart).chmod(0o755)
    model = Path(shutil.copytree(model, f"{apart}/model"))
    (model / name).chmod(0o700)
    code, line = check(model, user=65534)
    assert code == 1
    assert line.startswith(f"@failed WEIGHTS_UNREADABLE {str(model / name).rstrip('/')} (owner 0:0")
    assert f"chmod -R a+rX {str(model / name).rstrip('/')}" in line


def test_weights_of_other_formats_need_no_config_of_transformers(tmp_path: Path) -> None:
    one = tmp_path / "model.gguf"
    one.write_bytes(b"GGUF1234")
    code, line = check(one)
    assert (code, json.loads(line.removeprefix("@weights "))["has_config"]) == (0, False)
    mistral = tmp_path / "mistral"
    mistral.mkdir()
    (mistral / "params.json").write_text("{}")
    (mistral / "consolidated.safetensors").write_bytes(safetensors(10))
    code, line = check(mistral)
    assert (code, json.loads(line.removeprefix("@weights "))["has_config"]) == (0, False)


def test_a_path_that_is_not_there_is_told(tmp_path: Path) -> None:
    code, line = check(tmp_path / "nowhere")
    assert code == 1
    assert line.startswith("@failed WEIGHTS_INCOMPLETE ")
    assert "No such file or directory" in line
