"""The page of a report: complete in one file, and texts of users stay texts."""

import json
import re
from html.parser import HTMLParser
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from protosphere.report import page as page_module
from protosphere.report.content import Choice, Figure, Note, Section, Table
from protosphere.report.page import create_page
from protosphere.report.typed_arrays import encode
from support.report_runs import decode

HOSTILE = "<script>alert(1)</script></script><!--\"&'\x00\ud800"
PLOTLY = "window.Plotly = {};"


@pytest.fixture(autouse=True)
def _short_plotly(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(page_module, "_plotly_script", lambda: PLOTLY)


class Document(HTMLParser):
    """Elements and texts of a page."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.elements: list[tuple[str, dict[str, str | None]]] = []
        self.scripts: list[tuple[dict[str, str | None], str]] = []
        self.text = ""
        self._in_script = False
        self.feed(text)
        self.close()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.elements.append((tag, dict(attrs)))
        self._in_script = tag in ("script", "style")
        if tag == "script":
            self.scripts.append((dict(attrs), ""))

    def handle_endtag(self, tag: str) -> None:
        self._in_script = False

    def handle_data(self, data: str) -> None:
        if self._in_script and self.scripts:
            attributes, text = self.scripts[-1]
            self.scripts[-1] = (attributes, text + data)
        elif not self._in_script:
            self.text += data

    def named(self, name: str) -> dict[str, str | None]:
        (found,) = [attributes for _, attributes in self.elements if attributes.get("id") == name]
        return found

    def figure(self, name: str) -> Any:
        texts = [text for attributes, text in self.scripts if attributes.get("id") == name]
        return json.loads(texts[0])


def create_figure(name: str = "curve", text: str = "loss", **trace: Any) -> Figure:
    data = ({"type": "scatter", "y": [1.0, 2.0], "name": text, **trace},)
    return Figure(name, f"Title {text}", f"Meaning {text}.", data, {"title": {"text": text}})


def create_document(*blocks: Any, title: str = "Title") -> Document:
    return Document(create_page(title, "Subtitle", [Section("one", "First", "Intro.", blocks)]))


def test_hostile_texts_are_shown_as_they_are_and_never_run() -> None:
    texts = ("title", "intro", "note", "cell", "column", "entry", "label")
    hostile = {name: f"{name} {HOSTILE}" for name in texts}
    section = Section(
        "one",
        hostile["title"],
        hostile["intro"],
        (
            Note(hostile["note"]),
            Table(HOSTILE, HOSTILE, (hostile["column"], "b"), (("row", hostile["cell"]),)),
            create_figure(text=HOSTILE),
            Choice("menu", hostile["label"], ((hostile["entry"], create_figure("other")),)),
        ),
    )
    document = Document(create_page(HOSTILE, HOSTILE, [section]))
    harmless = Document(create_page("t", "s", [Section("one", "t", "i", section.blocks[2:])]))
    scripts = len([one for one in document.elements if one[0] == "script"])
    assert scripts == len([one for one in harmless.elements if one[0] == "script"])
    shown = HOSTILE.replace("\x00", "\ufffd").replace("\ud800", "\ufffd")
    for name in texts:
        assert f"{name} {shown}" in document.text
    plots = [dict(a) for tag, a in document.elements if a.get("data-figure") == "curve"]
    assert plots[0]["aria-label"] == f"Title {shown}. Meaning {shown}."
    assert document.figure("curve-data")["data"][0]["name"] == shown
    create_page(HOSTILE, HOSTILE, [section]).encode()  # Halves of surrogate pairs cannot be.


def test_the_json_of_figures_cannot_end_its_element() -> None:
    page = create_page("t", "s", [Section("one", "t", "i", (create_figure(text=HOSTILE),))])
    (content,) = re.findall(r'id="curve-data">(.*?)</script>', page)
    assert "<" not in content
    assert "&" not in content


def test_nothing_is_loaded_and_requests_are_forbidden() -> None:
    document = create_document(create_figure())
    links = [
        value
        for _, attributes in document.elements
        for key, value in attributes.items()
        if key in ("src", "href", "data", "srcset", "action")
    ]
    assert all(link is not None and link.startswith("#") for link in links)
    (policy,) = [
        attributes["content"]
        for _, attributes in document.elements
        if attributes.get("http-equiv") == "Content-Security-Policy"
    ]
    assert policy is not None
    assert "default-src 'none'" in policy
    assert "connect-src 'none'" in policy


def test_only_a_live_page_may_ask_its_server() -> None:
    live = create_page("t", "s", [], live_script="poll();")
    assert "<script>poll();</script>" in live
    assert "connect-src 'self'" in live


def test_figures_have_a_name_and_their_values() -> None:
    document = create_document(create_figure(y=np.arange(3.0), x=(1, float("nan"), np.int64(3))))
    (plot,) = [one for _, one in document.elements if one.get("data-figure") == "curve"]
    assert plot["role"] == "img"
    assert plot["aria-label"] == "Title loss. Meaning loss."
    (trace,) = document.figure("curve-data")["data"]
    assert trace["x"] == [1, None, 3]
    assert decode(trace["y"]).tolist() == [0.0, 1.0, 2.0]


def test_a_menu_has_a_label_and_shows_its_first_figure() -> None:
    options = tuple((f"run {name}", create_figure(name)) for name in ("a", "b", "c"))
    document = create_document(Choice("runs", "Run", options))
    labels = [one for tag, one in document.elements if tag == "label"]
    assert labels == [{"for": "runs-menu"}]
    assert document.named("runs-menu") is not None
    entries = [one["value"] for tag, one in document.elements if tag == "option"]
    assert entries == ["a", "b", "c"]
    hidden = [name for name in "abc" if "hidden" in document.named(name)]
    assert hidden == ["b", "c"]


def test_cells_of_numbers_are_aligned_and_the_best_is_bold() -> None:
    rows = (("ce", "72.1 ± 0.2", "2.15.0"), ("nonl", "–", "2.15.0"))
    page = create_page(
        "t",
        "s",
        [
            Section(
                "one", "t", "i", (Table("T", "M.", ("", "%", "torch"), rows, frozenset({(0, 1)})),)
            )
        ],
    )
    assert '<td class="number"><strong>72.1 ±\u00a00.2</strong></td>' in page
    assert '<td class="number">–</td>' in page
    assert "<td>2.15.0</td>" in page
    assert '<th scope="row"><span>ce</span></th>' in page


@pytest.mark.bad_input
@pytest.mark.parametrize(
    ("names", "message"),
    [
        (("a", "a"), "names in a page must differ, got 'a' twice"),
        (("one", "b"), "names in a page must differ, got 'one' twice"),
        (
            ("Über uns", "b"),
            "must consist of lowercase letters, digits and hyphens, got 'Über uns'",
        ),
    ],
)
def test_names_that_cannot_be_used_are_refused(names: tuple[str, str], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        create_document(*map(create_figure, names))


def test_equal_content_gives_equal_pages() -> None:
    sections = [Section("one", "t", "i", (create_figure(),))]
    assert create_page("t", "s", sections) == create_page("t", "s", sections)


@pytest.mark.parametrize(
    ("array", "dtype"),
    [
        (np.array([0, 255]), "u1"),
        (np.array([-1, 127]), "i1"),
        (np.array([0, 256]), "u2"),
        (np.array([-40_000, 0]), "i4"),
        (np.array([True, False]), "u1"),
        (np.array([0.5, np.nan]), "f4"),
        (np.array([2**40]), "f4"),
        (np.array([[1, 2], [3, 4]])[:, ::-1], "u1"),
        (np.array([], np.int64), "u1"),
    ],
)
def test_arrays_keep_their_values_in_the_smallest_type(array: NDArray[Any], dtype: str) -> None:
    encoded = encode(array)
    assert encoded["dtype"] == dtype
    assert np.array_equal(decode(encoded).reshape(array.shape), array, equal_nan=True)


@pytest.mark.bad_input
@pytest.mark.parametrize("array", [np.zeros((1, 1, 1)), np.array(1.0), np.array(["a"])])
def test_arrays_that_no_figure_has_are_refused(array: NDArray[Any]) -> None:
    with pytest.raises(ValueError, match="array must"):
        encode(array)
