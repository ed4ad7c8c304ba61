"""An sshd on a node that drops the connection at a chosen command of a run."""

from __future__ import annotations

from plans import paths

from .harness.machine import Node

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
    cut_at(node)
    node.run("systemctl daemon-reload && systemctl enable --now sshd-cut")
    node.run(
        f"for i in $(seq 50); do ss -Hltn 'sport = :{CUT_PORT}' | grep -q . && exit; sleep 0.1; done"
    )


def cut_at(node: Node, when: str = "", name: str = "") -> None:
    """Cut the next command that has these words: before it runs, once it has begun, once it has
    ended, or with the program itself killed at the rename of the link. Without a name: none.

    A lock that a run before left is taken away: each run is then as the first one.
    """
    node.run(f": > /root/cut-commands; echo '{when} {name}' > /root/cut; rm -f {paths.APPLY_LOCK}")


def commands_until_the_cut(node: Node) -> list[str]:
    """Return the first words of the commands that came in since ``cut_at``."""
    text = node.run("cat /root/cut-commands").stdout
    return [line.strip() for line in text.splitlines() if line.strip()]
