"""A figure is a line: printed as it comes, and appended to the results with where and when."""

import json
import subprocess
from collections.abc import Iterable
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import torch

Row = dict[str, Any]


def record(folder: Path, rows: Iterable[Row], commit: str | None = None) -> None:
    """Appends each row to folder/DATE-DEVICE.jsonl as it is measured.

    commit: where the tree was copied without its history.
    """
    setting = {
        "cpu": _cpu(),
        "gpu": torch.cuda.get_device_name() if torch.cuda.is_available() else None,
        "torch": torch.__version__,
        "commit": commit or _commit(),
        "date": datetime.now(UTC).date().isoformat(),
    }
    folder.mkdir(parents=True, exist_ok=True)
    device = str(setting["gpu"] or "cpu").lower().removeprefix("nvidia ").replace(" ", "-")
    path = folder / f"{setting['date']}-{device}.jsonl"
    for row in rows:
        line = json.dumps(row | setting)
        print(line, flush=True)
        with path.open("a", encoding="utf-8") as file:
            file.write(line + "\n")


def figure(what: str, value: float, unit: str, **more: Any) -> Row:
    """A line of table C. more: what it was measured with."""
    digits = 4 if unit == "ratio" else 1 if value >= 100 else 3
    return {"table": "C", "what": what, "value": round(value, digits), "unit": unit, **more}


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
