"""A run that is interrupted says what was done and what not, and ends with 130."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from locks.lockfile import write_lock
from tests.fake.command import ROOT, fake, inventory, recording
from tests.fake.test_exit_codes import whole_lock


def interrupted(folder: Path, at: str, *, again: bool = False) -> tuple[int, str, str]:
    """Run an apply of two slow nodes; interrupt it once it says ``at``, as Ctrl-C does."""
    hosts = [fake("a", recording("dgx-spark")), fake("b", recording("b200-pair"))]
    for _, data in hosts:
        data["fake_delay"] = 0.7
    target = inventory(folder, *hosts)
    write_lock(folder / "sglang.lock", whole_lock())
    process = subprocess.Popen(
        [sys.executable, "-m", "cli", "apply", str(target)],
        cwd=ROOT,
        env={**os.environ, "NO_COLOR": "1", "COLUMNS": "200"},
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    assert process.stderr is not None
    said = ""
    for line in process.stderr:
        said += line
        if at in line:
            break
    os.killpg(process.pid, signal.SIGINT)
    if again:
        os.killpg(process.pid, signal.SIGINT)
    before = time.monotonic()
    out, rest = process.communicate(timeout=60)
    assert time.monotonic() - before < 10
    with pytest.raises(ProcessLookupError):
        os.killpg(process.pid, 0)  # nothing of it runs here any more
    return process.returncode, out, said + rest


def test_an_interrupted_apply_says_what_was_done_and_what_not(tmp_path: Path) -> None:
    code, _, err = interrupted(tmp_path, "@fake/b  Write the deployment of chat")
    assert code == 130
    for node in ("@fake/a", "@fake/b"):
        assert (
            f"{node}  done: Fetch the image of chat, Fetch and check the weights of chat; interrupted at: Write the deployment of chat; "
            "not begun: Try CUDA in the image of chat, Start chat, Verify chat" in err
        )
    assert "run the command again" in err
    assert "Traceback" not in err
    assert "KeyboardInterrupt" not in err


def test_a_second_interrupt_ends_it_as_well(tmp_path: Path) -> None:
    code, _, err = interrupted(tmp_path, "Fetch the image of chat", again=True)
    assert code == 130
    assert "Traceback" not in err


def test_an_apply_that_is_interrupted_before_it_changed_anything_says_no_more(
    tmp_path: Path,
) -> None:
    hosts = [fake("a", recording("dgx-spark"))]
    hosts[0][1]["fake_delay"] = 30
    target = inventory(tmp_path, *hosts)
    write_lock(tmp_path / "sglang.lock", whole_lock())
    process = subprocess.Popen(
        [sys.executable, "-m", "cli", "apply", str(target), "-vv"],
        cwd=ROOT,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    assert process.stderr is not None
    for line in process.stderr:
        if "sglang-survey" in line:
            break
    process.send_signal(signal.SIGINT)
    out, err = process.communicate(timeout=60)
    assert process.returncode == 130
    assert (out, "Traceback" in err, "done:" in err) == ("", False, False)
