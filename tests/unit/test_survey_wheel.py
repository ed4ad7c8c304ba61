"""What the survey reads of a service of the wheel runtime: links, its own unit, what runs."""

from __future__ import annotations

import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from facts.parsing import parse_survey
from facts.records import Survey, known
from facts.request import SurveyRequest
from facts.survey import PROGRAM
from tests.unit.test_survey_program import SHELLS, program_in, run

PRIVATE = "hf_private"


@pytest.fixture
def server() -> Iterator[int]:
    """A process that was started from deployment 2, with something private beside."""
    process = subprocess.Popen(
        ["sleep", "60"], env={"SGLANG_DEPLOYMENT": "2", "NOTE": PRIVATE, "PATH": "/usr/bin:/bin"}
    )
    yield process.pid
    process.kill()
    process.wait()


@pytest.fixture(params=SHELLS)
def surveyed(request: pytest.FixtureRequest, tmp_path: Path, server: int) -> Survey:
    """The survey of a node with one service."""
    deployment = tmp_path / "deployments" / "chat" / "3"
    deployment.mkdir(parents=True)
    (deployment.parent / "current").symlink_to("3")
    (deployment / "launch.env").write_text('SGLANG_RUNTIME="wheel"\n')
    (deployment / "server.yaml").write_text("port: 30000\n")
    (deployment / "config").symlink_to("server.yaml")
    (deployment / "cache").symlink_to("/nowhere/cache")
    (tmp_path / "sglang@chat.service").write_text("[Service]\n")
    (tmp_path / "sglang@chat.service.d").mkdir()
    shown = f"MainPID={server}\\nId=sglang@chat.service\\nActiveState=active\\n"
    bin_ = program_in(
        tmp_path / "bin",
        "systemctl",
        f"case $1 in show) printf '{shown}' ;; list-units) echo 'sglang@chat.service x' ;; esac",
    )
    program = tmp_path / "survey.sh"
    text = PROGRAM.read_text(encoding="utf-8")
    program.write_text(text.replace("PATH=${PATH:-", f"PATH={bin_}:${{PATH:-", 1))
    asked = SurveyRequest(
        deployments=str(tmp_path / "deployments"), drop_ins=f"{tmp_path}/sglang@%.service.d"
    )
    output, _ = run(SHELLS[request.param], asked, program=program)
    assert PRIVATE not in output
    return parse_survey(output.split("\n"), "node")


def test_links_unit_and_process_of_a_service_are_read(surveyed: Survey, tmp_path: Path) -> None:
    files = {Path(path).name: file for path, file in surveyed.files.items()}
    assert files["config"].link == "server.yaml"
    # It may lead to the file with keys: of what is behind a link no checksum travels.
    assert not known(files["config"].sha256)
    assert known(files["server.yaml"].sha256)
    # One that leads to nothing is seen as well.
    assert files["cache"].link == "/nowhere/cache"
    assert files["cache"].exists
    assert not known(files["server.yaml"].link)
    assert known(files["sglang@chat.service"].sha256)
    state = surveyed.services["chat"]
    assert (state.current, state.main_deployment) == (3, 2)
