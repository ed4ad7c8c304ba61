"""The survey and what must not travel: keys, checksums of tokens, values that look secret."""

from __future__ import annotations

import os
import shutil
import sys
from pathlib import Path

import pytest

from facts.records import Unknown
from facts.request import SurveyRequest
from plans.secrets import Secret, key_file
from tests.unit.doors import door
from tests.unit.test_survey_program import (
    minimal_path,
    program_in,
    run,
    survey,
    without_path_of_its_own,
)

KEY = "sk-" + "q7" * 20


@pytest.mark.parametrize("client", ["curl", "python3", "wget"])
def test_a_service_that_holds_a_key_is_asked_with_it_and_the_key_stays_there(
    client: str, tmp_path: Path
) -> None:
    real = os.path.realpath(sys.executable) if client == "python3" else shutil.which(client)
    if real is None:
        pytest.skip(f"{client} is not installed here")
    deployment = tmp_path / "deployments" / "chat" / "1"
    deployment.mkdir(parents=True)
    (deployment.parent / "current").symlink_to("1")
    config = tmp_path / "credentials" / "1.yaml"
    config.parent.mkdir()
    held = key_file("chat", 1, "port: 1\n", {"api-key": Secret(KEY)})
    config.write_text(held.content.reveal(), encoding="utf-8")
    words = tmp_path / "words"
    path = minimal_path(tmp_path / "bin")
    program_in(tmp_path / "bin", client, f'printf "%s " "$@" >> {words}; exec {real} "$@"')
    program_in(
        tmp_path / "bin",
        "systemctl",
        '[ "$1" = show ] && printf "Id=sglang@chat.service\\nActiveState=active\\n"; exit 0',
    )
    with door(KEY) as port:
        (deployment / "launch.env").write_text(
            f'SGLANG_PORT="{port}"\nSGLANG_ADDRESS="127.0.0.1"\nSGLANG_READY_PATH="/ready"\n'
            f'SGLANG_CONFIG="{config}"\n',
            encoding="utf-8",
        )
        output, _ = run(
            [shutil.which("sh") or "sh"],
            SurveyRequest(deployments=str(tmp_path / "deployments")),
            path=path,
            program=without_path_of_its_own(tmp_path),
        )
    seen = survey(output)
    answer = seen.services["chat"].answer
    assert not isinstance(answer, Unknown)
    assert (answer.ready, answer.model_names) == (200, ("tiny",))
    assert KEY not in output
    assert KEY not in words.read_text(encoding="utf-8")
    assert seen.files[str(config)].sha256 == held.sha256
    assert isinstance(seen.files[str(config)].text, Unknown)


def test_of_a_token_not_even_the_checksum_travels(tmp_path: Path) -> None:
    token = tmp_path / "hub-token"
    token.touch(0o600)
    token.write_text("hf_x\n", encoding="utf-8")
    output, _ = run(["sh"], SurveyRequest(secrets=(str(token), str(tmp_path / "none"))))
    files = survey(output).files
    there = files[str(token)]
    assert (there.exists, there.mode) == (True, "0600")
    assert isinstance(there.sha256, Unknown)
    assert not files[str(tmp_path / "none")].exists


@pytest.mark.parametrize(
    "line",
    [
        "api-key: VALUE",
        '  "api_key": "VALUE",',
        "'admin-api-key': VALUE",
        "API_KEY=VALUE",
        'HF2_TOKEN="a"\nHF_TOKEN="VALUE"',
        "AWS_SECRET_ACCESS_KEY=VALUE",
        "db_password : VALUE",
        "client_secret=VALUE",
        "private-key: VALUE",
    ],
)
def test_a_value_that_looks_secret_is_masked_in_every_form(line: str, tmp_path: Path) -> None:
    file = tmp_path / "text"
    file.write_text(line.replace("VALUE", KEY) + "\nport: 1\n", encoding="utf-8")
    output, _ = run(["sh"], SurveyRequest(texts=(str(file),)))
    assert KEY not in output
    text = survey(output).files[str(file)].text
    assert isinstance(text, str)
    assert "*MASKED*" in text
    assert text.endswith("port: 1\n")
