"""The pages of the documentation, and how to take code and links out of them."""

import re
from pathlib import Path

ROOT = Path(__file__).parents[2]
PAGES = sorted(
    str(path.relative_to(ROOT))
    for pattern in ("*.md", "docs/**/*.md", ".github/*.md")
    for path in ROOT.glob(pattern)
)

# Pages whose code tests/documents/test_how_to.py runs.
HOW_TO = ("docs/huggingface.md", "docs/lightning.md", "docs/timm.md")


def read(page: str) -> str:
    """Return the text of a page."""
    return (ROOT / page).read_text(encoding="utf-8")


def blocks(page: str, language: str) -> list[str]:
    """Return the fenced code blocks of a page in a language ("" for shell commands)."""
    # Opening and closing fences alternate, so all blocks are matched, whatever their language.
    fenced = re.findall(r"^```(\w*)\n(.*?)^```$", read(page), flags=re.DOTALL | re.MULTILINE)
    return [code for name, code in fenced if name == language]


def links(page: str) -> list[str]:
    """Return the targets of all links and images of a page."""
    return re.findall(r"\]\(([^)\s]+)\)", read(page))


def anchors(page: str) -> set[str]:
    """Return the anchors that GitHub gives to the headings of a page."""
    headings = re.findall(r"^#+ (.+)$", read(page), flags=re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}
