"""What the survey reads to tell that somebody else changed a service: containers and drop-ins."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from facts.parsing import parse_survey
from facts.records import ABSENT, ServiceState, Unknown
from facts.request import SurveyRequest
from facts.survey import PROGRAM
from tests.unit.test_survey_program import SHELLS, program_in, run

DROP_IN = """# Nice=19
[Unit]
Description=mine
[Service]
 KillMode = control-group
Environment="TOKEN=hunter2" \\
    Restart=no
ExecStart=
ExecStart=/bin/sh -c 'echo [Install] A=1'
;Type=oneshot
"""


@pytest.fixture(params=SHELLS)
def state(request: pytest.FixtureRequest, tmp_path: Path) -> ServiceState:
    """What the survey says of a service whose container is this very process."""
    override, away = tmp_path / "override.conf", tmp_path / "away.conf"
    override.write_text(DROP_IN)
    shown = (
        f"ExecMainStartTimestampMonotonic=70\\nMainPID={os.getpid()}\\nId=sglang@chat.service\\n"
        f"ActiveState=active\\nActiveEnterTimestampMonotonic=90\\n"
        f"DropInPaths={tmp_path}/10-toolkit.conf {override} {away}\\n"
    )
    inspected = {
        "pid": os.getpid(), "id": "ab" * 32, "name": "/sglang-chat", "image": "sha256:" + "c" * 64,
        "deployment": "7", "image_name": "x", "state": "running", "started": "", "runtime": "runc",
        "requests": None, "devices": [],
    }  # fmt: skip
    bin_ = program_in(
        tmp_path / "bin",
        "docker",
        f"case $1 in ps) echo x sglang-chat Up 3 minutes ;; inspect) cat {tmp_path}/inspected ;; *) exit 1 ;; esac",
    )
    (tmp_path / "inspected").write_text(json.dumps(inspected, separators=(",", ":")) + "\n")
    program_in(
        bin_,
        "systemctl",
        f"case $1 in show) printf '{shown}' ;; esac",
    )
    program = tmp_path / "survey.sh"
    text = PROGRAM.read_text(encoding="utf-8")
    program.write_text(text.replace("PATH=${PATH:-", f"PATH={bin_}:${{PATH:-", 1))
    output, _ = run(SHELLS[request.param], SurveyRequest(), program=program)
    assert "hunter2" not in output
    return parse_survey(output.split("\n"), "node").services["chat"]


def test_a_drop_in_of_another_is_read_for_what_it_sets_and_never_for_a_value(
    state: ServiceState, tmp_path: Path
) -> None:
    keys = state.drop_in_keys
    assert keys[str(tmp_path / "override.conf")] == (
        "Service.Environment", "Service.ExecStart", "Service.KillMode", "Unit.Description",
    )  # fmt: skip
    assert isinstance(keys[str(tmp_path / "away.conf")], Unknown)
    assert len(keys) == 2, "our own is not looked into"


def test_the_deployment_of_the_running_container_is_read_from_its_label(
    state: ServiceState,
) -> None:
    assert state.container_deployment == 7
    assert state.container_image == "sha256:" + "c" * 64


def test_when_processes_began_is_read_without_a_clock(state: ServiceState) -> None:
    words = Path("/proc/self/stat").read_text().rsplit(")", 1)[1].split()
    assert state.container_began == state.main_began == int(words[19])
    assert (state.start_began, state.active_began) == (70, 90)


def test_a_container_without_labels_is_of_no_deployment() -> None:
    raw = json.dumps(
        {"id": "ab" * 32, "name": "/sglang-chat", "state": "running", "deployment": ""}
    )
    lines = ["sglang-survey 1 0", "@ docker.containers rc=0", f" {raw}"]
    lines += ["@ services.show rc=0", " Id=sglang@chat.service", "@ end"]
    state = parse_survey(lines, "node").services["chat"]
    assert (state.container_deployment, state.container_began) == (ABSENT, ABSENT)
