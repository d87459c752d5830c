"""Blobs in an S3-compatible bucket, and a folder of those that replicas read.

    <prefix><digest[:2]>/<digest>/adapter_config.json, adapter_model.safetensors
    <prefix>trash/<digest>.<random>/…    on the way out

The bucket is the truth; the folder may be lost at any time. Credentials and region come from where
boto3 looks for them.
"""

import secrets
import shutil
from collections.abc import Callable
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
