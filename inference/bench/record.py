"""A figure is a line: printed as it comes, and appended to the results with where and when."""

import json
import subprocess
from collections.abc import Iterable
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import torch


def record(path: Path, rows: Iterable[dict[str, Any]]) -> None:
    """Appends each row to path as it is measured."""
    path.parent.mkdir(parents=True, exist_ok=True)
    setting = {
        "cpu": _cpu(),
        "gpu": torch.cuda.get_device_name() if torch.cuda.is_available() else None,
        "torch": torch.__version__,
        "commit": _commit(),
        "date": datetime.now(UTC).date().isoformat(),
    }
    for row in rows:
        line = json.dumps(row | setting)
        print(line, flush=True)
        with path.open("a", encoding="utf-8") as file:
            file.write(line + "\n")


def _cpu() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text("utf-8").splitlines()
    except OSError:
        return "unknown"
    names = [line.split(":", 1)[1].strip() for line in lines if line.startswith("model name")]
    return f"{names[0]} x{len(names)}" if names else "unknown"


def _commit() -> str:
    command = ["git", "describe", "--always", "--dirty"]
    try:
        done = subprocess.run(
            command, capture_output=True, text=True, check=False, cwd=Path(__file__).parent
        )
    except OSError:
        return "unknown"
    return done.stdout.strip() or "unknown"
