"""The files of a Hugging Face repository, by its own client: sizes first, then bytes.

Nothing but adapter_config.json, adapter_model.safetensors and where a chat template may be is asked
for; a pickle never is.
"""

import shutil
from dataclasses import dataclass
from pathlib import Path

from django.conf import settings
from httpx2 import HTTPError
from huggingface_hub import HfApi, hf_hub_download
from huggingface_hub.errors import (
    GatedRepoError,
    HfHubHTTPError,
    HFValidationError,
    RepositoryNotFoundError,
    RevisionNotFoundError,
)

from adapters.storage import CONFIG_FILE, WEIGHTS_FILE
from adapters.validation.members import is_pickle
from adapters.validation.template_file import TEMPLATE_FILES

TIMEOUT_S = 20.0
# What its client raises: its own errors, its HTTP library's, the disk's.
_FAILURES = (HTTPError, OSError, ValueError, RuntimeError)


class HubError(Exception):
    """code is stable. is_passing: the hub, not the request, was at fault."""

    def __init__(self, code: str, message: str, is_passing: bool = False) -> None:
        super().__init__(message)
        self.code = code
        self.is_passing = is_passing


@dataclass(frozen=True)
class Found:
    """What a revision holds. commit: its sha. names: of what is fetched; num_bytes: of all."""

    repo_id: str
    commit: str
    num_bytes: int
    names: tuple[str, ...]


def look_up(repo_id: str, revision: str, token: str, max_bytes: int) -> Found:
    """Raises HubError; nothing is downloaded."""
    # False: never a token that this machine happens to have.
    api = HfApi(endpoint=settings.HF_ENDPOINT, token=token or False)
    try:
        info = api.model_info(repo_id, revision=revision, files_metadata=True, timeout=TIMEOUT_S)
    except _FAILURES as error:
        raise _named(error, repo_id, revision, token) from None
    sizes = {one.rfilename: one.size for one in info.siblings or ()}
    _require_files(repo_id, sizes)
    names = (CONFIG_FILE, WEIGHTS_FILE, *(name for name in TEMPLATE_FILES if name in sizes))
    num_bytes = sum(sizes[name] or 0 for name in names)
    if num_bytes > max_bytes:
        message = f"{repo_id} has {num_bytes} bytes in its files; the plan allows {max_bytes}."
        raise HubError("too_large", message)
    if not info.sha:
        raise HubError("hub_unreachable", "The hub did not say which commit this is.", True)
    return Found(repo_id, info.sha, num_bytes, names)


def _require_files(repo_id: str, sizes: dict[str, int | None]) -> None:
    if WEIGHTS_FILE not in sizes:
        pickles = [name for name in sizes if is_pickle(name)]
        advice = f" {pickles[0][:80]} is a pickle, which is never opened." if pickles else ""
        message = f"{repo_id} has no {WEIGHTS_FILE} at its top.{advice}"
        raise HubError("no_safetensors", message)
    if CONFIG_FILE not in sizes:
        raise HubError("no_adapter_config", f"{repo_id} has no {CONFIG_FILE}: it is no adapter.")


def download(found: Found, token: str, folder: Path) -> None:
    """Its files into folder, of found's commit and of its size. Raises HubError."""
    staged = folder / "hub"
    try:
        for name in found.names:
            path = hf_hub_download(
                found.repo_id,
                name,
                revision=found.commit,
                local_dir=staged,
                endpoint=settings.HF_ENDPOINT,
                token=token or False,
            )
            Path(path).rename(folder / name)
    except _FAILURES as error:
        raise _named(error, found.repo_id, found.commit, token) from None
    finally:
        shutil.rmtree(staged, ignore_errors=True)
    _require_whole(found, folder)


def _require_whole(found: Found, folder: Path) -> None:
    num_bytes = sum((folder / name).stat().st_size for name in found.names)
    if num_bytes != found.num_bytes:
        message = f"The hub said {found.num_bytes} bytes and gave {num_bytes}."
        raise HubError("hub_unreachable", message, is_passing=True)


def _named(error: Exception, repo_id: str, revision: str, token: str) -> HubError:
    """By name, and without the client's own words: they may hold what the request held."""
    if isinstance(error, GatedRepoError):
        given = "the token has no access to it" if token else "send a token that has access to it"
        return HubError("repo_gated", f"{repo_id} is gated: {given}.")
    if isinstance(error, RepositoryNotFoundError):
        hint = "" if token else ", or it is private and needs a token"
        return HubError("repo_absent", f"There is no repository {repo_id} at the hub{hint}.")
    if isinstance(error, RevisionNotFoundError):
        return HubError("revision_absent", f"{repo_id} has no revision '{revision[:80]}'.")
    if isinstance(error, HFValidationError):
        return HubError("invalid_repo_id", "repo_id: expected 'owner/name' as the hub shows it.")
    status = error.response.status_code if isinstance(error, HfHubHTTPError) else None
    if status == 401:
        return HubError("token_refused", "The hub refused the token.")
    what = f"answered {status}" if status else f"did not answer ({type(error).__name__})"
    return HubError("hub_unreachable", f"The hub {what}.", is_passing=True)
