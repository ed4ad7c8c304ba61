"""survey.sh itself, run for real under three shells on this machine."""

from __future__ import annotations

import hashlib
import os
import pwd
import re
import shutil
import subprocess
import sys
import time
from collections.abc import Iterable, Mapping
from pathlib import Path

import pytest
import yaml

from facts.parsing import SurveyError, parse_survey
from facts.records import ABSENT, Survey, Unknown
from facts.request import SurveyRequest
from facts.survey import PROGRAM, survey_command

RECORDED = Path(__file__).parents[1] / "recorded" / "nvidia-smi"
INDEX = yaml.safe_load((RECORDED / "index.yaml").read_text())
FAILURES = sorted(
    name
    for name, expected in INDEX.items()
    if expected["exit_code"] != 0 and expected["cmd"].startswith("nvidia-smi")
)
SHELLS = {"dash": ["dash"], "busybox ash": ["busybox", "ash"], "bash": ["bash", "--posix"]}
SHELLS = {name: argv for name, argv in SHELLS.items() if shutil.which(argv[0])}
# As sshd gives it: what a developer has in front of it (pyenv's shims) is no part of a node.
SYSTEM_PATH = "/usr/local/bin:/usr/bin:/bin"
TEMPORARY = [Path(place) for place in ("/dev/shm", "/run", "/tmp")]

# What a minimal system has; no docker, no systemctl, no curl, no Python.
MINIMAL = [
    "awk",
    "basename",
    "cat",
    "chmod",
    "cp",
    "cut",
    "date",
    "df",
    "dirname",
    "echo",
    "env",
    "expr",
    "false",
    "find",
    "getconf",
    "grep",
    "head",
    "id",
    "iconv",
    "ls",
    "mkdir",
    "mktemp",
    "mv",
    "readlink",
    "rm",
    "sed",
    "sha256sum",
    "sh",
    "sleep",
    "sort",
    "stat",
    "tail",
    "test",
    "timeout",
    "tr",
    "true",
    "uname",
    "wc",
]  # fmt: skip


def program_in(directory: Path, name: str, text: str) -> Path:
    """Write a stand-in for a program; PATH finds it before the real one."""
    directory.mkdir(exist_ok=True)
    path = directory / name
    path.write_text(f"#!/bin/sh\n{text}\n")
    path.chmod(0o755)
    return directory


def minimal_path(directory: Path) -> str:
    """Return a PATH of one directory that holds what a minimal system has."""
    directory.mkdir()
    for name in MINIMAL:
        real = shutil.which(name)
        if real:
            (directory / name).symlink_to(real)
    return str(directory)


def run(
    shell: Iterable[str],
    request: SurveyRequest,
    path: str | None = None,
    user: str | None = None,
    program: Path = PROGRAM,
    more: Mapping[str, str] | None = None,
) -> tuple[str, float]:
    """Run the program as ssh would: return its output, once its streams are closed, and seconds."""
    environment = {"PATH": path or SYSTEM_PATH, "HOME": "/", **(more or {})}
    started = time.monotonic()
    done = subprocess.run(
        [*shell, str(program), *request.words()],
        stdin=subprocess.DEVNULL,
        capture_output=True,
        env=environment,
        user=user,
        timeout=60,
        check=True,
    )
    return done.stdout.decode(), time.monotonic() - started


def survey(output: str) -> Survey:
    return parse_survey(output.split("\n"), "node")


def first_only(directory: Path) -> str:
    return f"{directory}:{SYSTEM_PATH}"


@pytest.fixture(params=list(SHELLS.values()), ids=list(SHELLS))
def shell(request: pytest.FixtureRequest) -> list[str]:
    found: list[str] = request.param
    return found


def without_path_of_its_own(tmp_path: Path) -> Path:
    """Return the program with its own extension of PATH taken out, for tests that strip PATH."""
    text = PROGRAM.read_text()
    stripped = re.sub(r"^PATH=.*\n", "", text, flags=re.MULTILINE)
    assert stripped != text
    copy = tmp_path / "survey.sh"
    copy.write_text(stripped)
    return copy


def test_it_passes_shellcheck() -> None:
    if shutil.which("shellcheck") is None:
        pytest.skip("shellcheck is not installed here")
    done = subprocess.run(["shellcheck", str(PROGRAM)], capture_output=True, text=True)
    assert done.stdout == ""


def test_it_ends_in_time_with_every_section(shell: list[str]) -> None:
    request = SurveyRequest(
        spaces=("/tmp", "/var/lib/sglang/hub"), files=("/etc/passwd",), texts=("/etc/os-release",)
    )
    output, seconds = run(shell, request)
    assert seconds < request.deadline_s
    sections = set(re.findall(r"^@ (\S+)", output, re.MULTILINE))
    assert sections >= {
        *("uname", "os-release", "glibc", "boot-id", "meminfo", "user", "http-client", "clock"),
        *("nvidia.module", "nvidia.pci", "smi.path", "docker.info", "systemd.manager"),
        *("mounts", "space", "file", "text", "ninja", "parts", "end"),
    }
    seen = survey(output)
    assert seen.unfinished == ()
    assert seen.host.architecture == os.uname().machine
    assert seen.files["/etc/os-release"].text == Path("/etc/os-release").read_text()
    assert seen.spaces["/tmp"].exists
    assert isinstance(seen.spaces["/tmp"].free_bytes, int)


def test_all_shells_say_the_same() -> None:
    request = SurveyRequest(spaces=("/tmp",), texts=("/etc/hosts",))
    surveys = [survey(run(shell, request)[0]) for shell in SHELLS.values()]
    assert len({each.host.kernel for each in surveys}) == 1
    assert all(each.files == surveys[0].files for each in surveys)
    assert all(each.toolchain == surveys[0].toolchain for each in surveys)
    assert all(each.docker == surveys[0].docker for each in surveys)


def test_it_leaves_nothing_behind(shell: list[str]) -> None:
    def listing() -> set[str]:
        return {
            str(path) for place in TEMPORARY if place.is_dir() for path in place.glob("sglang-*")
        }

    before = listing()
    run(shell, SurveyRequest())
    # Other surveys of this machine come and go; what is left behind stays.
    left, until = listing() - before, time.monotonic() + 60
    while left and time.monotonic() < until:
        time.sleep(0.2)
        left &= listing()
    assert not left


def run_where(
    tmp_path: Path, shell: list[str], places: tuple[str, ...], size: str, path: str | None = None
) -> str:
    """Run it where it may try these places, of which ``small`` has just this size."""
    if os.getuid() != 0 or shutil.which("unshare") is None:
        pytest.skip("only root can mount")
    text = PROGRAM.read_text()
    named = " ".join(str(tmp_path / place) for place in places)
    program = tmp_path / "survey.sh"
    program.write_text(text.replace('/dev/shm /run /tmp "${TMPDIR:-/tmp}"; do', f"{named}; do"))
    assert named in program.read_text()
    for place in places:
        (tmp_path / place).mkdir()
    mount = f'mount -t tmpfs -o size={size} tmpfs "$0" && exec "$@"'
    space = ["unshare", "--mount", "sh", "-c", mount, str(tmp_path / "small")]
    request = SurveyRequest(deadline_s=10)
    return run([*space, *shell], request, path=path, program=program)[0]


def test_a_place_without_room_is_passed_by(shell: list[str], tmp_path: Path) -> None:
    seen = survey(run_where(tmp_path, shell, ("small", "other"), "64k"))
    assert seen.host.architecture == os.uname().machine
    assert seen.unfinished == ()
    assert list((tmp_path / "other").iterdir()) == []


def test_a_node_without_any_room_has_no_survey_and_not_one_of_an_empty_node(
    shell: list[str], tmp_path: Path
) -> None:
    with pytest.raises(SurveyError, match="can be written to, with 4 MiB of room"):
        survey(run_where(tmp_path, shell, ("small",), "64k"))


def test_room_that_ends_while_it_runs_ends_the_survey(shell: list[str], tmp_path: Path) -> None:
    # What nvidia-smi says takes it all, as another program's files would.
    stand_ins = program_in(tmp_path / "bin", "nvidia-smi", "head -c 9000000 /dev/zero; sleep 2")
    with pytest.raises(SurveyError, match="no room was left in "):
        survey(run_where(tmp_path, shell, ("small",), "5m", first_only(stand_ins)))


@pytest.mark.skipif(os.getuid() != 0, reason="only root can become another user")
def test_another_user_gets_a_whole_survey_and_is_told_what_may_not_be_read(
    shell: list[str], tmp_path: Path
) -> None:
    secret = tmp_path / "closed" / "file"
    secret.parent.mkdir(mode=0o700)
    secret.write_text("x")
    readable = Path("/tmp") / f"survey-{os.getpid()}.sh"
    shutil.copy(PROGRAM, readable)
    try:
        request = SurveyRequest(files=("/etc/shadow", str(secret), "/etc/passwd"))
        output, _ = run(shell, request, user="nobody", program=readable)
    finally:
        readable.unlink()
    seen = survey(output)
    assert seen.host.uid == pwd.getpwnam("nobody").pw_uid
    assert seen.host.user == "nobody"
    assert seen.host.can_sudo is not True
    shadow = seen.files["/etc/shadow"]
    assert (shadow.exists, shadow.owner) == (True, "root:shadow")
    assert isinstance(shadow.sha256, Unknown)
    assert shadow.sha256.why == "unreadable"
    behind = seen.files[str(secret)]
    assert behind.exists
    assert isinstance(behind.sha256, Unknown)
    assert behind.sha256.why == "unreadable"
    assert isinstance(seen.files["/etc/passwd"].sha256, str)


def test_an_nvidia_smi_that_cannot_be_ended_is_abandoned_and_named(
    shell: list[str], tmp_path: Path
) -> None:
    # Nothing stands for uninterruptible sleep but a process that outlives its time limit: here
    # timeout itself is one that never gives up, as the real one waits for a child in state D.
    stand_ins = program_in(tmp_path / "bin", "nvidia-smi", "trap '' TERM HUP INT; sleep 30")
    program_in(stand_ins, "timeout", '[ "$1" = -k ] && shift 2; shift; exec "$@"')
    output, seconds = run(shell, SurveyRequest(deadline_s=3), path=first_only(stand_ins))
    assert seconds < 6
    seen = survey(output)
    assert {"nvidia-smi-query smi_query", "nvidia-smi-xml smi_xml"} <= set(seen.unfinished)
    assert isinstance(seen.nvidia.smi.exit_code, Unknown)
    assert seen.nvidia.smi.exit_code.why == "unreadable"
    assert seen.nvidia.smi.path == str(stand_ins / "nvidia-smi")
    assert isinstance(seen.host.boot_id, str)
    assert isinstance(seen.toolchain.ninja, str | Unknown)


def test_an_nvidia_smi_that_hangs_is_ended_by_its_time_limit_and_named(
    shell: list[str], tmp_path: Path
) -> None:
    nap = f"sleep 31.{os.getpid()}"  # its own, so that it is found among those of other tests
    stand_ins = program_in(tmp_path / "bin", "nvidia-smi", f"trap '' TERM HUP INT; {nap}")
    output, seconds = run(shell, SurveyRequest(deadline_s=4), path=first_only(stand_ins))
    assert seconds < 7
    seen = survey(output)
    assert any("smi" in name for name in seen.unfinished)
    assert isinstance(seen.nvidia.smi.exit_code, Unknown)
    assert seen.nvidia.smi.exit_code.why == "unreadable"
    time.sleep(0.2)
    left = subprocess.run(["pgrep", "-f", f"{nap}$"], capture_output=True, text=True)
    assert left.stdout == "", "what was abandoned and can be ended is ended"


def test_a_docker_that_cannot_list_its_containers_is_told(shell: list[str], tmp_path: Path) -> None:
    says = "case $1 in ps) echo 'Error response from daemon: busy' >&2; exit 1 ;; esac"
    stand_ins = program_in(tmp_path / "bin", "docker", says)
    seen = survey(run(shell, SurveyRequest(), path=first_only(stand_ins))[0])
    assert seen.docker.gpu_containers == Unknown("unreadable", "Error response from daemon: busy")


@pytest.mark.parametrize("name", FAILURES)
def test_every_recorded_failure_of_nvidia_smi_is_carried_with_its_exit_code(
    name: str, tmp_path: Path
) -> None:
    code = INDEX[name]["exit_code"]
    text = re.sub(r"\A(# .*\n)*", "", (RECORDED / f"{name}.txt").read_text())
    (tmp_path / "text").write_text(text)
    stand_ins = program_in(
        tmp_path / "bin", "nvidia-smi", f"cat '{tmp_path}/text'\nexit {code}"
    )  # fmt: skip
    output, _ = run(["sh"], SurveyRequest(), path=first_only(stand_ins))
    smi = survey(output).nvidia.smi
    assert (smi.exit_code, smi.text) == (code, text.strip())


def test_an_old_driver_is_asked_again_without_the_fields_it_does_not_know(
    shell: list[str], tmp_path: Path
) -> None:
    stand_ins = program_in(
        tmp_path / "bin",
        "nvidia-smi",
        """case $1 in
*compute_cap*) echo 'Field "compute_cap" is not a valid field to query.'; exit 2 ;;
--query-gpu=*) echo '0, Tesla T4, GPU-1, 470.57.02, 15109 MiB, 0 MiB, [N/A], [N/A], 00000000:00:1E.0, Off' ;;
*) exit 1 ;;
esac""",
    )
    output, _ = run(shell, SurveyRequest(), path=first_only(stand_ins))
    nvidia = survey(output).nvidia
    assert (nvidia.smi.exit_code, nvidia.smi.source) == (0, "query")
    assert (nvidia.driver_version, nvidia.gpus[0].memory_total_mib) == ("470.57.02", 15109)


def test_mig_devices_are_listed_by_their_uuids_where_a_gpu_is_in_mig_mode(
    tmp_path: Path,
) -> None:
    stand_ins = program_in(
        tmp_path / "bin",
        "nvidia-smi",
        """case $1 in
--query-gpu=*) echo '0, NVIDIA A100-PCIE-40GB, GPU-1, 535.161.08, 8.0, 40960 MiB, 1 MiB, ' \\
    'Enabled, Enabled, 00000000:21:00.0, Enabled, None' | sed 's/  / /' ;;
-L) echo 'GPU 0: NVIDIA A100-PCIE-40GB (UUID: GPU-1)'
    echo '  MIG 1g.5gb      Device  0: (UUID: MIG-7)' ;;
-q) echo '<?xml version="1.0" ?><l><gpu id="x"><uuid>GPU-1</uuid><mig_devices><mig_device>'
    echo '<index>0</index><gpu_instance_id>3</gpu_instance_id><compute_instance_id>0'
    echo '</compute_instance_id></mig_device></mig_devices></gpu></l>' ;;
*) exit 1 ;;
esac""",
    )
    output, _ = run(["sh"], SurveyRequest(), path=first_only(stand_ins))
    nvidia = survey(output).nvidia
    assert (nvidia.smi.exit_code, nvidia.smi.source) == (0, "query")
    assert [(each.index, each.uuid) for each in nvidia.gpus[0].mig_devices] == [(0, "MIG-7")]
    assert "@ smi.table" not in output


def test_a_minimal_system_without_docker_systemd_and_http_client_is_surveyed(
    shell: list[str], tmp_path: Path
) -> None:
    program = without_path_of_its_own(tmp_path)
    shell = [shutil.which(shell[0]) or shell[0], *shell[1:]]
    output, _ = run(shell, SurveyRequest(), path=minimal_path(tmp_path / "bin"), program=program)
    seen = survey(output)
    assert seen.docker.client == seen.docker.client_version == seen.docker.server_version == ABSENT
    assert seen.systemd_version == seen.systemd_state == ABSENT
    assert seen.host.http_client == ABSENT
    assert seen.nvidia.smi.exit_code == seen.nvidia.smi.path == ABSENT
    assert seen.unfinished == ()
    assert isinstance(seen.listeners, tuple), "read from /proc/net/tcp where there is no ss"
    assert isinstance(seen.host.memory_total_bytes, int)


def test_a_text_arrives_exactly_and_values_that_look_secret_do_not(
    shell: list[str], tmp_path: Path
) -> None:
    plain = tmp_path / "plain.yaml"
    plain.write_text('a: "ü %s $HOME \\n"\n\n\ttab\n @ end\n!x\nno line break at the end')
    secret = tmp_path / "secret.yaml"
    secret.write_text("max_new_tokens: 7\ntokenizer_path: x\napi-key: sk-123\nhf_token: hf_9\n")
    output, _ = run(shell, SurveyRequest(texts=(str(plain), str(secret))))
    assert "sk-123" not in output
    assert "hf_9" not in output
    files = survey(output).files
    assert files[str(plain)].text == plain.read_text()
    assert files[str(secret)].text == (
        "max_new_tokens: 7\ntokenizer_path: x\napi-key: *MASKED*\nhf_token: *MASKED*\n"
    )
    assert isinstance(files[str(secret)].sha256, str)


def test_bytes_that_are_not_text_do_not_reach_the_connection(
    shell: list[str], tmp_path: Path
) -> None:
    file = tmp_path / "binary"
    file.write_bytes(b"a\xff\xfe\x00\x1b[31mb\n")
    output, _ = run(shell, SurveyRequest(texts=(str(file),)))  # decoding is strict here
    text = survey(output).files[str(file)].text
    assert isinstance(text, Unknown)
    assert text.why == "malformed"


def test_services_are_found_by_their_deployments_and_asked_nothing_while_they_do_not_run(
    shell: list[str], tmp_path: Path
) -> None:
    deployment = tmp_path / "deployments" / "chat" / "12"
    deployment.mkdir(parents=True)
    (deployment.parent / "3").mkdir()
    (deployment.parent / "current").symlink_to("12")
    (deployment.parent / "previous").symlink_to("3")
    (deployment / "launch.env").write_text('SGLANG_PORT=30000\nSGLANG_READY_PATH="/ready"\n')
    (deployment / "container.env").write_text("HF_TOKEN=hf_secret\n")
    (deployment / "record.json").write_text("{}\n")
    drop_ins = tmp_path / "drop-ins-chat"
    drop_ins.mkdir()
    (drop_ins / "10-toolkit.conf").write_text("[Service]\nTimeoutStopSec=90\n")
    (drop_ins / "50-operator.conf").write_text("[Service]\nEnvironment=TOKEN=abc\n")
    (tmp_path / "linked").symlink_to(tmp_path / "deployments")
    request = SurveyRequest(
        deployments=str(tmp_path / "linked"), drop_ins=str(tmp_path / "drop-ins-%")
    )
    output, _ = run(shell, request)
    assert "hf_secret" not in output
    assert "TOKEN=abc" not in output
    seen = survey(output)
    service = seen.services["chat"]
    assert (service.current, service.previous, service.deployments) == (12, 3, (3, 12))
    assert service.launch == {"SGLANG_PORT": "30000", "SGLANG_READY_PATH": "/ready"}
    assert (service.record, service.plan, service.answer) == ("{}\n", ABSENT, ABSENT)
    container_env = seen.files[f"{tmp_path}/linked/chat/12/container.env"]
    assert isinstance(container_env.sha256, str)
    assert container_env.text == ABSENT
    assert seen.files[f"{drop_ins}/10-toolkit.conf"].text == "[Service]\nTimeoutStopSec=90\n"
    assert seen.files[f"{drop_ins}/50-operator.conf"].text == ABSENT


@pytest.mark.parametrize("client", ["curl", "python3", "wget"])
def test_a_running_service_is_asked_whether_it_is_ready_and_what_it_serves(
    client: str, tmp_path: Path
) -> None:
    real = os.path.realpath(sys.executable) if client == "python3" else shutil.which(client)
    if real is None:
        pytest.skip(f"{client} is not installed here")
    served = tmp_path / "served"
    (served / "v1").mkdir(parents=True)
    (served / "v1" / "models").write_text('{"data": [{"id": "tiny"}, {"id": "other"}]}')
    server = subprocess.Popen(
        [sys.executable, "-u", "-m", "http.server", "--bind", "127.0.0.1", "-d", str(served), "0"],
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
    )
    try:
        assert server.stdout is not None
        found = re.search(r"port (\d+)", server.stdout.readline())
        assert found is not None
        deployment = tmp_path / "deployments" / "chat" / "1"
        deployment.mkdir(parents=True)
        (deployment.parent / "current").symlink_to("1")
        (deployment / "launch.env").write_text(
            f'SGLANG_PORT="{found[1]}"\nSGLANG_ADDRESS=0.0.0.0\nSGLANG_READY_PATH=/nothing\n'
        )
        stand_ins = tmp_path / "bin"
        path = minimal_path(stand_ins)
        (stand_ins / client).symlink_to(real)
        program_in(
            stand_ins,
            "systemctl",
            '[ "$1" = show ] && printf "Id=sglang@chat.service\\nActiveState=active\\n"; exit 0',
        )
        output, _ = run(
            [shutil.which("sh") or "sh"],
            SurveyRequest(deployments=str(tmp_path / "deployments")),
            path=path,
            program=without_path_of_its_own(tmp_path),
            more={"http_proxy": "http://127.0.0.1:9"},
        )
    finally:
        server.terminate()
        server.wait()
    answer = survey(output).services["chat"].answer
    assert not isinstance(answer, Unknown)
    assert (answer.ready, answer.model_names) == (404, ("tiny", "other"))


def test_a_service_that_does_not_answer_is_no_connection_and_never_ready(tmp_path: Path) -> None:
    deployment = tmp_path / "deployments" / "chat" / "1"
    deployment.mkdir(parents=True)
    (deployment.parent / "current").symlink_to("1")
    (deployment / "launch.env").write_text("SGLANG_PORT=1\nSGLANG_ADDRESS=127.0.0.1\n")
    stand_ins = program_in(
        tmp_path / "bin",
        "systemctl",
        '[ "$1" = show ] && printf "Id=sglang@chat.service\\nActiveState=active\\n"; exit 0',
    )
    request = SurveyRequest(deployments=str(tmp_path / "deployments"))
    output, _ = run(["sh"], request, path=first_only(stand_ins))
    answer = survey(output).services["chat"].answer
    assert not isinstance(answer, Unknown)
    assert isinstance(answer.ready, Unknown)
    assert isinstance(answer.model_names, Unknown)


def test_the_remote_command_is_one_that_sh_runs_as_pyinfra_wraps_it() -> None:
    command = survey_command(
        SurveyRequest(spaces=("/a path/with 'quotes' and $x",), version="1.2")
    ).get_raw_value()
    assert command.startswith(": sglang-survey;")
    assert len(command) < 60_000
    done = subprocess.run(["sh", "-c", command], capture_output=True, text=True, timeout=60)
    assert done.stderr == ""
    seen = survey(done.stdout)
    assert seen.version == "1.2"
    assert "/a path/with 'quotes' and $x" in seen.spaces


def test_a_path_with_a_line_break_is_refused_before_anything_runs() -> None:
    with pytest.raises(ValueError, match="line break"):
        SurveyRequest(files=("/a\nb",)).words()


def test_more_files_start_no_more_programs(tmp_path: Path) -> None:
    log, there = tmp_path / "log", tmp_path / "there"
    there.mkdir()
    files = [there / f"file {number}" for number in range(40)]
    for file in files:
        file.write_text(file.name)
    stand_ins = tmp_path / "bin"
    for name in (
        "awk",
        "cat",
        "cut",
        "head",
        "mv",
        "readlink",
        "rm",
        "sed",
        "sha256sum",
        "stat",
        "tail",
        "tr",
    ):
        program_in(stand_ins, name, f'echo {name} >>"{log}"; exec {shutil.which(name)} "$@"')
    started = []
    for asked in (files[:2], files):
        log.unlink(missing_ok=True)
        request = SurveyRequest(files=tuple(map(str, asked)))
        output, _ = run(["sh"], request, path=first_only(stand_ins))
        seen = survey(output).files
        assert all(
            seen[str(file)].sha256 == hashlib.sha256(file.name.encode()).hexdigest()
            for file in asked
        )
        started.append(sorted(log.read_text().split()))
    assert started[0] == started[1]
    assert started[0].count("sha256sum") == 1


def test_files_with_odd_names_are_told_apart(shell: list[str], tmp_path: Path) -> None:
    names = ["a|b", "two  words", "back\\slash", "*", "end ", "regular file|644|root:root|9|x", "ü"]
    files = {str(tmp_path / name): f"{number}" for number, name in enumerate(names)}
    for path, text in files.items():
        Path(path).write_text(text)
    (tmp_path / "link").symlink_to("a|b")
    asked = (*files, str(tmp_path / "none"), str(tmp_path), str(tmp_path / "link"), *files)
    seen = survey(run(shell, SurveyRequest(files=asked))[0]).files
    for path, text in files.items():
        assert seen[path].sha256 == hashlib.sha256(text.encode()).hexdigest(), path
        assert seen[path].mode == f"{os.stat(path).st_mode & 0o777:04o}"
    assert not seen[str(tmp_path / "none")].exists
    assert seen[str(tmp_path / "link")].link == "a|b"
    folder = seen[str(tmp_path)].sha256
    assert isinstance(folder, Unknown)
    assert folder.why == "unsupported"
