"""The environment of a wheel runtime, as it should be on a node."""

from __future__ import annotations

from dataclasses import dataclass, field

from plans import paths
from plans.mirrors import Mirrors
from plans.wheel.cuda_home import CudaHome

__all__ = ["CudaHome", "PlannedEnvironment"]


@dataclass(frozen=True)
class PlannedEnvironment:
    """What a service of the wheel runtime is started from, and what of it is missing."""

    key: str  # 16 hexadecimal digits: requirements, Python minor, architecture; never the driver
    release: str
    requirements: str = field(repr=False)  # what uv installs: versions with hashes
    size: int  # bytes to download, as far as known
    python: str  # minor version: "3.12"
    cuda_home: CudaHome | None  # None: the lock has no CUDA compiler (CPU device)
    packages: tuple[str, ...]  # of the distribution, missing on the node
    mirrors: Mirrors
    build: bool  # it is not there, half-made, or not whole any more
    why: str  # why it is built, or repaired
    repair: bool = False  # links of its CUDA tree are missing, and nothing else
    account: bool = False  # the user of wheel runtimes is missing
    bring_uv: bool = False  # it is built, and uv is not on the node yet
    cuda: str | None = None  # release of the lock's compiler: "13.0"
    architecture: str = "x86_64"
    count: int = 0  # packages in its lock
    least: int = 1  # of those, the ones that no marker may leave out
    cache: str = paths.PACKAGE_CACHE  # uv's
    python_packages: tuple[str, ...] = ()  # of the distribution, where uv cannot fetch a Python
    pages: tuple[str, ...] = ()  # of links, beside the index: FlashInfer's own packages
    leftovers: tuple[str, ...] = ()  # half-made directories, which are discarded
    taken_away: tuple[str, ...] = ()  # by a run that was cut before the new one was there: keys
    departs: str | None = None  # where the lock departs from what SGLang pins, in one line
    # Each of those: "nvidia-cuda-nvcc ==13.0.88, not ==13.5.37", and its reason with a link.
    departures: tuple[tuple[str, str], ...] = ()
    of: str = "SGLang"  # what the release is of

    @property
    def directory(self) -> str:
        """Its path: ``/opt/sglang/environments/0123456789abcdef``."""
        return paths.environment(self.key)

    @property
    def python_path(self) -> str:
        """The Python that the server runs on."""
        return f"{self.directory}/bin/python3"

    @property
    def changes(self) -> bool:
        """Whether anything is to be done on the node."""
        left = self.leftovers or self.taken_away
        return bool(self.build or self.repair or self.account or self.packages or left)
