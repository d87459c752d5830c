"""The catalogue of faults at peers, areas A (what a config means) and B (what files hold)."""

import re
from pathlib import Path

import pytest

TESTS = Path(__file__).parents[1]
CONFIGS = "C01 C03 C04 C06 C08 C10 C11 C13 C15 C16 C18 C19 C20 C22 C24 C25 C27 C29 C31 C32"
FILES = "C34 C36 C38 C39 C41 C43 C44 C46 C48 C50 C51 C53"


@pytest.mark.parametrize("case", (*CONFIGS.split(), *FILES.split()))
def test_a_case_has_a_test_of_its_own(case: str) -> None:
    """By its mark, or by the name of a row in a table whose rows are marked by their names."""
    marked = re.compile(rf'case\("{case}"\)|^    "{case} ', re.MULTILINE)
    others = (path for path in TESTS.rglob("test_*.py") if path != Path(__file__))
    assert any(marked.search(path.read_text()) for path in others)
