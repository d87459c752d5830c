"""Where bytes lie: uploads in quarantine, published versions by digest; no client's file names.

    <ADAPTER_STORE_DIR>/quarantine/<random>/   what was uploaded, until it is published or rejected
    <ADAPTER_STORE_DIR>/<digest[:2]>/<digest>/ adapter_config.json, adapter_model.safetensors
    <ADAPTER_STORE_DIR>/trash/                 on the way in or out

With ADAPTER_S3_BUCKET the second is a cache of the bucket's.
"""

import contextlib
import json
import logging
import re
import secrets
import shutil
import time
from collections.abc import Sequence, Set
from pathlib import Path

from django.conf import settings

from adapters.blobs import CONFIG_FILE as CONFIG_FILE
from adapters.blobs import WEIGHTS_FILE as WEIGHTS_FILE
from adapters.blobs import BlobError, Blobs, FolderBlobs, sync_dir, sync_file
from adapters.models import AdapterVersion, Placement, Upload, UploadStatus
from tenants.scope import unscoped

log = logging.getLogger(__name__)

ARCHIVE_FILE = "upload.archive"
# One part, before it is its upload's; and in which order parts are joined.
PART_FILE = "part"
ORDER_FILE = "parts.json"
# In a quarantine: a row had it. Of a quarantine's name: it is being removed.
TAKEN_FILE = "taken"
GONE = ".gone"
# No delete takes longer.
TRASH_MAX_AGE_S = 3600.0
# Whose row came with it was committed long before.
SWEEP_MIN_AGE_S = 3600.0

_TOKEN = re.compile(r"[0-9a-f]{32}")
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
    """Removes an upload's folder; absent is fine. Killed halfway, the rest is known to be waste."""
    if not token:
        return
    gone = quarantine_dir(token).with_suffix(GONE)
    with contextlib.suppress(FileNotFoundError):
        quarantine_dir(token).rename(gone)
    shutil.rmtree(gone, ignore_errors=True)


def mark_taken(token: str) -> None:
    """A row has it, and is at work on it: once none has it any more, it is waste at once."""
    with contextlib.suppress(FileNotFoundError):
        (quarantine_dir(token) / TAKEN_FILE).touch()


def part_path(quarantine: str, name: str) -> Path:
    if not _PART.fullmatch(name):
        raise ValueError(f"not a part: {name!r}")
    return quarantine_dir(quarantine) / name


def keep_part(token: str, quarantine: str, name: str) -> None:
    """Moves the part of one quarantine into an upload's; its bytes are on disk already."""
    target = part_path(quarantine, name)
    (quarantine_dir(token) / PART_FILE).rename(target)
    sync_dir(target.parent)


def remove_part(quarantine: str, name: str) -> None:
    part_path(quarantine, name).unlink(missing_ok=True)


def write_order(quarantine: str, names: Sequence[str]) -> None:
    """In which order the parts make the upload's file. The whole list or none is there."""
    target = quarantine_dir(quarantine) / ORDER_FILE
    written = target.with_suffix(f".{secrets.token_hex(4)}")
    written.write_text(json.dumps([part_path(quarantine, name).name for name in names]))
    sync_file(written)
    written.rename(target)
    sync_dir(target.parent)


def blobs() -> Blobs:
    if not settings.ADAPTER_S3_BUCKET:
        return FolderBlobs(store_dir())
    # Half a second of imports that a folder does without.
    from adapters.s3 import S3Blobs

    return S3Blobs(
        store_dir(),
        settings.ADAPTER_S3_BUCKET,
        settings.ADAPTER_S3_PREFIX,
        settings.ADAPTER_S3_ENDPOINT,
    )


def blob_dir(digest: str) -> Path:
    """Where a digest's files lie on this machine, if they do."""
    return FolderBlobs(store_dir()).path(digest)


def local_blob(digest: str) -> Path:
    """What a replica is told as lora_path: fetched first if need be. Raises BlobError."""
    return blobs().local_dir(digest)


def publish_blob(token: str, digest: str) -> None:
    """Puts the two validated files of a quarantine under their digest. Idempotent.

    The row must already hold the digest: only then does `delete_blob_if_unused` keep its hands off.
    The quarantine stays until the row no longer needs it: who dies before is followed by another.
    Raises BlobError.
    """
    blobs().publish(digest, quarantine_dir(token))


def is_needed(digest: str) -> bool:
    return bool(needed({digest}))


def needed(digests: Set[str]) -> set[str]:
    """Those whose bytes a version of any tenant, or a replica that may still read them, needs."""
    with unscoped():  # Equal bytes of two tenants share one blob.
        versions = AdapterVersion.objects.filter(digest__in=digests)
        found = set(versions.values_list("digest", flat=True))
    placed = Placement.objects.filter(digest__in=digests - found)
    return found | set(placed.values_list("digest", flat=True))


def delete_blob_if_unused(digest: str) -> bool:
    """Whether the bytes went. Safe beside a worker that is just publishing the same bytes."""
    try:
        return not is_needed(digest) and blobs().delete(digest, lambda: is_needed(digest))
    except BlobError as error:
        log.warning("%s", error)
        return False


def sweep_cache(max_age_s: float) -> int:
    """With a bucket: removes local copies that no replica is to hold; returns how many."""
    if not settings.ADAPTER_S3_BUCKET:
        return 0
    local, num_removed = FolderBlobs(store_dir()), 0
    placed = set(Placement.objects.values_list("digest", flat=True))
    for folder in store_dir().glob(f"{'[0-9a-f]' * 2}/{'[0-9a-f]' * 64}"):
        is_old = folder.stat().st_mtime < time.time() - max_age_s
        if folder.name not in placed and is_old:
            num_removed += local.delete(folder.name, lambda: False)
    return num_removed


def sweep_blobs(min_age_s: float) -> int:
    """Removes bytes that nothing needs: what a kill left between a commit and the delete that
    follows it. Safe beside uploads of the same bytes, as every delete is. Returns how many.
    """
    num_removed = 0
    try:
        for page in blobs().pages(min_age_s):
            num_removed += sum(delete_blob_if_unused(one) for one in page - needed(page))
    except BlobError as error:
        log.warning("%s", error)
    return num_removed


def sweep_trash(max_age_s: float) -> int:
    """Ends deletes that were killed halfway; returns how many."""
    try:
        return blobs().end_deletes(max_age_s, is_needed)
    except BlobError as error:
        log.warning("%s", error)
        return 0


def sweep_quarantine(max_age_s: float) -> int:
    """Removes folders that no row needs: at once those that one had, others when nobody has written
    to them for max_age_s, since a request may still be sending. Returns how many.
    """
    root = store_dir() / "quarantine"
    if not root.is_dir():
        return 0
    # Before rows are asked: what is marked now had its row before.
    found = {folder: _is_waste(folder, max_age_s) for folder in root.iterdir()}
    needed = _needed_quarantines()
    ended = _ended_quarantines({folder.name for folder in found} - needed)
    num_removed = 0
    for folder, is_waste in found.items():
        if folder.suffix == GONE:
            shutil.rmtree(folder, ignore_errors=True)
        elif not _TOKEN.fullmatch(folder.name) or folder.name in needed:
            continue
        elif is_waste or folder.name in ended:
            discard_quarantine(folder.name)
        else:
            continue
        num_removed += 1
    return num_removed


def _is_waste(folder: Path, max_age_s: float) -> bool:
    """Unless a row needs it. A folder's own time is of its last new file: one may be long."""
    try:
        times = [folder.stat().st_mtime, *(path.stat().st_mtime for path in folder.iterdir())]
        return (folder / TAKEN_FILE).exists() or max(times) < time.time() - max_age_s
    except OSError:
        # Someone removes it just now.
        return False


def _needed_quarantines() -> set[str]:
    with unscoped():  # The folders of all tenants lie side by side.
        versions = AdapterVersion.objects.exclude(quarantine="")
        uploads = Upload.objects.filter(status=UploadStatus.PENDING)
        # In this order: completing an upload hands its folder to a version.
        needed = set(uploads.values_list("quarantine", flat=True))
        return needed | set(versions.values_list("quarantine", flat=True))


def _ended_quarantines(tokens: Set[str]) -> set[str]:
    """Of tokens that nothing needed: what an upload in parts, ended by then, had."""
    if not tokens:
        return set()
    with unscoped():
        ended = Upload.objects.filter(quarantine__in=tokens).exclude(status=UploadStatus.PENDING)
        # Ended since: its version may have it, and was not asked for in time.
        held = AdapterVersion.objects.filter(quarantine__in=tokens)
        tokens = set(ended.values_list("quarantine", flat=True))
        return tokens - set(held.values_list("quarantine", flat=True))
