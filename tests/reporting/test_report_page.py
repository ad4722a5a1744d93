"""The page in headless Chromium: nothing complains, nothing leaves the file, and it reads well small and dark."""

import pytest
from PIL import Image

from snugnet.reporting import build_report

pytest_plugins = ["report_fixtures"]

SLIDER = "document.querySelector('input[data-resource=\"latency\"]')"
SHOWN = "document.getElementById('explored-text').textContent"


@pytest.fixture(scope="module")
def page(run_folder):
    return build_report(run_folder)


@pytest.fixture
def opened(browser, page):
    browser.open(page)
    return browser


def move(browser, resource: str, share: float) -> None:
    slider = f"document.querySelector('input[data-resource=\"{resource}\"]')"
    browser.evaluate(
        f"(() => {{ const s = {slider}; s.value = Math.round({share} * s.max); s.dispatchEvent(new Event('input')); }})()"
    )
    browser.wait_frame()


def test_it_loads_without_a_complaint_and_asks_nobody(opened, page):
    assert opened.complaints() == []
    assert [a for a in opened.requests() if not a.startswith("data:")] == [page.resolve().as_uri()]
    assert opened.evaluate("document.querySelectorAll('p.note').length") == 0
    assert opened.evaluate("document.querySelector('h1').textContent") == "made-up <run> & co"


def test_the_policy_stops_a_request_that_something_tries_to_make(opened):
    tried = "fetch('https://example.org/').then(() => 'left', () => 'stopped')"
    assert opened.evaluate(tried) == "stopped"
    opened.evaluate("document.body.append(Object.assign(new Image(), {src: 'https://example.org/x.png'}))")
    opened.wait_frame()
    assert any("Content Security Policy" in complaint for complaint in opened.complaints())


def test_the_answer_comes_first(opened):
    assert opened.evaluate("document.querySelector('main section').id") == "answer"
    answer = opened.evaluate("document.getElementById('answer').innerText")
    for words in ("It fits.", "97.15%", "95 %", "slack", "limit", "counted exactly"):
        assert words in answer


@pytest.mark.parametrize("name", ["network", "check", "front", "explorer", "training", "finetuning", "heat", "effects"])
def test_every_section_is_drawn(opened, name):
    assert opened.evaluate(f"document.querySelectorAll('#{name} svg').length") > 0


def test_the_slider_changes_the_network_by_mouse_and_by_keys(opened):
    before = opened.evaluate(SHOWN)
    move(opened, "latency", 0.1)
    small = opened.evaluate(SHOWN)
    opened.evaluate(f"{SLIDER}.focus()")
    opened.press("End")
    opened.wait_frame()
    large = opened.evaluate(SHOWN)
    assert len({before, small, large}) == 3
    assert opened.evaluate("document.activeElement.dataset.resource") == "latency"
    assert "at most" in opened.evaluate(f"{SLIDER}.getAttribute('aria-valuetext')")


def test_it_starts_at_what_was_asked_with_the_network_of_the_run(opened, embedded, page):
    move(opened, "latency", 0.9)
    opened.evaluate(f"{SLIDER}.value = {SLIDER}.defaultValue; {SLIDER}.dispatchEvent(new Event('input'))")
    opened.wait_frame()
    assert opened.evaluate(SHOWN) == embedded(page.read_text())["network"]["text"]
    assert opened.evaluate("document.getElementById('explorer-remark').textContent") == ""


def test_limits_that_nothing_meets_show_no_network_and_say_what_would_do(opened):
    none = "bestWithin(numbers.explorer, numbers.explorer.resources.map((r) => 0.9 * r.low)) === undefined"
    assert opened.evaluate(none) is True
    words = opened.evaluate("nothingFits(numbers.explorer, numbers.explorer.resources.map((r) => 0.9 * r.low))")
    assert words.startswith("No network of the pool fits") and "nearest needs a latency of" in words


def test_keys_reach_everything(opened):
    seen = set()
    opened.evaluate("document.body.focus()")
    for _ in range(40):
        opened.press("Tab")
        seen.add(opened.evaluate("document.activeElement.id || document.activeElement.tagName"))
    assert {"limit-latency", "limit-macs", "limit-params", "limit-memory", "SUMMARY"} <= seen
    unlabelled = "[...document.querySelectorAll('input')].filter((i) => !i.labels.length).length"
    assert opened.evaluate(unlabelled) == 0


def test_the_table_sorts_by_its_headings(opened):
    costs = "[...document.querySelectorAll('table.sortable tbody tr')].map((r) => parseFloat(r.cells[5].textContent))"
    opened.evaluate("document.querySelectorAll('table.sortable thead button')[5].click()")
    rising = opened.evaluate(costs)
    assert rising == sorted(rising) and len(rising) > 50


@pytest.mark.parametrize(("width", "dark"), [(390, False), (390, True), (1100, True)])
def test_phone_and_dark_mode(browser, page, tmp_path, width, dark):
    browser.open(page, width=width, dark=dark)
    assert browser.complaints() == []
    assert browser.evaluate("document.documentElement.scrollWidth") <= width  # nothing hangs over the edge
    too_small = """[...document.querySelectorAll('p, li, td, dd, label, output')].filter(
        (e) => e.offsetParent && parseFloat(getComputedStyle(e).fontSize) < 11).length"""
    assert browser.evaluate(too_small) == 0
    picture = Image.open(browser.picture(tmp_path / "page.png")).convert("L")
    corner = picture.getpixel((2, 2))
    assert corner < 60 if dark else corner > 200
    assert picture.getextrema()[1] - picture.getextrema()[0] > 150  # ink can be told from paper


def test_contrast_of_text_is_readable_in_both_modes(browser, page):
    ratio = """(() => {
      const part = (x) => (x <= 0.03928 ? x / 12.92 : ((x + 0.055) / 1.055) ** 2.4);
      const light = (colour) => {
        const [r, g, b] = colour.match(/[\\d.]+/g).slice(0, 3).map((x) => part(x / 255));
        return 0.2126 * r + 0.7152 * g + 0.0722 * b;
      };
      const behind = (e) => {
        while (getComputedStyle(e).backgroundColor === 'rgba(0, 0, 0, 0)') e = e.parentElement;
        return light(getComputedStyle(e).backgroundColor);
      };
      return Math.min(...[...document.querySelectorAll('p.quiet, .intro, .card h3, dt, .score')].map((e) => {
        const [high, low] = [light(getComputedStyle(e).color), behind(e)].sort((a, b) => b - a);
        return (high + 0.05) / (low + 0.05);
      }));
    })()"""
    for dark in (False, True):
        browser.open(page, dark=dark)
        assert browser.evaluate(ratio) >= 4.5
