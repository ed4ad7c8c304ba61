"""What the survey asks Docker and systemd, with as few calls as they need."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from facts.parsing import parse_survey
from facts.records import Unknown
from facts.request import SurveyRequest
from tests.unit.test_survey_program import first_only, program_in, run, survey

INFO = {"ServerVersion": "29.0.1", "DockerRootDir": "/d", "CDISpecDirs": ["/none/a", "/none/b"]}
NEW = {"Debug": False, "Platform": {"Name": "Engine"}, "Version": "29.0.2", "Plugins": []}
OLD = {"Debug": False, "Context": "default", "Plugins": [{"Version": "v0.10"}], "Warnings": None}


def docker(tmp_path: Path, client: object) -> Path:
    """Write a client whose engine says ``INFO``, and which keeps how it was called."""
    info = json.dumps({**INFO, "ClientInfo": client}, separators=(",", ":"))
    return program_in(
        tmp_path / "bin",
        "docker",
        f"""echo "$*" >>{tmp_path}/asked
case $1 in
info) echo '{info}' ;;
version) echo '{{"Client":{{"Version":"20.10.24"}},"Server":{{"Version":"29.0.1"}}}}' ;;
ps) printf '%s\\n' 'a1 sglang-chat Exited (0) 2 hours ago' 'b2 other Up 3 minutes (Paused)' \\
    'c3 gone Exited (1) 5 days ago' 'd4 again Restarting (1) 4 seconds ago' ;;
esac""",
    )


@pytest.mark.parametrize(
    ("client", "version", "calls"), [(NEW, "29.0.2", 0), (OLD, "20.10.24", 1)], ids=["new", "old"]
)
def test_a_client_is_asked_for_its_version_only_where_it_did_not_say_it(
    client: object, version: str, calls: int, tmp_path: Path
) -> None:
    stand_ins = docker(tmp_path, client)
    output, _ = run(["sh"], SurveyRequest(), path=first_only(stand_ins))
    seen = survey(output).docker
    assert (seen.client_version, seen.server_version) == (version, "29.0.1")
    assert (seen.root_dir, seen.cdi_dirs) == ("/d", ("/none/a", "/none/b"))
    asked = (tmp_path / "asked").read_text().splitlines()
    assert sum(line.startswith("version") for line in asked) == calls


def test_an_engine_that_is_silent_is_told_from_none_whatever_its_client_ends_with(
    tmp_path: Path,
) -> None:
    silent = {"ServerErrors": ["Cannot connect"], "ServerVersion": "", "ClientInfo": NEW}
    said = json.dumps(silent, separators=(",", ":"))
    stand_ins = program_in(
        tmp_path / "bin",
        "docker",
        f"""case $1 in
info) echo '{said}' ;;
version) echo 'Cannot connect to the Docker daemon at unix:///x. Is it running?' >&2; exit 1 ;;
*) exit 1 ;;
esac""",
    )
    seen = survey(run(["sh"], SurveyRequest(), path=first_only(stand_ins))[0]).docker
    assert seen.client_version == "29.0.2"
    assert isinstance(seen.server_version, Unknown)
    assert seen.server_version.why == "absent"
    assert seen.server_version.text.startswith("Cannot connect to the Docker daemon")


def test_containers_that_run_and_our_own_are_looked_into_and_no_other(tmp_path: Path) -> None:
    stand_ins = docker(tmp_path, NEW)
    run(["sh"], SurveyRequest(), path=first_only(stand_ins))
    asked = (tmp_path / "asked").read_text().splitlines()
    (looked,) = [line for line in asked if line.startswith("inspect")]
    assert looked.endswith("} a1 b2 d4")
    assert sum(line.startswith("ps") for line in asked) == 1


def test_what_systemd_says_of_itself_is_read_as_older_surveys_have_it_too() -> None:
    for lines in (
        ["@ systemd.manager rc=0", " Version=257.13-1~deb13u1", " SystemState=degraded", " "],
        ["@ systemd.version rc=0", " systemd 257 (257.13)", "@ systemd.state rc=1", " degraded"],
        ["@ systemd.manager rc=1", "!no bus", "@ systemd.version rc=0", " systemd 257 (257.13)",
         "@ systemd.state rc=1", " degraded"],
    ):  # fmt: skip
        seen = parse_survey(["sglang-survey 1 0.1.0", *lines, "@ end"], "node")
        assert (seen.systemd_version, seen.systemd_state) == (257, "degraded")
