"""The soak: what ends it, each in one sentence; how long it may be; its program over a played node."""

from __future__ import annotations

import os
import signal
import subprocess
import time
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from plans.proof_scripts import keep_logs, soak
from plans.soaking import read_length, soak_problem
from tests.unit.test_proving import chat, served

SHOWN = ["ActiveState=active", "NRestarts=0", "InvocationID=ab", "MainPID=42", "Result=success"]
CRASHED = [
    "Starting sglang@chat.service - SGLang server chat...",
    "Started sglang@chat.service - SGLang server chat.",
    "sglang@chat.service: Main process exited, code=exited, status=137/n/a",
    "sglang@chat.service: Failed with result 'exit-code'.",
]


def printed(**parts: list[str] | None) -> list[str]:
    whole: dict[str, list[str] | None] = {
        "seconds": ["60"],
        "unready": ["0"],
        "ready": ["200"],
        "answer": chat(),
        "before": SHOWN,
        "after": SHOWN,
        "log": ["INFO: serving"],
        "unit": [],
        "end": [],
        **parts,
    }
    return [
        line
        for name, lines in whole.items()
        if lines is not None
        for line in (f"@ {name}", *(f" {one}" for one in lines))
    ]


def test_a_service_that_stands_it_has_no_problem() -> None:
    assert soak_problem(printed(), served(), "0.5.23") is None


@pytest.mark.parametrize(
    ("parts", "sentence"),
    [
        (
            {"after": ["ActiveState=activating", "MainPID=0"], "unit": CRASHED, "seconds": ["20"]},
            "it ended 20 s into its soak: crashed, status 137",
        ),
        ({"after": [*SHOWN[:1], "NRestarts=1", *SHOWN[2:]]}, "it ended 60 s into its soak"),
        ({"before": ["ActiveState=failed"]}, "it ended"),
        ({"ready": ["503"], "seconds": ["30"]}, "its ready endpoint says 503, 30 s into its soak"),
        ({"unready": ["3"], "seconds": ["15"]}, "it was not ready 3 times in a row, 15 s into"),
        ({"unready": None}, "it was not ready ? times in a row"),
        ({"ready": ["000"]}, "its ready endpoint says nothing"),
        ({"answer": ["000"]}, "a generation at the end of its soak got no answer"),
        ({"answer": ["oh", "500"]}, "a generation at the end of its soak got status 500"),
        ({"answer": chat("")}, "at the end of its soak the answer has no text"),
        (
            {"log": ["RuntimeError: Error 802: system not yet initialized"]},
            "a line known to be bad",
        ),
        ({"end": None}, "cut off"),
    ],
)
def test_each_failure_is_one_sentence(parts: dict[str, Any], sentence: str) -> None:
    problem = soak_problem(printed(**parts), served(), "0.5.23")
    assert problem is not None
    assert sentence in problem
    assert "\n" not in problem


@given(st.lists(st.text(max_size=30), max_size=30))
def test_no_output_raises_and_none_but_a_whole_one_is_good(lines: list[str]) -> None:
    assert soak_problem(lines, served(), "0.5.23") is not None


@pytest.mark.parametrize(
    ("text", "seconds"), [("60", 60), ("90s", 90), ("10m", 600), ("1h", 3600), ("0s", 0)]
)
def test_a_length_is_read(text: str, seconds: float) -> None:
    assert read_length(text) == seconds


@pytest.mark.parametrize("text", ["", "long", "-1", "1d", "25h"])
def test_any_other_length_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match=r"soak|such as"):
        read_length(text)


# --- the programs, with systemctl, journalctl and curl played


def play(folder: Path, **programs: str) -> dict[str, str]:
    for name, text in programs.items():
        (folder / name).write_text(f"#!/bin/sh\n{text}\n")
        (folder / name).chmod(0o755)
    return {"PATH": f"{folder}:{os.environ['PATH']}"}


SYSTEMCTL = """case "$*" in
*--value*) echo ab ;;
*) cat "$(dirname "$0")/shown" ;;
esac"""
CURL = """cat >/dev/null
case "$*" in
*chat*) printf '%s\\n200\\n' '{"choices":[{"message":{"content":"hi"}}]}' ;;
*) printf '\\n200\\n' ;;
esac"""


def test_the_program_ends_as_soon_as_the_main_process_is_another(tmp_path: Path) -> None:
    env = play(tmp_path, systemctl=SYSTEMCTL, journalctl="echo a line", curl=CURL)
    (tmp_path / "shown").write_text("\n".join(SHOWN) + "\n")
    began = time.monotonic()
    program = subprocess.Popen(
        ["sh", "-s"], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=env
    )
    assert program.stdin is not None
    program.stdin.write(soak(served(), "0.5.23", 7, 600))
    program.stdin.close()
    time.sleep(0.5)
    (tmp_path / "shown").write_text("ActiveState=activating\nMainPID=0\n")
    assert program.stdout is not None
    lines = program.stdout.read().splitlines()
    program.wait()
    assert time.monotonic() - began < 15
    problem = soak_problem(lines, served(), "0.5.23")
    assert problem is not None
    assert problem.startswith("it ended")


def test_the_program_passes_a_service_that_stays_as_it_is(tmp_path: Path) -> None:
    env = play(tmp_path, systemctl=SYSTEMCTL, journalctl="echo a line", curl=CURL)
    (tmp_path / "shown").write_text("\n".join(SHOWN) + "\n")
    done = subprocess.run(
        ["sh", "-s"], input=soak(served(), "0.5.23", 7, 2), text=True, capture_output=True,
        env=env, check=True,
    )  # fmt: skip
    assert soak_problem(done.stdout.splitlines(), served(), "0.5.23") is None


def test_both_logs_are_kept_for_root_alone_without_the_line_that_may_hold_a_key(
    tmp_path: Path,
) -> None:
    journal = """case "$*" in
*_SYSTEMD_INVOCATION_ID=old*) echo the old one stops ;;
*) echo server_args=ServerArgs; echo the new one fails ;;
esac"""
    env = play(tmp_path, journalctl=journal)
    here = tmp_path / "7"
    here.mkdir()
    text = keep_logs("chat", 7, "old", '{"result": "no"}\n')
    text = text.replace("/var/lib/sglang/deployments/chat", str(tmp_path))
    done = subprocess.run(
        ["sh", "-s"], input=text, text=True, capture_output=True, env=env, check=True
    )
    assert (here / "failed.log").read_text() == "the new one fails\n"
    assert (here / "before.log").read_text() == "the old one stops\n"
    assert (here / "failed.log").stat().st_mode & 0o777 == 0o600
    assert (here / "record.json").read_text() == '{"result": "no"}\n'
    assert "failed.log" in done.stdout


def test_a_disk_that_is_too_busy_for_the_record_keeps_nobody_from_going_back(
    tmp_path: Path,
) -> None:
    (tmp_path / "busy").mkdir()
    sync = tmp_path / "busy/sync"
    sync.write_text(f"#!/bin/sh\necho $$ > {tmp_path}/pid\nexec /bin/sleep 61\n")
    sync.chmod(0o755)
    env = play(tmp_path, journalctl=":")
    env = {**env, "PATH": f"{tmp_path}/busy:{env['PATH']}"}
    (tmp_path / "7").mkdir()
    text = keep_logs("chat", 7, "old", '{"result": "no"}\n')
    text = text.replace("/var/lib/sglang/deployments/chat", str(tmp_path))
    began = time.monotonic()
    subprocess.run(["sh", "-s"], input=text, text=True, capture_output=True, env=env, check=True)
    took = time.monotonic() - began
    os.kill(int((tmp_path / "pid").read_text()), signal.SIGKILL)
    assert took < 50
    assert (tmp_path / "7/record.json").read_text() == '{"result": "no"}\n'
    assert not (tmp_path / "7/record.json.new").exists()
