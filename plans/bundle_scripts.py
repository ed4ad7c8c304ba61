"""The programs that make a bundle on a node, and install from one, as text."""

from __future__ import annotations

import base64
import json
from collections.abc import Iterable
from dataclasses import dataclass

from plans import paths
from plans.bundle import Member, Taken
from plans.launch import TEMPLATES, render
from plans.onnode import REFUSAL_MARK
from plans.wheel.environment import PlannedEnvironment
from plans.wheel.tools import uv_path
from plans.wheel.uv import Uv
from releases.wheels import WheelLock

HAVE_MARK = "@have "
"""Begins the line by which a node says which file of a bundle it has already: its SHA-256."""

FILE_MARK = "@file "
"""Begins the line that says a file's SHA-256, its size, a digest or -, and its path."""


@dataclass(frozen=True)
class ImageToSave:
    """An image that goes into a bundle: what Docker calls it, and what the lock knows of it."""

    asked: str
    run: str
    config_digest: str

    @property
    def name(self) -> str:
        """Its file in the working directory."""
        return f"image-{self.config_digest.removeprefix('sha256:')[:16]}.tar"


@dataclass(frozen=True)
class EnvironmentToBundle:
    """An environment whose wheels go into a bundle."""

    planned: PlannedEnvironment
    lock: WheelLock


def _patiently() -> str:
    return (TEMPLATES / "patiently.sh").read_text(encoding="utf-8")


def begin(taken: Taken) -> str:
    """Return the program that makes ready for a bundle's files, and says which are there."""
    return render(
        "bundle-begin.sh.j2",
        directory=taken.directory,
        bundles=paths.BUNDLES,
        members=taken.members,
        have_mark=HAVE_MARK,
        patiently=_patiently(),
    )


def receive(taken: Taken) -> str:
    """Return the program that takes a tar archive of a bundle's files from standard input."""
    return render("bundle-receive.sh.j2", directory=taken.directory)


def place(taken: Taken) -> str:
    """Return the program that checks what came, and puts image and weights in their places."""
    image = taken.image
    return render(
        "bundle-place.sh.j2",
        directory=taken.directory,
        bundles=paths.BUNDLES,
        members=taken.members,
        image=image,
        runs_as=taken.runs_as or "",
        tag=image_tag(image.config_digest) if image else "",
        weights=taken.weights,
        blobs=taken.blobs,
        environment=taken.environment,
        directories=[paths.OPT, paths.PYTHONS, paths.TOOLS],
        pythons=paths.PYTHONS,
        own_directories=(TEMPLATES / "own-directories.sh").read_text(encoding="utf-8"),
        uv=uv_path(),
        refusal_mark=REFUSAL_MARK,
        patiently=_patiently(),
    )


def image_tag(config_digest: str) -> str:
    """Return the name that an image from a bundle gets in Docker's store: it runs by its digest."""
    return f"sglang-bundle:{config_digest.removeprefix('sha256:')[:16]}"


def gather(images: Iterable[ImageToSave], files: Iterable[str]) -> str:
    """Return the program that gathers a bundle's files, and says what they are."""
    return render(
        "bundle-gather.sh.j2",
        work=paths.BUNDLE_WORK,
        bundles=paths.BUNDLES,
        images=list(images),
        paths=list(files),
        file_mark=FILE_MARK,
        patiently=_patiently(),
    )


def wheels(environment: EnvironmentToBundle) -> str:
    """Return the program that fetches an environment's wheels, and packs its Python."""
    lock = environment.lock
    uv = Uv(environment.planned.mirrors, environment.planned.cache, environment.planned.pages)
    job = {
        "pylock": f"{paths.BUNDLE_WORK}/pylock.bundle.toml",
        "directory": f"{paths.BUNDLE_WORK}/wheels",
        "parallel": 4,
        "files": [
            [one.file, [each.removeprefix("sha256:") for each in one.hashes]]
            for one in lock.packages
        ],
    }
    named = "".join(f"{one.name}=={one.version}\n" for one in lock.packages)
    return render(
        "bundle-wheels.sh.j2",
        work=paths.BUNDLE_WORK,
        bundles=paths.BUNDLES,
        pythons=paths.PYTHONS,
        key=environment.planned.key,
        python=environment.planned.python_path,
        uv=uv.program,
        environment=uv.environment,
        pages=uv.pages,
        # The Python has 100 MB; the index does not say every size.
        needed_kib=(lock.size + 400_000_000) // 1024,
        files=lock.packages,
        requirements=_encoded(named),
        program=_encoded((TEMPLATES / "fetch_wheels.py").read_text(encoding="utf-8")),
        job=_encoded(json.dumps(job)),
        file_mark=FILE_MARK,
        patiently=_patiently(),
    )


def _encoded(content: str) -> str:
    return base64.encodebytes(content.encode()).decode().rstrip("\n")


def send(files: Iterable[str]) -> str:
    """Return the program that writes files of a node to its standard output, in their order."""
    return render("bundle-send.sh.j2", paths=list(files))


def clean(directory: str) -> str:
    """Return the program that takes a working directory away."""
    return render("bundle-clean.sh.j2", directory=directory, bundles=paths.BUNDLES)


def tar_of(members: Iterable[Member]) -> int:
    """Return the bytes of a tar archive that holds these files."""
    return sum(512 + one.size + -one.size % 512 for one in members) + 1024
