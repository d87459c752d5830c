"""Blobs in an S3-compatible bucket, and a folder of those that replicas read.

    <prefix><digest[:2]>/<digest>/adapter_config.json, adapter_model.safetensors
    <prefix>trash/<digest>.<random>/…    on the way out

The bucket is the truth; the folder may be lost at any time. Credentials and region come from where
boto3 looks for them.
"""

import secrets
import shutil
import time
from collections.abc import Callable, Iterator
from functools import cache
from pathlib import Path
from typing import Any

import boto3
from boto3.exceptions import Boto3Error
from botocore.client import Config
from botocore.exceptions import BotoCoreError, ClientError

from adapters.blobs import CONFIG_FILE, FILES, WEIGHTS_FILE, BlobError, FolderBlobs
from inference.adapter_format import digest as digest_of

# Other servers than Amazon's do not know the newer checksums; ours is the digest.
_CONFIG = Config(
    request_checksum_calculation="when_required",
    response_checksum_validation="when_required",
    connect_timeout=5,
    read_timeout=60,
    retries={"max_attempts": 4, "mode": "standard"},
)
_ABSENT = frozenset({"404", "NoSuchKey", "NotFound"})


@cache
def client_of(endpoint: str) -> Any:
    """One client an endpoint: safe in threads, and slow to make."""
    return boto3.client("s3", endpoint_url=endpoint or None, config=_CONFIG)


class S3Blobs:
    def __init__(self, cache_dir: Path, bucket: str, prefix: str, endpoint: str) -> None:
        self._cache = FolderBlobs(cache_dir)
        self._bucket = bucket
        self._prefix = prefix
        self._client = client_of(endpoint)

    def publish(self, digest: str, source: Path) -> None:
        try:
            for name in FILES:
                # Again also when it is there: someone may be deleting it just now.
                self._client.upload_file(str(source / name), self._bucket, self._key(digest, name))
        except (BotoCoreError, ClientError, Boto3Error) as error:
            raise BlobError(f"the bucket did not take {digest}: {error}") from error
        self._cache.publish(digest, source)

    def local_dir(self, digest: str) -> Path:
        """Fetched at need, into place once its digest was computed anew."""
        target = self._cache.path(digest)
        if not target.is_dir():
            self._fetch(digest, target)
        return target

    def _fetch(self, digest: str, target: Path) -> None:
        staged = self._cache.trash(digest)
        source = staged / "files"
        source.mkdir(parents=True)
        try:
            self._download(digest, source)
            raw = (source / CONFIG_FILE).read_bytes()
            found = digest_of(raw, source / WEIGHTS_FILE)
            if found != digest:
                raise BlobError(f"the bucket's bytes of {digest} have the digest {found}")
            self._cache.publish(digest, source)
        finally:
            shutil.rmtree(staged, ignore_errors=True)

    def _download(self, digest: str, folder: Path) -> None:
        for name in FILES:
            key = self._key(digest, name)
            try:
                self._client.download_file(self._bucket, key, str(folder / name))
            except (BotoCoreError, ClientError) as error:
                raise BlobError(f"the bucket did not give {key}: {error}") from error

    def delete(self, digest: str, is_needed: Callable[[], bool]) -> bool:
        trash = f"{self._prefix}trash/{digest}.{secrets.token_hex(4)}/"
        try:
            held = [name for name in FILES if self._move(self._key(digest, name), trash + name)]
            if is_needed():
                # Wanted again between the question and the move.
                for name in held:
                    self._move(trash + name, self._key(digest, name))
                return False
            for name in held:
                self._client.delete_object(Bucket=self._bucket, Key=trash + name)
        except (BotoCoreError, ClientError) as error:
            raise BlobError(f"the bucket did not let go of {digest}: {error}") from error
        return self._cache.delete(digest, is_needed) or bool(held)

    def pages(self, min_age_s: float) -> Iterator[set[str]]:
        """A digest whose files are in two pages is named twice: whoever deletes it asks anyway."""
        try:
            for page in self._client.get_paginator("list_objects_v2").paginate(
                Bucket=self._bucket, Prefix=self._prefix
            ):
                found = (self._read_key(one["Key"]) for one in _older(page, min_age_s))
                yield {digest for digest in found if digest}
        except (BotoCoreError, ClientError) as error:
            raise BlobError(f"the bucket cannot be listed: {error}") from error

    def end_deletes(self, max_age_s: float, is_needed: Callable[[str], bool]) -> int:
        try:
            left = self._left(max_age_s)
            for digest, names in left.items():
                is_wanted = is_needed(digest)
                for key in names:
                    to = self._key(digest, key.rpartition("/")[2])
                    if is_wanted and not self._is_there(to):
                        self._move(key, to)
                    else:
                        self._client.delete_object(Bucket=self._bucket, Key=key)
        except (BotoCoreError, ClientError) as error:
            raise BlobError(f"the bucket's trash cannot be cleared: {error}") from error
        return len(left) + self._cache.end_deletes(max_age_s, is_needed)

    def _left(self, max_age_s: float) -> dict[str, list[str]]:
        """Keys in the trash for longer than that, by digest."""
        found: dict[str, list[str]] = {}
        pages = self._client.get_paginator("list_objects_v2")
        for page in pages.paginate(Bucket=self._bucket, Prefix=f"{self._prefix}trash/"):
            for one in _older(page, max_age_s):
                digest = one["Key"].rsplit("/", 2)[1].partition(".")[0]
                found.setdefault(digest, []).append(one["Key"])
        return found

    def _is_there(self, key: str) -> bool:
        try:
            self._client.head_object(Bucket=self._bucket, Key=key)
        except ClientError as error:
            if error.response.get("Error", {}).get("Code") in _ABSENT:
                return False
            raise
        return True

    def _move(self, key: str, to: str) -> bool:
        """Whether key was there."""
        try:
            self._client.copy({"Bucket": self._bucket, "Key": key}, self._bucket, to)
        except ClientError as error:
            if error.response.get("Error", {}).get("Code") in _ABSENT:
                return False
            raise
        self._client.delete_object(Bucket=self._bucket, Key=key)
        return True

    def _key(self, digest: str, name: str) -> str:
        return f"{self._prefix}{digest[:2]}/{digest}/{name}"

    def _read_key(self, key: str) -> str | None:
        """The digest of a kept file's key; None for what is on its way out, or not ours."""
        digest, _, name = key.removeprefix(self._prefix)[3:].partition("/")
        return digest if name in FILES and key == self._key(digest, name) else None


def _older(page: dict[str, Any], age_s: float) -> list[dict[str, Any]]:
    limit = time.time() - age_s
    return [one for one in page.get("Contents", ()) if one["LastModified"].timestamp() < limit]
