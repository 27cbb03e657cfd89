"""docs/reference.md says what the code says."""

from pathlib import Path

from orchestrator.model.profile import Deadlines, Memory, Ports
from orchestrator.reference import field_docs, text

PAGE = Path(__file__).resolve().parents[2] / "docs" / "reference.md"


def test_the_page_is_up_to_date() -> None:
    assert PAGE.read_text(encoding="utf-8") == text(), "python -m orchestrator.reference > docs/reference.md"


def test_fields_are_documented() -> None:
    assert set(field_docs(Deadlines)) == set(Deadlines.model_fields)
    assert "gate_bytes" in field_docs(Memory)
    assert "listen" in field_docs(Ports)
