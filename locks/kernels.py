"""FlashInfer's own index: which precompiled kernels there are for a version, and their hashes.

Since FlashInfer 0.7 `flashinfer-jit-cache` is a small shim, whose metadata names one provider for
each GPU architecture (`flashinfer-jit-cache-sm90a`); both are below the label of a CUDA release.
`flashinfer-cubin` is for all of them. A link mostly says the file's hash (`#sha256=...`); where it
does not, the file is downloaded and hashed, and the lock says so.
"""

import hashlib
import io
import re
import zipfile
from collections.abc import Callable
from dataclasses import dataclass, field
from email.parser import BytesParser

from packaging.requirements import InvalidRequirement, Requirement
from packaging.utils import canonicalize_name
from packaging.version import InvalidVersion, Version

from locks.index import Index, KernelProblem, Link
from locks.patience import Patience
from locks.records import CUBIN, SHIM, LockedKernels, LockedWheel, cuda_label

MAX_SHIM_BYTES = 4 * 1024 * 1024
"""The shim of 0.7 has 4.5 kB; before that the package was the kernels themselves, gigabytes."""

_PROVIDER = re.compile(r"flashinfer-jit-cache-sm[0-9]{2,3}[af]?")


@dataclass(frozen=True)
class KernelOptions:
    """How FlashInfer's index is asked. `index`: its address, None where nobody named one."""

    index: str | None = None
    patience: Patience = field(default_factory=lambda: Patience(attempts=3, total_s=30.0))
    timeout_s: float = 20.0


def resolve_kernels(
    version: str,
    cuda: str,
    *,
    now: str,
    options: KernelOptions,
    progress: Callable[[str], None] = lambda line: None,
) -> LockedKernels:
    """Return every file of FlashInfer's index for a version and a CUDA release, with hashes.

    `version` is flashinfer-python's, `cuda` is `13.0`, `now` the time to write down. Versions are
    compared by their parts: a jit-cache has the CUDA release as its local part, and no other is
    taken. Raises KernelProblem where the index cannot be reached, is no index, or has none.
    """
    if options.index is None:
        raise KernelProblem(
            "KERNEL_INDEX_UNKNOWN",
            "no address of FlashInfer's index is known: write what `flashinfer install-cubin-wheel "
            "--dry-run` prints, or your own mirror of it, as mirrors.flashinfer of the inventory",
        )
    base, label = options.index.rstrip("/"), cuda_label(cuda)
    index = Index(options.patience, options.timeout_s)
    wanted = f"{Version(version).public}+{label}"
    below = f"{base}/{label}"
    shims = _of_version(index, below, SHIM, wanted)
    if not shims:
        raise KernelProblem("KERNELS_NOT_THERE", f"{below} has no {SHIM} {wanted}")
    wheels = []
    providers: set[str] = set()
    for link in shims:
        data = index.download(link, MAX_SHIM_BYTES)
        providers |= _providers(data, link, wanted)
        digest = f"sha256:{hashlib.sha256(data).hexdigest()}"
        wheels.append(_wheel(SHIM, wanted, link, digest, len(data)))
    for name in sorted(providers):
        for link in _of_version(index, below, name, wanted):
            wheels.append(_hashed(index, name, wanted, link, progress))
    cubin = Version(version).public
    for link in _of_version(index, base, CUBIN, cubin):
        wheels.append(_hashed(index, CUBIN, cubin, link, progress))
    ordered = tuple(sorted(wheels, key=lambda wheel: (wheel.name, wheel.file)))
    return LockedKernels(version=cubin, cuda=cuda, index=base, wheels=ordered, resolved_at=now)


def _of_version(index: Index, below: str, name: str, wanted: str) -> list[Link]:
    """Return a package's files of one version; its local part is compared too."""
    return [link for link in index.page(below, name) if link.version == Version(wanted)]


def _providers(data: bytes, link: Link, wanted: str) -> set[str]:
    """Return the providers that a shim's metadata names. All must be of the shim's own version."""
    try:
        with zipfile.ZipFile(io.BytesIO(data)) as archive:
            (path,) = (n for n in archive.namelist() if n.endswith(".dist-info/METADATA"))
            metadata = BytesParser().parsebytes(archive.read(path))
        found: set[str] = set()
        for text in metadata.get_all("Requires-Dist", []):
            requirement = Requirement(text)
            name = canonicalize_name(requirement.name)
            (pin,) = requirement.specifier
            if not _PROVIDER.fullmatch(name):
                continue
            if pin.operator != "==" or Version(pin.version) != Version(wanted):
                raise KernelProblem(
                    "KERNEL_INDEX_GARBAGE",
                    f"{link.file} asks for {name}{requirement.specifier}, which is not its own "
                    f"version, {wanted}",
                )
            found.add(name)
    except (zipfile.BadZipFile, ValueError, InvalidRequirement, InvalidVersion):
        raise KernelProblem(
            "KERNEL_INDEX_GARBAGE", f"{link.file} of {link.host} is no wheel that can be read"
        ) from None
    if not found:
        raise KernelProblem("KERNELS_NOT_THERE", f"{link.file} names no provider of kernels")
    return found


def _hashed(
    index: Index, name: str, version: str, link: Link, progress: Callable[[str], None]
) -> LockedWheel:
    if link.sha256 is not None:
        size = link.size if link.size is not None else index.size(link)
        return _wheel(name, version, link, f"sha256:{link.sha256}", size)
    progress(f"{link.file}: its link says no hash, so it is downloaded")
    digest, size = index.hash(link)
    return _wheel(name, version, link, f"sha256:{digest}", size)


def _wheel(name: str, version: str, link: Link, digest: str, size: int | None) -> LockedWheel:
    return LockedWheel(
        name=name,
        version=version,
        file=link.file,
        hash=digest,
        hash_from="download" if link.sha256 is None else "link",
        size_bytes=size,
    )


def kernels_words(kernels: LockedKernels) -> str:
    """Say in a line what was found."""
    names = {wheel.name for wheel in kernels.wheels}
    providers = sorted(n.removeprefix(f"{SHIM}-") for n in names if n.startswith(f"{SHIM}-"))
    hashed = sum(wheel.hash_from == "download" for wheel in kernels.wheels)
    return (
        f"{kernels.key} for {', '.join(providers)}"
        f"{'' if CUBIN in names else ', no cubins'}; {len(kernels.wheels)} files, hashes from "
        + ("their links" if not hashed else f"downloading {hashed} of them")
    )
