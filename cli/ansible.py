"""Ansible inventories as TARGET: ``@ansible/PATH``, with their groups and variables.

What Ansible's variables say of how a host is reached is what pyinfra's keys say of it here.
What is said and could not be kept is an error: a host must not be reached another way.
"""

from __future__ import annotations

import json
import re
import signal
import subprocess
import sys
import time
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from deploys.secrets import INTERRUPT_S

PREFIX = "@ansible/"
PATIENCE_S = 120
"""Seconds that Ansible may take: its inventory may be a program that asks a cloud."""

OURS = ("sglang", "sudo_password")

RENAMED = {
    "ansible_host": "ssh_hostname",
    "ansible_ssh_host": "ssh_hostname",
    "ansible_port": "ssh_port",
    "ansible_ssh_port": "ssh_port",
    "ansible_user": "ssh_user",
    "ansible_ssh_user": "ssh_user",
    "ansible_private_key_file": "ssh_key",
    "ansible_ssh_private_key_file": "ssh_key",
    "ansible_become": "_sudo",
    "ansible_become_user": "_sudo_user",
}
"""Ansible's variable: pyinfra's key of a host's data."""

PASSWORDS = {
    "ansible_password": "use a key or an agent",
    "ansible_ssh_pass": "use a key or an agent",
    "ansible_become_password": "write sudo_password: {env: NAME}, or use --ask-sudo-password",
    "ansible_become_pass": "write sudo_password: {env: NAME}, or use --ask-sudo-password",
    "ansible_sudo_pass": "write sudo_password: {env: NAME}, or use --ask-sudo-password",
}
"""Variables that have a secret: what to do instead."""

ARGUMENTS = ("ansible_ssh_common_args", "ansible_ssh_extra_args", "ansible_ssh_args")
_WAY = re.compile(r"(^|\s)-[JFip]|ProxyJump|ProxyCommand|IdentityFile|\bPort\b|\bUser\b", re.I)
"""What in them says another way to a host; the rest is about the connection's own manners."""

MAGIC = ("groups", "group_names", "playbook_dir", "omit")
"""What Ansible itself puts among a host's variables."""

_OTHER = ("ansible_connection", "ansible_become_method", *ARGUMENTS)

Groups = dict[str, tuple[list[Any], dict[str, Any]]]


class AnsibleError(Exception):
    """An Ansible inventory cannot be used; the text says why and what to do."""


def groups_of(target: str) -> Groups:
    """Return the groups of ``@ansible/PATH``, "all" with the data of each host among them.

    Raises AnsibleError.
    """
    path = Path(target.removeprefix(PREFIX))
    if not path.exists():
        raise AnsibleError(
            f"{path}: there is no such inventory (an absolute path: @ansible//etc/..)"
        )
    if find_spec("ansible") is None:
        raise AnsibleError(
            "Ansible inventories need ansible-core: install the toolkit with its extra, "
            "pip install 'pyinfra-sglang[ansible]', or beside it: pip install ansible-core"
        )
    return from_hosts(str(path), _read(path))


def _read(path: Path) -> list[dict[str, Any]]:
    program = Path(__file__).with_name("ansible_reader.py")
    wanted = (*OURS, *RENAMED, *_OTHER)
    # -P: the folder of the program has modules that are named like Python's own.
    words = [sys.executable, "-P", str(program), str(path), *wanted]
    try:
        ended = subprocess.run(
            words, stdin=subprocess.DEVNULL, capture_output=True, timeout=PATIENCE_S, check=False
        )
    except subprocess.TimeoutExpired:
        raise AnsibleError(f"{path}: Ansible did not read it within {PATIENCE_S} s") from None
    if ended.returncode in (-signal.SIGINT, 128 + signal.SIGINT):
        time.sleep(INTERRUPT_S)  # our own is on its way
        raise KeyboardInterrupt
    said = ended.stderr.decode(errors="replace").strip()
    hosts = json.loads(ended.stdout)["hosts"] if ended.returncode == 0 else []
    if not hosts:
        raise AnsibleError(f"{path}: Ansible finds no host in it: {said[-600:] or 'it is empty'}")
    found: list[dict[str, Any]] = hosts
    return found


def from_hosts(path: str, hosts: list[dict[str, Any]]) -> Groups:
    """Return the groups that ``ansible_reader`` found. Raises AnsibleError with all that is wrong."""
    groups: Groups = {"all": ([], {})}
    wrong: list[str] = []
    for host in hosts:
        name, variables = host["name"], host["vars"]
        wrong += [f"{name}: {key}: {why}" for key, why in host["problems"].items()]
        wrong += [f"{name}: {one}" for one in _not_kept(variables)]
        local = variables.get("ansible_connection") == "local"
        data = {
            key: value
            for key, value in variables.items()
            if key not in MAGIC and not key.startswith(("ansible_", "inventory_"))
        }
        data |= {RENAMED[k]: v for k, v in variables.items() if k in RENAMED}
        if "_sudo" in data:
            data["_sudo"] = is_yes(data["_sudo"])
        if "ssh_port" in data:
            if str(data["ssh_port"]).isdigit():
                data["ssh_port"] = int(data["ssh_port"])
            else:
                wrong.append(f"{name}: ansible_port: {data['ssh_port']!r} is no number")
        shown = "@local" if local else name
        groups["all"][0].append((shown, data))
        for group in host["groups"]:
            groups.setdefault(group, ([], {}))[0].append(shown)
    if wrong:
        raise AnsibleError(f"{path}: {'; '.join(wrong)}")
    return groups


def is_yes(value: Any) -> bool:
    """Say whether Ansible reads a value as true: in an INI file it is a text."""
    return str(value).strip().lower() in ("true", "yes", "on", "1", "y", "t")


def _not_kept(variables: dict[str, Any]) -> list[str]:
    wrong = [
        f"{key} is a password, which does not stand in an inventory: {instead}"
        for key, instead in PASSWORDS.items()
        if key in variables
    ]
    connection = variables.get("ansible_connection", "ssh")
    if connection not in ("ssh", "smart", "paramiko", "paramiko_ssh", "local"):
        wrong.append(f"ansible_connection: {connection}: nodes are reached by ssh or local")
    method = variables.get("ansible_become_method", "sudo")
    if method != "sudo" and is_yes(variables.get("ansible_become", False)):
        wrong.append(f"ansible_become_method: {method}: root is become by sudo")
    wrong += [
        f"{key}: {variables[key]!r} is not read: write it into ~/.ssh/config (ProxyJump, Port, ...)"
        for key in ARGUMENTS
        if key in variables and _WAY.search(str(variables[key]))
    ]
    return wrong
