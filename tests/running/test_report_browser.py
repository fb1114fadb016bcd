"""`bayesfed report` in a browser: Debian's chromium, steered by playwright (extra `watch`)."""

import shutil

import pytest

from bayesfed.running import report
from tests.running.test_report import saved  # noqa: F401

pytestmark = pytest.mark.watch


@pytest.fixture(scope="module")
def browser():
    from playwright.sync_api import sync_playwright

    path = next(
        filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None
    )
    assert path, "no browser: apt-get install chromium"
    with sync_playwright() as started:
        # Root has no sandbox; the page is our own.
        opened = started.chromium.launch(executable_path=path, args=["--no-sandbox"])
        yield opened
        opened.close()


@pytest.mark.parametrize(
    ("width", "scheme", "background"),
    [(420, "dark", "rgb(20, 23, 29)"), (1280, "light", "rgb(255, 255, 255)")],
)
def test_the_page_is_readable(
    browser,
    saved,  # noqa: F811
    tmp_path,
    width,
    scheme,
    background,
):
    path = report([saved / "sparse", saved / "<script>alert(1)"], tmp_path / "page.html")
    page = browser.new_page(viewport={"width": width, "height": 800}, color_scheme=scheme)
    told, asked = [], []
    page.on("console", lambda message: told.append(message.text))
    page.on("pageerror", lambda error: told.append(str(error)))
    page.on("dialog", lambda dialog: (told.append(dialog.message), dialog.dismiss()))
    page.on("request", lambda request: asked.append(request.url))
    page.goto(path.as_uri())
    assert page.evaluate("getComputedStyle(document.body).backgroundColor") == background
    # Nothing is wider than the page; a table that is too wide scrolls in its own frame.
    assert page.evaluate("document.documentElement.scrollWidth") <= width
    for frame in page.locator(".scroll").all():
        box = frame.bounding_box()
        assert box["x"] >= 0
        assert box["x"] + box["width"] <= width
    assert all(page.evaluate("[...document.images].map((one) => one.naturalWidth > 0)"))
    assert told == []
    assert [address for address in asked if not address.startswith("data:")] == [path.as_uri()]
    page.close()
