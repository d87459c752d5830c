"""Hostile uploads by the hundred thousand: `python -m tests.adapters.fuzz --inputs 100000`.

Sound uploads (zip, tar, tar.gz, folder) are damaged in their bytes, their headers and their
configs, and checked as the validating child checks them, in processes with its limits. A fault is
an exception, more than MAX_S, or a file beside the upload's own. Input N of a run is the same in
every run, so `--only N` replays it. FUZZ.md keeps the figures.
"""

import argparse
import io
import json
import random
import resource
import shutil
import signal
import struct
import subprocess
import sys
import tarfile
import tempfile
import time
import traceback
import zipfile
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from adapters.validation.check import CheckRequest, Verdict, check
from adapters.validation.join import ARCHIVE
from adapters.validation.limits import ChildLimits, apply_limits
from adapters.validation.members import WANTED

MAX_S = 5.0
MAX_BYTES = 1 << 20
CONFIG, WEIGHTS = WANTED
# What a number or a text is replaced by: edges of widths, of Python, of JSON, of paths, of regexes.
NUMBERS = (0, -1, 1, 7, 2**31, 2**32 - 1, 2**53, 2**63, 10**30, 1e308, -0.0, 0.5, True)
TEXTS = (
    *("", "a" * 5000, "../../x", "/etc/passwd", "\x00", "\ud800", "é", "NaN", "LORA", ".*"),
    *("(a+)+$", "(?i)x", "(x|x)*y", "[", "all-linear", "q_proj", "a{1,99999}", "(?P<n>a)(?P=n)"),
)
Files = dict[str, bytes]


class Hang(BaseException):
    """Not an Exception: nothing under test may take it for its own."""


def pack(rng: random.Random, files: Files) -> Files:
    """The two files as they are, or in one archive of any kind."""
    kind = rng.choice(("folder", "zip", "tar", "tar.gz"))
    if kind == "folder":
        return files
    out = io.BytesIO()
    prefix = rng.choice(("", "bot/", "../", "/", "a/b/"))
    if kind == "zip":
        with zipfile.ZipFile(out, "w", rng.choice((zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED))) as z:
            for name, content in files.items():
                z.writestr(prefix + name, content)
    else:
        with tarfile.open(fileobj=out, mode="w:gz" if kind == "tar.gz" else "w") as tar:
            for name, content in files.items():
                tar.addfile(tar_member(rng, prefix + name, len(content)), io.BytesIO(content))
    return {ARCHIVE: out.getvalue()}


def tar_member(rng: random.Random, name: str, size: int) -> tarfile.TarInfo:
    member = tarfile.TarInfo(name)
    member.size = size
    if rng.random() < 0.1:
        member.type = rng.choice((tarfile.SYMTYPE, tarfile.LNKTYPE, tarfile.DIRTYPE, b"S", b"x"))
        member.linkname = rng.choice(("/etc/passwd", "../x", CONFIG))
    return member


def damage_bytes(rng: random.Random, raw: bytes) -> bytes:
    data = bytearray(raw)
    for _ in range(rng.choice((1, 1, 2, 8, 64))):
        at = rng.randrange(len(data) + 1)
        act = rng.randrange(5)
        if act == 0 and data:
            data[at % len(data)] ^= 1 << rng.randrange(8)
        elif act == 1:
            data[at:at] = rng.randbytes(rng.randrange(1, 16))
        elif act == 2:
            del data[at : at + rng.randrange(1, 64)]
        elif act == 3:
            data[at : at + 4] = struct.pack("<I", rng.choice((0, 1, 2**31, 2**32 - 1)))
        else:
            data[at:at] = data[: rng.randrange(1, 256)]
    return bytes(data)


def damage_json(rng: random.Random, value: Any) -> Any:
    """One place of it, somewhere, is another value, goes, or is doubled."""
    if isinstance(value, dict) and value and rng.random() < 0.9:
        key = rng.choice(list(value))
        act = rng.random()
        if act < 0.1:
            return {name: one for name, one in value.items() if name != key}
        if act < 0.2:
            return value | {str(rng.choice(TEXTS)): value[key]}
        return value | {key: damage_json(rng, value[key])}
    if isinstance(value, list) and value and rng.random() < 0.8:
        at = rng.randrange(len(value))
        return [*value[:at], damage_json(rng, value[at]), *value[at + 1 :]]
    return rng.choice((*NUMBERS, *TEXTS, None, [], {}, [value] * 3, {"a": value}, nested(rng)))


def nested(rng: random.Random) -> Any:
    value: Any = 0
    for _ in range(rng.choice((3, 50, 400))):
        value = [value]
    return value


def damage_config(rng: random.Random, raw: bytes) -> bytes:
    value = json.loads(raw)
    for _ in range(rng.choice((1, 1, 2, 5))):
        value = damage_json(rng, value)
    # Lone surrogates stay escaped; NaN and Infinity are written as Python writes them.
    return json.dumps(value).encode()


def damage_header(rng: random.Random, raw: bytes) -> bytes:
    (length,) = struct.unpack("<Q", raw[:8])
    value = json.loads(raw[8 : 8 + length])
    for _ in range(rng.choice((1, 1, 3))):
        value = damage_json(rng, value)
    header = json.dumps(value).encode()
    told = rng.choice((len(header), len(header), len(header), length, 0, 2**32, 2**63))
    return struct.pack("<Q", told) + header + raw[8 + length :]


def make_input(number: int, sound: Files) -> Files:
    rng = random.Random(number)
    files = dict(sound)
    if rng.random() < 0.4:
        files[CONFIG] = damage_config(rng, files[CONFIG])
    if rng.random() < 0.4:
        files[WEIGHTS] = damage_header(rng, files[WEIGHTS])
    if rng.random() < 0.2:
        name = rng.choice(WANTED)
        files[name] = damage_bytes(rng, files[name])
    packed = pack(rng, files)
    if ARCHIVE in packed and rng.random() < 0.5:
        packed[ARCHIVE] = damage_bytes(rng, packed[ARCHIVE])
    return packed


@contextmanager
def at_most(seconds: float) -> Iterator[None]:
    def ring(*_: object) -> None:
        raise Hang

    signal.signal(signal.SIGALRM, ring)
    signal.setitimer(signal.ITIMER_REAL, seconds)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)


def try_one(number: int, sound: Files, base: Path, root: Path) -> tuple[str, str]:
    """(outcome, its detail): accepted, refused with its first code, or a fault with its place."""
    folder = root / "outer" / "upload"
    folder.mkdir(parents=True)
    for name, content in make_input(number, sound).items():
        (folder / name).write_bytes(content)
    request = CheckRequest(str(folder), str(base), "tiny-base", 64, MAX_BYTES)
    try:
        with at_most(MAX_S):
            verdict = check(request)
        outcome = judge(verdict)
        beside = {path for path in root.rglob("*") if not path.is_dir()}
        strangers = beside - {folder / name for name in (ARCHIVE, *WANTED)}
        if strangers:
            outcome = "fault", f"wrote {sorted(map(str, strangers))[:3]}"
    except Hang:
        outcome = "fault", f"longer than {MAX_S} s"
    except Exception as error:  # noqa: BLE001 - any of them is what is looked for.
        outcome = "fault", f"{type(error).__name__} at {place(error)}: {str(error)[:80]}"
    shutil.rmtree(root / "outer")
    return outcome


def judge(verdict: Verdict) -> tuple[str, str]:
    json.dumps(verdict.as_dict())
    if verdict.problems:
        return "refused", verdict.problems[0]["code"]
    if verdict.digest is None:
        return "fault", "neither a problem nor a digest"
    return "accepted", ""


def place(error: BaseException) -> str:
    frame = traceback.extract_tb(error.__traceback__)[-1]
    return f"{Path(frame.filename).name}:{frame.lineno}"


def run(numbers: range, sound: Files, base: Path, tell: Callable[[str], None]) -> dict[str, Any]:
    """Counts by outcome; each kind of fault is told once, with the input that shows it first."""
    outcomes: Counter[str] = Counter()
    codes: Counter[str] = Counter()
    faults: dict[str, int] = {}
    slowest_s = 0.0
    with tempfile.TemporaryDirectory(prefix="fuzz-") as folder:
        for number in numbers:
            begun = time.perf_counter()
            outcome, detail = try_one(number, sound, base, Path(folder))
            slowest_s = max(slowest_s, time.perf_counter() - begun)
            outcomes[outcome] += 1
            if outcome == "refused":
                codes[detail] += 1
            elif outcome == "fault" and detail.split(": ")[0] not in faults:
                faults[detail.split(": ")[0]] = number
                tell(f"input {number}: {detail}")
    peak_mb = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss // 1024
    counts = {"outcomes": dict(outcomes), "codes": dict(codes.most_common())}
    return counts | {"faults": faults, "slowest_s": round(slowest_s, 3), "peak_mb": peak_mb}


def make_sound(folder: Path) -> tuple[Path, Files]:
    """A tiny base model, and the two files of an adapter for it."""
    # Here: the processes under limits must not map torch.
    from tests.tiny import make_adapter, make_base

    base = make_base(folder / "base")
    made = make_adapter(folder / "adapter", base, targets=("q_proj",), layers=(0,))
    return base, {name: (made / name).read_bytes() for name in WANTED}


def read_sound(folder: Path) -> tuple[Path, Files]:
    return folder / "base", {name: (folder / "adapter" / name).read_bytes() for name in WANTED}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])  # type: ignore[union-attr]
    parser.add_argument("--inputs", type=int, default=2000)
    parser.add_argument("--processes", type=int, default=2)
    parser.add_argument("--only", type=int, help="one input, with its whole traceback")
    parser.add_argument("--worker", nargs=3, help=argparse.SUPPRESS)
    asked = parser.parse_args()
    if asked.worker:
        work(Path(asked.worker[0]), range(int(asked.worker[1]), int(asked.worker[2])))
        return
    with tempfile.TemporaryDirectory(prefix="fuzz-sound-") as folder:
        base, sound = make_sound(Path(folder))
        if asked.only is not None:
            with tempfile.TemporaryDirectory() as root:
                print(try_one(asked.only, sound, base, Path(root)))
            return
        share = -(-asked.inputs // asked.processes)
        bounds = [(at, min(at + share, asked.inputs)) for at in range(0, asked.inputs, share)]
        command = [sys.executable, "-m", "tests.adapters.fuzz", "--worker", folder]
        begun = time.monotonic()
        running = [subprocess.Popen([*command, *map(str, pair)]) for pair in bounds]
        statuses = [one.wait() for one in running]
        print(f"{asked.inputs} inputs in {time.monotonic() - begun:.0f} s, statuses {statuses}")
    sys.exit(max(map(abs, statuses)))


def work(folder: Path, numbers: range) -> None:
    # As the child's, but for the processor's time: this process checks very many uploads.
    apply_limits(ChildLimits(cpu_s=24 * 3600))
    base, sound = read_sound(folder)
    found = run(numbers, sound, base, lambda line: print(line, flush=True))
    print(json.dumps(found), flush=True)
    sys.exit(1 if found["faults"] else 0)


if __name__ == "__main__":
    main()
