"""Where bytes lie: uploads in quarantine, published versions by digest; no client's file names.

    <ADAPTER_STORE_DIR>/quarantine/<random>/   what was uploaded, until it is published or rejected
    <ADAPTER_STORE_DIR>/<digest[:2]>/<digest>/ adapter_config.json, adapter_model.safetensors
    <ADAPTER_STORE_DIR>/trash/                 on the way out, swept

Every move is one rename in one file system: a reader sees a whole blob or none.
"""

import contextlib
import json
import os
import re
import secrets
import shutil
import time
from collections.abc import Sequence
from pathlib import Path

from django.conf import settings

from adapters.models import AdapterVersion, Placement, Upload, UploadStatus
from tenants.scope import unscoped

CONFIG_FILE = "adapter_config.json"
WEIGHTS_FILE = "adapter_model.safetensors"
ARCHIVE_FILE = "upload.archive"
# One part, before it is its upload's; and in which order parts are joined.
PART_FILE = "part"
ORDER_FILE = "parts.json"

_TOKEN = re.compile(r"[0-9a-f]{32}")
_DIGEST = re.compile(r"[0-9a-f]{64}")
_PART = re.compile(r"part_[0-9a-f]{32}")


def store_dir() -> Path:
    return Path(settings.ADAPTER_STORE_DIR)


def new_quarantine() -> str:
    """Makes an empty folder and returns its token."""
    token = secrets.token_hex(16)
    quarantine_dir(token).mkdir(parents=True, mode=0o700)
    return token


def quarantine_dir(token: str) -> Path:
    if not _TOKEN.fullmatch(token):
        raise ValueError(f"not a quarantine token: {token!r}")
    return store_dir() / "quarantine" / token


def discard_quarantine(token: str) -> None:
    """Removes an upload's folder; absent is fine."""
    if token:
        shutil.rmtree(quarantine_dir(token), ignore_errors=True)


def part_path(quarantine: str, name: str) -> Path:
    if not _PART.fullmatch(name):
        raise ValueError(f"not a part: {name!r}")
    return quarantine_dir(quarantine) / name


def keep_part(token: str, quarantine: str, name: str) -> None:
    """Moves the part of one quarantine into an upload's; its bytes are on disk already."""
    target = part_path(quarantine, name)
    (quarantine_dir(token) / PART_FILE).rename(target)
    _sync_dir(target.parent)


def remove_part(quarantine: str, name: str) -> None:
    part_path(quarantine, name).unlink(missing_ok=True)


def write_order(quarantine: str, names: Sequence[str]) -> None:
    """In which order the parts make the upload's file. The whole list or none is there."""
    target = quarantine_dir(quarantine) / ORDER_FILE
    written = target.with_suffix(f".{secrets.token_hex(4)}")
    written.write_text(json.dumps([part_path(quarantine, name).name for name in names]))
    sync_file(written)
    written.rename(target)
    _sync_dir(target.parent)


def blob_dir(digest: str) -> Path:
    """What a replica is told as lora_path."""
    if not _DIGEST.fullmatch(digest):
        raise ValueError(f"not a digest: {digest!r}")
    return store_dir() / digest[:2] / digest


def publish_blob(token: str, digest: str) -> None:
    """Moves the two validated files from quarantine to their digest's place. Idempotent.

    The row must already hold the digest: only then does `delete_blob_if_unused` keep its hands off.
    """
    target, source = blob_dir(digest), quarantine_dir(token)
    if not target.is_dir():
        staged = source / "blob"
        staged.mkdir(exist_ok=True)
        for name in (CONFIG_FILE, WEIGHTS_FILE):
            # A link, not a move: a worker that dies here leaves the upload whole for the next one.
            with contextlib.suppress(FileExistsError):
                os.link(source / name, staged / name)
            sync_file(staged / name)
        target.parent.mkdir(parents=True, exist_ok=True)
        _rename_unless_there(staged, target)
        _sync_dir(target.parent)
    discard_quarantine(token)


def _rename_unless_there(source: Path, target: Path) -> None:
    try:
        source.rename(target)
    except OSError:
        # Another worker published the same bytes first.
        if not target.is_dir():
            raise


def sync_file(path: Path) -> None:
    with path.open("rb") as file:
        os.fsync(file.fileno())


def _sync_dir(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def is_needed(digest: str) -> bool:
    """Whether a version of any tenant, or a replica that may still read it, needs the bytes."""
    with unscoped():  # Equal bytes of two tenants share one blob.
        if AdapterVersion.objects.filter(digest=digest).exists():
            return True
    return Placement.objects.filter(digest=digest).exists()


def delete_blob_if_unused(digest: str) -> bool:
    """Whether the bytes went. Safe beside a worker that is just publishing the same bytes."""
    target = blob_dir(digest)
    if is_needed(digest) or not target.is_dir():
        return False
    trash = store_dir() / "trash" / f"{digest}.{secrets.token_hex(4)}"
    trash.parent.mkdir(parents=True, exist_ok=True)
    target.rename(trash)
    if is_needed(digest):
        # Wanted again between the question and the move.
        _rename_unless_there(trash, target)
    shutil.rmtree(trash, ignore_errors=True)
    return True


def sweep_quarantine(max_age_s: float) -> int:
    """Removes folders that no row knows and that are older; returns how many."""
    root = store_dir() / "quarantine"
    if not root.is_dir():
        return 0
    with unscoped():  # The folders of all tenants lie side by side.
        versions = AdapterVersion.objects.exclude(quarantine="")
        uploads = Upload.objects.filter(status=UploadStatus.PENDING)
        # In this order: completing an upload hands its folder to a version.
        known = set(uploads.values_list("quarantine", flat=True))
        known |= set(versions.values_list("quarantine", flat=True))
    num_removed = 0
    for folder in root.iterdir():
        is_old = folder.stat().st_mtime < time.time() - max_age_s
        if folder.name not in known and is_old and _TOKEN.fullmatch(folder.name):
            discard_quarantine(folder.name)
            num_removed += 1
    return num_removed
