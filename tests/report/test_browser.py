"""A report in a browser: every figure is drawn, everything can be used, nothing is loaded."""

import itertools
import json
import os
import shutil
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from protosphere.report.create import write_report
from protosphere.report.read import read_sources
from protosphere.report.watch import ReportServer, watch_sources
from support.browser import Browser, Page, find_chromium, open_browser
from support.report_sources import HOSTILE, write_sources

pytestmark = [pytest.mark.long, pytest.mark.whole_program]

# Sections that the sources have something for, in order.
SECTIONS = (
    "overview", "comparison", "training", "collapse", "geometry", "classes", "long-tail",
    "label-noise", "corruptions", "transfer", "uncertainty", "convergence", "sweep",
)  # fmt: skip
# Advice of Chromium about the inside of plotly, and about WebGL without a GPU.
NOT_OURS = (
    "Canvas2D: Multiple readback operations using getImageData",
    "GL Driver Message (OpenGL, Performance",
)
# Draw every visible figure by scrolling to it. The answer has, by figure, its state and whether
# something is drawn within its axes.
SCROLL_THROUGH = """(async () => {
  const found = {};
  for (const plot of document.querySelectorAll('.plot')) {
    if (plot.offsetParent === null) continue;
    plot.scrollIntoView({block: 'center', behavior: 'instant'});
    const end = performance.now() + 10000;
    while (!['drawn', 'failed'].includes(plot.dataset.state) && performance.now() < end)
      await new Promise((resolve) => setTimeout(resolve, 10));
    const marks = [...plot.querySelectorAll('.overplot :is(path, image, rect, circle)')];
    const drawn = marks.filter((mark) => {
      const box = mark.getBoundingClientRect();
      return box.width > 1 || box.height > 1;
    });
    const canvases = [...plot.querySelectorAll('.gl-container canvas')];
    const has_content = drawn.length > 0 || canvases.some((canvas) => canvas.width > 1);
    found[plot.dataset.figure] = [plot.dataset.state, has_content];
  }
  return found;
})()"""
# The first 3-D view, and the center of it.
SCENE = "document.querySelector('[id^=sphere] figure:not([hidden]) .plot')"
CENTER = f"""(() => {{
  {SCENE}.scrollIntoView({{block: 'center', behavior: 'instant'}});
  const box = {SCENE}.getBoundingClientRect();
  return [box.x + box.width / 2, box.y + box.height / 2];
}})()"""


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    path = find_chromium()
    if path is None:
        reason = "Chromium is not installed (Debian: apt-get install chromium)"
        if os.environ.get("PROTOSPHERE_REQUIRE_BROWSER"):
            pytest.fail(reason)
        pytest.skip(reason)
    with open_browser(path) as browser:
        yield browser


@pytest.fixture(scope="module")
def sources(browser: Browser, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_sources(tmp_path_factory.mktemp("sources"))


@pytest.fixture(scope="module")
def url(sources: Path, tmp_path_factory: pytest.TempPathFactory) -> str:
    out = tmp_path_factory.mktemp("report") / "report.html"
    write_report([sources], out)
    return out.as_uri()


@pytest.fixture(scope="module")
def page(browser: Browser, url: str) -> Page:
    """The report, scrolled through once."""
    page = browser.open(url)
    page.evaluate(SCROLL_THROUGH)
    return page


def _messages(page: Page) -> list[str]:
    return [text for text in page.messages() if not any(words in text for words in NOT_OURS)]


def test_every_section_is_there_and_every_figure_drawn(page: Page) -> None:
    names = page.evaluate("[...document.querySelectorAll('main > section')].map((one) => one.id)")
    assert tuple(names) == SECTIONS
    figures = page.evaluate(SCROLL_THROUGH)
    assert len(figures) > len(SECTIONS)
    assert {name: found for name, found in figures.items() if found != ["drawn", True]} == {}


def test_nothing_is_loaded_and_no_text_of_users_is_run(page: Page) -> None:
    requests = [url for url in page.requests() if not url.startswith(("data:", "blob:"))]
    assert requests == [page.evaluate("location.href")]
    policy = "document.querySelector('meta[http-equiv=Content-Security-Policy]').content"
    assert "unsafe" not in page.evaluate(f"{policy}.match(/script-src [^;]*/)[0]")
    assert page.evaluate("window.hacked") is None
    assert page.evaluate("document.querySelectorAll('img, [onerror]').length") == 0
    assert _messages(page) == []
    assert HOSTILE in page.evaluate("document.querySelector('main').innerText")


def test_menus_show_the_selected_figure(page: Page) -> None:
    shown = page.evaluate("""(async () => {
      const wrong = [], checked = [];
      for (const choice of document.querySelectorAll('.choice')) {
        const menu = choice.querySelector('select');
        if (menu.options.length < 2 || choice.matches('[id^=sphere]')) continue;
        menu.scrollIntoView({behavior: 'instant'});
        menu.selectedIndex = menu.options.length - 1;
        menu.dispatchEvent(new Event('change', {bubbles: true}));
        const visible = [...choice.querySelectorAll('figure')].filter((one) => !one.hidden);
        const plot = visible[0].querySelector('.plot');
        const end = performance.now() + 5000;
        while (plot.dataset.state !== 'drawn' && performance.now() < end)
          await new Promise((resolve) => setTimeout(resolve, 10));
        checked.push(choice.id);
        if (visible.length !== 1 || visible[0].id !== menu.value || plot.dataset.state !== 'drawn')
          wrong.push(choice.id);
      }
      return [wrong, checked.length > 5];
    })()""")
    assert shown == [[], True]
    assert _messages(page) == []


def test_menus_with_the_same_label_follow_each_other(page: Page) -> None:
    menus, place, shown = page.evaluate("""(() => {
      const choices = [...document.querySelectorAll('.choice')].filter((one) =>
        one.querySelector('label').textContent === 'Run');
      const first = choices[0].querySelector('select');
      first.scrollIntoView({behavior: 'instant'});
      const before = first.getBoundingClientRect().top;
      first.selectedIndex = first.selectedIndex ? 0 : 1;
      const text = first.options[first.selectedIndex].text;
      first.dispatchEvent(new Event('change', {bubbles: true}));
      const followers = choices.filter((one) =>
        [...one.querySelectorAll('option')].some((option) => option.text === text));
      return [
        followers.map((one) => one.querySelector('select').selectedOptions[0].text === text),
        first.getBoundingClientRect().top - before,
        followers.map((one) => one.querySelector('figure:not([hidden])').id ===
          one.querySelector('select').value),
      ];
    })()""")
    assert len(menus) > 3
    assert all(menus)
    assert all(shown)
    assert abs(place) < 1
    assert _messages(page) == []


def test_the_3d_view_turns_and_keeps_its_camera(page: Page) -> None:
    x, y = page.evaluate(CENTER)
    page.wait(f"{SCENE}.dataset.state === 'drawn'")
    eye = f"JSON.stringify({SCENE}.layout.scene.camera.eye)"
    before, picture = page.evaluate(eye), page.screenshot()
    page.drag((x, y), (x + 150, y + 40))
    after = page.wait(f"{eye} !== {json.dumps(before)} && {eye}")
    assert page.screenshot() != picture
    # Out of view, its WebGL context is given back.
    page.evaluate("scrollTo({top: 0, behavior: 'instant'})")
    page.wait("document.querySelectorAll('canvas').length === 0")
    page.evaluate(CENTER)
    page.wait(f"{SCENE}.dataset.state === 'drawn'")
    assert page.evaluate(eye) == after
    assert _messages(page) == []


def test_the_theme_changes_page_and_figures(page: Page) -> None:
    colors = """[getComputedStyle(document.body).backgroundColor,
      getComputedStyle(document.querySelector('#training .plot .xtick text')).fill]"""
    found = []
    for theme in ("light", "dark", "light"):
        page.wait(f"document.documentElement.dataset.theme === '{theme}'")
        page.evaluate("document.querySelector('#training').scrollIntoView({behavior: 'instant'})")
        page.wait(f"document.querySelector('#training .plot').look.startsWith('{theme}')")
        found.append(page.evaluate(colors))
        page.click("#theme")
    assert [_brightness(color) for color in found[0]] == ["bright", "dark"]
    assert [_brightness(color) for color in found[1]] == ["dark", "bright"]
    assert found[2] == found[0]
    assert _messages(page) == []


def _brightness(color: str) -> str:
    channels = [float(part) for part in color[color.index("(") + 1 : -1].split(",")][:3]
    return "bright" if sum(channels) / 3 > 128 else "dark"


def test_a_phone_needs_no_sideways_scrolling(browser: Browser, url: str) -> None:
    page = browser.open(url, width=390, height=844)
    figures = page.evaluate(SCROLL_THROUGH)
    assert {name: found for name, found in figures.items() if found != ["drawn", True]} == {}
    assert page.evaluate("document.documentElement.scrollWidth") == 390
    # Square maps, which the width limits, leave no height free below them.
    free = page.evaluate("""['cosines-beside', 'class-cosines-0'].map((name) => {
      const plot = document.querySelector(`#${name} .plot`);
      const drawn = [...plot.querySelectorAll('.heatmaplayer image, .g-xtitle')];
      const bottoms = drawn.map((one) => one.getBoundingClientRect().bottom);
      return plot.getBoundingClientRect().bottom - Math.max(...bottoms);
    })""")
    assert all(0 <= height < 60 for height in free), free
    assert _messages(page) == []
    page.close()


def test_printing_draws_every_figure(browser: Browser, sources: Path, tmp_path: Path) -> None:
    write_report([sources / "digits"], tmp_path / "report.html")
    page = browser.open((tmp_path / "report.html").as_uri())
    page.evaluate("""
      window.left = new Set([...document.querySelectorAll('.plot')].filter((one) =>
        one.offsetParent && one.dataset.state !== 'drawn').map((one) => one.dataset.figure));
      window.begun = window.left.size;
      new MutationObserver((changes) => changes.forEach(({target}) => {
        if (target.dataset.state === 'drawn') window.left.delete(target.dataset.figure);
      })).observe(document.body, {attributeFilter: ['data-state'], subtree: true})""")
    assert page.pdf().startswith(b"%PDF")
    assert page.evaluate("[window.begun > 5, [...window.left]]") == [True, []]
    assert _messages(page) == []
    page.close()


@pytest.fixture
def live(tmp_path: Path, sources: Path) -> Iterator[tuple[ReportServer, Path]]:
    """A server of a folder with a run of one epoch, and the run."""
    run = tmp_path / "runs/nonl"
    shutil.copytree(sources / "digits/nonl", run)
    records = _records(run)
    _write_records(run, [record for record in records if record["epoch"] <= 1])
    stop = threading.Event()
    # So much time passes between two readings of the clock that no request is too early.
    clock = (10.0**reading for reading in itertools.count()).__next__
    with ReportServer(watch_sources([tmp_path / "runs"], clock=clock), 0) as server:
        thread = threading.Thread(target=server.serve_until, args=(stop.is_set,))
        thread.start()
        yield server, run
        stop.set()
        thread.join()


def _records(run: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]


def _write_records(run: Path, records: list[dict[str, Any]]) -> None:
    (run / "metrics.jsonl").write_text("".join(json.dumps(record) + "\n" for record in records))


def test_a_watched_page_shows_new_records_and_runs(
    browser: Browser, live: tuple[ReportServer, Path], sources: Path
) -> None:
    server, run = live
    page = browser.open(server.url)
    loss = "document.querySelector('#training .plot')"
    page.evaluate(f"{loss}.scrollIntoView({{behavior: 'instant'}})")
    page.wait(f"{loss}.dataset.state === 'drawn'")
    page.evaluate(f"window.kept = {loss}; Plotly.relayout(kept, {{'xaxis.range': [0, 7]}}); 0")
    place = page.evaluate(f"{loss}.getBoundingClientRect().top")
    shutil.copytree(sources / "digits/ce", run.parent / "ce")
    _write_records(run, _records(sources / "digits/nonl"))
    page.evaluate("dispatchEvent(new Event('focus'))")  # The page asks at once.
    page.wait("document.querySelector('#overview').innerText.includes('digits-ce')")
    page.wait(f"{loss}.calcdata.some((line) => line.some((point) => point.x >= 2))")
    assert page.evaluate(f"{loss} === window.kept && kept.layout.xaxis.range[1]") == 7
    assert page.evaluate(f"{loss}.getBoundingClientRect().top") == pytest.approx(place, abs=2)
    assert read_sources([run]).runs[0].records
    assert set(page.requests()) >= {server.url, f"{server.url}version"}
    assert _messages(page) == []
    page.close()
