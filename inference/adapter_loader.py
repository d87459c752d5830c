"""From an adapter's digest and folder to packed pages: from a compiled file where there is one,
else from PEFT's files: read, verified, refused with every reason, laid out.
"""

import hashlib
import json
import os
import sys
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import torch

from inference.adapter_files import (
    CONFIG_NAME,
    WEIGHTS_NAME,
    AdapterFiles,
    open_files,
    pack,
)
from inference.adapter_format import FormatError, Problem, digest
from inference.errors import EngineError, ErrorCode
from inference.lora import ROWS_PER_PAGE, PageLayout, num_pages_for
from inference.model_spec import ModelSpec
from inference.page_file import Contents
from inference.page_folder import Compiled, PageFolder

# Part of what decides a compiled file's bytes: counts up when packing changes.
PACKING_VERSION = 1
# Threads that read and hash pieces of one adapter: past eight, memory is what holds them up.
MAX_PAGE_THREADS = 8

Origin = Literal["disk", "compiled"]


@dataclass(frozen=True)
class Source:
    """What the bytes of an adapter come from; open until AdapterLoader.fill or close()."""

    digest: str
    path: str
    opened: Compiled | AdapterFiles

    @property
    def rank(self) -> int:
        return self.opened.contents.rank if isinstance(self.opened, Compiled) else self.opened.rank

    @property
    def num_pages(self) -> int:
        return num_pages_for(self.rank)

    @property
    def invocation(self) -> tuple[int, ...]:
        """Of an activated LoRA, the tokens from which on it applies."""
        if isinstance(self.opened, Compiled):
            return self.opened.contents.invocation
        return self.opened.plan.invocation

    def close(self) -> None:
        self.opened.close()


class AdapterLoader:
    """How this engine packs: for its model, largest rank and dtype. Any thread may call.

    folder: where compiled adapters are kept, if anywhere.
    """

    def __init__(
        self,
        spec: ModelSpec,
        layout: PageLayout,
        max_rank: int,
        dtype: torch.dtype,
        folder: PageFolder | None = None,
    ) -> None:
        self.folder = folder
        self._spec, self._layout = spec, layout
        self._max_rank, self._dtype = max_rank, dtype
        num_threads = min(MAX_PAGE_THREADS, os.cpu_count() or 1)
        self._threads = ThreadPoolExecutor(num_threads, thread_name_prefix="adapter-pages")

    def digest_of(self, path: str) -> str:
        """The identity of the bytes below path. Raises INVALID_ADAPTER when unreadable."""
        folder = Path(path)
        try:
            return digest((folder / CONFIG_NAME).read_bytes(), folder / WEIGHTS_NAME)
        except OSError as error:
            raise _unreadable(path, error) from error

    def open(self, path: str, digest: str) -> Source:
        """Raises EngineError INVALID_ADAPTER with every problem found."""
        compiled = None if self.folder is None else self.folder.open(digest)
        if compiled is not None and compiled.contents.rank <= self._max_rank:
            return Source(digest, path, compiled)
        if compiled is not None:
            compiled.close()
        return self._open_files(path, digest)

    def fill(self, source: Source, spans: Sequence[torch.Tensor]) -> tuple[Contents, Origin]:
        """Writes source.num_pages pages; closes the source. Raises EngineError INVALID_ADAPTER."""
        try:
            if isinstance(source.opened, AdapterFiles):
                return self._pack(source.opened, source, spans), "disk"
            assert self.folder is not None
            if self.folder.read(source.opened, page_bytes_of(spans), self._threads):
                return source.opened.contents, "compiled"
        finally:
            source.close()
        files = self._open_files(source.path, source.digest)
        assert isinstance(files.opened, AdapterFiles) and files.num_pages == source.num_pages
        try:
            return self._pack(files.opened, source, spans), "disk"
        finally:
            files.close()

    def keep(self, digest: str, contents: Contents, spans: Sequence[torch.Tensor]) -> bool:
        """Compiles what fill() made of files, for the next time; whether there is a file now."""
        if self.folder is None:
            return False
        return self.folder.write(digest, contents, page_bytes_of(spans), self._threads)

    def close(self) -> None:
        self._threads.shutdown(wait=True)

    def _open_files(self, path: str, digest: str) -> Source:
        try:
            return Source(digest, path, open_files(Path(path), self._spec, self._max_rank))
        except FormatError as error:
            self._check_digest(path, self.digest_of(path), digest)
            raise _invalid(path, error.problems) from error
        except OSError as error:
            raise _unreadable(path, error) from error

    def _pack(self, files: AdapterFiles, source: Source, spans: Sequence[torch.Tensor]) -> Contents:
        try:
            contents, found = pack(files, self._layout, spans, self._threads)
        except FormatError as error:
            raise _invalid(source.path, error.problems) from error
        except OSError as error:
            raise _unreadable(source.path, error) from error
        self._check_digest(source.path, found, source.digest)
        return contents

    def _check_digest(self, path: str, found: str, expected: str) -> None:
        if found != expected:
            message = f"{path}: the files no longer have the digest {expected}"
            raise EngineError(ErrorCode.INVALID_ADAPTER, message, "lora_path")


def layout_key(layout: PageLayout, dtype: torch.dtype) -> str:
    """Of all that decides a compiled file's bytes beside the adapter's own: hex sha256."""
    groups = [(g.modules, g.num_in, g.slice_sizes, g.a_start, g.column) for g in layout.groups]
    sizes = [ROWS_PER_PAGE, layout.page_elements, layout.num_columns]
    decides = [PACKING_VERSION, str(dtype), sys.byteorder, sizes, groups]
    return hashlib.sha256(json.dumps(decides).encode()).hexdigest()


def page_bytes_of(spans: Sequence[torch.Tensor]) -> list[memoryview]:
    """The bytes of each page, in order; writing to them writes to the pages."""
    return [memoryview(row) for span in spans for row in span.view(torch.uint8).numpy()]


def _invalid(path: str, problems: list[Problem]) -> EngineError:
    reasons = "; ".join(f"{problem.where}: {problem.message}" for problem in problems)
    return EngineError(ErrorCode.INVALID_ADAPTER, f"{path}: {reasons}", "lora_path")


def _unreadable(path: str, error: Exception) -> EngineError:
    message = f"{path}: cannot read the adapter: {error}"
    return EngineError(ErrorCode.INVALID_ADAPTER, message, "lora_path")
