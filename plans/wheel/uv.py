"""How uv is called on a node: the one home of its arguments and its environment."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from plans import paths
from plans.mirrors import Mirrors
from plans.wheel.tools import uv_path


@dataclass(frozen=True)
class Uv:
    """One way of calling uv.

    ``bundle``: a directory on the node with all wheels; uv then asks no network. ``pages``: pages
    of links beside the index.
    """

    mirrors: Mirrors = field(default_factory=Mirrors)
    cache: str = paths.PACKAGE_CACHE
    pages: tuple[str, ...] = ()
    bundle: str | None = None
    program: str = uv_path()

    @property
    def environment(self) -> Mapping[str, str]:
        """The variables of every call; what the node's own files would set is left out."""
        return {
            # A uv.toml or pip.conf of the node decides nothing here.
            "UV_NO_CONFIG": "1",
            "UV_CACHE_DIR": self.cache,
            "UV_PYTHON_INSTALL_DIR": paths.PYTHONS,
            # Certificates of the operator's own mirror are in the node's store.
            "UV_SYSTEM_CERTS": "1",
            "UV_NO_PROGRESS": "1",
            "NO_COLOR": "1",
            **({"UV_OFFLINE": "1"} if self.bundle else self.mirrors.uv_environment()),
        }

    def python_install(self, minor: str) -> tuple[str, ...]:
        """Return what fetches a Python with its headers; uv checks it against its own hash."""
        return (self.program, "python", "install", "--no-bin", "--reinstall", minor)

    def venv(self) -> tuple[str, ...]:
        """Return what makes an empty environment; the path of the Python and its own follow."""
        return (
            # Of a Python that it keeps itself uv links the minor version, and the next patch would
            # come under an environment that runs: one that it does not know is linked as it is.
            "env",
            "UV_PYTHON_INSTALL_DIR=/nonexistent",
            self.program,
            "venv",
            "--relocatable",
            "--no-project",
            "--no-python-downloads",
            "--python",
        )

    def install(self) -> tuple[str, ...]:
        """Return what installs a lock; ``--python``, ``--requirement`` and their values follow.

        Hashes are required and nothing is built: there is no second try without either.
        """
        if self.bundle:
            where: tuple[str, ...] = ("--no-index", "--find-links", self.bundle)
        else:
            where = tuple(word for page in self.pages for word in ("--find-links", page))
        return (
            self.program,
            "pip",
            "install",
            "--no-deps",
            "--require-hashes",
            "--only-binary",
            ":all:",
            # The service's user may not write there: each start would compile all of it anew.
            "--compile-bytecode",
            *where,
        )
