"""The survey's part on models: run for real under three shells, and its lines understood."""

from __future__ import annotations

import json
import os
import shutil
from pathlib import Path

import pytest

from facts.parsing import parse_survey, read_recorded
from facts.records import ABSENT, ModelFiles, Unknown
from facts.request import SurveyRequest
from tests.recorded.compose_surveys import DEMO
from tests.unit.test_survey_program import (
    SHELLS,
    minimal_path,
    run,
    survey,
    without_path_of_its_own,
)

CONFIG = '{\n  "model_type": "qwen3",\n  "num_hidden_layers": 36\n}\n'


@pytest.fixture(params=list(SHELLS.values()), ids=list(SHELLS))
def shell(request: pytest.FixtureRequest) -> list[str]:
    found: list[str] = request.param
    return found


def model_in(directory: Path, **files: int) -> Path:
    """Make a directory with a config, an index and files of these sizes (holes, not bytes)."""
    directory.mkdir(parents=True)
    (directory / "config.json").write_text(CONFIG)
    for name, size in files.items():
        with (directory / name.replace("__", ".")).open("wb") as file:
            file.truncate(size)
    return directory


def asked(shell: list[str], *paths: Path | str) -> dict[str, ModelFiles]:
    output, _ = run(shell, SurveyRequest(models=tuple(map(str, paths))))
    return dict(survey(output).models)


def test_a_model_s_config_and_sizes_are_read_and_none_of_its_weights(
    shell: list[str], tmp_path: Path
) -> None:
    # Four terabytes: whoever reads them does not end before the deadline.
    there = model_in(tmp_path / "a model", a__safetensors=2 << 40, b__safetensors=2 << 40)
    blob = tmp_path / "blob"
    blob.write_bytes(b"12345")
    (there / "c.bin").symlink_to(blob)
    index = {"weight_map": {"w": "a"}, "metadata": {"total_size": 16060522496}}
    (there / "model.safetensors.index.json").write_text(json.dumps(index))
    (there / "tokenizer.json").write_text("{}")
    found = asked(shell, there)[str(there)]
    assert found == ModelFiles(
        path=str(there),
        exists=True,
        config=CONFIG,
        index_bytes=16060522496,
        sizes={"a.safetensors": 2 << 40, "b.safetensors": 2 << 40, "c.bin": 5},
    )


def test_what_is_not_there_is_said_apart(shell: list[str], tmp_path: Path) -> None:
    gguf = tmp_path / "q4.gguf"
    gguf.write_bytes(b"GGUF")
    empty = tmp_path / "empty"
    empty.mkdir()
    (empty / "params.json").write_text("{}")
    gone = tmp_path / "gone"
    found = asked(shell, gguf, empty, gone)
    assert found[str(gguf)] == ModelFiles(str(gguf), True, sizes={"q4.gguf": 4})
    assert found[str(empty)] == ModelFiles(str(empty), True, sizes={}, mistral_form=True)
    assert found[str(gone)] == ModelFiles(str(gone), exists=False)


def test_a_config_of_a_megabyte_and_more_is_no_config(shell: list[str], tmp_path: Path) -> None:
    there = model_in(tmp_path / "m")
    (there / "config.json").write_text("[" + "1," * 600_000 + "1]")
    config = asked(shell, there)[str(there)].config
    assert config == Unknown("malformed", "larger than 1 MiB")


@pytest.mark.skipif(os.getuid() != 0, reason="only root can become another user")
def test_a_model_that_may_not_be_read_is_unreadable_and_not_missing(
    shell: list[str], tmp_path: Path
) -> None:
    from facts.survey import PROGRAM

    there = model_in(Path("/tmp") / f"closed-model-{os.getpid()}", a__safetensors=5)
    there.chmod(0o700)
    readable = Path("/tmp") / f"survey-models-{os.getpid()}.sh"
    shutil.copy(PROGRAM, readable)
    try:
        request = SurveyRequest(models=(str(there),))
        output, _ = run(shell, request, user="nobody", program=readable)
    finally:
        readable.unlink()
        shutil.rmtree(there)
    found = survey(output).models[str(there)]
    assert found.exists is True
    for value in (found.config, found.sizes, found.index_bytes):
        assert isinstance(value, Unknown)
        assert value.why == "unreadable"


def test_a_minimal_system_reads_models_too(shell: list[str], tmp_path: Path) -> None:
    there = model_in(tmp_path / "m", a__safetensors=7)
    program = without_path_of_its_own(tmp_path)
    shell = [shutil.which(shell[0]) or shell[0], *shell[1:]]
    request = SurveyRequest(models=(str(there),))
    output, _ = run(shell, request, path=minimal_path(tmp_path / "bin"), program=program)
    assert survey(output).models[str(there)].sizes == {"a.safetensors": 7}
    assert survey(output).models[str(there)].config == CONFIG


@pytest.mark.parametrize("path", sorted(DEMO.glob("*.survey")), ids=lambda path: path.stem)
def test_a_survey_of_before_there_were_models_is_read_and_has_none(path: Path) -> None:
    assert read_recorded(path).models == {}


def test_a_model_on_a_mount_that_does_not_answer_is_unreadable() -> None:
    lines = [
        "sglang-survey 1 0.1.0",
        "@ parts rc=0",
        " unfinished model-2 model /mnt/dead/m",
        "@ end",
    ]
    found = parse_survey(lines, "node").models["/mnt/dead/m"]
    assert isinstance(found.exists, Unknown)
    assert isinstance(found.config, Unknown)
    assert found.config.why == "unreadable"


def test_lines_of_another_form_are_no_sizes() -> None:
    lines = [
        "sglang-survey 1 0.1.0",
        "@ model rc=0",
        " /m",
        " size many /m/a.safetensors",
        " size 5 b.safetensors",
        " index lots",
        "@ end",
    ]
    found = parse_survey(lines, "node").models["/m"]
    assert (found.sizes, found.config) == ({}, ABSENT)
    assert isinstance(found.index_bytes, Unknown)
