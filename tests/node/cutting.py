"""An sshd on a node that drops the connection at a chosen command of a run."""

from __future__ import annotations

import os
import subprocess
import sys

from plans import paths

from .harness.machine import Node
from .site import ROOT, Site

CUT_PORT = 2223
"""Port of the sshd that cuts."""

_WRAPPER = r"""#!/bin/sh
printf '%s\n' "$SSH_ORIGINAL_COMMAND" | head -c 80 | tr '\n' ' ' >> /root/cut-commands
echo >> /root/cut-commands
when='' name=''
read -r when name < /root/cut
case $SSH_ORIGINAL_COMMAND in
*"${name:-nothing is cut}"*) : > /root/cut ;;
*) exec sh -c "$SSH_ORIGINAL_COMMAND" ;;
esac
exec 3<&0
case $when in
before)
    kill -9 "$PPID"
    ;;
begun)
    sh -c "$SSH_ORIGINAL_COMMAND" <&3 &
    sleep 0.3
    kill -9 "$PPID"
    ;;
ended)
    sh -c "$SSH_ORIGINAL_COMMAND"
    kill -9 "$PPID"
    ;;
told)
    # Whoever waits for it kills the controller: nobody reads what this prints, and it goes on.
    : > /root/cut-reached
    exec sh -c "$SSH_ORIGINAL_COMMAND" <&3
    ;;
full-*)
    # The disk fills up between the look at it and this.
    dd if=/dev/zero of="${when#full-}/fill" bs=64k 2>/dev/null
    exec sh -c "$SSH_ORIGINAL_COMMAND" <&3
    ;;
killed-at-*)
    # The program itself dies too: at what it asks of systemd once the link points to that one.
    PATH=/root/cutting:$PATH KILLED_AT=${when#killed-at-} sh -c "$SSH_ORIGINAL_COMMAND" <&3
    kill -9 "$PPID"
    ;;
esac
"""

_KILLS = r"""#!/bin/sh
[ "$(readlink /var/lib/sglang/deployments/chat/current)" = "$KILLED_AT" ] \
    || exec /usr/bin/systemctl "$@"
pkill -9 -x -f 'sh -s'
"""


def cut_connections(node: Node) -> None:
    """Give a node an sshd that counts commands, and cuts where ``cut_at`` says."""
    node.run("mkdir -p /root/cutting")
    node.put("/root/cutting/systemctl", _KILLS, 0o755)
    node.put("/root/cutter", _WRAPPER, 0o755)
    node.put(
        "/etc/systemd/system/sshd-cut.service",
        "[Service]\n"
        f"ExecStart=/usr/sbin/sshd -D -p {CUT_PORT} -o ForceCommand=/root/cutter -o PidFile=none\n"
        "RuntimeDirectory=sshd\nRuntimeDirectoryPreserve=yes\n"
        "[Install]\nWantedBy=multi-user.target\n",
    )
    cut_at(node)
    node.run("systemctl daemon-reload && systemctl enable --now sshd-cut")
    node.run(
        f"for i in $(seq 50); do ss -Hltn 'sport = :{CUT_PORT}' | grep -q . && exit; sleep 0.1; done"
    )


def cut_at(node: Node, when: str = "", name: str = "", *, lock: bool = False) -> None:
    """Cut the next command that has these words: before it runs, once it has begun, once it has
    ended, or with the program itself killed at the rename of the link. Without a name: none.
    ``full-PATH`` cuts nothing: a file system of the node is full when the command begins.

    A lock that a run before left is taken away: each run is then as the first one. ``lock``
    leaves it there, as it would be: the next run waits for what the cut one began, and goes on.
    """
    node.run(
        f": > /root/cut-commands; echo '{when} {name}' > /root/cut"
        + ("" if lock else f"; rm -f {paths.APPLY_LOCK}")
    )


def controller_killed(
    site: Site, name: str, command: str, *words: str, power: bool = False
) -> None:
    """Run a command of the tool whose process is killed with -9 when a remote command has begun.

    What that began goes on, with nobody who reads it. ``power``: the node's is cut instead, and
    it boots again.
    """
    (node,) = site.nodes
    site.write()
    node.run("rm -f /root/cut-reached")
    cut_at(node, "told", name, lock=True)
    tool = subprocess.Popen(
        [sys.executable, "-m", "cli", command, str(site.inventory), *words],
        cwd=ROOT,
        env={**os.environ, "NO_COLOR": "1", **site.environment},
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    node.run(
        "for i in $(seq 2400); do [ -e /root/cut-reached ] && exit; sleep 0.05; done; exit 1",
        timeout=180,
    )
    if power:
        node.cut_power()
    else:
        tool.kill()
    tool.wait()
    if power:
        node.boot()
    cut_at(node, lock=True)


def commands_until_the_cut(node: Node) -> list[str]:
    """Return the first words of the commands that came in since ``cut_at``."""
    text = node.run("cat /root/cut-commands").stdout
    return [line.strip() for line in text.splitlines() if line.strip()]
