"""An sshd on a node that drops the connection at a chosen command of a run."""

from __future__ import annotations

from plans import paths

from .harness.machine import Node

CUT_PORT = 2223
"""Port of the sshd that cuts."""

_WRAPPER = r"""#!/bin/sh
n=$(($(cat /root/cut-count) + 1))
echo "$n" > /root/cut-count
printf '%s\n' "$SSH_ORIGINAL_COMMAND" | head -c 80 | tr '\n' ' ' >> /root/cut-commands
echo >> /root/cut-commands
number='' when=''
read -r number when < /root/cut
[ "$n" = "$number" ] || exec sh -c "$SSH_ORIGINAL_COMMAND"
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
killed-at-*)
    # The program itself dies too, as soon as the link points to that deployment.
    sh -c "$SSH_ORIGINAL_COMMAND" <&3 &
    until [ "$(readlink /var/lib/sglang/deployments/chat/current)" = "${when#killed-at-}" ]; do :; done
    pkill -9 -x -f 'sh -s'
    kill -9 "$PPID"
    ;;
esac
"""


def cut_connections(node: Node) -> None:
    """Give a node an sshd that counts commands, and cuts where ``cut_at`` says."""
    node.put("/root/cutter", _WRAPPER, 0o755)
    node.put(
        "/etc/systemd/system/sshd-cut.service",
        "[Service]\n"
        f"ExecStart=/usr/sbin/sshd -D -p {CUT_PORT} -o ForceCommand=/root/cutter -o PidFile=none\n"
        "RuntimeDirectory=sshd\nRuntimeDirectoryPreserve=yes\n"
        "[Install]\nWantedBy=multi-user.target\n",
    )
    cut_at(node, 0, "")
    node.run("systemctl daemon-reload && systemctl enable --now sshd-cut")
    node.run(
        f"for i in $(seq 50); do ss -Hltn 'sport = :{CUT_PORT}' | grep -q . && exit; sleep 0.1; done"
    )


def cut_at(node: Node, number: int, when: str) -> None:
    """Cut the next run at its command ``number``: before it runs, once it has begun, once it has
    ended, or with the program itself killed at the rename of the link; 0 cuts nothing.

    A lock that a run before left is taken away, so that commands have the same numbers.
    """
    node.run(
        f"echo 0 > /root/cut-count; : > /root/cut-commands; echo '{number} {when}' > /root/cut; "
        f"rm -f {paths.APPLY_LOCK}"
    )


def commands_until_the_cut(node: Node) -> list[str]:
    """Return the first words of the commands that came in since ``cut_at``."""
    text = node.run("cat /root/cut-commands").stdout
    return [line.strip() for line in text.splitlines() if line.strip()]
