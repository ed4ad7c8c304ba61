"""Reads TARGET: an inventory file, host names, or ``@local``, in pyinfra's own form.

pyinfra's loader is part of its command line, which is being rewritten and is
not for others to import; the form of the files is public.
"""

from __future__ import annotations

import ast
import fnmatch
import runpy
import traceback
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from pyinfra.api import Inventory
from pyinfra.api.exceptions import NoGroupError, PyinfraError
from pyinfra.api.host import Host

from cli import ansible
from cli.retry import names_in


class TargetError(Exception):
    """The target cannot be read; the text says what to write."""


Group = tuple[list[Any], dict[str, Any]]


def load(target: str, data: dict[str, Any] | None = None) -> Inventory:
    """Return the inventory that a target names.

    ``data`` is given to every host, over what the inventory says. Raises
    TargetError for a file that is not there or cannot be run.
    """
    path = Path(target)
    groups: dict[str, Group]
    if target.startswith(ansible.PREFIX):
        try:
            groups = ansible.groups_of(target)
        except ansible.AnsibleError as error:
            raise TargetError(str(error)) from None
    elif path.suffix == ".py" or ("/" in target and not target.startswith("@")) or path.is_file():
        groups = _groups_of_file(path)
    else:
        names = [name.strip() for name in target.split(",") if name.strip()]
        if not names:
            raise TargetError("no target: write an inventory file, host names, or @local")
        groups = {"all": (list(names), {})}
    all_hosts = groups.pop("all")
    try:
        return Inventory(all_hosts, override_data=data or {}, **groups)  # type: ignore[no-untyped-call]
    except (PyinfraError, KeyError, NotImplementedError) as error:
        raise TargetError(f"{target}: {error}") from None


def _groups_of_file(path: Path) -> dict[str, Group]:
    if path.is_dir():
        there = sorted(one.name for one in path.glob("*.py"))
        such = f", such as {path / there[0]}" if there else ""
        raise TargetError(f"{path}: is a directory: name an inventory file in it{such}")
    if not path.is_file():
        raise TargetError(f"{path}: there is no such inventory file")
    variables = _run(path)
    groups: dict[str, Group] = {}
    for name, value in variables.items():
        if name.startswith("_") or not isinstance(value, list | tuple):
            continue
        hosts, data = value if _is_group_with_data(value) else (value, {})
        if all(isinstance(host, str | tuple) for host in hosts):
            for host in hosts:
                _check_host(path, name, host)
            groups[name] = (list(hosts), dict(data))
    if not groups:
        raise TargetError(f"{path}: names no hosts: write a list, such as gpu_nodes = ['10.0.0.5']")
    names: dict[str, Any] = {}
    for hosts, _ in groups.values():
        for host in hosts:
            names.setdefault(host[0] if isinstance(host, tuple) else host, host)
    if not names:
        raise TargetError(f"{path}: its groups are empty: write a host, such as ['10.0.0.5']")
    groups.setdefault("all", (list(names), {}))
    groups.setdefault(path.stem, (list(names), {}))
    for folder in dict.fromkeys((Path.cwd() / "group_data", path.resolve().parent / "group_data")):
        for file in sorted(folder.glob("*.py")) if folder.is_dir() else ():
            group = groups.setdefault(file.stem, ([], {}))
            group[1].update(_group_data(file))
    return groups


def _check_host(path: Path, group: str, host: str | tuple[Any, ...]) -> None:
    name, *data = host if isinstance(host, tuple) and host else (host,)
    named = isinstance(name, str) and name.strip() == name != ""
    keyed = all(isinstance(one, dict) and all(isinstance(k, str) for k in one) for one in data)
    if not named or not keyed or (isinstance(host, tuple) and len(data) != 1):
        shown = repr(host)[:80]
        raise TargetError(
            f"{path}: {group}: {shown} is no host: write 'gpu-1', or ('gpu-1', {{'ssh_user': 'root'}})"
        )


def _is_group_with_data(value: Sequence[Any]) -> bool:
    return (
        isinstance(value, tuple)
        and len(value) == 2
        and isinstance(value[0], list | tuple)
        and isinstance(value[1], dict)
    )


def _run(path: Path) -> dict[str, Any]:
    try:
        return runpy.run_path(str(path))
    except (Exception, SystemExit) as error:
        if isinstance(error, SyntaxError):
            raise TargetError(f"{path}: line {error.lineno}: SyntaxError: {error.msg}") from None
        own = [
            one for one in traceback.extract_tb(error.__traceback__) if one.filename == str(path)
        ]
        line = f" line {own[-1].lineno}:" if own else ""
        raise TargetError(f"{path}:{line} {type(error).__name__}: {error}") from None


def _group_data(path: Path) -> dict[str, Any]:
    variables = _run(path)
    imported = {
        (alias.asname or alias.name).split(".")[0]
        for node in ast.parse(path.read_text(encoding="utf-8")).body
        if isinstance(node, ast.Import | ast.ImportFrom)
        for alias in node.names
    }
    # One underscore begins pyinfra's own arguments: _sudo, _sudo_user.
    return {k: v for k, v in variables.items() if not k.startswith("__") and k not in imported}


def limited(
    inventory: Inventory, patterns: Sequence[str], excluded: Sequence[str] = ()
) -> list[Host] | None:
    """Return the hosts that ``--limit`` and ``--exclude`` leave, or None for all.

    Each pattern is a group's name, a host's, one with ``*``, or ``@FILE`` with one host a line.
    Raises TargetError for a pattern that no host and no group matches, and where none is left.
    """
    if not patterns and not excluded:
        return None
    kept = _matching(inventory, "--limit", patterns) if patterns else {h.name: h for h in inventory}
    for name in _matching(inventory, "--exclude", excluded):
        kept.pop(name, None)
    if not kept:
        raise TargetError("--exclude leaves no host")
    return list(kept.values())


def _matching(inventory: Inventory, option: str, patterns: Sequence[str]) -> dict[str, Host]:
    found: dict[str, Host] = {}
    for pattern in patterns:
        hosts = _hosts_of(inventory, pattern)
        if not hosts and pattern.startswith("@") and Path(pattern[1:]).exists():
            for name in _names_of_file(option, Path(pattern[1:])):
                hosts = [host for host in inventory if host.name == name]
                if not hosts:
                    raise TargetError(f"{option} {pattern}: {name} is no host of this inventory")
                found.update({host.name: host for host in hosts})
            continue
        if not hosts:
            known = ", ".join(sorted(host.name for host in inventory))
            what = "file, host or group" if pattern.startswith("@") else "host or group"
            raise TargetError(f"{option} {pattern}: no {what} of that name; hosts: {known}")
        found.update({host.name: host for host in hosts})
    return found


def _hosts_of(inventory: Inventory, pattern: str) -> list[Host]:
    try:
        return list(inventory.get_group(pattern))
    except NoGroupError:
        return [host for host in inventory if fnmatch.fnmatch(host.name, pattern)]


def _names_of_file(option: str, path: Path) -> list[str]:
    try:
        names = names_in(path)
    except (OSError, ValueError) as error:
        said = error.strerror if isinstance(error, OSError) else "is no text"
        raise TargetError(f"{option} @{path}: {said}: write a file with one host a line") from None
    if not names:
        raise TargetError(f"{option} @{path}: names no host")
    return names
