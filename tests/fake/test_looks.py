"""What people see: on narrow, plain and colourless terminals, through a pipe, of many nodes."""

from __future__ import annotations

import fcntl
import os
import pty
import re
import select
import struct
import subprocess
import sys
import termios
from pathlib import Path

import pytest

from locks.lockfile import write_lock
from tests.fake.command import ROOT, fake, inventory, recording, run
from tests.fake.test_exit_codes import VERIFIED, whole_lock

MANY = 200
NARROW = 40
ESCAPE = re.compile(r"\x1b\[[0-9;]*m")
OVER = re.compile(r"\r\x1b\[([0-9]+)A\x1b\[J")
COLOUR = re.compile(r"\x1b\[[0-9;]*3[0-7][0-9;]*m")


def fleet(folder: Path, count: int) -> Path:
    """Write an inventory of so many nodes, of which every tenth is refused."""
    hosts = []
    for number in range(count):
        name = f"gpu-{number:03d}.cluster-a.example.com"
        hosts.append(fake(name, recording("t4" if number % 10 == 9 else "dgx-spark")))
        hosts[-1][1]["fake_responses"] |= VERIFIED
    write_lock(folder / "sglang.lock", whole_lock())
    return inventory(folder, *hosts)


def on_terminal(*words: object, environment: dict[str, str]) -> str:
    """Run the tool on a narrow terminal; return all that it wrote there."""
    ours, theirs = pty.openpty()
    fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", 40, NARROW, 0, 0))
    kept = {k: v for k, v in os.environ.items() if k not in ("NO_COLOR", "COLUMNS", "FORCE_COLOR")}
    process = subprocess.Popen(
        [sys.executable, "-m", "cli", *map(str, words)],
        cwd=ROOT,
        env={**kept, "TERM": "xterm-256color", **environment},
        stdin=theirs,
        stdout=theirs,
        stderr=theirs,
        start_new_session=True,
    )
    shown = b""
    while True:
        if select.select([ours], [], [], 0.2)[0]:
            shown += os.read(ours, 65536)
        elif process.poll() is not None:
            break
    os.close(ours)
    os.close(theirs)
    return shown.decode().replace("\r\n", "\n")


def left_of(shown: str) -> tuple[str, list[str]]:
    """Return what stays on the terminal, and each block of lines that was drawn over, in order."""
    drawn: list[str] = []
    parts = OVER.split(shown)
    text = parts[0]
    for count, more in zip(parts[1::2], parts[2::2], strict=True):
        lines = text.splitlines(keepends=True)
        drawn.append(ESCAPE.sub("", "".join(lines[-int(count) :])))
        text = "".join(lines[: -int(count)]) + more
    return text, drawn


def test_nodes_at_work_are_drawn_over_themselves_and_never_scroll_away(tmp_path: Path) -> None:
    target = fleet(tmp_path, 30)
    slow = target.read_text(encoding="utf-8").replace("'fake_delay': 0,", "'fake_delay': 1.2,")
    target.write_text(slow, encoding="utf-8")
    text, drawn = left_of(on_terminal("apply", target, environment={}))
    plain = ESCAPE.sub("", text)
    assert "\x1b" not in plain, "nothing moves the cursor but to draw over what was drawn"
    assert "\r" not in plain
    assert "at work" not in plain, "nothing of it stays"
    assert "Fetch the image of chat" not in plain, (
        "the steps of many nodes would scroll it all away"
    )
    assert "30 nodes: 27 changed and ready, 3 refused\n" in plain
    assert any("is read" in block for block in drawn)
    at_work = [block for block in drawn if "  Fetch the image" in block]
    assert at_work
    for block in drawn:
        *lines, last = block.splitlines()
        assert len(lines) <= 12
        assert all(len(line) < NARROW for line in (*lines, last))
        assert all(re.search(r"  ([0-9]+ min )?[0-9]+ s$", line) for line in lines)
        assert re.match(r"[0-9]+ of 30 nodes at work", last)


def test_many_nodes_are_few_lines_of_a_plan(tmp_path: Path) -> None:
    target = fleet(tmp_path, MANY)
    ended = run("plan", target)
    lines = ended.out.splitlines()
    assert len(lines) < 60
    assert max(map(len, lines)) < 400
    assert (
        "@fake/gpu-000.cluster-a.example.com, @fake/gpu-001.cluster-a.example.com, "
        "@fake/gpu-002.cluster-a.example.com and 177 more  (180 nodes)  7 changes"
    ) in ended.out
    assert lines[-1] == "200 nodes: 180 to change, 20 refused"
    assert "and 17 more; these alone: --limit @" in ended.err
    # All of their names are there for those who ask.
    assert "@fake/gpu-198.cluster-a.example.com" in run("plan", target, "-v").out


def test_an_apply_of_several_ends_with_what_they_came_to(tmp_path: Path) -> None:
    ended = run("apply", fleet(tmp_path, 10))
    assert ended.out.splitlines()[-1] == "10 nodes: 9 changed and ready, 1 refused"
    assert "\x1b" not in ended.out + ended.err
    assert "\r" not in ended.out + ended.err


@pytest.mark.parametrize(
    ("environment", "escapes", "colours"),
    [({}, True, True), ({"NO_COLOR": "1"}, True, False), ({"TERM": "dumb"}, False, False)],
    ids=["colours", "NO_COLOR", "dumb"],
)
def test_a_narrow_terminal_gets_whole_lines_and_only_what_it_can_show(
    tmp_path: Path, environment: dict[str, str], escapes: bool, colours: bool
) -> None:
    shown = on_terminal("apply", fleet(tmp_path, 10), environment=environment)
    assert bool(ESCAPE.search(shown)) == escapes
    assert bool(COLOUR.search(shown)) == colours
    text, drawn = left_of(shown)
    assert not drawn or colours, "only a terminal that can and may is drawn over"
    plain = ESCAPE.sub("", text)
    assert "\x1b" not in plain, "nothing else moves the cursor"
    # Where nothing is drawn each step is a line, as it begins.
    assert ("Start chat\n" in plain) is not colours
    assert "\r" not in plain, "nothing is written over"
    # Not broken at the width: what is to be copied is copied whole.
    assert "  ~ unit  /etc/systemd/system/sglang@.service: not there yet\n" in plain
    assert "10 nodes: 9 changed and ready, 1 refused\n" in plain
