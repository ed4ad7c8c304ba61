"""The door's keeper, run for real before a small stand-in of the door: nobody waits, nothing is cut."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from plans.launch import TEMPLATES

# What it is told, and what it does with a connection: a line comes, a line goes, later where asked.
FRONT = """
import json, select, socket, sys, threading, time
with open(sys.argv[1]) as file:
    settings = json.load(file)
address, line = (socket.socket(fileno=int(number)) for number in sys.argv[4:])
words = line.makefile("r")
keys = json.loads(words.readline())["credentials"]["keys"]
def tell(**told):
    line.sendall(json.dumps(told).encode() + b"\\n")
if settings["key"] == "refused":
    tell(refused="it does not like its settings")
    sys.exit(1)
def serve(client):
    with client:
        client.settimeout(10)
        time.sleep(float(client.makefile("r").readline()))
        client.sendall(f"{settings['key']} {keys}\\n".encode())
retired, served = threading.Event(), []
def accept():
    address.setblocking(False)
    while not retired.is_set():
        if select.select([address], [], [], 0.02)[0]:
            try:
                client, _ = address.accept()
            except BlockingIOError:
                continue
            client.setblocking(True)
            served.append(threading.Thread(target=serve, args=(client,)))
            served[-1].start()
    address.close()
accepting = threading.Thread(target=accept)
accepting.start()
tell(ready="it serves")
for word in words:
    told = json.loads(word)
    if "retire" in told:
        break
    if told["credentials"]["keys"] == "bad":
        tell(refused="it does not like its keys")
        continue
    keys = told["credentials"]["keys"]
    tell(ready="it took the keys")
retired.set()
accepting.join()
for one in served:
    one.join()
"""


# As systemd gives a socket of its store: as file 3.
ACTIVATED = """
import os, sys
given = int(sys.argv[1])
if given != 3:
    os.dup2(given, 3)
    os.close(given)
os.environ.update(LISTEN_PID=str(os.getpid()), LISTEN_FDS="1")
os.execv(sys.argv[2], sys.argv[2:])
"""


@dataclass
class Kept:
    """A keeper at work, in a directory of its own."""

    root: Path
    port: int
    process: subprocess.Popen[str] = field(init=False)

    def settings(self, key: str, **changes: object) -> None:
        """Put settings in place, as a switch does."""
        place = self.root / key
        place.mkdir(exist_ok=True)
        told = {"key": key, "environment": str(self.root / "env"), "host": "127.0.0.1"}
        (place / "door.json").write_text(json.dumps(told | {"port": self.port} | changes))
        (place / "door.py").write_text(FRONT)
        (place / "keeper.py").write_text(self.program())
        (self.root / "beside").symlink_to(key)
        os.rename(self.root / "beside", self.root / "current")

    def program(self) -> str:
        """Return the keeper; here it listens to this process, which is no unit of systemd."""
        text = (TEMPLATES / "door-keeper.py").read_text(encoding="utf-8")
        own = Path("/proc/self/cgroup").read_text(encoding="utf-8").splitlines()[0]
        changed = text.replace('"/sglang-door-renew.service"', repr(own))
        assert changed != text
        return changed

    def command(self, *words: object) -> list[str]:
        python = str(self.root / "env/bin/python3")
        return [python, "-I", str(self.root / "current/keeper.py"), *map(str, words)]

    def environment(self, keys: str) -> dict[str, str]:
        """Return the environment that systemd would give, with these keys as credentials."""
        folder = self.root / "credentials"
        folder.mkdir(exist_ok=True)
        (folder / "keys").write_text(keys)
        return {"CREDENTIALS_DIRECTORY": str(folder), "PATH": "/nonexistent"}

    def begin(
        self,
        keys: str = "one",
        stored: socket.socket | None = None,
        host: str = "127.0.0.1",
    ) -> None:
        """Start it and wait until it serves; ``stored``: the socket that systemd gives it."""
        words = self.command("keep", self.root / "current", self.root, self.root / "out")
        files = () if stored is None else (stored.fileno(),)
        if files:
            words = [sys.executable, "-c", ACTIVATED, str(files[0]), *words]
        self.process = subprocess.Popen(
            words,
            env=self.environment(keys),
            stdout=subprocess.PIPE,
            text=True,
            pass_fds=files,
        )
        end = time.monotonic() + 30
        while time.monotonic() < end:
            try:
                self.ask(host=host)
                return
            except OSError:
                time.sleep(0.05)
        raise AssertionError("the keeper does not serve")

    def hand(self, keys: str = "one") -> tuple[int, str]:
        """Bring what changed; return how it ended and what it said."""
        done = subprocess.run(
            self.command("hand", self.root),
            env=self.environment(keys),
            capture_output=True,
            text=True,
            timeout=60,
            check=False,
        )
        return done.returncode, done.stdout

    def ask(
        self, seconds: float = 0.0, port: int | None = None, host: str = "127.0.0.1"
    ) -> list[str]:
        """Ask who is there; the answer comes after so many seconds."""
        with socket.create_connection((host, port or self.port), timeout=20) as there:
            there.sendall(f"{seconds}\n".encode())
            return there.makefile("r").readline().split()

    def ask_until(self, answer: list[str]) -> list[str]:
        """Ask until this is the answer, or for 10 s: one that is told to end may take a last one."""
        end = time.monotonic() + 10
        while (said := self.ask()) != answer and time.monotonic() < end:
            time.sleep(0.05)
        return said

    def fronts(self) -> set[str]:
        """Return the processes of the keeper."""
        task = Path(f"/proc/{self.process.pid}/task/{self.process.pid}/children")
        return set(task.read_text().split())


@pytest.fixture
def kept(tmp_path: Path) -> Iterator[Kept]:
    """A keeper whose door has the settings `first`."""
    (tmp_path / "env/bin").mkdir(parents=True)
    (tmp_path / "env/bin/python3").symlink_to(sys.executable)
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    made = Kept(tmp_path, port)
    made.settings("first")
    made.begin()
    yield made
    made.process.kill()
    made.process.wait()


def test_other_settings_are_served_by_a_process_beside_the_one_that_finishes(kept: Kept) -> None:
    late: list[list[str]] = []
    waiting = threading.Thread(target=lambda: late.append(kept.ask(3)))
    waiting.start()
    time.sleep(0.3)
    before = kept.fronts()
    kept.settings("second")
    assert kept.hand() == (0, "it serves\n")
    assert kept.ask_until(["second", "one"]) == ["second", "one"]
    assert len(kept.fronts()) == 2, "the first has an answer to finish"
    waiting.join()
    assert late == [["first", "one"]]
    end = time.monotonic() + 10
    while kept.fronts() & before and time.monotonic() < end:
        time.sleep(0.05)
    assert len(kept.fronts()) == 1
    assert kept.process.poll() is None


def test_clients_that_come_all_the_time_are_all_answered(kept: Kept) -> None:
    found: list[str] = []
    over = threading.Event()

    def come() -> None:
        while not over.is_set():
            try:
                found.append(kept.ask(0.01)[0])
            except (OSError, IndexError) as problem:
                found.append(repr(problem))

    coming = [threading.Thread(target=come) for _ in range(6)]
    for one in coming:
        one.start()
    for key in ("second", "third", "first"):
        kept.settings(key)
        assert kept.hand()[0] == 0
    over.set()
    for one in coming:
        one.join()
    assert set(found) == {"first", "second", "third"}
    assert len(found) > 50


def test_keys_are_taken_by_the_process_that_serves(kept: Kept) -> None:
    before = kept.fronts()
    assert kept.hand("two") == (0, "it took the keys\n")
    assert kept.ask() == ["first", "two"]
    assert kept.hand("two") == (0, "nothing has changed\n")
    assert kept.fronts() == before
    # And by the next one.
    kept.settings("second")
    assert kept.hand("two")[0] == 0
    assert kept.ask_until(["second", "two"]) == ["second", "two"]


def test_what_is_not_taken_leaves_the_door_as_it_was(kept: Kept) -> None:
    before = kept.fronts()
    code, said = kept.hand("bad")
    assert (code, "it does not like its keys" in said) == (1, True)
    kept.settings("refused")
    code, said = kept.hand()
    assert (code, "it does not like its settings" in said) == (1, True)
    (kept.root / "third").mkdir()
    (kept.root / "beside").symlink_to("third")
    os.rename(kept.root / "beside", kept.root / "current")
    (kept.root / "third/keeper.py").write_text(kept.program())
    code, said = kept.hand()
    assert (code, "FileNotFoundError" in said) == (1, True)
    assert kept.ask() == ["first", "one"]
    assert kept.fronts() == before
    kept.settings("second")
    assert kept.hand()[0] == 0
    assert kept.ask_until(["second", "one"]) == ["second", "one"]


def test_another_address_takes_over_from_the_first(kept: Kept) -> None:
    kept.settings("second", host="0.0.0.0")
    assert kept.hand()[0] == 0
    assert kept.ask_until(["second", "one"]) == ["second", "one"]
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    kept.settings("third", port=port)
    assert kept.hand()[0] == 0
    assert kept.ask(port=port) == ["third", "one"]
    end = time.monotonic() + 10
    while time.monotonic() < end:
        try:
            kept.ask()
        except OSError:
            break
    with pytest.raises(ConnectionRefusedError):
        kept.ask()


def test_an_address_that_systemd_has_in_its_store_does_not_keep_a_wider_one_from_being_taken(
    kept: Kept,
) -> None:
    kept.process.kill()
    kept.process.wait()
    with socket.create_server(("127.0.0.1", 0)) as stored:
        kept.port = stored.getsockname()[1]
        kept.settings("second", host="0.0.0.0")
        kept.begin(stored=stored, host="127.0.0.2")
        assert kept.ask(host="127.0.0.2") == ["second", "one"]
        assert not stored.getsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT)
    # systemd is told to forget it.
    assert kept.ask() == ["second", "one"]


# Ends with the process's PR_GET_DUMPABLE (prctl(2)) once what it is to run has begun and failed.
BEGUN = """
import asyncio, ctypes, runpy, sys
program = runpy.run_path(sys.argv[1])
name, told = sys.argv[2], sys.argv[3:]
try:
    asyncio.run(program[name](*told)) if name == "main" else program[name](*told)
except (SystemExit, FileNotFoundError):
    pass
sys.exit(ctypes.CDLL(None).prctl(3, 0, 0, 0, 0))
"""


@pytest.mark.parametrize(
    ("program", "begin", "readable"),
    [
        ("door-keeper.py", ("keep", "/none", "/none", "/none"), 0),
        ("door.py", ("main", "/none", "/none", "/none", "0", "0"), 0),
        # The keeper looks in /proc which unit it is of, where systemd shows what can be read alone.
        ("door-keeper.py", ("hand", "/none"), 1),
    ],
)
def test_no_process_of_the_same_user_reads_keys_from_memory(
    program: str, begin: tuple[str, ...], readable: int
) -> None:
    words = [sys.executable, "-I", "-c", BEGUN, str(TEMPLATES / program), *begin]
    done = subprocess.run(words, env={}, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == readable, done.stderr


def test_a_process_that_ends_by_itself_is_started_again_and_clients_wait_for_it(
    kept: Kept,
) -> None:
    (pid,) = kept.fronts()
    os.kill(int(pid), signal.SIGKILL)
    while pid in kept.fronts():
        time.sleep(0.01)
    assert kept.ask() == ["first", "one"]
    assert kept.fronts() != {pid}


def test_a_stop_finishes_what_is_in_flight(kept: Kept) -> None:
    late: list[list[str]] = []
    waiting = threading.Thread(target=lambda: late.append(kept.ask(1.5)))
    waiting.start()
    time.sleep(0.3)
    kept.process.terminate()
    assert kept.process.wait(20) == 0
    waiting.join()
    assert late == [["first", "one"]]


def test_a_keeper_that_waits_for_the_last_answer_takes_no_time_of_the_processor(
    kept: Kept,
) -> None:
    def used() -> float:
        words = Path(f"/proc/{kept.process.pid}/stat").read_text().rpartition(")")[2].split()
        return (int(words[11]) + int(words[12])) / os.sysconf("SC_CLK_TCK")

    waiting = threading.Thread(target=lambda: kept.ask(2.5))
    waiting.start()
    time.sleep(0.3)
    kept.process.terminate()
    time.sleep(0.5)
    before = used()
    time.sleep(1)
    assert used() - before < 0.1
    assert kept.process.wait(20) == 0
    waiting.join()


def test_nobody_but_the_renewing_unit_is_listened_to(kept: Kept) -> None:
    program = (TEMPLATES / "door-keeper.py").read_text(encoding="utf-8")
    kept.settings("second")
    (kept.root / "second/keeper.py").write_text(program)
    assert kept.hand()[0] == 0, "it became the keeper that listens to systemd's unit alone"
    code, said = kept.hand("two")
    assert (code, "the door said nothing" in said) == (1, True)
    assert kept.ask() == ["second", "one"]
