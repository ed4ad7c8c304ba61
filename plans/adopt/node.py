"""What an inventory says of a node whose servers were found, as data and as its text."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from plans.adopt.entry import entry_of
from plans.adopt.records import Entry, Found, Note
from plans.wishes import Wishes, WishesError, read_wishes


@dataclass(frozen=True)
class Adopted:
    """The servers of a node, and the data that reproduces them."""

    node: str
    entries: tuple[Entry, ...]
    data: Mapping[str, Any]  # under the key "sglang"
    lost: tuple[Note, ...] = ()  # of the node as a whole
    problems: tuple[str, ...] = ()  # why the data is not accepted as it is

    @property
    def wishes(self) -> Wishes | None:
        """The data as wishes, or None where it is not whole yet."""
        return None if self.problems else read_wishes(self.data, self.node)

    def as_dict(self) -> dict[str, Any]:
        """Return the form in which it stands in JSON documents."""
        return {
            "node": self.node,
            "found": [
                {
                    "kind": one.found.kind,
                    "name": one.found.name,
                    "where": one.found.where,
                    "service": one.service.get("name"),
                    "differs": list(one.differs),
                    "secrets": list(one.secrets),
                    "not_carried": [{"what": n.what, "why": n.why} for n in one.lost],
                    "stop": list(one.found.stop),
                    "requests": one.found.ends,
                }
                for one in self.entries
            ],
            "not_carried": [{"what": n.what, "why": n.why} for n in self.lost],
            "problems": list(self.problems),
            "entry": self.data,
        }


def adopt(node: str, servers: Sequence[Found]) -> Adopted:
    """Return what an inventory says of a node with these servers."""
    entries = _named_apart([entry_of(one, alone=len(servers) == 1) for one in servers])
    lost = _shared(entries)
    data: dict[str, Any] = {"services": [dict(one.service) for one in entries]}
    for entry in entries:
        for key, value in entry.node.items():
            if data.setdefault(key, value) != value:
                what = f"{key} {_plain(value)} of {entry.service.get('name')}"
                why = f"a node has one {key}: the entry has {_plain(data[key])}"
                lost.append(Note(what, f"{why}, and what lies elsewhere is fetched again"))
    problems: tuple[str, ...] = ()
    try:
        if entries:
            read_wishes(data, node)
    except WishesError as error:
        problems = tuple(error.messages)
    return Adopted(node, tuple(entries), data, tuple(lost), problems)


def _shared(entries: Sequence[Entry]) -> list[Note]:
    """Return what is said of GPUs that several servers took: each was given all, and took the first."""
    users: dict[str, list[str]] = {}
    for entry in entries:
        gpus = entry.service.get("gpus", "all")
        for gpu in gpus if isinstance(gpus, list) else [gpus]:
            users.setdefault(str(gpu), []).append(str(entry.service["name"]))
    return [
        Note(
            f"GPU {gpu} of {' and '.join(names)}"
            if gpu != "all"
            else f"all GPUs of {' and '.join(names)}",
            "each of them took it: give each service GPUs of its own in gpus (nvidia-smi -L)",
        )
        for gpu, names in users.items()
        if len(names) > 1
    ]


def _named_apart(entries: Sequence[Entry]) -> list[Entry]:
    out: list[Entry] = []
    taken: set[str] = set()
    for entry in entries:
        name, number = str(entry.service["name"]), 2
        while name in taken:
            name = f"{str(entry.service['name'])[:36]}-{number}"
            number += 1
        taken.add(name)
        out.append(replace(entry, service={**entry.service, "name": name}))
    return out


def _plain(value: Any) -> str:
    return ", ".join(map(str, value.values())) if isinstance(value, Mapping) else str(value)


def inventory_text(all_adopted: Sequence[Adopted], reach: Mapping[str, Mapping[str, Any]]) -> str:
    """Return an inventory file for these nodes. ``reach`` has how each is reached, by its name."""
    lines = [
        '"""Read from what served SGLang by hand, by sglang-node adopt: check it, then plan from it.',
        "",
        "What each key means: inventories/example.py.",
        '"""',
        "",
        "gpu_nodes = [",
    ]
    for one in all_adopted:
        data = {**reach.get(one.node, {}), "sglang": one.data}
        lines += [
            "    (",
            f"        {_written(one.node)},",
            f"        {python_text(data, 8)},",
            "    ),",
        ]
    return "\n".join([*lines, "]"]) + "\n"


def python_text(value: Any, indent: int = 0) -> str:
    """Return data as Python text in the style of the examples, its first line not indented."""
    inner = " " * (indent + 4)
    if isinstance(value, Mapping) and value:
        ((key, one), *more) = value.items()
        if not more and not isinstance(one, Mapping | list | tuple):
            return f"{{{_written(key)}: {_written(one)}}}"
        rows = [f"{inner}{_written(k)}: {python_text(v, indent + 4)},\n" for k, v in value.items()]
        return "{\n" + "".join(rows) + " " * indent + "}"
    if isinstance(value, list | tuple):
        flat = "[" + ", ".join(python_text(one) for one in value) + "]"
        if "\n" not in flat and len(flat) + indent < 80:
            return flat
        rows = [f"{inner}{python_text(one, indent + 4)},\n" for one in value]
        return "[\n" + "".join(rows) + " " * indent + "]"
    return _written(value)


def _written(value: Any) -> str:
    if isinstance(value, str) and value.isprintable():
        # JSON's text between double quotes is Python's too.
        return json.dumps(value, ensure_ascii=False)
    return "{}" if value == {} else repr(value)
