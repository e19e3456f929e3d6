"""Pictures of a report for the README and the documentation, taken in a headless Chromium.

    protosphere demo --out runs
    python benchmarks/screenshots.py runs/report.html --out docs/images

report.png, report-dark.png   results, curves of collapse and the 3-D view, side by side
report-desktop.png            the page in a browser window
report-phone.png              the page on a phone
"""

import argparse
import io
import sys
from pathlib import Path

from PIL import Image

sys.path.insert(0, str(Path(__file__).parents[1] / "tests"))

from support.browser import Browser, Page, find_chromium, open_browser

MAX_BYTES = 400_000
_SCALE = 1.5
# Move the title, the results, the curves and one 3-D view into a page of their own. Plotly measures
# texts in its tester, which must not be hidden.
_COMPOSE = """(() => {
  const style = document.createElement('style');
  style.textContent = `
    body > :not(.composed, #js-plotly-tester) { display: none !important }
    body > .composed { display: grid; grid-template-columns: 44rem 1fr; gap: 0 1.5rem;
      padding: 1.75rem 2rem 0.75rem; width: 1280px }
    .composed .masthead, .composed .table { grid-column: 1 / -1; width: 100%; max-width: none }
    .composed .masthead { padding: 0 0 1rem }
    .composed .theme { display: none }
    .composed figure, .composed figure.table { margin: 1.25rem 0 0 }
    .composed figcaption p { font-size: 0.8125rem; line-height: 1.4 }`;
  document.head.append(style);
  const composed = document.createElement('div');
  composed.className = 'composed';
  const views = document.querySelector('[id^=sphere]');
  const menu = views.querySelector('select');
  const options = menu ? [...menu.options] : [];
  const option = options.find((one) => one.text.includes(RUN)) || options[0];
  const view = option ? document.getElementById(option.value) : views;
  view.hidden = false;
  composed.append(document.querySelector('.masthead'), document.querySelector('#overview .table'),
    document.querySelector('#collapse-curves'), view);
  document.body.append(composed);
})()"""
_TURN = """(() => {
  const plot = document.querySelector('.composed figure:last-child .plot');
  const eye = {x: 1.62, y: 1.62, z: 0.9};
  plot.style.height = '500px';
  return Plotly.relayout(plot, {height: 500, 'scene.camera.eye': eye}).then(() => 0);
})()"""
_HEIGHT = "Math.ceil(document.querySelector('.composed').getBoundingClientRect().height)"
_DRAWN = """[...document.querySelectorAll('.plot')].every((plot) => {
  const box = plot.getBoundingClientRect();
  const seen = plot.offsetParent && box.top < innerHeight && box.bottom > 0;
  return !seen || plot.dataset.state === 'drawn';
})"""


def compose(browser: Browser, url: str, run: str, *, color_scheme: str) -> bytes:
    """Return the picture with results, curves and a 3-D view.

    Args:
        browser: The browser.
        url: Address of the report.
        run: Text that the run of the 3-D view has in its name.
        color_scheme: ``"light"`` or ``"dark"``.
    """
    # In a low window the figures are not drawn before they are in their places.
    page = browser.open(url, height=100)
    page.emulate(color_scheme=color_scheme)
    page.evaluate(_COMPOSE.replace("RUN", repr(run)))
    page.resize(1280, 1600, scale=_SCALE)
    page.wait(_DRAWN)
    page.evaluate(_TURN)
    page.resize(1280, page.evaluate(_HEIGHT), scale=_SCALE)
    return _picture(page)


def view(browser: Browser, url: str, section: str, *, width: int, height: int) -> bytes:
    """Return the view of a section.

    Args:
        browser: The browser.
        url: Address of the report.
        section: Name of the section.
        width: Width of the window.
        height: Height of the window.
    """
    page = browser.open(url, width=width, height=height)
    page.resize(width, height, scale=_SCALE)
    page.evaluate(f"document.getElementById('{section}').scrollIntoView({{behavior: 'instant'}})")
    return _picture(page)


def _picture(page: Page) -> bytes:
    page.wait(_DRAWN)
    # A frame later, what was drawn is on the screen.
    page.evaluate("new Promise((done) => setTimeout(done, 500))")
    picture = page.screenshot()
    page.close()
    return picture


def compress(picture: bytes) -> bytes:
    """Return a PNG with at most 256 colors, which is enough for lines and text.

    Raises:
        ValueError: The file is still too large.
    """
    image = Image.open(io.BytesIO(picture)).convert("RGB").quantize(256, dither=Image.Dither.NONE)
    file = io.BytesIO()
    image.save(file, "PNG", optimize=True)
    if file.tell() > MAX_BYTES:
        raise ValueError(f"a picture must have at most {MAX_BYTES} bytes, got {file.tell()}")
    return file.getvalue()


def main() -> None:
    """Take the pictures."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("report", type=Path)
    parser.add_argument("--out", type=Path, default=Path("docs/images"))
    parser.add_argument("--run", default="nonl", help="part of the name of the run in 3-D")
    options = parser.parse_args()
    chromium = find_chromium()
    if chromium is None:
        sys.exit("Error: pictures need Chromium (Debian: apt-get install chromium)")
    url = options.report.resolve().as_uri()
    with open_browser(chromium) as browser:
        pictures = {
            "report.png": compose(browser, url, options.run, color_scheme="light"),
            "report-dark.png": compose(browser, url, options.run, color_scheme="dark"),
            "report-desktop.png": view(browser, url, "collapse", width=1280, height=860),
            "report-phone.png": view(browser, url, "geometry", width=390, height=844),
        }
    options.out.mkdir(parents=True, exist_ok=True)
    for name, picture in pictures.items():
        content = compress(picture)
        (options.out / name).write_bytes(content)
        print(f"{options.out / name}: {len(content) / 1000:.0f} kB")


if __name__ == "__main__":
    main()
