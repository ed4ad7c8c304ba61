"""How a service ended, by who asked: from lines as systemd, the kernel and the gates write them."""

from __future__ import annotations

from pathlib import Path

import pytest

from facts.parsing import parse_survey
from facts.records import ServiceState
from facts.request import SurveyRequest
from facts.survey import PROGRAM
from plans import paths
from plans.deployment import TEMPLATES
from plans.ends import End, end_of, last_end
from plans.states import service_lines
from tests.unit.deployments import converged, with_state
from tests.unit.test_survey_program import SHELLS, program_in, run

UNIT = "sglang@chat.service"
SLICE = "sglang-chat.slice"
STARTING = f"Starting {UNIT} - SGLang server chat..."
LOADING = ["ready gate: starting (after 4 s)", "ready gate: loading weights (after 9 s)"]
UP = [STARTING, *LOADING, f"Started {UNIT} - SGLang server chat."]
STOPPING = f"Stopping {UNIT} - SGLang server chat..."
STOPPED = f"{UNIT}: Deactivated successfully."
FAILED = f"{UNIT}: Failed with result 'exit-code'."


def exited(status: str, code: str = "exited") -> str:
    return f"{UNIT}: Main process exited, code={code}, status={status}"


def oom(limit: str, task: str) -> str:
    return (
        "oom-kill:constraint=CONSTRAINT_MEMCG,nodemask=(null),cpuset=docker-1.scope,mems_allowed=0,"
        f"oom_memcg={limit},task_memcg={task},task=sglang::schedul,pid=4242,uid=0"
    )


IN_SLICE = f"/sglang.slice/{SLICE}/docker-1.scope"

CASES = {
    "of the toolkit": (
        [*UP, STOPPING, "stop gate: asked for by the toolkit", STOPPED],
        End("stopped by the toolkit"),
    ),
    "of a reboot": (
        [*UP, STOPPING, "stop gate: asked for by a shutdown of the node", STOPPED],
        End("stopped by a shutdown of the node"),
    ),
    "by hand": (
        [*UP, STOPPING, "stop gate: asked for by somebody on the node", STOPPED],
        End("stopped by somebody on the node"),
    ),
    "by hand while it starts": (
        [STARTING, *LOADING, STOPPING, STOPPED],
        End("stopped by somebody on the node", phase="loading weights"),
    ),
    "crash": ([*UP, exited("137/n/a"), FAILED], End("crashed", "status 137")),
    "crash by a signal": (
        [*UP, exited("9/KILL", "killed"), f"{UNIT}: Failed with result 'signal'."],
        End("crashed", "signal 9"),
    ),
    "crash that exits with 0": (
        [*UP, "[2026-11-30 11:00:00] SIGQUIT received. signum=None", STOPPED],
        End("crashed", "status 0"),
    ),
    "own exit with 0": ([*UP, STOPPED], End("ended by itself", "status 0")),
    "own exit while it starts": (
        [STARTING, *LOADING, exited("1/FAILURE"), FAILED],
        End("ended by itself", "status 1", "loading weights"),
    ),
    "silence": (
        [STARTING, *LOADING, "ready gate: nothing logged and next to nothing read for 600 s (limit 600 s), "
         "in phase: loading weights", FAILED],
        End("its start timed out", "nothing moved for 600 s", "loading weights"),
    ),
    "start that systemd ended": (
        [STARTING, *LOADING, f"{UNIT}: start-post operation timed out. Terminating.",
         f"{UNIT}: Failed with result 'timeout'."],
        End("its start timed out", "", "loading weights"),
    ),
    "stop that timed out": (
        [*UP, STOPPING, "stop gate: asked for by the toolkit",
         f"{UNIT}: State 'stop-sigterm' timed out. Killing.",
         f"{UNIT}: Failed with result 'timeout'."],
        End("its stop timed out", lost=True),
    ),
    "requests dropped": (
        [*UP, STOPPING, "stop gate: asked for by the toolkit",
         "[2026-11-30 11:00:00] SIGTERM received while health check failed. Force exiting.", STOPPED],
        End("stopped by the toolkit", lost=True),
    ),
    "its own memory": (
        [*UP, exited("137/n/a"), FAILED, oom(f"/sglang.slice/{SLICE}", IN_SLICE)],
        End("out of memory", f"the limit of {SLICE}"),
    ),
    "the node's memory": (
        [*UP, exited("137/n/a"), FAILED, oom("(null)", IN_SLICE)],
        End("out of memory", "the memory of the node"),
    ),
    "another's memory": (
        [*UP, exited("137/n/a"), FAILED, oom("/x", "/sglang.slice/sglang-chat-2.slice/docker-1")],
        End("crashed", "status 137"),
    ),
    "memory of its unit": (
        [*UP, f"{UNIT}: A process of this unit has been killed by the OOM killer.",
         exited("9/KILL", "killed"), f"{UNIT}: Failed with result 'oom-kill'."],
        End("out of memory", "the limit of its unit"),
    ),
    "the last of several": (
        [*UP, exited("137/n/a"), FAILED, *UP, STOPPING, "stop gate: asked for by the toolkit",
         STOPPED, STARTING],
        End("stopped by the toolkit"),
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", CASES)
def test_an_end_is_told_by_who_asked_for_it(name: str) -> None:
    lines, expected = CASES[name]
    assert last_end(lines, SLICE) == expected


def as_systemd_249(lines: list[str]) -> list[str]:
    """The same lines as systemd 249 writes them: a unit is called by its description alone."""
    return [
        line.replace(f"ing {UNIT} - ", "ing ").replace(f"ed {UNIT} - ", "ed ") for line in lines
    ]


@pytest.mark.parametrize("name", CASES)
def test_an_older_systemd_s_lines_tell_the_same_end(name: str) -> None:
    lines, expected = CASES[name]
    old = as_systemd_249(lines)
    assert not any(f"{UNIT} - " in line for line in old)
    assert last_end(old, SLICE) == expected


@pytest.mark.parametrize("name", ["sglang@.service", "sglang-wheel@.service"])
def test_the_units_have_the_description_that_an_older_systemd_writes(name: str) -> None:
    text = (TEMPLATES / name).read_text(encoding="utf-8")
    assert "\nDescription=SGLang server %i\n" in text


def test_what_has_not_ended_has_no_end() -> None:
    assert last_end([], SLICE) is None
    assert last_end(UP, SLICE) is None
    assert end_of(ServiceState("chat")) is None


def test_status_says_how_it_ended() -> None:
    lines, _ = CASES["own exit while it starts"]
    node = with_state(converged(), active_state="failed", result="exit-code")
    (line,) = service_lines(with_state(node, last_lines=tuple(lines)))
    assert line.state == (
        "failed: exit-code (ended by itself, status 1, in phase: loading weights)"
    )
    crashed, _ = CASES["crash"]
    node = with_state(converged(), restarts=2, last_lines=tuple(crashed))
    assert service_lines(node)[0].drift == ("restarted 2 times by itself: crashed, status 137",)
    plain = with_state(converged(), restarts=0, last_lines=tuple(crashed))
    assert service_lines(plain)[0].state == "ready"


def test_the_programs_leave_word_where_the_gate_looks() -> None:
    watch = (TEMPLATES / "watch.sh").read_text(encoding="utf-8")
    assert f'"{paths.RUN}/asked.' in watch
    for name in ("control", "switch", "remove"):
        text = (TEMPLATES / f"{name}.sh.j2").read_text(encoding="utf-8")
        for verb in ("stop", "restart"):
            for place in text.split(f'systemctl --no-block {verb} "$unit"')[:-1]:
                assert 'asked "$unit"' in "\n".join(place.splitlines()[-8:])


@pytest.mark.parametrize("shell", SHELLS)
@pytest.mark.parametrize(
    ("shown", "told"),
    [
        ("ActiveState=failed\\nNRestarts=0", True),
        ("ActiveState=active\\nNRestarts=3", True),
        ("ActiveState=active\\nNRestarts=0", False),
    ],
)
def test_the_survey_brings_only_the_lines_that_tell(
    tmp_path: Path, shell: str, shown: str, told: bool
) -> None:
    said = "Starting SGLang server with api_key=hunter2"
    old = as_systemd_249(UP)
    log = [
        *CASES["crash"][0],
        *old,
        FAILED,
        said,
        "server_args={'api_key': 'hunter2'}",
        "INFO: GET /v1/models",
    ]
    (tmp_path / "log").write_text("\n".join(log) + "\n")
    (tmp_path / "kernel").write_text(f"{oom('/x', IN_SLICE)}\noom-kill:of another\n")
    bin_ = program_in(
        tmp_path / "bin",
        "journalctl",
        f'case " $* " in *" --dmesg "*) cat {tmp_path}/kernel ;; *) cat {tmp_path}/log ;; esac',
    )
    answer = f"printf 'Id={UNIT}\\n{shown}\\n'"
    program_in(
        bin_, "systemctl", f"case $1 in show) {answer} ;; list-units) echo '{UNIT} x' ;; esac"
    )
    program = tmp_path / "survey.sh"
    text = PROGRAM.read_text(encoding="utf-8")
    program.write_text(text.replace("PATH=${PATH:-", f"PATH={bin_}:${{PATH:-", 1))
    output, _ = run(SHELLS[shell], SurveyRequest(), program=program)
    assert "hunter2" not in output
    state = parse_survey(output.split("\n"), "node").services["chat"]
    if not told:
        assert end_of(state) is None
        return
    assert isinstance(state.last_lines, tuple)
    assert "INFO: GET /v1/models" not in state.last_lines
    assert set(old) <= set(state.last_lines)
    assert last_end(state.last_lines, SLICE) == End("out of memory", "the limit of /x")
