"""What a node keeps of the toolkit, read from the lines that ``facts/stock.sh`` prints."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Literal

FIRST = "sglang-stock 1"

Kind = Literal["deployment", "half", "environment", "cache", "python", "tool"]

RUNS_UNKNOWN = -1
"""Stands for the deployment of a process that runs and does not tell which it is."""


class StockError(ValueError):
    """Lines that are no stock, or not the whole of one; the text says why."""


@dataclass(frozen=True)
class Thing:
    """A directory or a file that the toolkit may have made, as it lies there."""

    kind: Kind
    path: str
    owner: int | None = None  # user id; None: not to be read
    mode: str = ""  # "755", as stat prints it
    last: int | None = None  # when it was last written to, seconds of Unix time
    size: int = 0  # bytes that du counts
    marked: bool = False  # an environment: it was made whole
    python: str = ""  # an environment: the Python that it runs, where that really is

    @property
    def name(self) -> str:
        """Its name, without the directory."""
        return self.path.rsplit("/", 1)[1]


@dataclass(frozen=True)
class Kept:
    """A deployment as it lies on the node, with what it is started from."""

    service: str
    number: int
    made: int | None  # when its plan was written, seconds of Unix time
    last: int | None  # when one of its files was last written
    served: bool  # it has answered once, and no upgrade to it failed
    readable: bool  # what it is started from could be read
    image: str = ""
    environment: str = ""
    kernels: str = ""
    size: int = 0


@dataclass(frozen=True)
class Image:
    """An image in Docker's store that a deployment names."""

    reference: str
    id: str
    size: int
    containers: int  # that are made of it, running or not
    tags: tuple[str, ...] = ()


@dataclass(frozen=True)
class CompilerLock:
    """A file in a cache by whose existence a compiler says that it is at work."""

    path: str
    made: int | None
    held: bool  # a process has it open


@dataclass(frozen=True)
class ServiceLinks:
    """Where a service's links lead, and what runs; None: no link, no process."""

    current: int | None = None
    previous: int | None = None
    runs: int | None = None  # RUNS_UNKNOWN: one that does not tell


@dataclass(frozen=True)
class Stock:
    """Everything of the toolkit that lies on a node, and how old it is."""

    clock: int = 0  # of the node's clock, seconds of Unix time
    user: int | None = None  # id of who looked
    account: int | None = None  # id of the user of the wheel runtime; None: there is none
    services: dict[str, ServiceLinks] = field(default_factory=dict)
    deployments: tuple[Kept, ...] = ()
    things: tuple[Thing, ...] = ()
    images: tuple[Image, ...] = ()
    locks: tuple[CompilerLock, ...] = ()
    odd: tuple[str, ...] = ()  # directories with names that no program of the toolkit gives
    unread: tuple[str, ...] = ()  # what could not be read, and so is not known
    doors: tuple[str, ...] = ()  # environments that the door is started from


def read_stock_lines(lines: Iterable[str]) -> Stock:
    """Return the stock that a node's lines tell. Raises StockError."""
    rows = [line.split("\t") for line in lines if line.strip()]
    if not rows or rows[0] != [FIRST]:
        raise StockError("the node did not say what it keeps")
    if rows[-1] != ["end"]:
        raise StockError("the node did not say all of what it keeps")
    try:
        return _stock(rows[1:-1])
    except (ValueError, IndexError) as error:
        raise StockError(f"what the node keeps cannot be read: {error}") from error


def _stock(rows: list[list[str]]) -> Stock:
    now, user, account = 0, None, None
    services: dict[str, ServiceLinks] = {}
    deployments: list[Kept] = []
    things: list[Thing] = []
    images: list[Image] = []
    locks: list[CompilerLock] = []
    said: dict[str, list[str]] = {"odd": [], "unread": [], "door": []}
    for kind, *row in rows:
        if kind == "now":
            now = int(row[0])
        elif kind == "user":
            user, account = _number(row[0]), _number(row[1])
        elif kind == "service":
            runs = RUNS_UNKNOWN if row[3] == "?" else _number(row[3])
            services[row[0]] = ServiceLinks(_number(row[1]), _number(row[2]), runs)
        elif kind == "deployment":
            deployments.append(
                Kept(
                    row[0],
                    int(row[1]),
                    _number(row[2]),
                    _number(row[3]),
                    row[4] == "1",
                    row[5] == "1",
                    image=row[6],
                    environment=row[7],
                    kernels=row[8],
                    size=_number(row[9]) or 0,
                )
            )
        elif kind in ("half", "environment", "cache", "python", "tool"):
            more = (row[5] == "1", row[6]) if kind == "environment" else ()
            seen = (_number(row[1]), row[2], _number(row[3]), _number(row[4]) or 0)
            things.append(Thing(kind, row[0], *seen, *more))  # type: ignore[arg-type]
        elif kind == "image":
            tags = tuple(filter(None, row[4].split(",")))
            images.append(Image(row[0], row[1], int(row[2]), _number(row[3]) or 0, tags))
        elif kind == "lock":
            locks.append(CompilerLock(row[0], _number(row[1]), row[2] == "1"))
        elif kind in said:
            said[kind].append(row[0])
        else:
            raise ValueError(f"a line begins with {kind!r}")
    return Stock(
        now,
        user,
        account,
        services,
        tuple(deployments),
        tuple(things),
        tuple(images),
        tuple(locks),
        tuple(dict.fromkeys(said["odd"])),
        tuple(dict.fromkeys(said["unread"])),
        tuple(dict.fromkeys(said["door"])),
    )


def _number(text: str) -> int | None:
    return int(text) if text.isdigit() else None
