"""A run that is interrupted says what was done and what not, and ends with 130."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path

import pytest

from locks.lockfile import write_lock
from tests.fake.command import ROOT, fake, inventory, recording
from tests.fake.test_exit_codes import TRIED, VERIFIED, whole_lock


def interrupted(folder: Path, at: str, *, again: bool = False) -> tuple[int, str, str]:
    """Run an apply of two slow nodes; interrupt it once it says ``at``, as Ctrl-C does."""
    hosts = [fake("a", recording("dgx-spark")), fake("b", recording("b200-pair"))]
    for _, data in hosts:
        data["fake_delay"] = 0.7
        data["fake_responses"] |= TRIED | VERIFIED
    target = inventory(folder, *hosts)
    write_lock(folder / "sglang.lock", whole_lock())
    return interrupted_at(at, "apply", target, again=again)


def interrupted_at(
    at: str | Callable[[], bool], *words: object, again: bool = False
) -> tuple[int, str, str]:
    """Run the tool; interrupt it once it says ``at``, or that is true, as Ctrl-C does.

    Returns its exit code, stdout and stderr; it has ended within 10 s and left nothing running.
    """
    process = subprocess.Popen(
        [sys.executable, "-m", "cli", *map(str, words)],
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
    if isinstance(at, str):
        for line in process.stderr:
            said += line
            if at in line:
                break
    else:
        while not at():
            assert process.poll() is None, process.communicate()
            time.sleep(0.05)
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
    assert (
        "interrupted: what was begun on a node may go on there, a start or stop to its end, another "
        "step for some seconds; run the command again" in err
    )
    assert "what systemd was told goes on" not in err
    assert "Traceback" not in err
    assert "KeyboardInterrupt" not in err


@pytest.mark.parametrize("step", ["Fetch the image of chat", "Start chat", "Verify chat"])
def test_every_phase_of_an_apply_ends_at_once_and_says_how_far_it_came(
    tmp_path: Path, step: str
) -> None:
    code, _, err = interrupted(tmp_path, f"@fake/a  {step}")
    assert code == 130, err
    assert f"interrupted at: {step}" in err
    assert "interrupted: what was begun on a node may go on there" in err
    assert "Traceback" not in err


@pytest.fixture
def silent() -> Iterator[tuple[int, Callable[[], bool]]]:
    """A port at which somebody takes connections and says nothing, and whether one came."""
    listener = socket.create_server(("127.0.0.1", 0))
    listener.settimeout(0.05)
    taken: list[socket.socket] = []

    def came() -> bool:
        with suppress(TimeoutError):
            taken.append(listener.accept()[0])
        return bool(taken)

    yield listener.getsockname()[1], came
    for one in (listener, *taken):
        one.close()


def test_an_interrupt_while_it_connects_ends_it(
    tmp_path: Path, silent: tuple[int, Callable[[], bool]]
) -> None:
    port, came = silent
    keys = {"ssh_hostname": "127.0.0.1", "ssh_port": port}
    site = tmp_path / "site.py"
    site.write_text(f"nodes = {[('gpu-1', keys), ('gpu-2', keys)]!r}\n", encoding="utf-8")
    code, out, err = interrupted_at(came, "status", site)
    assert (code, out, "Traceback" in err) == (130, "", False)


def test_an_interrupt_while_a_registry_is_asked_ends_it(
    tmp_path: Path, silent: tuple[int, Callable[[], bool]]
) -> None:
    port, came = silent
    target = inventory(
        tmp_path,
        fake("a", recording("dgx-spark")),
        registry={"mirrors": {"docker.io": f"http://127.0.0.1:{port}"}},
    )
    code, out, err = interrupted_at(came, "apply", target)
    assert (code, out, "Traceback" in err) == (130, "", False)
    assert not (tmp_path / "sglang.lock").exists()


def test_an_interrupt_while_a_secret_s_command_runs_ends_that_too(tmp_path: Path) -> None:
    mark = tmp_path / "running"
    command = ["sh", "-c", f"echo $$ > {mark}; exec sleep 300"]
    target = inventory(
        tmp_path, fake("a", recording("dgx-spark")), secrets={"hub_token": {"command": command}}
    )
    code, out, err = interrupted_at(mark.exists, "apply", target)
    assert (code, out, "Traceback" in err) == (130, "", False)


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


@pytest.mark.parametrize("module", ["gevent", "click", "paramiko", "pydantic", "pyinfra.api"])
@pytest.mark.parametrize(
    "start", [["-m", "cli"], ["-c", "from pyinfra_sglang import main; main()"]]
)
def test_an_interrupt_while_the_tool_is_imported_ends_it_with_one_line(
    module: str, start: list[str]
) -> None:
    process = subprocess.Popen(
        [sys.executable, "-X", "importtime", *start, "plan", "inventories/demo.py", "--json"],
        cwd=ROOT,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    assert process.stderr is not None
    for line in process.stderr:
        if line.rpartition("| ")[2].strip().startswith(module):
            break
    process.send_signal(signal.SIGINT)
    out, err = process.communicate(timeout=60)
    said = [line for line in err.splitlines() if not line.startswith("import time:")]
    assert (process.returncode, said) == (130, ["interrupted: nothing was begun"])
    assert json.loads(out)["error"]["code"] == "INTERRUPTED"
