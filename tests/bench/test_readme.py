"""The README stays short; `bench/claims` holds its figures."""

from tests.house import HOME


def test_the_readme_stays_short() -> None:
    lines = (HOME / "README.md").read_text(encoding="utf-8").splitlines()
    assert len(lines) <= 120
    assert not [line for line in lines if len(line) > 120 and not line.startswith(("|", "!"))]
