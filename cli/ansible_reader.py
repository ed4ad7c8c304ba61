"""Prints the hosts of an Ansible inventory as JSON: run as a program, beside ansible-core.

In a process of its own: ansible-core takes seconds to import, replaces a function of ``socket``
and does not get on with gevent, which the tool runs under.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping
from typing import Any

from ansible.inventory.manager import InventoryManager
from ansible.parsing.dataloader import DataLoader
from ansible.template import Templar
from ansible.vars.manager import VariableManager


def plain(value: Any) -> Any:
    """Return a value without the types by which Ansible remembers where it came from."""
    if value is None or isinstance(value, bool):
        return value
    if isinstance(value, Mapping):
        return {str.__str__(str(key)): plain(one) for key, one in value.items()}
    if isinstance(value, list | tuple | set):
        return [plain(one) for one in value]
    for kind in (int, float):
        if isinstance(value, kind):
            return kind(value)
    return str.__str__(str(value))


def read(path: str, wanted: frozenset[str]) -> dict[str, Any]:
    """Return hosts, in order: name, groups, and the variables of ``wanted``, filled in.

    A variable that cannot be filled in is under ``problems``. Others are there as they stand if
    nothing in them would have to be filled in.
    """
    loader = DataLoader()
    inventory = InventoryManager(loader=loader, sources=[path])
    manager = VariableManager(loader=loader, inventory=inventory)
    hosts = []
    for host in inventory.get_hosts():
        variables = manager.get_vars(host=host)
        templar = Templar(loader=loader, variables=variables)
        found: dict[str, Any] = {}
        problems: dict[str, str] = {}
        for key, value in variables.items():
            try:
                if key in wanted:
                    found[key] = plain(templar.template(value))
                elif not templar.is_template(value):
                    found[key] = plain(value)
            except Exception as error:
                if key in wanted:
                    problems[key] = str(error).splitlines()[0]
        groups = [plain(one.name) for one in host.get_groups() if one.name != "all"]
        hosts.append(
            {"name": plain(host.name), "groups": groups, "vars": found, "problems": problems}
        )
    return {"hosts": hosts}


if __name__ == "__main__":
    json.dump(read(sys.argv[1], frozenset(sys.argv[2:])), sys.stdout)
