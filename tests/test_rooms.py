"""The house's lines: who may import whom, how long files and functions may be."""

import ast
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT_DIR = Path(__file__).resolve().parent.parent
ROOMS = ("kernels", "inference", "tenants", "adapters", "gateway", "demo", "grafthouse")
MAX_FILE_LINES = 300
# Of kernels, what launches them, and tables of cases.
MAX_LINES_BY_ROOM = {"kernels": 400, "inference": 400, "tests": 400}
# path: reason
LONG_FILES: dict[str, str] = {}
# Of a body, without its docstring.
MAX_FUNCTION_LINES = 20
# Not counted: each is a program of the device, or compiled into those that call it.
DEVICE_DECORATORS = {"triton.jit", "gluon.jit"}
# (path, function): reason
LONG_FUNCTIONS: dict[tuple[str, str], str] = {}

FORBIDDEN = {
    "kernels": {"inference", "tenants", "adapters", "gateway", "django", "transformers", "demo"},
    "inference": {"tenants", "adapters", "gateway", "django", "celery", "demo"},
    "tenants": {"adapters", "gateway", "inference", "kernels", "torch", "triton", "demo"},
    "adapters": {"gateway", "kernels", "torch", "triton", "transformers", "peft", "demo"},
    "gateway": {"inference", "kernels", "torch", "triton", "transformers", "httpx", "demo"},
    "demo": {"tenants", "adapters", "gateway"},
    # It knows the house by its HTTP, from machines that have nothing else of it.
    "grafthouse": {"kernels", "inference", "tenants", "adapters", "gateway", "demo", "django"},
}
# What adapters/ may use of the engine: the part that a process without torch can import.
TORCH_FREE = {
    "inference.adapter_format",
    "inference.chat_template",
    "inference.model_spec",
    "inference.errors",
}
# The oracle of the engine's benchmark is transformers and PEFT; nothing that serves imports them.
EXCEPTIONS = {("inference/bench", "transformers"), ("inference/bench", "peft")}


def room_files(room: str) -> list[Path]:
    return sorted((ROOT_DIR / room).rglob("*.py"))


def imported_modules(path: Path) -> set[str]:
    found: set[str] = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module and node.level == 0:
            found |= {node.module} | {f"{node.module}.{alias.name}" for alias in node.names}
    return found


@pytest.mark.parametrize("room", ROOMS)
def test_a_room_imports_only_what_it_may(room: str) -> None:
    for path in room_files(room):
        roots = {name.split(".")[0] for name in imported_modules(path)}
        assert not roots & FORBIDDEN[room], (
            f"{path.relative_to(ROOT_DIR)}: {roots & FORBIDDEN[room]}"
        )


def test_adapters_uses_only_the_torch_free_part_of_the_engine() -> None:
    for path in room_files("adapters"):
        used = {name for name in imported_modules(path) if name.startswith("inference")}
        strangers = {
            name for name in used if not any(f"{name}.".startswith(f"{ok}.") for ok in TORCH_FREE)
        }
        assert not strangers, f"{path.relative_to(ROOT_DIR)}: {strangers}"


def test_the_engine_serves_without_transformers() -> None:
    for path in room_files("inference"):
        where = path.relative_to(ROOT_DIR).as_posix()
        for name in ("transformers", "peft"):
            allowed = any(where.startswith(place) and name == what for place, what in EXCEPTIONS)
            roots = {module.split(".")[0] for module in imported_modules(path)}
            assert allowed or name not in roots, f"{where} imports {name}"


def test_the_web_side_loads_neither_torch_nor_triton() -> None:
    code = (
        "import django, sys; django.setup(); import gateway.asgi, adapters.tasks;"
        "sys.exit(', '.join({'torch', 'triton', 'transformers'} & set(sys.modules)) or 0)"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=ROOT_DIR, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr


def test_our_kernels_is_the_one_imported() -> None:
    import kernels

    assert Path(str(kernels.__file__)).parent == ROOT_DIR / "kernels"
    # transformers probes for a distribution of this name; a version here would make it believe.
    assert not hasattr(kernels, "__version__")


def test_files_are_short() -> None:
    for room in (*ROOMS, "tests"):
        for path in room_files(room):
            where = path.relative_to(ROOT_DIR).as_posix()
            if "/migrations/" in where or where in LONG_FILES:
                continue
            num_lines = len(path.read_text().splitlines())
            most = MAX_LINES_BY_ROOM.get(room, MAX_FILE_LINES)
            assert num_lines <= most, f"{where} has {num_lines} lines"


Function = ast.FunctionDef | ast.AsyncFunctionDef


def functions_of(path: Path) -> Iterator[Function]:
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, Function):
            yield node


def is_device_program(function: Function) -> bool:
    """Decorated by Triton's or Gluon's jit, plain or called with options."""
    bare = (one.func if isinstance(one, ast.Call) else one for one in function.decorator_list)
    return any(ast.unparse(one) in DEVICE_DECORATORS for one in bare)


def num_body_lines(function: Function) -> int:
    body = function.body[ast.get_docstring(function) is not None :]
    return (function.end_lineno or 0) - body[0].lineno + 1 if body else 0


def long_functions() -> dict[tuple[str, str], int]:
    """(path, name): lines of the body."""
    found = {}
    for path in (path for room in ROOMS for path in room_files(room)):
        where = path.relative_to(ROOT_DIR).as_posix()
        for function in functions_of(path) if "/migrations/" not in where else ():
            num_lines = num_body_lines(function)
            if num_lines > MAX_FUNCTION_LINES and not is_device_program(function):
                found[where, function.name] = num_lines
    return found


def test_functions_are_short() -> None:
    found = long_functions()
    too_long = {name: lines for name, lines in found.items() if name not in LONG_FUNCTIONS}
    assert not too_long, f"more than {MAX_FUNCTION_LINES} lines in a body: {too_long}"
    short_now = LONG_FUNCTIONS.keys() - found.keys()
    assert not short_now, f"to be struck off LONG_FUNCTIONS: {short_now}"


def test_a_device_program_is_told_from_its_launcher() -> None:
    path = ROOT_DIR / "kernels" / "attention" / "hopper" / "decode.py"
    is_device = {one.name: is_device_program(one) for one in functions_of(path)}
    assert is_device == {"hopper_decode_kernel": True, "decode": False, "_meta": False}


def test_every_test_folder_is_a_package() -> None:
    for path in (ROOT_DIR / "tests").rglob("test_*.py"):
        assert (path.parent / "__init__.py").exists(), path.parent
