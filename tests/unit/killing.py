"""Runs a program of a node over a directory of its own, killed with -9 at its n-th command."""

from __future__ import annotations

import os
import shutil
import subprocess
from dataclasses import dataclass
from pathlib import Path

CHANGING = ("mv", "ln", "rm", "install", "mkdir", "chmod", "base64", "sync")
"""Programs that change what is there, or see to it that it lasts: before each is a cut."""

_WRAPPER = """#!/bin/sh
n=$(($(cat {root}/count) + 1))
echo $n > {root}/count
echo "${{0##*/}} $*" >> {root}/steps
if [ "$n" = "$(cat {root}/kill-at)" ]; then
    kill -9 "-$(cat {root}/group)"
fi
exec {real} "$@"
"""

_SYSTEMCTL = """#!/bin/sh
case $* in
*' stop '*) echo 0 > {root}/pid; echo inactive > {root}/active; : > {root}/runs ;;
*' start '* | *' restart '*)
    readlink {root}/var/lib/sglang/deployments/chat/current > {root}/runs
    echo "run-$(cat {root}/runs)-$$" > {root}/invocation
    echo $$ > {root}/pid; echo active > {root}/active ;;
esac
"""

_SHOWN = """case $* in
*MainPID*) read -r value < {root}/pid; echo "$value"; exit ;;
*InvocationID*) read -r value < {root}/invocation; echo "$value"; exit ;;
*ActiveState*) read -r value < {root}/active; echo "$value"; exit ;;
show*) exit ;;
esac
"""


@dataclass(frozen=True)
class Box:
    """A node that lies in a directory, with programs of ours first on its path."""

    root: Path

    @classmethod
    def make(cls, root: Path) -> Box:
        """Prepare it."""
        (root / "bin").mkdir(parents=True)
        (root / "run/sglang").mkdir(parents=True)
        box = cls(root)
        for name in CHANGING:
            real = shutil.which(name)
            assert real is not None
            box.program(name, _WRAPPER.format(root=root, real=real))
        box.program("sync", _WRAPPER.format(root=root, real="true"))
        # systemd's state is real only where it is told something.
        box.program("systemctl.real", _SYSTEMCTL.format(root=root))
        counted = _WRAPPER.format(root=root, real=f"{root}/bin/systemctl.real")
        shown = _SHOWN.format(root=root)
        box.program("systemctl", counted.replace("n=$((", f"{shown}n=$((", 1))
        box.program("journalctl", "#!/bin/sh\n")
        box.program("ss", "#!/bin/sh\n")
        box.program("sleep", "#!/bin/sh\nexec /bin/sleep 0.01\n")
        return box

    def program(self, name: str, text: str) -> None:
        """Put a program on its path."""
        path = self.root / "bin" / name
        path.write_text(text, encoding="utf-8")
        path.chmod(0o755)

    def said(self, name: str) -> str:
        """Return what a file of its state holds."""
        return (self.root / name).read_text(encoding="utf-8").strip()

    def put(self, name: str, text: str) -> None:
        """Write a file of its state, or of the node."""
        path = self.root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")

    def run(
        self, program: str, *, shell: str = "dash", kill_at: int = 0
    ) -> subprocess.CompletedProcess[str]:
        """Run a program, killed before its ``kill_at``-th command that changes something; 0: none."""
        self.put("count", "0\n")
        self.put("kill-at", f"{kill_at}\n")
        self.put("steps", "")
        for path in ("/var/lib/sglang", "/var/cache/sglang", "/run/sglang", "/etc/systemd/system"):
            program = program.replace(path, f"{self.root}{path}")
        # The program's own id is its group's: written before its first line is read.
        text = f"echo $$ > {self.root}/group\n{program}"
        return subprocess.run(
            [shell, "-s"],
            input=text,
            capture_output=True,
            text=True,
            timeout=60,
            start_new_session=True,
            env={**os.environ, "PATH": f"{self.root}/bin:{os.environ['PATH']}"},
        )

    @property
    def steps(self) -> list[str]:
        """The commands of the last run that change something."""
        return self.said("steps").splitlines()
