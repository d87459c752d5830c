"""A figure is a line: printed as it comes, and appended to the results with where and when."""

import json
import os
import subprocess
from collections.abc import Iterable
from datetime import UTC, datetime
from pathlib import Path

from gateway.bench.measure import Row


def record(folder: Path, rows: Iterable[Row], commit: str | None = None) -> None:
    """Appends each row to folder/DATE.jsonl as it is measured. load: of the machine's last minute,
    as the run began: above 0.5 somebody else was there.
    """
    now = datetime.now(UTC).date().isoformat()
    setting = {
        "cpu": cpu(),
        "load": round(os.getloadavg()[0], 2),
        "commit": commit or described_commit(),
        "date": now,
    }
    folder.mkdir(parents=True, exist_ok=True)
    for row in rows:
        line = json.dumps(row | setting)
        print(line, flush=True)
        with (folder / f"{now}.jsonl").open("a", encoding="utf-8") as file:
            file.write(line + "\n")


def cpu() -> str:
    lines = Path("/proc/cpuinfo").read_text("utf-8").splitlines()
    names = [line.split(":", 1)[1].strip() for line in lines if line.startswith("model name")]
    return f"{names[0]} x{len(names)}" if names else "unknown"


def described_commit() -> str:
    command = ["git", "describe", "--always", "--dirty"]
    done = subprocess.run(
        command, capture_output=True, text=True, check=False, cwd=Path(__file__).parent
    )
    return done.stdout.strip() or "unknown"
