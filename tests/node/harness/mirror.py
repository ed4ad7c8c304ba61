"""What nodes and the controller reach instead of the internet: one real HTTP server on the bridge.

It serves files: an index of packages, FlashInfer's index, builds of Python, and the distribution's
packages. Each run has a copy of its own (by links), which a test may change by replacing files.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
import urllib.error
import urllib.request
from dataclasses import dataclass
from pathlib import Path

from .cache import HarnessError, run
from .door import add_router
from .packages import SAME_AS, WANTED, repository
from .pythons import pythons
from .stage import Stage
from .wheels import index, wheels

PORT = 8080


def apt_source(address: str, tree_name: str) -> str:
    """The line for a node's /etc/apt/sources.list; empty where there is nothing for its tree."""
    name = SAME_AS.get(tree_name, tree_name)
    if name not in WANTED:
        return ""
    return f"deb [trusted=yes] http://{address}:{PORT}/packages/{name} ./\n"


@dataclass
class Mirror:
    """A running mirror: `url` is its address, `root` the directory that it serves."""

    stage: Stage
    url: str
    root: Path
    _process: subprocess.Popen[bytes] | None = None

    @classmethod
    def start(cls, stage: Stage, cache: Path) -> Mirror:
        """Lay out everything and serve it on the bridge until the run ends."""
        root = stage.directory / "mirror/root"
        root.mkdir(parents=True)
        _link(index(cache), root)
        (root / "files").mkdir()
        for file in wheels(cache).glob("*.whl"):
            os.link(file, root / "files" / file.name)
        for about in (root / "metadata").glob("*.metadata"):
            about.rename(root / "files" / about.name)
        add_router(cache, root)
        (root / "python").mkdir()
        _link(pythons(cache), root / "python")
        for name in WANTED:
            (root / "packages" / name).mkdir(parents=True)
            _link(repository(cache, name), root / "packages" / name)
        mirror = cls(stage, f"http://{stage.address}:{PORT}", root)
        builds = json.loads((root / "python/builds.json").read_text())
        for build in builds.values():
            build["url"] = f"{mirror.url}/python/{build['url'].replace('+', '%2B')}"
        (root / "python/downloads.json").write_text(json.dumps(builds))
        return mirror.up()

    @property
    def keys(self) -> dict[str, str]:
        """The inventory's `mirrors`."""
        return {
            "index": f"{self.url}/simple",
            "flashinfer": f"{self.url}/flashinfer",
            "python_downloads": f"{self.url}/python/downloads.json",
        }

    @property
    def locks(self) -> dict[str, Path]:
        """The locks for tests: by version (`0.5.22`, `0.5.23`), and `compile`."""
        return {file.stem: file for file in (self.root / "locks").iterdir()}

    def up(self) -> Mirror:
        """Serve, and wait until it answers."""
        folder = self.root.parent
        program = [sys.executable, "-m", "http.server", "--bind", self.stage.address]
        program += ["--directory", str(self.root), str(PORT)]
        with open(folder / "log", "ab") as log:
            self._process = self.stage.start("mirror", program, log, {"PYTHONUNBUFFERED": "1"})
        end = time.monotonic() + 30
        while time.monotonic() < end and self._process.poll() is None:
            try:
                with urllib.request.urlopen(f"{self.url}/python/downloads.json", timeout=5):
                    return self
            except (urllib.error.URLError, OSError):
                time.sleep(0.05)
        raise HarnessError(f"the mirror did not start:\n{(folder / 'log').read_text()[-2000:]}")

    def down(self) -> None:
        """Stop serving, as a network that is cut; `up()` serves again."""
        if self._process is not None:
            self._process.terminate()
            self._process.wait()
            self._process = None

    def requests(self) -> list[str]:
        """The paths that were asked for since the last call, and forget them."""
        log = self.root.parent / "log"
        lines = [line for line in log.read_text().splitlines() if '"GET ' in line]
        os.truncate(log, 0)
        return [line.split('"GET ')[1].split()[0] for line in lines]


def _link(source: Path, into: Path) -> None:
    """Give `into` what is in `source`: folders of its own, files by hard links."""
    run("cp", "-al", f"{source}/.", into)
