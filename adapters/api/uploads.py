"""A multipart upload goes from the socket to quarantine in chunks: never into memory, once to disk.

The handler goes by field names; of a client's file names only the last part is looked at, in
'files', and only compared. It does not know yet who is calling, so it records what is wrong, and
the view says it when it knows.
"""

import hashlib
import os
from pathlib import Path
from typing import IO, Any, ClassVar

from django.core.files.uploadedfile import UploadedFile
from django.core.files.uploadhandler import FileUploadHandler, SkipFile, StopUpload

from adapters import storage
from adapters.upload_parts import ArrivedPart
from adapters.validation.members import is_pickle
from adapters.validation.template_file import TEMPLATE_FILES
from tenants.errors import ApiError

FILE_BY_FIELD = {
    "config": storage.CONFIG_FILE,
    "weights": storage.WEIGHTS_FILE,
    "archive": storage.ARCHIVE_FILE,
    **{name: name for name in TEMPLATE_FILES},
}
# A folder's files, all in this field: here a file's own name says which it is.
FOLDER_FIELD = "files"
FIELD_BY_NAME = {storage.CONFIG_FILE: "config", storage.WEIGHTS_FILE: "weights"}
# Of a folder, taken beside these; each is its own field.
OPTIONAL = frozenset(TEMPLATE_FILES)
EXPECTED = (
    "expected the files 'config' and 'weights', a folder's in 'files', or one file 'archive' "
    "(zip, tar or tar.gz)"
)


class QuarantineHandler(FileUploadHandler):
    """max_bytes: of all files of the request together. A token is made with the first file."""

    file_by_field: ClassVar[dict[str, str]] = FILE_BY_FIELD
    has_folder: ClassVar[bool] = True

    def __init__(self, max_bytes: int) -> None:
        super().__init__()
        self.max_bytes = max_bytes
        self.num_bytes = 0
        self.token = ""
        self.fields: set[str] = set()
        self.unknown: list[str] = []
        # Of a folder, what is no part of an adapter.
        self.dropped: list[str] = []
        self._file: IO[bytes] | None = None

    @property
    def is_too_large(self) -> bool:
        return self.num_bytes > self.max_bytes

    def new_file(self, field_name: str, file_name: str, *args: Any, **kwargs: Any) -> None:
        super().new_file(field_name, file_name, *args, **kwargs)
        if field_name == FOLDER_FIELD and self.has_folder:
            name = file_name.rpartition("/")[2]
            if name not in FIELD_BY_NAME and name not in OPTIONAL:
                self.dropped.append(name)
                raise SkipFile
            field_name = FIELD_BY_NAME.get(name, name)
        if field_name not in self.file_by_field or field_name in self.fields:
            self.unknown.append(field_name)
            raise SkipFile
        self.fields.add(field_name)
        self.token = self.token or storage.new_quarantine()
        self._file = self._path(field_name).open("xb")

    def _path(self, field_name: str) -> Path:
        return storage.quarantine_dir(self.token) / self.file_by_field[field_name]

    def receive_data_chunk(self, raw_data: bytes, start: int) -> None:
        self.num_bytes += len(raw_data)
        if self.is_too_large:
            self._close()
            # False: the rest is read and dropped, so that the client hears the answer.
            raise StopUpload(connection_reset=False)
        if self._file is not None:
            self._file.write(raw_data)

    def file_complete(self, file_size: int) -> "UploadedFile[Any] | None":
        if self._file is None:
            return None
        self._file.flush()
        os.fsync(self._file.fileno())
        self._close()
        return UploadedFile(None, self.field_name, self.content_type, file_size)

    def upload_interrupted(self) -> None:
        self._close()

    def _close(self) -> None:
        if self._file is not None:
            self._file.close()
            self._file = None

    def discard(self) -> None:
        """Called when no version took the upload over."""
        self._close()
        storage.discard_quarantine(self.token)


class PartHandler(QuarantineHandler):
    """One file `data`, and its sha256 while it comes."""

    file_by_field = {"data": storage.PART_FILE}
    has_folder = False

    def __init__(self, max_bytes: int) -> None:
        super().__init__(max_bytes)
        self._sha256 = hashlib.sha256()

    def receive_data_chunk(self, raw_data: bytes, start: int) -> None:
        super().receive_data_chunk(raw_data, start)
        self._sha256.update(raw_data)

    def arrived(self) -> ArrivedPart:
        """Raises ApiError unless exactly `data` came, within max_bytes."""
        if self.is_too_large:
            message = f"data: a part has at most {self.max_bytes} bytes; send more parts."
            raise ApiError("part_too_large", 413, message, param="data")
        if self.unknown or not self.fields:
            raise ApiError("missing_file", 400, "Expected one file 'data'.", param="data")
        return ArrivedPart(self.token, self.num_bytes, self._sha256.hexdigest())


def require_complete(handler: QuarantineHandler, max_bytes: int) -> None:
    """Raises ApiError unless exactly one adapter lies in quarantine, within max_bytes."""
    if handler.num_bytes > min(max_bytes, handler.max_bytes):
        limit = min(max_bytes, handler.max_bytes)
        raise ApiError("upload_too_large", 413, f"The upload is larger than {limit} bytes.")
    if handler.unknown:
        names = ", ".join(repr(name[:40]) for name in handler.unknown[:5])
        raise ApiError("unexpected_file", 400, f"Unexpected or repeated files {names}: {EXPECTED}.")
    fields = handler.fields - OPTIONAL
    if fields not in ({"config", "weights"}, {"archive"}):
        found = ", ".join(sorted(fields)) or "none"
        pickles = [name for name in handler.dropped if is_pickle(name)]
        advice = " Pickles are never opened: convert to safetensors." if pickles else ""
        raise ApiError("missing_file", 400, f"Found files: {found}; {EXPECTED}.{advice}")
