"""What the survey's parsers make of good, odd and broken output."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from pyinfra.api.command import StringCommand
from pyinfra.api.config import Config
from pyinfra.api.connect import connect_all
from pyinfra.api.exceptions import FactProcessError
from pyinfra.api.inventory import Inventory
from pyinfra.api.state import State

from facts import fields, records
from facts.parsing import DEFECT, SurveyError, parse_survey, read_recorded
from facts.records import ABSENT, Survey, Unknown
from facts.survey import (
    NodeSurvey,
    SurveyRequest,
    forget_survey,
    raw_survey,
    read_survey,
    survey_problem,
)
from tests.recorded.compose_surveys import DEMO, compose, machines

RECORDS = [
    record
    for record in vars(records).values()
    if isinstance(record, type) and dataclasses.is_dataclass(record) and record is not Unknown
]
VALUES = [row for row in fields.FIELDS.values() if row.kind != "records"]
WITH_A_FORM = [row for row in VALUES if row.pattern or row.words or row.kind == "number"]
NVIDIA = [row for row in VALUES if row.key.split(".")[0] in ("Gpu", "MigDevice", "Nvidia")]
DEMO_SURVEYS = sorted(DEMO.glob("*.survey"))


def read(row: fields.Field, raw: fields.Raw) -> object:
    """Read a raw text as the field of a row of the table."""
    if row.kind == "number":
        return fields.number(row.key, raw)
    return fields.flag(row.key, raw) if row.kind == "flag" else fields.text(row.key, raw)


def parsed(*lines: str) -> Survey:
    """Return the survey of these sections."""
    return parse_survey(["sglang-survey 1 0.1.0", *lines, "@ end"], "node")


def read_or_refused(lines: list[str]) -> Survey | str:
    """Return the survey, or the sentence of the only error that the parser may raise."""
    try:
        return parse_survey(lines, "node")
    except SurveyError as error:
        if str(error).startswith(DEFECT):
            raise
        return str(error)


def key(row: fields.Field) -> str:
    return row.key


def unknowns(value: object, path: str = "") -> Iterator[tuple[str, Unknown]]:
    """Give every unknown value in a record, with where it stands."""
    if isinstance(value, Unknown):
        yield path, value
    elif dataclasses.is_dataclass(value):
        for field in dataclasses.fields(value):
            yield from unknowns(getattr(value, field.name), f"{path}.{field.name}")
    elif isinstance(value, tuple):
        for each in value:
            yield from unknowns(each, path)
    elif isinstance(value, dict):
        for each in value.values():
            yield from unknowns(each, path)


# ---- the table of fields


def test_the_table_has_a_row_for_every_field_of_every_record_and_no_other() -> None:
    named = {
        f"{record.__name__}.{field.name}"
        for record in RECORDS
        for field in dataclasses.fields(record)
    }
    assert set(fields.FIELDS) == named


@pytest.mark.parametrize("row", VALUES, ids=key)
def test_the_example_of_a_field_is_read_as_the_table_says(row: fields.Field) -> None:
    assert row.example is not None
    printed, value = row.example
    assert read(row, printed) == value


@pytest.mark.parametrize("row", VALUES, ids=key)
def test_a_field_with_nothing_in_it_is_absent(row: fields.Field) -> None:
    assert read(row, None) == read(row, "") == read(row, "  ") == ABSENT


@pytest.mark.parametrize("row", VALUES, ids=key)
def test_a_field_that_could_not_be_read_stays_so(row: fields.Field) -> None:
    reason = Unknown("unreadable", "no permission")
    assert read(row, reason) is reason


@pytest.mark.parametrize("row", WITH_A_FORM, ids=key)
def test_a_field_of_another_form_is_malformed_and_shows_what_was_seen(row: fields.Field) -> None:
    assert read(row, "?! nonsense\n") == Unknown("malformed", "?! nonsense")


@pytest.mark.parametrize("word", sorted(fields.NVIDIA_UNSUPPORTED))
@pytest.mark.parametrize("row", NVIDIA, ids=key)
def test_a_word_of_nvidia_smi_for_no_such_value_is_unsupported(
    row: fields.Field, word: str
) -> None:
    assert read(row, word) == Unknown("unsupported", word)


@pytest.mark.parametrize("word", sorted(fields.NVIDIA_UNREADABLE | fields.FAULTS))
@pytest.mark.parametrize("row", NVIDIA, ids=key)
def test_a_word_of_nvidia_smi_for_not_now_is_unreadable(row: fields.Field, word: str) -> None:
    assert read(row, word) == Unknown("unreadable", word)


# ---- the format


def test_a_banner_and_comments_before_the_first_line_are_skipped() -> None:
    lines = ["# composed", "Welcome to gpu-1", "", "sglang-survey 1 0.1.0", "@ end"]
    assert parse_survey(lines, "gpu-1").node == "gpu-1"


@pytest.mark.parametrize(
    ("lines", "sentence"),
    [
        ([], "The node gave no survey: its output is empty"),
        (["sh: 1: Syntax error"], "not a survey; it begins with 'sh: 1: Syntax error'"),
        (["sglang-survey 2 9.0", "@ end"], "has schema 2; this program reads schema 1"),
        (["sglang-survey 1 0", "@ uname rc=0", " Linux 6 x86_64"], "The survey is cut"),
        (["sglang-survey 1 0", "@ uname", "@ end"], "a heading that is none"),
        (["sglang-survey 1 0", "loose", "@ end"], "a line that belongs to no section"),
        (["sglang-survey 1 0", "@ failed rc=1", " no room", "@ end"], "could not run on the node"),
    ],
)
def test_what_is_no_whole_survey_is_refused_with_a_sentence(
    lines: list[str], sentence: str
) -> None:
    with pytest.raises(SurveyError) as caught:
        parse_survey(lines, "node")
    assert sentence in str(caught.value)
    assert str(caught.value).endswith(".")


def test_a_recording_that_cannot_be_read_is_refused_with_a_sentence(tmp_path: Path) -> None:
    with pytest.raises(SurveyError, match="cannot be read"):
        read_recorded(tmp_path / "none.survey")
    (tmp_path / "bytes.survey").write_bytes(b"\xff\xfe")
    with pytest.raises(SurveyError, match="cannot be read"):
        read_recorded(tmp_path / "bytes.survey")


def test_parts_that_never_came_back_are_named_and_what_they_would_say_is_unreadable() -> None:
    survey = parsed(
        *("@ smi.path rc=0", " /usr/bin/nvidia-smi"),
        *("@ parts rc=0", " hundredths 2003", " unfinished nvidia-smi-query smi_query",),
        *(" unfinished docker docker_engine", " unfinished space-2 space /mnt/dead"),
    )  # fmt: skip
    late = Unknown("unreadable", "did not return in time")
    assert survey.seconds == 20.03
    assert survey.unfinished[0] == "nvidia-smi-query smi_query"
    assert survey.nvidia.smi.exit_code == late
    assert survey.docker.client == survey.docker.server_version == survey.docker.root_dir == late
    assert survey.spaces["/mnt/dead"].free_bytes == late


def test_a_program_that_its_time_limit_ended_is_named_and_unreadable() -> None:
    survey = parsed("@ smi.path rc=0", " /usr/bin/nvidia-smi", "@ smi.query rc=137", " ")
    assert survey.unfinished == ("smi.query",)
    assert survey.nvidia.smi.exit_code == Unknown("unreadable", "did not return in time")


# ---- recorded surveys


@pytest.mark.parametrize("path", DEMO_SURVEYS, ids=lambda path: path.stem)
def test_a_demonstration_survey_reads_without_a_malformed_value(path: Path) -> None:
    survey = read_recorded(path)
    assert survey.node == path.stem
    assert [each for each in unknowns(survey) if each[1].why == "malformed"] == []
    assert survey.unfinished == ()
    assert path.read_text().startswith("# composed from tests/recorded/nvidia-smi/")


def test_the_demonstration_surveys_are_those_that_their_composer_writes() -> None:
    composed = {machine.name: compose(machine) for machine in machines()}
    assert {path.stem: path.read_text() for path in DEMO_SURVEYS} == composed


def test_the_demonstration_shows_what_it_should() -> None:
    surveys = {path.stem: read_recorded(path) for path in DEMO_SURVEYS}
    l4 = surveys["two-l4-no-toolkit"]
    assert [gpu.name for gpu in l4.nvidia.gpus] == ["NVIDIA L4", "NVIDIA L4"]
    assert (l4.docker.runtimes, l4.docker.cdi_devices) == (("io.containerd.runc.v2", "runc"), ())
    assert l4.docker.nvidia_ctk_version == ABSENT
    spark = surveys["dgx-spark"]
    assert (spark.host.architecture, spark.host.dgx_version) == ("aarch64", "7.5.0")
    assert spark.nvidia.gpus[0].memory_total_mib == Unknown("unsupported", "[N/A]")
    assert "nvidia.com/gpu=all" in spark.docker.cdi_devices
    a100 = surveys["a100-mig"].nvidia
    assert [gpu.mig_enabled for gpu in a100.gpus] == [True, False]
    devices = a100.gpus[0].mig_devices
    assert [(each.index, each.gpu_instance, each.memory_total_mib) for each in devices] == [
        (0, 3, 9856),
        (1, 4, 9856),
    ]
    assert all(isinstance(each.uuid, str) for each in devices)
    assert a100.module_kind == "proprietary"
    b200 = surveys["b200-pair"]
    assert {gpu.fabric_state for gpu in b200.nvidia.gpus} == {"Completed"}
    assert b200.nvidia.fabricmanager == "active"
    assert b200.nvidia.fabricmanager_version == b200.nvidia.driver_version
    assert (b200.nvidia.nvlsm, b200.nvidia.module_kind) == (True, "open")
    assert b200.docker.image_store_dir == "/var/lib/containerd"
    mismatch = surveys["mismatch"].nvidia
    assert mismatch.smi.exit_code == 18
    assert "Driver/library version mismatch" in mismatch.smi.text
    assert (mismatch.gpus, mismatch.module_version) == ((), "580.173.02")


LINES = (DEMO / "a100-mig.survey").read_text().split("\n")


@settings(max_examples=150, deadline=None)
@given(st.lists(st.text(max_size=60), max_size=12))
@example(["sglang-survey 1 x", "@ a rc=99999999999999999999", "@ end"])
@example(["sglang-survey 1 x", "@ parts rc=0", " hundredths ²", "@ end"])
def test_no_text_at_all_makes_the_parser_raise_anything_but_its_own_error(
    lines: list[str],
) -> None:
    assert read_or_refused(lines)


@settings(max_examples=300, deadline=None)
@given(
    st.integers(0, len(LINES) - 1),
    st.one_of(
        st.none(),
        st.text(max_size=40).map(lambda text: " " + text),
        st.sampled_from(
            [" {", " [[[", " null", ' {"a"', " <gpu>", " ,,,,,,,,,,,", " =", " /", " ²"]
        ),
        st.sampled_from(["@ smi.query rc=2", "@ docker.info rc=1", "@ file rc=13", "@ space rc=1"]),
    ),
)
def test_a_survey_with_any_line_lost_or_changed_gives_a_survey_or_its_own_error(
    index: int, line: str | None
) -> None:
    lines = [*LINES[:index], *([] if line is None else [line]), *LINES[index + 1 :]]
    assert read_or_refused(lines)


@settings(max_examples=60, deadline=None)
@given(st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(
        st.sampled_from(["Driver", "DriverStatus", "CDISpecDirs", "Runtimes", "SecurityOptions",
                         "DiscoveredDevices", "ServerVersion", "Server", "Client", "Containerd",
                         "requests", "devices", "id", "name", "data", "ID", "Repository"]),
        inner, max_size=5),
    max_leaves=12,
))  # fmt: skip
def test_json_of_any_shape_from_docker_and_services_is_read_without_an_error(value: Any) -> None:
    text = f" {json.dumps(value)}"
    names = ("docker.info", "docker.version", "docker.images", "docker.containers")
    sections = [line for name in names for line in (f"@ {name} rc=0", text)]
    chat = ("@ answer.ready rc=0", " chat", " 200", "@ answer.models rc=0", " chat", " 200", text)
    shown = ("@ services.show rc=0", " Id=sglang@chat.service", " ActiveState=active")
    assert "chat" in parsed(*sections, *shown, *chat).services


def test_every_cut_of_a_survey_is_recognised() -> None:
    whole = LINES[: LINES.index("@ end") + 1]
    for length in range(len(whole)):
        with pytest.raises(SurveyError):
            parse_survey(whole[:length], "node")


def test_a_defect_of_a_parser_costs_one_node_and_not_the_run(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def broken(_: object) -> None:
        raise KeyError("x")

    monkeypatch.setattr("facts.parsing.parse_host", broken)
    with pytest.raises(SurveyError, match="do not expect: KeyError: 'x'"):
        parse_survey(LINES, "node")


# ---- containers


def container(name: str, **settings: Any) -> str:
    raw: dict[str, Any] = {"id": "ab" * 32, "name": f"/{name}", "image": "sha256:" + "c" * 64,
           "image_name": "lmsysorg/sglang@sha256:1", "state": "running",
           "started": "2026-11-30T03:49:00.123Z", "runtime": "runc", "requests": None,
           "devices": []}  # fmt: skip
    return " " + json.dumps({**raw, **settings})


@pytest.mark.parametrize(
    ("settings", "mode"),
    [
        ({"requests": [{"Driver": "cdi", "DeviceIDs": ["nvidia.com/gpu=all"]}]}, "cdi"),
        ({"requests": [{"Driver": "", "Count": -1, "Capabilities": [["gpu"]]}]}, "legacy"),
        ({"requests": [{"Driver": "nvidia", "Capabilities": [["gpu", "utility"]]}]}, "legacy"),
        ({"runtime": "nvidia"}, "runtime"),
        ({"devices": [{"PathOnHost": "/dev/nvidia0"}]}, "devices"),
        ({"requests": [{"Driver": "cdi", "DeviceIDs": ["other.org/nic=0"]}]}, None),
        ({}, None),
    ],
)
def test_a_container_is_known_to_use_gpus_by_how_it_was_given_them(
    settings: dict[str, Any], mode: str | None
) -> None:
    docker = parsed("@ docker.containers rc=0", container("sglang-chat", **settings)).docker
    assert isinstance(docker.gpu_containers, tuple)
    assert [each.mode for each in docker.gpu_containers] == ([mode] if mode else [])
    assert docker.containers == {"sglang-chat": "running"}


@pytest.mark.parametrize(
    ("lines", "unread"),
    [
        (("@ docker.ps rc=1", "!Error response from daemon: busy"), True),
        (("@ docker.ps rc=124",), True),
        (("@ docker.ps rc=1", "!Cannot connect to the Docker daemon at unix:///x"), False),
        (("@ docker.ps rc=0", "@ docker.containers rc=124"), True),
        (("@ docker.ps rc=0", "@ docker.containers rc=1", "!Error: No such container: a"), False),
        (("@ parts rc=0", " unfinished docker-containers docker_containers"), True),
        (("@ docker.ps rc=0",), False),
    ],
)
def test_a_docker_that_does_not_say_what_runs_is_not_one_on_which_nothing_runs(
    lines: tuple[str, ...], unread: bool
) -> None:
    assert isinstance(parsed(*lines).docker.gpu_containers, Unknown) == unread


def test_a_service_knows_the_image_of_its_container() -> None:
    service = parsed(
        *("@ docker.containers rc=0", container("sglang-chat"), container("chat")),
        *("@ services.show rc=0", " Id=sglang@chat.service", " LoadState=loaded"),
    ).services["chat"]
    assert service.container_image == "sha256:" + "c" * 64
    assert service.container_started == "2026-11-30T03:49:00.123Z"


def test_a_silent_daemon_is_absent_and_a_forbidden_one_unreadable() -> None:
    info = ' {"ServerVersion":"","LiveRestoreEnabled":false,"Driver":""}'
    silent = parsed(
        *("@ docker.info rc=1", info, "!Cannot connect to the Docker daemon at unix:///x."),
    ).docker
    assert isinstance(silent.server_version, Unknown)
    assert silent.server_version.why == "absent"
    assert isinstance(silent.live_restore, Unknown)
    forbidden = parsed("@ docker.info rc=1", info, "!permission denied while trying").docker
    assert forbidden.server_version == Unknown("unreadable", "permission denied while trying")


def test_a_docker_from_snap_is_known_by_its_path() -> None:
    docker = parsed("@ docker.path rc=0", " /snap/bin/docker", " /usr/bin/snap").docker
    assert (docker.client, docker.snap) == ("/snap/bin/docker", True)


def test_cdi_names_are_those_of_devices_in_yaml_of_both_layouts_and_in_json() -> None:
    kept = ["/etc/cdi/a.yaml", "cdiVersion: 0.6.0", "containerEdits:", "kind: nvidia.com/gpu",
            "devices:", "- name: '0'", "  containerEdits:", "      name: not-a-device",
            "- name: all"]  # fmt: skip
    indented = ["/etc/cdi/b.yaml", "devices:", '    - containerEdits:', '      name: "1"',
                "kind: nvidia.com/gpu"]  # fmt: skip
    whole = {"kind": "nvidia.com/gpu", "devices": [{"name": "2", "containerEdits": {}}]}
    as_json = ["/var/run/cdi/c.json", *json.dumps(whole, indent=1).split("\n")]
    lines = [
        line
        for spec in (kept, indented, as_json)
        for line in ("@ cdi.spec rc=0", *(f" {each}" for each in spec))
    ]
    assert parsed(*lines).docker.cdi_devices == tuple(
        f"nvidia.com/gpu={name}" for name in ("0", "all", "1", "2")
    )


# ---- services, network, paths


def test_a_model_list_behind_a_key_is_unreadable_and_the_ready_answer_stands() -> None:
    shown = ("@ services.show rc=0", " Id=sglang@chat.service", " ActiveState=active")
    answer = parsed(
        *shown,
        *("@ answer.ready rc=0", " chat", " 200", "@ answer.models rc=0", " chat", " 401", " {}"),
    ).services["chat"].answer  # fmt: skip
    assert answer == records.Answer(200, Unknown("unreadable", "HTTP status 401"))
    refused = parsed(*shown, "@ answer.ready rc=7", " chat").services["chat"].answer
    assert isinstance(refused, records.Answer)
    assert refused.ready == Unknown("unreadable", "no connection")


def test_several_units_are_told_apart_and_a_service_without_a_unit_is_listed() -> None:
    services = parsed(
        *("@ services.show rc=0", " Id=sglang@a.service", " MainPID=7", " StatusText=x=y", " "),
        *(" Id=sglang@b.service", " NeedDaemonReload=yes", " DropInPaths=/a.conf /b.conf"),
        *("@ deployment rc=0", " c", " current 4", " number 4", " number x"),
        *("@ deployment rc=13", " a"),
    ).services
    assert list(services) == ["a", "b", "c"]
    assert (services["a"].main_pid, services["a"].status_text) == (7, "x=y")
    assert services["a"].current == Unknown("unreadable", "no permission")
    assert services["b"].need_daemon_reload is True
    assert services["b"].drop_ins == ("/a.conf", "/b.conf")
    assert (services["c"].current, services["c"].deployments) == (4, (4,))
    assert services["c"].load_state == ABSENT


def test_listeners_are_read_from_ss_and_from_the_kernels_tables() -> None:
    from_ss = parsed(
        "@ listeners.ss rc=0",
        ' LISTEN 0 128 127.0.0.1:30000 0.0.0.0:* users:(("python3",pid=9,fd=3))',
        " LISTEN 0 128 *:8000 *:*",
        " LISTEN 0 4096 127.0.0.53%lo:53 0.0.0.0:*",
        " LISTEN 0 128 [fe80::1]%eth0:22 [::]:*",
    ).listeners
    assert isinstance(from_ss, tuple)
    assert [(each.address, each.port, each.pid) for each in from_ss] == [
        ("127.0.0.1", 30000, 9),
        ("::", 8000, ABSENT),
        ("127.0.0.53", 53, ABSENT),
        ("fe80::1", 22, ABSENT),
    ]
    from_proc = parsed(
        "@ listeners.ss rc=127",
        "@ listeners.tcp rc=0",
        "   sl  local_address rem_address   st",
        "    0: 0100007F:7530 00000000:0000 0A 00000000:00000000",
        "    1: 0100007F:7531 00000000:0000 01 00000000:00000000",
        "@ listeners.tcp6 rc=0",
        "    0: 00000000000000000000000001000000:0016 00000000000000000000000000000000:0000 0A",
    ).listeners
    assert isinstance(from_proc, tuple)
    assert [(each.address, each.port) for each in from_proc] == [
        ("127.0.0.1", 30000),
        ("::1", 22),
    ]


def test_a_path_is_on_the_mount_that_covers_it_last_and_longest() -> None:
    survey = parsed(
        "@ mounts rc=0",
        " /dev/a / ext4 rw 0 0",
        r" /dev/b /var/a\040b xfs ro,nodev 0 0",
        " //x /var/a cifs rw 0 0",
        "@ space rc=0",
        *(" /var/a b/hub", " /var/a b", " /var/a b", " Filesystem 1024-blocks ..."),
        " /dev/b 100 40 60 40% /var/a b",
    )
    space = survey.spaces["/var/a b/hub"]
    assert (space.mount, space.file_system, space.read_only) == ("/var/a b", "xfs", True)
    assert (space.exists, space.existing, space.free_bytes) == (False, "/var/a b", 61440)


# ---- the fact


def fake_host(lines: list[str], answered: bool = True) -> tuple[State, Any]:
    response = {"sglang-survey": {"stdout": lines, "success": answered}}
    settings = {"fake_responses": response, "fake_delay": 0, "fake_delay_jitter": 0}
    other = {"fake_delay": 0, "fake_delay_jitter": 0}
    nodes = [("@fake/gpu-1", settings), ("@fake/other", other)]
    inventory = Inventory((nodes, {}))  # type: ignore[no-untyped-call]
    state = State(inventory, Config())  # type: ignore[no-untyped-call]
    connect_all(state)
    return state, inventory.get_host("@fake/gpu-1")


def test_a_node_is_surveyed_by_one_remote_command_however_often_it_is_read() -> None:
    _, host = fake_host(LINES)
    first = read_survey(host, SurveyRequest())
    assert first is read_survey(host, SurveyRequest())
    assert first is not None
    assert first.node == "@fake/gpu-1"
    assert raw_survey(host) == tuple(LINES)
    assert survey_problem(host) is None
    assert len(host.connector.executed_commands) == 1
    forget_survey(host)
    assert read_survey(host, SurveyRequest()) == first
    assert len(host.connector.executed_commands) == 2


@pytest.mark.parametrize(
    ("lines", "answered"), [(LINES[:40], True), ([], True), (["oops"], True), ([], False)]
)
def test_a_survey_that_fails_marks_its_node_alone_and_says_why(
    lines: list[str], answered: bool
) -> None:
    state, host = fake_host(lines, answered)
    assert read_survey(host, SurveyRequest()) is None
    assert read_survey(host, SurveyRequest()) is None
    assert state.failed_hosts == {host}
    assert len(host.connector.executed_commands) == 1
    problem = survey_problem(host)
    assert problem is not None
    assert problem.endswith(".")


def test_the_fact_turns_every_error_into_one_that_pyinfra_keeps_to_its_node() -> None:
    fact = NodeSurvey()
    assert isinstance(fact.command(SurveyRequest(), "gpu-1"), StringCommand)
    assert fact.process(LINES).node == "gpu-1"
    with pytest.raises(FactProcessError, match="cut"):
        fact.process(LINES[:30])
    assert fact.default() is None


def test_a_survey_is_plain_data_for_pyinfras_own_fact_command() -> None:
    data = json.loads(json.dumps(parse_survey(LINES, "gpu-1").to_json()))
    assert data["node"] == "gpu-1"
    assert data["nvidia"]["gpus"][0]["uuid"].startswith("GPU-")
    assert data["host"]["selinux"] == {"why": "absent", "text": ""}
