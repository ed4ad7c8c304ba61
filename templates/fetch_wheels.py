"""Fetches the wheels of a lock into a directory, each checked against the lock's hash.

    python3 fetch_wheels.py job.json

Where they are was asked of the index by uv, which wrote a pylock.toml. A file that was cut is gone
on with. Prints a line `@file SHA256 SIZE - PATH` for each, and a sentence where it fails.

job.json: {"pylock", "directory", "parallel", "files": [[name, [sha256, ...]]]}

Must run on Python 3.11 and newer, with nothing but the standard library.
"""

from __future__ import annotations

import hashlib
import json
import os
import ssl
import sys
import threading
import time
import tomllib
import urllib.error
import urllib.request
from concurrent.futures import FIRST_EXCEPTION, ThreadPoolExecutor, wait
from contextlib import suppress
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

TRIES = 6
"""How often a file is asked for in a row without one new byte: about a minute in all."""

SILENCE_S = 60
"""Seconds without one byte after which a connection is given up."""

PROGRESS_S = 10
BLOCK = 1024 * 1024

AUTHORITIES = (
    "/etc/ssl/certs/ca-certificates.crt",
    "/etc/pki/ca-trust/extracted/pem/tls-ca-bundle.pem",
    "/etc/pki/tls/certs/ca-bundle.crt",
)
"""Where distributions keep their certificates: uv's builds of Python look elsewhere."""


class Failed(Exception):
    """What ends the run, in a sentence."""


class Fetch:
    """The files of a run, and how far it is."""

    def __init__(self, job: dict[str, Any]) -> None:
        self.directory = Path(job["directory"])
        self.urls = urls_of(Path(job["pylock"]))
        self.files = [(name, frozenset(hashes)) for name, hashes in job["files"]]
        self.context = context()
        self.done = 0
        self.here = 0
        self.stop = threading.Event()
        self.said = threading.Lock()

    def one(self, name: str, hashes: frozenset[str]) -> None:
        """Bring one file, and say what it is."""
        place = self.directory / name
        sha256 = sum_of(place) if place.is_file() else ""
        if sha256 not in hashes:
            sha256 = self.fetch(name, hashes)
        with self.said:
            self.done += 1
            print(f"@file {sha256} {place.stat().st_size} - {place}", flush=True)

    def fetch(self, name: str, hashes: frozenset[str]) -> str:
        """Fetch a file and give it its name once it is the lock's; return its SHA-256."""
        url = next((self.urls[one] for one in sorted(hashes) if one in self.urls), None)
        if url is None:
            raise Failed(f"the index has no file of {name} with the hash that the lock has")
        part = self.directory / f"{name}.part"
        for _ in range(2):
            self.download(url, part)
            sha256 = sum_of(part)
            if sha256 in hashes:
                part.replace(self.directory / name)
                return sha256
            # Kept, it would be gone on with for ever.
            part.unlink()
        raise Failed(f"{name} came twice with another hash than the lock has")

    def download(self, url: str, part: Path) -> None:
        """Go on with a file until it is whole."""
        tries, before = 0, -1
        while True:
            if self.stop.is_set():
                raise Failed("another file failed")
            here = part.stat().st_size if part.exists() else 0
            tries = 1 if here > before else tries + 1
            before = here
            try:
                if self.ask(url, part, here):
                    return
            except urllib.error.HTTPError as error:
                if error.code == 416:
                    return  # it is whole, or no good: its hash says which
                if error.code < 500 and error.code not in (408, 429):
                    raise Failed(
                        f"{urlsplit(url).netloc} answered {error.code} for {part.stem}"
                    ) from None
            except OSError as error:
                why = getattr(error, "reason", error)
                if getattr(error, "errno", None) in (28, 122, 30):  # no space, quota, read-only
                    raise Failed(f"{part} could not be written: {error.strerror}") from None
                if tries >= TRIES:
                    raise Failed(
                        f"{urlsplit(url).netloc} does not give {part.stem}: {why}"
                    ) from None
            if tries >= TRIES:
                raise Failed(f"{urlsplit(url).netloc} breaks off {part.stem} again and again")
            self.stop.wait(2.0**tries)

    def ask(self, url: str, part: Path, here: int) -> bool:
        """Ask for what is missing of a file; return whether all of it came."""
        request = urllib.request.Request(url, headers={"User-Agent": "sglang-node"})
        if here:
            request.add_header("Range", f"bytes={here}-")
        with urllib.request.urlopen(request, timeout=SILENCE_S, context=self.context) as answer:
            goes_on = here and answer.status == 206
            length = answer.headers.get("Content-Length")
            with part.open("ab" if goes_on else "wb") as to:
                came = 0
                while block := answer.read(BLOCK):
                    to.write(block)
                    came += len(block)
                    with self.said:
                        self.here += len(block)
            return length is None or came == int(length)


def urls_of(pylock: Path) -> dict[str, str]:
    """Return where each wheel is, by its SHA-256."""
    found = {}
    for package in tomllib.loads(pylock.read_text(encoding="utf-8")).get("packages", ()):
        for wheel in package.get("wheels", ()):
            with suppress(KeyError):
                found[wheel["hashes"]["sha256"]] = wheel["url"]
    return found


def context() -> ssl.SSLContext:
    """Return the certificates of the node's own store."""
    given = os.environ.get("SSL_CERT_FILE")
    there = [path for path in ([given] if given else AUTHORITIES) if Path(path).is_file()]
    return ssl.create_default_context(cafile=there[0] if there else None)


def sum_of(path: Path) -> str:
    """Return the SHA-256 of a file."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def tell(fetch: Fetch, over: threading.Event) -> None:
    """Say every few seconds how far it is."""
    while not over.wait(PROGRESS_S):
        with fetch.said:
            print(
                f"{fetch.done} of {len(fetch.files)} wheels, {fetch.here / 1e6:.0f} MB fetched",
                flush=True,
            )


def main(job: str) -> int:
    """Do what the file `job` says; return the exit status."""
    data = json.loads(Path(job).read_text(encoding="utf-8"))
    began = time.monotonic()
    fetch = Fetch(data)
    over = threading.Event()
    threading.Thread(target=tell, args=(fetch, over), daemon=True).start()
    with ThreadPoolExecutor(data["parallel"]) as pool:
        running = [pool.submit(fetch.one, name, hashes) for name, hashes in fetch.files]
        finished, _ = wait(running, return_when=FIRST_EXCEPTION)
        first = next((one.exception() for one in finished if one.exception()), None)
        if first is not None:
            fetch.stop.set()
            for one in running:
                one.cancel()
    over.set()
    if first is not None:
        print(first if isinstance(first, Failed) else f"{type(first).__name__}: {first}")
        return 1
    print(f"{len(fetch.files)} wheels in {time.monotonic() - began:.0f} s", flush=True)
    return 0


if __name__ == "__main__":
    os.umask(0o077)
    try:
        sys.exit(main(sys.argv[1]))
    except BrokenPipeError:
        os._exit(1)  # the run was cut: what has come is gone on with by the next
