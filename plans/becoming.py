"""Becoming root on a node with a password: the program that does it, and what its words mean."""

from __future__ import annotations

from collections.abc import Sequence

from plans.deployment import render

NEEDLESS_MARK = "sglang-sudo: no password is needed"
ACCEPTED_MARK = "sglang-sudo: accepted"
REFUSED_MARK = "sglang-sudo: refused"
REFUSED_STATUS = 97
"""How the program ends where sudo did not take the password, beside its mark."""

MOST_REFUSED = 2
"""Nodes that may refuse a password before it is tried on no other.

A password is one for many nodes, and so may the account be: pam_faillock locks it after three
wrong ones by default (deny = 3, faillock.conf(5)).
"""

ENOUGH_NEEDLESS = 3
"""Nodes that need no password after which others no longer wait for the first that takes it."""

LONGEST_PASSWORD = 255
"""Bytes of the longest password that sudo reads (SUDO_CONV_REPL_MAX of sudo 1.8; 1.9 takes 1023)."""

_NOISE = ("sorry, try again", "no password was provided", "lecture")


def becoming_program(flags: str, *, known: bool) -> str:
    """Return the program that runs its arguments under sudo, with ``flags`` as a shell reads them.

    ``known``: that a password is needed is known already, and not asked again.
    """
    return render(
        "sudo.sh.j2",
        flags=flags,
        known=known,
        needless_mark=NEEDLESS_MARK,
        accepted_mark=ACCEPTED_MARK,
        refused_mark=REFUSED_MARK,
        refused=REFUSED_STATUS,
    )


def password_problem(text: str) -> str | None:
    """Return what is wrong with a password's text, or None; never the text itself.

    Takes it without the one line break at its end.
    """
    if not text:
        return "is empty"
    if "\n" in text or "\r" in text or "\0" in text:
        return "has several lines: a password is one"
    if len(text.encode(errors="surrogateescape")) > LONGEST_PASSWORD:
        return f"is longer than the {LONGEST_PASSWORD} bytes that sudo reads"
    return None


def why_refused(said: Sequence[str]) -> str | None:
    """Return sudo's own last word about a password that it did not take; None where it did."""
    lines = [line.strip() for line in said]
    if REFUSED_MARK not in lines:
        return None
    before = [one for one in lines[: lines.index(REFUSED_MARK)] if one]
    telling = [one for one in before if not any(noise in one.lower() for noise in _NOISE)]
    return (telling or before or ["sudo said nothing"])[-1]


def wrong_password(user: str, said: str) -> str:
    """Return the sentence for a node whose sudo did not take the password."""
    what = (
        f"sudo on this node does not take this password of {user}"
        if "incorrect password" in said
        else f"{user} may not become root by sudo on this node"
    )
    return (
        f"{what} ({said}). It was tried once. Give the right one with --ask-sudo-password, or "
        "'sudo_password': {'env': 'NAME'} in the data of the host"
    )


def not_tried(user: str, refusing: Sequence[str]) -> str:
    """Return the sentence for a node where a password that others refused was not tried."""
    return (
        f"the sudo password of {user} was not tried on this node: {', '.join(refusing)} refused it, "
        "and more wrong ones may lock the account. Give the right one, or leave those nodes out "
        f"({' '.join(f'--exclude {one}' for one in refusing)})"
    )


def nobody_to_ask(user: str) -> str:
    """Return the sentence for a node whose sudo wants a password where none was given."""
    return (
        f"sudo asks {user} for a password on this node: add --ask-sudo-password to be asked for it "
        "once for all nodes, or name where it is in the data of the host ('sudo_password': "
        "{'env': 'NAME'} or {'file': '~/path'}); or allow it on the node without "
        f"(echo '{user} ALL=(ALL) NOPASSWD: ALL' | sudo tee /etc/sudoers.d/sglang && sudo chmod "
        "0440 /etc/sudoers.d/sglang), or connect as root ('ssh_user': 'root')"
    )
