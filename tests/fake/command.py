"""Runs the real command line in a process of its own, over nodes that are not there."""

from __future__ import annotations

import atexit
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[2]
DEMO = ROOT / "inventories/demo.py"
RECORDED = ROOT / "inventories/demo"
CHAT = {"name": "chat", "model": "Qwen/Qwen3-8B", "output_cap": 8192}


@dataclass(frozen=True)
class Ended:
    """How a command ended."""

    code: int
    out: str
    err: str

    @property
    def json(self) -> Any:
        """Its standard output, which is one JSON document and nothing else."""
        return json.loads(self.out)

    @property
    def nodes(self) -> dict[str, Any]:
        """The nodes of its JSON document by name, in order."""
        return {node["node"]: node for node in self.json["nodes"]}


def run(*words: object, env: Mapping[str, str] | None = None, program: str = "") -> Ended:
    """Run ``sglang-node WORDS`` in the repository; it never asks for anything.

    ``program`` is run in its place where one is given, under the same gevent.
    """
    more = {**(env or {}), **({"PROGRAM": program} if program else {})}
    with tempfile.TemporaryDirectory() as folder:
        out, err = Path(folder, "out"), Path(folder, "err")
        forker = _forker()
        assert forker.stdin is not None
        assert forker.stdout is not None
        request = json.dumps([[str(word) for word in words], more, str(out), str(err)])
        forker.stdin.write(request + "\n")
        forker.stdin.flush()
        code = int(forker.stdout.readline())
        return Ended(code, out.read_text(encoding="utf-8"), err.read_text(encoding="utf-8"))


def run_alone(*words: object, module: str) -> Ended:
    """Run ``python -m MODULE WORDS`` in the repository, as a person would."""
    done = subprocess.run(
        [sys.executable, "-m", module, *map(str, words)],
        cwd=ROOT,
        env=_environment(),
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    return Ended(done.returncode, done.stdout, done.stderr)


def _environment() -> dict[str, str]:
    colours = ("NO_COLOR", "FORCE_COLOR")
    inherited = {k: v for k, v in os.environ.items() if k not in colours}
    # As wide as no line of ours: where a line breaks is not what is tried here.
    return {**inherited, "PYINFRA_PROGRESS": "off", "COLUMNS": "200"}


@cache
def _forker() -> subprocess.Popen[str]:
    forker = subprocess.Popen(
        [sys.executable, "-m", "tests.fake.forker"],
        cwd=ROOT,
        env=_environment(),
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    atexit.register(_end, forker)
    return forker


def _end(forker: subprocess.Popen[str]) -> None:
    assert forker.stdin is not None
    forker.stdin.close()  # it ends with its input
    forker.wait(timeout=10)


def recording(name: str) -> list[str]:
    """Return the lines of a recorded survey of the demonstration."""
    return (RECORDED / f"{name}.survey").read_text(encoding="utf-8").splitlines()


def fake(name: str, lines: Any, **data: Any) -> tuple[str, dict[str, Any]]:
    """Return a host of an inventory whose survey prints these lines.

    ``lines`` may also be a response of pyinfra's @fake connector.
    """
    return f"@fake/{name}", {
        "fake_responses": {"sglang-survey": lines},
        "fake_delay": 0,
        "fake_delay_jitter": 0,
        **data,
    }


def inventory(folder: Path, *hosts: Any, services: Any = None, **more: Any) -> Path:
    """Write an inventory with these hosts, of which each shall serve one model."""
    data = {"sglang": {"services": [CHAT] if services is None else services, **more}}
    path = folder / "site.py"
    path.write_text(f"nodes = ({list(hosts)!r}, {data!r})\n", encoding="utf-8")
    return path
