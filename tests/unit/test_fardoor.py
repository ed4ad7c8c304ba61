"""Doors before servers of several nodes: who is told, and what the door does where nobody is left to
let a server back."""

from __future__ import annotations

import asyncio
import os
import runpy
import shutil
import time
from pathlib import Path
from typing import Any

import pytest

from plans.doorwish import Door
from plans.fardoor import AtDoor, Doors, come_back, find_doors, leave, strangers
from plans.launch import TEMPLATES
from plans.wishes import Service
from tests.unit.deployments import CAP
from tests.unit.surveys import wishes
from tests.unit.test_switch_runs import ran

SHELLS = [shell for shell in ("dash", "bash") if shutil.which(shell)]
URL, OTHER = "http://10.0.0.2:30000", "http://10.0.0.3:30000"
FAR = AtDoor("gpu-a", "10.0.0.2:30000", of_node=False)
OWN = AtDoor("gpu-a", "chat", of_node=True)


def service(**keys: Any) -> Service:
    (one,) = wishes(CAP | keys).services
    return one


def doors(*servers: str, services: tuple[Service, ...] = ()) -> Doors:
    return find_doors({"gpu-a": (Door(port=8000, servers=servers), services or (service(),))})


# --- who is told


@pytest.mark.parametrize(
    ("url", "address", "known_as", "port"),
    [
        (URL, "10.0.0.2", (), 30000),
        (URL, "0.0.0.0", ("gpu-b", "10.0.0.2"), 30000),
        ("http://GPU-B.Lan:30000", "0.0.0.0", ("gpu-b.lan",), 30000),
        ("http://[fd00:0::2]:30001", "fd00::2", (), 30001),
    ],
)
def test_a_server_of_another_node_is_found_by_its_address(
    url: str, address: str, known_as: tuple[str, ...], port: int
) -> None:
    found = doors(url).before("gpu-b", service(address=address, port=port), known_as)
    assert [(one.node, one.of_node) for one in found] == [("gpu-a", False)]


@pytest.mark.parametrize(
    ("address", "known_as", "port"),
    [
        ("10.0.0.3", ("gpu-b",), 30000),
        ("10.0.0.2", (), 30001),
        ("0.0.0.0", ("gpu-b",), 30000),
    ],
)
def test_one_of_another_address_is_not(address: str, known_as: tuple[str, ...], port: int) -> None:
    assert doors(URL).before("gpu-b", service(address=address, port=port), known_as) == ()


def test_a_door_with_one_server_of_its_own_is_told_by_its_node_alone() -> None:
    assert doors().before("gpu-a", service()) == ()
    assert doors("chat", URL).before("gpu-a", service()) == (OWN,)
    assert doors("chat", URL).before("gpu-b", service()) == ()


def test_two_doors_before_a_server_are_both_told() -> None:
    door = Door(port=8000, servers=(URL,))
    found = find_doors({one: (door, (service(),)) for one in ("gpu-a", "gpu-c")})
    there = found.before("gpu-b", service(address="10.0.0.2"), ("10.0.0.2",))
    assert [one.node for one in there] == ["gpu-a", "gpu-c"]


def test_a_server_that_nobody_in_the_inventory_is_known_by_is_named() -> None:
    door = Door(port=8000, servers=("chat", URL, "http://gpu-c:30000"))
    assert strangers(door, [("10.0.0.2", 30000), ("GPU-C", 30000)]) is None
    told = strangers(door, [("10.0.0.2", 30001), ("gpu-c", 30000)])
    assert told is not None
    assert (told.code, "has 10.0.0.2:30000, which" in told.text) == ("DOOR_NOT_TOLD", True)


# --- how: by a real shell, over a stand-in of systemd


def told(
    root: Path, shell: str, program: str, state: str, *, file: str = "", active: str = "active"
) -> tuple[int, str, str]:
    """Run a program on a door's node; return how it ended, what it printed, and the file in OUT."""
    out = root / "run/sglang/door"
    for directory in (out, root / "run/sglang-door", root / "bin"):
        directory.mkdir(parents=True)
    (root / "run/sglang-door/state").write_text(state, encoding="utf-8")
    if file:
        (out / FAR.server).write_text(f"{file}\n", encoding="utf-8")
    (root / "told").touch()
    bodies = {"systemctl": f"echo {active}", "sleep": "exec /bin/sleep 0.01"}
    for name, body in bodies.items():
        (root / "bin" / name).write_text(f"#!/bin/sh\n{body}\n", encoding="utf-8")
        (root / "bin" / name).chmod(0o755)
    code, said, _ = ran(root, shell, program)
    there = out / FAR.server
    return code, said, there.read_text(encoding="utf-8").strip() if there.exists() else ""


def servers(**states: str) -> str:
    """Return the state of a door whose other server is in rotation, unless it is said."""
    states = {FAR.server: "in", "chat": "in"} | {
        k.replace("far", FAR.server): v for k, v in states.items()
    }
    return "".join(f"server {name} {state} http://x\n" for name, state in states.items())


@pytest.mark.parametrize("shell", SHELLS)
def test_it_is_out_for_so_long_and_the_file_says_so(tmp_path: Path, shell: str) -> None:
    code, said, file = told(tmp_path, shell, leave(FAR, 630), servers(far="out-away"))
    assert (code, file) == (0, "away 630 out-away")
    assert "10.0.0.2:30000 is out of the door's rotation" in said


def test_the_last_one_of_the_door_s_own_node_is_left_to_its_node(tmp_path: Path) -> None:
    state = servers(far="down", chat="in")
    assert told(tmp_path, "dash", leave(OWN, 630), state)[0] == 0
    assert not (tmp_path / "run/sglang/door/chat").exists()


def test_one_that_the_door_does_not_let_go_is_left_in_and_the_run_ends(tmp_path: Path) -> None:
    code, said, file = told(tmp_path, "dash", leave(FAR, 630), servers())
    assert (code, file) == (1, "")
    assert "did not take 10.0.0.2:30000 out of rotation" in said


@pytest.mark.parametrize(
    ("state", "active"), [(servers(), "inactive"), ("server chat in http://x\n", "active")]
)
def test_where_no_door_has_it_nobody_is_told(tmp_path: Path, state: str, active: str) -> None:
    assert told(tmp_path, "dash", leave(FAR, 630), state, active=active)[::2] == (0, "")


@pytest.mark.parametrize("program", [leave(FAR, 630), come_back(FAR)])
@pytest.mark.parametrize("file", ["maintenance", " "])
def test_what_somebody_holds_out_stays_out(tmp_path: Path, program: str, file: str) -> None:
    state = servers(far="out-held")
    assert told(tmp_path, "dash", program, state, file=file)[::2] == (0, file.strip())
    assert (tmp_path / "run/sglang/door" / FAR.server).exists()


@pytest.mark.parametrize("shell", SHELLS)
def test_it_is_back_once_the_door_says_so(tmp_path: Path, shell: str) -> None:
    code, said, file = told(tmp_path, shell, come_back(FAR), servers(), file="away 630 in")
    assert (code, file) == (0, "")
    assert "is back in the door's rotation" in said


@pytest.mark.parametrize(("before", "code"), [("in", 1), ("down", 0)])
def test_one_that_the_door_does_not_find_is_a_failure_where_it_did_before(
    tmp_path: Path, before: str, code: int
) -> None:
    state = servers(far="down")
    ended = told(tmp_path, "dash", come_back(FAR), state, file=f"away 630 {before}")
    assert ended[::2] == (code, "")


def test_one_that_was_not_taken_out_is_not_waited_for(tmp_path: Path) -> None:
    assert told(tmp_path, "dash", come_back(FAR), servers(far="down"))[::2] == (0, "")


# --- the door's own part


class Router:
    """The router's list of servers, and nothing else of it."""

    pairs = False

    def __init__(self) -> None:
        self.there: dict[str, tuple[str, bool]] = {URL: ("1", True), OTHER: ("2", True)}

    async def workers(self) -> dict[str, tuple[str, bool]]:
        return dict(self.there)

    async def ask(self, method: str, path: str, **more: Any) -> None:
        if method == "POST":
            self.there[more["json"]["url"]] = ("1", True)
        else:
            self.there = {url: one for url, one in self.there.items() if path[-1] != one[0]}


class Watched:
    """The door's own look at one server, with a clock that is set by hand."""

    def __init__(self, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self.out, self.answers, self.now = folder / "out", True, 0.0
        self.out.mkdir()
        program = runpy.run_path(str(TEMPLATES / "door.py"))
        monkeypatch.setattr(program["time"], "monotonic", lambda: self.now)
        settings = {"servers": [{"name": "far", "url": URL}, {"name": "other", "url": OTHER}]}
        self.router = Router()
        self.servers = program["Servers"]([], settings, folder, self.out, self.router, None)
        self.servers.answers = self._answer

    async def _answer(self, url: str) -> bool:
        return self.answers and url == URL

    def after(self, seconds: float, *, answers: bool = True) -> str:
        """Look so much later, three times; return how the door then has the server."""
        self.now, self.answers = self.now + seconds, answers
        for _ in range(3):
            asyncio.run(self.servers.look())
        return str(self.servers.states["far"])


@pytest.fixture
def watched(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Watched:
    return Watched(tmp_path, monkeypatch)


def test_a_run_that_was_cut_keeps_a_server_out_no_longer_than_it_said(watched: Watched) -> None:
    (watched.out / "far").write_text("away 60 in\n")
    assert watched.after(0) == "out-away"
    assert watched.after(10, answers=False) == "out-away"
    assert watched.after(30) == "out-away"
    assert watched.after(59) == "out-away"
    # One that goes away again begins anew.
    assert watched.after(0, answers=False) == "out-away"
    assert [watched.after(1), watched.after(59), watched.after(1)] == ["out-away", "out-away", "in"]
    assert watched.after(100) == "in"


def test_one_that_was_never_away_may_be_stopped_yet(watched: Watched) -> None:
    (watched.out / "far").write_text("away 0 in\n")
    assert [watched.after(0), watched.after(119), watched.after(1)] == [
        "out-away",
        "out-away",
        "in",
    ]


def test_where_no_other_serves_it_is_back_as_soon_as_it_answers_again(watched: Watched) -> None:
    (watched.out / "far").write_text("away 600 in\n")
    assert watched.after(0) == "out-away"
    watched.router.there.clear()
    # Before it was away it may be about to be stopped.
    assert [watched.after(5), watched.after(5, answers=False)] == ["out-away", "out-away"]
    assert watched.after(20) == "in"


def test_the_next_run_that_takes_it_out_is_heard_too(watched: Watched) -> None:
    file = watched.out / "far"
    file.write_text("away 0 in\n")
    watched.after(0, answers=False)
    assert watched.after(1) == "in"
    file.write_text("away 60 in\n")
    os.utime(file, (time.time() - 60,) * 2)
    assert watched.after(1) == "out-away"
    file.unlink()
    assert watched.after(1) == "in"


def test_what_was_left_behind_long_ago_keeps_nothing_out_of_a_door_that_starts(
    watched: Watched,
) -> None:
    file = watched.out / "far"
    file.write_text("away 60 in\n")
    os.utime(file, (time.time() - 200,) * 2)
    assert watched.after(0) == "in"


def test_a_server_that_the_door_saw_away_is_out_for_its_time_however_long_it_took(
    watched: Watched,
) -> None:
    file = watched.out / "far"
    file.write_text("away 60 in\n")
    os.utime(file, (time.time() - 200,) * 2)
    assert watched.after(0, answers=False) == "out-away"
    assert [watched.after(1), watched.after(59), watched.after(1)] == ["out-away", "out-away", "in"]
