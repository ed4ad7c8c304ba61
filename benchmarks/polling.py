"""How long a server on a node did not answer that it is ready, by a client on that node."""

from __future__ import annotations

import statistics

from tests.node.harness.machine import Node

POLL = """\
#!/bin/sh
# Five times a second and more: is it ready?
while :; do
    code=$(curl -s -o /dev/null -m 5 -w '%{http_code}' "http://127.0.0.1:$1/ready")
    echo "$(date +%s.%N) $code" >>/root/polled
    sleep 0.1
done
"""


def begin(node: Node, port: int) -> None:
    """Begin to ask the server on a port of the node's loopback."""
    node.put("/root/poll", POLL, 0o755)
    node.run("rm -f /root/polled")
    node.run(f"systemd-run --quiet --unit=poll /root/poll {port}")


def end(node: Node) -> float:
    """Stop asking; return the seconds from the last good answer to the next one after.

    Raises ValueError where it never was away, or did not come back.
    """
    node.run("systemctl stop poll")
    return away(node.read("/root/polled"))


def away(polled: str) -> float:
    """Return the longest time between two good answers with a bad one between them, in seconds."""
    longest, last, bad = 0.0, None, False
    for line in polled.splitlines():
        when, _, code = line.partition(" ")
        if code != "200":
            bad = True
            continue
        if last is not None and bad:
            longest = max(longest, float(when) - last)
        last, bad = float(when), False
    if longest == 0.0 or bad:
        raise ValueError("the server was never away, or is not back")
    return longest


def spread(values: list[float]) -> str:
    """Return the median of some values, and the lowest and the highest."""
    return f"{statistics.median(values):.2f} ({min(values):.2f} to {max(values):.2f})"
