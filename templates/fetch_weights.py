"""Fetches a model's files from the hub, at one commit, into the hub's own cache on the node.

    python3 fetch_weights.py job.json

Runs in a throw-away container of the service's own image, whose huggingface_hub is the one that
SGLang will read the files with. Nothing secret is given to it: the hub's client finds its token by
HF_TOKEN_PATH. The last line that begins with `@failed CODE` says why it failed (exit status 1).

job.json: {"repo", "commit", "home", "marker", "parallel", "files": [[path, bytes, sha256, blob]]}

Must run on Python 3.10 and newer, with nothing but the standard library and huggingface_hub.
"""

from __future__ import annotations

import hashlib
import json
import os
import sys
import threading
from collections import defaultdict
from collections.abc import Callable
from concurrent.futures import FIRST_EXCEPTION, ThreadPoolExecutor, wait
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

PROGRESS_S = float(os.environ.get("SGLANG_WEIGHTS_PROGRESS_S", "10"))
"""Seconds between two lines about files that are still on their way."""

TRIES = 6
"""How often a file is asked for in a row without one new byte before the hub counts as down.

With the pauses between and the client's own tries it is about 100 s. The first file is asked for
once: a hub that is down from the start is said after 6 s.
"""

BLOCK = 16 * 1024 * 1024

LARGEST_OVER_HTTP = 50 * 1000**3
"""Bytes above which the hub's client takes a file by Xet alone (its MAX_HTTP_DOWNLOAD_SIZE)."""


class Failed(Exception):
    """What ends the run: a stable code and a sentence."""

    def __init__(self, code: str, sentence: str) -> None:
        super().__init__(sentence)
        self.code = code


def size(amount: float) -> str:
    """Return bytes as people read them."""
    for unit in ("B", "kB", "MB"):
        if amount < 1000:
            return f"{amount:.0f} {unit}" if unit == "B" else f"{amount:.1f} {unit}"
        amount /= 1000
    return f"{amount:.1f} GB"


@dataclass(frozen=True)
class Wanted:
    """One file as the lock has it: its checksum is a SHA-256 (LFS) or that of a git blob."""

    path: str
    size: int
    sha256: str | None
    git_blob: str | None

    @property
    def checksum(self) -> str:
        """The checksum, which is also the name of its blob in the hub's cache."""
        return self.sha256 or self.git_blob or ""


@dataclass
class Job:
    """A model at a commit, and its place in the hub's cache: blobs, and a snapshot of links."""

    repo: str
    commit: str
    cache: Path  # models--OWNER--NAME
    marker: Path
    parallel: int
    files: list[Wanted]
    done: list[Wanted] = field(default_factory=list)
    said: threading.Lock = field(default_factory=threading.Lock)
    stop: threading.Event = field(default_factory=threading.Event)
    one_each: dict[str, threading.Lock] = field(default_factory=lambda: defaultdict(threading.Lock))

    @property
    def snapshot(self) -> Path:
        """The directory that SGLang reads the model from."""
        return self.cache / "snapshots" / self.commit

    def place(self, file: Wanted) -> Path:
        """Where a file stands in the snapshot."""
        return self.snapshot / file.path

    def part(self, file: Wanted) -> Path:
        """What has come of a file so far. It outlives a run that is cut: the next goes on."""
        return self.cache / "blobs" / f"{file.checksum}.part"

    def finished(self, file: Wanted, how: str) -> None:
        """Say that one more file is there."""
        with self.said:
            self.done.append(file)
            all_bytes = sum(one.size for one in self.files)
            here = sum(one.size for one in self.done)
            print(
                f"{len(self.done)} of {len(self.files)} files, {size(here)} of {size(all_bytes)}: "
                f"{file.path} {how}",
                flush=True,
            )


def checksum_of(path: Path, file: Wanted) -> str:
    """Return a file's checksum, of the kind that the lock has."""
    found = hashlib.sha256()
    if file.sha256 is None:
        found = hashlib.sha1(f"blob {path.stat().st_size}\0".encode(), usedforsecurity=False)
    with path.open("rb") as read:
        while block := read.read(BLOCK):
            found.update(block)
    return found.hexdigest()


def read_marker(path: Path) -> dict[str, tuple[str, str, str]]:
    """Return what earlier runs found good: size, time of change and checksum, by path."""
    found = {}
    with suppress(OSError, UnicodeDecodeError):
        for line in path.read_text(encoding="utf-8").splitlines():
            cells = line.split("|", 3)
            if len(cells) == 4:
                found[cells[3]] = (cells[0], cells[1], cells[2])
    return found


def marker_line(place: Path, file: Wanted) -> str:
    """Return what the survey compares later: a file that changes is no longer taken as good."""
    seen = place.stat()
    return f"{seen.st_size}|{int(seen.st_mtime)}|{file.checksum}|{file.path}"


def is_good(job: Job, file: Wanted, known: dict[str, tuple[str, str, str]]) -> bool:
    """Whether a file is there and right: hashed, unless that was done and it has not changed."""
    place = job.place(file)
    try:
        seen = place.stat()
    except OSError:
        return False
    if seen.st_size != file.size:
        return False
    if known.get(file.path) == (str(file.size), str(int(seen.st_mtime)), file.checksum):
        return True
    return checksum_of(place, file) == file.checksum


def link(job: Job, file: Wanted) -> None:
    """Put a whole blob into the snapshot, as the hub's client does: by a relative link."""
    place = job.place(file)
    place.parent.mkdir(parents=True, exist_ok=True)
    blob = job.cache / "blobs" / file.checksum
    beside = place.with_name(f".{place.name}.new")
    with suppress(FileNotFoundError):
        beside.unlink()
    beside.symlink_to(os.path.relpath(blob, place.parent))
    beside.replace(place)


def fetch_file(job: Job, file: Wanted) -> None:
    """Fetch one file, going on where an earlier try or run was cut, and check it."""
    # Files of one content are one blob: fetched once.
    with job.said:
        alone = job.one_each[file.checksum]
    with alone:
        blob = job.cache / "blobs" / file.checksum
        if not (blob.is_file() and checksum_of(blob, file) == file.checksum):
            fetch_blob(job, file)
        link(job, file)


def fetch_blob(job: Job, file: Wanted) -> None:
    """Fetch the content of a file; raise Failed where it is not what the lock has."""
    for attempt in (1, 2):
        download(job, file)
        part = job.part(file)
        if checksum_of(part, file) == file.checksum:
            part.chmod(0o644)
            part.replace(job.cache / "blobs" / file.checksum)
            return
        # Kept, it would be gone on with for ever. A part that was damaged gets a second chance.
        part.unlink()
        if attempt == 1:
            print(f"{file.path} came damaged: fetched again from its beginning", flush=True)
    raise Failed(
        "WEIGHTS_DAMAGED",
        f"{file.path} of {job.repo} came twice with another checksum than the lock has for commit "
        f"{job.commit}. A mirror or proxy changes it, or the disk does.",
    )


def download(job: Job, file: Wanted) -> None:
    """Let the hub's client fetch a file into its part; raise Failed once patience is over.

    The client goes on where a connection broke, but keeps nothing of a run that ended: so the
    part is ours, and the client is told how much of it is there. It gives on blocks of 10 MB.
    """
    from huggingface_hub import hf_hub_url
    from huggingface_hub.file_download import http_get
    from huggingface_hub.utils import build_hf_headers  # type: ignore[attr-defined]

    part = job.part(file)
    part.parent.mkdir(parents=True, exist_ok=True)
    url = hf_hub_url(job.repo, file.path, revision=job.commit)
    tries, before = 0, -1
    while True:
        here = part.stat().st_size if part.exists() else 0
        if here > file.size:
            part.unlink()
            here = 0
        tries = 1 if here > before else tries + 1
        before = here
        if job.stop.is_set():
            raise Failed("HUB_UNREACHABLE", "another file failed")
        try:
            if file.size > LARGEST_OVER_HTTP:
                by_xet(job, file)
            else:
                with part.open("ab") as to:
                    # identity: what is compressed on its way cannot be gone on with.
                    headers = {**build_hf_headers(), "Accept-Encoding": "identity"}
                    http_get(url, to, resume_size=here, headers=headers, expected_size=file.size)
            return
        except Exception as error:
            failure = explain(error, job, file)
            lasting = failure.code not in ("HUB_UNREACHABLE", "HUB_UNAVAILABLE")
            if lasting or tries >= (TRIES if job.done else 1):
                raise failure from None
            print(f"{file.path}: {failure} Trying again.", file=sys.stderr, flush=True)
            job.stop.wait(2.0**tries)


def by_xet(job: Job, file: Wanted) -> None:
    """Fetch what is too large for one HTTP request by the client's other way; not resumed."""
    from huggingface_hub import hf_hub_download

    got = Path(hf_hub_download(job.repo, file.path, revision=job.commit)).resolve()
    got.replace(job.part(file))


def explain(error: Exception, job: Job, file: Wanted) -> Failed:
    """Return what went wrong in one sentence with a code; never the text of a server."""
    if isinstance(error, Failed):
        return error
    from huggingface_hub import errors

    endpoint = os.environ.get("HF_ENDPOINT") or "https://huggingface.co"
    asked = f"{endpoint} was asked for {file.path} of {job.repo} at {job.commit[:12]}"
    token = "the node's token" if os.environ.get("HF_TOKEN_PATH") else "no token"
    response = getattr(error, "response", None)
    status = getattr(response, "status_code", None)
    came = f" (HTTP {status})" if status else ""
    if isinstance(error, errors.GatedRepoError):
        return Failed(
            "HUB_GATED",
            f"{asked} with {token}: the model is gated{came}. Accept its terms on its page, and "
            "give the node a token of the user who did.",
        )
    if isinstance(error, errors.RevisionNotFoundError):
        return Failed("HUB_REVISION_NOT_FOUND", f"{asked}: it no longer has that commit{came}.")
    if isinstance(error, errors.EntryNotFoundError):
        return Failed(
            "HUB_GARBAGE", f"{asked}: the lock lists the file, and it is not there{came}."
        )
    if isinstance(error, errors.RepositoryNotFoundError) or status == 404:
        return Failed(
            "HUB_NOT_FOUND",
            f"{asked} with {token}: there is no such model, or it is private{came}.",
        )
    if status in (401, 403):
        return Failed("HUB_UNAUTHORIZED", f"{asked} with {token}: refused{came}.")
    if status == 416:
        job.part(file).unlink(missing_ok=True)
        return Failed("HUB_UNAVAILABLE", f"{asked}: it cannot go on there{came}.")
    if status == 429:
        return Failed("HUB_RATE_LIMITED", f"{asked} with {token}: too many requests{came}.")
    if status is not None and status >= 500:
        return Failed("HUB_UNAVAILABLE", f"{asked}: it failed{came}.")
    if status is not None:
        return Failed("HUB_GARBAGE", f"{asked}: no hub answers so{came}.")
    name = getattr(error, "errno", None)
    if name is not None and not isinstance(error, ConnectionError):
        return Failed("WEIGHTS_NOT_WRITTEN", f"{file.path}: {error.__class__.__name__}: {error}.")
    kind = type(error).__name__
    return Failed("HUB_UNREACHABLE", f"{asked}: the connection failed or broke ({kind}).")


def tell_progress(job: Job, files: list[Wanted], over: threading.Event) -> None:
    """Say every few seconds how far files are that take longer than that."""
    while not over.wait(PROGRESS_S):
        for file in files:
            with suppress(OSError):
                here = job.part(file).stat().st_size
                print(f"{file.path}: {size(here)} of {size(file.size)}", flush=True)


def fetch(data: dict[str, Any]) -> None:
    """Bring every file of a commit to the hub's cache, check it, and leave the marker."""
    # Over HTTP a file is gone on with where it was cut, and a mirror speaks nothing else.
    files = [Wanted(*one) for one in data["files"]]
    if not any(file.size > LARGEST_OVER_HTTP for file in files):
        os.environ["HF_HUB_DISABLE_XET"] = "1"
    os.environ["HF_HUB_DISABLE_PROGRESS_BARS"] = "1"
    # Nothing is asked for but the files.
    os.environ["HF_HUB_DISABLE_TELEMETRY"] = "1"
    os.environ.setdefault("HF_HUB_DOWNLOAD_TIMEOUT", "30")
    name = "models--" + data["repo"].replace("/", "--")
    job = Job(
        data["repo"],
        data["commit"],
        Path(data["home"]) / "hub" / name,
        Path(data["marker"]),
        data["parallel"],
        files,
    )
    job.marker.parent.mkdir(parents=True, exist_ok=True)
    beside = job.marker.with_name(f"{job.marker.name}.part")
    known = {**read_marker(beside), **read_marker(job.marker)}
    with beside.open("a", encoding="utf-8", errors="surrogateescape") as notes:

        def one(file: Wanted) -> None:
            if job.stop.is_set():
                return
            how = "was there"
            if not is_good(job, file, known):
                fetch_file(job, file)
                # The marker says that it is there: after a loss of power it must be.
                with job.place(file).open("rb") as whole:
                    os.fsync(whole.fileno())
                how = "fetched"
            notes.write(marker_line(job.place(file), file) + "\n")
            notes.flush()
            job.finished(file, how)

        each(job, one)
    lines = [marker_line(job.place(file), file) for file in sorted(files, key=lambda f: f.path)]
    new = job.marker.with_name(f"{job.marker.name}.new")
    new.write_text("".join(f"{line}\n" for line in lines), encoding="utf-8")
    new.replace(job.marker)
    beside.unlink()


def each(job: Job, act: Callable[[Wanted], None]) -> None:
    """Act on every file, the smallest alone first: it tells whether the hub lets us in."""
    # An empty file is nothing to ask for.
    order = sorted(job.files, key=lambda file: (file.size == 0, file.size))
    for file in order[:1]:
        act(file)
    over = threading.Event()
    teller = threading.Thread(target=tell_progress, args=(job, order, over), daemon=True)
    teller.start()
    with ThreadPoolExecutor(job.parallel) as pool:
        # The largest first, so that none is left alone at the end.
        running = [pool.submit(act, file) for file in reversed(order[1:])]
        finished, _ = wait(running, return_when=FIRST_EXCEPTION)
        first = next((f.exception() for f in finished if f.exception()), None)
        if first is not None:
            job.stop.set()
            for one in running:
                one.cancel()
    over.set()
    if first is not None:
        raise first


def main(job: str) -> int:
    """Do what the file `job` says; return the exit status."""
    try:
        fetch(json.loads(Path(job).read_text(encoding="utf-8")))
    except Failed as failed:
        print(f"@failed {failed.code} {failed}", flush=True)
        return 1
    except OSError as error:
        print(f"@failed WEIGHTS_NOT_WRITTEN {error}", flush=True)
        return 1
    return 0


if __name__ == "__main__":
    os.umask(0o022)
    sys.exit(main(sys.argv[1]))
