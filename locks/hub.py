"""The model hub: from a repository and a revision to a commit and its files.

Asked with `huggingface_hub`, the hub's own client, so that HF_ENDPOINT, HF_TOKEN, a saved login
and HF_HUB_OFFLINE mean here what they mean everywhere. It is imported when it is first needed:
that takes longer than everything else here.
"""

import os
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Literal
from urllib.parse import urlsplit

from pydantic import ValidationError

from locks.hub_files import with_config
from locks.patience import Patience
from locks.records import LockedFile, LockedModel, is_commit

if TYPE_CHECKING:
    from huggingface_hub.errors import HfHubHTTPError
    from huggingface_hub.hf_api import ModelInfo, RepoSibling

HubCode = Literal[
    "HUB_GATED",
    "HUB_UNAUTHORIZED",
    "HUB_NOT_FOUND",
    "HUB_REVISION_NOT_FOUND",
    "HUB_RATE_LIMITED",
    "HUB_UNAVAILABLE",
    "HUB_UNREACHABLE",
    "HUB_OFFLINE",
    "HUB_GARBAGE",
]

_REPO_PART = r"[A-Za-z0-9_](?:[A-Za-z0-9_.-]*[A-Za-z0-9_])?"
_REPO = re.compile(rf"(?:{_REPO_PART}/)?{_REPO_PART}")
_REVISION = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_./+-]{0,199}")


class HubError(Exception):
    """What went wrong at the hub: a stable `code`, a sentence, and a command where one helps."""

    def __init__(self, code: HubCode, message: str, command: str | None = None) -> None:
        super().__init__(message)
        self.code: HubCode = code
        self.command = command


class ModelRefused(ValueError):
    """A model or revision that is no name on a hub (`BAD_MODEL`)."""

    code = "BAD_MODEL"


@dataclass(frozen=True)
class HubOptions:
    """How the hub is asked.

    `endpoint`: its base URL (None: HF_ENDPOINT, else https://huggingface.co); `token`: a user's
    token (None: HF_TOKEN or the saved login); `timeout_s`: seconds for one answer.
    """

    endpoint: str | None = None
    token: str | None = field(default=None, repr=False)
    timeout_s: float = 30.0
    patience: Patience = field(default_factory=lambda: Patience(attempts=3, total_s=60.0))


def check_model(repo: str, revision: str) -> None:
    """Raise ModelRefused unless `repo` and `revision` can be names on a hub."""
    if not _REPO.fullmatch(repo) or ".." in repo or "--" in repo or len(repo) > 96:
        raise ModelRefused(
            f"{repo[:200]!a} is not a model on a hub: write OWNER/NAME, such as Qwen/Qwen3-8B. "
            "A folder on a node is not locked."
        )
    if not _REVISION.fullmatch(revision) or ".." in revision:
        raise ModelRefused(
            f"{revision[:200]!a} is not a revision of {repo}: write a branch (main), a tag, or a "
            "commit of 40 hexadecimal digits."
        )


def resolve_model(
    repo: str, revision: str, *, now: str, options: HubOptions | None = None
) -> LockedModel:
    """Return the commit that a revision of a model means, and its files with sizes and checksums.

    Of config.json and the index of its weights it has what says how much memory the model takes.
    `now`: the time to write down (ISO, with zone). Raises ModelRefused for what is no name, and
    HubError for everything that comes in place of an answer.
    """
    check_model(repo, revision)
    options = options or HubOptions()
    host = _host(options)
    info = _asked(repo, revision, options, host)
    commit = info.sha or ""
    if is_commit(revision) and commit != revision:
        raise _garbage(host, repo, revision, "another commit than the one asked for")
    try:
        files = tuple(_file(one) for one in info.siblings or ())
        model = LockedModel(
            repo=repo,
            asked_revision=revision,
            commit=commit,
            files=tuple(sorted(files, key=lambda file: file.path)),
            resolved_at=now,
        )
    except (ValidationError, TypeError, AttributeError):
        raise _garbage(
            host, repo, revision, "no commit, or files without plain names, sizes and checksums"
        ) from None
    return with_config(model, options)


def _file(sibling: "RepoSibling") -> LockedFile:
    lfs = sibling.lfs
    size = lfs.size if lfs is not None else sibling.size
    if size is None:
        raise TypeError("a file without a size")
    return LockedFile(
        path=sibling.rfilename,
        size_bytes=size,
        sha256=lfs.sha256 if lfs is not None else None,
        git_blob=None if lfs is not None else sibling.blob_id,
    )


def _asked(repo: str, revision: str, options: HubOptions, host: str) -> "ModelInfo":
    from huggingface_hub import HfApi
    from huggingface_hub.errors import HfHubHTTPError

    # HF_ENDPOINT again: the client has read it once, at its import.
    endpoint = options.endpoint or os.environ.get("HF_ENDPOINT") or None
    api = HfApi(endpoint=endpoint, token=options.token)
    waiting = options.patience.begin()
    while True:
        try:
            return api.model_info(
                repo, revision=revision, files_metadata=True, timeout=options.timeout_s
            )
        except HfHubHTTPError as error:
            status = int(error.response.status_code)
            retry_after = error.response.headers.get("Retry-After")
            if (status == 429 or status >= 500) and waiting.again(retry_after):
                continue
            raise _refusal(error, status, host, repo, revision) from None
        except Exception as error:
            # Whatever its HTTP library is called in this version: by kind, not by name.
            failure = _failure(error, host, repo, revision, options)
            if failure.code == "HUB_UNREACHABLE" and waiting.again():
                continue
            raise failure from None


def _refusal(error: "HfHubHTTPError", status: int, host: str, repo: str, revision: str) -> HubError:
    from huggingface_hub.errors import (
        DisabledRepoError,
        GatedRepoError,
        RepositoryNotFoundError,
        RevisionNotFoundError,
    )

    asked = f"{host} was asked for {repo} at {revision}"
    page = f"https://{host}/{repo}"
    bad = "Invalid credentials" in error.response.headers.get("X-Error-Message", "")
    if isinstance(error, GatedRepoError):
        return HubError(
            "HUB_GATED",
            f"{asked}: the model is gated (HTTP {status}). Accept its terms at {page} and log in "
            "as the user who did: hf auth login, or HF_TOKEN.",
            "hf auth login",
        )
    if isinstance(error, RevisionNotFoundError):
        return HubError(
            "HUB_REVISION_NOT_FOUND",
            f"{asked}: the model is there, that revision is not (HTTP {status}). Its branches and "
            f"tags are listed at {page}/tree/main.",
        )
    if isinstance(error, DisabledRepoError):
        return HubError(
            "HUB_NOT_FOUND", f"{asked}: the hub has shut the model off (HTTP {status})."
        )
    # 401 is also how the hub says that a model is not there; a token that it refuses it names.
    if isinstance(error, RepositoryNotFoundError) or status == 404 or (status == 401 and not bad):
        return HubError(
            "HUB_NOT_FOUND",
            f"{asked}: there is no such model, or it is private and this login may not see it "
            f"(HTTP {status}). Check the spelling, or log in: hf auth login, or HF_TOKEN.",
            "hf auth login",
        )
    if status in (401, 403):
        return HubError(
            "HUB_UNAUTHORIZED",
            f"{asked}: the token was refused (HTTP {status}): it is wrong, has expired, or may not "
            "read models. Make a new one and log in: hf auth login, or HF_TOKEN.",
            "hf auth login",
        )
    if status == 429:
        return HubError(
            "HUB_RATE_LIMITED",
            f"{asked}: too many requests (HTTP 429). Wait five minutes, or log in for a higher "
            "allowance: hf auth login.",
            "hf auth login",
        )
    if status >= 500:
        return HubError(
            "HUB_UNAVAILABLE", f"{asked}: it failed with HTTP {status}. Try again later."
        )
    return _garbage(host, repo, revision, f"HTTP {status}")


def _failure(
    error: Exception, host: str, repo: str, revision: str, options: HubOptions
) -> HubError:
    from huggingface_hub.errors import HFValidationError, OfflineModeIsEnabled

    kinds = {kind.__name__ for kind in type(error).__mro__}
    asked = f"{host} was asked for {repo} at {revision}"
    if isinstance(error, OfflineModeIsEnabled):
        return HubError(
            "HUB_OFFLINE",
            f"{repo} at {revision} was not asked for: HF_HUB_OFFLINE is set. Unset it for `lock`, "
            "or run `lock` on a machine that reaches the hub and bring sglang.lock here.",
            "unset HF_HUB_OFFLINE",
        )
    if isinstance(error, HFValidationError):
        raise ModelRefused(f"{repo!a} is not a name that the hub allows.") from None
    if "TimeoutException" in kinds or "Timeout" in kinds:
        came = f"no answer in {options.timeout_s:.0f} s"
    elif kinds & {"RemoteProtocolError", "DecodingError", "TooManyRedirects"}:
        return _garbage(host, repo, revision, "something that is not the hub's HTTP")
    elif kinds & {"TransportError", "RequestException", "OSError"} and "JSON" not in str(kinds):
        came = "no connection"
    else:
        return _garbage(host, repo, revision, "something that is not the hub's JSON")
    return HubError(
        "HUB_UNREACHABLE",
        f"{asked}: {came}. See whether this machine reaches it (HF_ENDPOINT, HTTPS_PROXY and "
        f"NO_PROXY decide how): curl -sI https://{host}",
        f"curl -sI https://{host}",
    )


def _garbage(host: str, repo: str, revision: str, came: str) -> HubError:
    return HubError(
        "HUB_GARBAGE",
        f"{host} was asked for {repo} at {revision}: there came {came}. Is this a hub "
        "(HF_ENDPOINT)? A login page or proxy may stand before it.",
    )


def _host(options: HubOptions, environment: Mapping[str, str] = os.environ) -> str:
    """The hub's host for messages: never a user or password that stands in the address."""
    endpoint = options.endpoint or environment.get("HF_ENDPOINT") or "https://huggingface.co"
    try:
        return urlsplit(endpoint).netloc.rpartition("@")[2] or "the hub"
    except ValueError:
        return "the hub"
