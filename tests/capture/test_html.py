"""Text from pages: structure kept, furniture gone."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from quantkit.capture.texts.html import html_to_sections


def text_of(page: str) -> str:
    return "".join(html_to_sections(page, 0))


@pytest.mark.parametrize(
    ("page", "text"),
    [
        ("<h1>Title</h1><p>One\n  two</p><p>Three</p>", "Title\n\nOne two\n\nThree\n"),
        ("<p>a <b>bold</b><i>face</i> word</p>", "a boldface word\n"),
        ("<p>Gr&ouml;&szlig;e &amp; &#8364;&nbsp;5</p>", "Größe & € 5\n"),
        ("<ul><li>a</li><li><p>b</p></li></ul><p>c</p>", "- a\n- b\n\nc\n"),
        ("<ol><li>a<ul><li>b</li></ul></li><li>c</li></ol>", "- a\n- b\n- c\n"),
        ("<ul><li>a<li>b</ul>", "- a\n- b\n"),
        ("<dl><dt>term</dt><dd>meaning</dd></dl>", "term\n\nmeaning\n"),
        (
            "<table><tr><th>k</th><th>v</th></tr><tr><td><p>a</p></td><td>1</td></tr></table>",
            "k | v\na | 1\n",
        ),
        ("<table><tr><td>a</td><td></td><td>c</td></tr></table>", "a | c\n"),
        ("<p>x</p><pre>\n  def f():\n\treturn 1\n\n</pre>", "x\n\n  def f():\n        return 1\n"),
        ("<pre>a<br>b<span>c</span></pre>", "a\nbc\n"),
        ("<p>a<br>b<br/>c</p>", "a b c\n"),
        ("<p>an <a id='x'/>anchor<a id='y' class='indexterm'/> here</p>", "an anchor here\n"),
        ("<p>zero\u200bwidth</p>", "zero width\n"),
        ("a < b &unknown; <3", "a < b &unknown; <3\n"),
        ("<!-- <p>no</p> --><p>yes</p>", "yes\n"),
        ("<p></p><div> \n </div>", ""),
        ("", ""),
    ],
)
def test_structure(page: str, text: str) -> None:
    assert text_of(page) == text


@pytest.mark.parametrize(
    "furniture",
    [
        "<head><title>no</title></head>",
        "<script>document.write('<p>no</p>')</script>",
        "<style>p { color: no }</style>",
        "<nav><ul><li>no</li></ul></nav>",
        '<div class="sphinxsidebar"><div>no</div>no</div>',
        '<div role="navigation" class="related"><h3>no</h3></div>',
        '<div class="navheader"><table><tr><td>no</td></tr></table></div>',
        '<ul class="docnav top"><li>no</li></ul>',
        '<div id="banner"><a>no</a></div>',
        '<table class="nav_table"><tr><td>no</td></tr></table>',
        '<div class="toc"><dl class="toc"><dt>no</dt></dl></div>',
        '<a class="headerlink" href="#x">no</a>',
        '<span class="switchinline"><span class="MAC">no</span></span>',
        "<header><p>no</p></header><footer>no</footer><form><input><label>no</label></form>",
    ],
)
def test_furniture_goes(furniture: str) -> None:
    page = f"<html><body>{furniture}<p>yes</p>{furniture}</body></html>"
    assert text_of(page) == "yes\n"


def test_a_word_inside_a_class_name_is_no_furniture() -> None:
    assert text_of('<p class="toc-free navigations">yes</p>') == "yes\n"


def test_a_head_without_its_end_does_not_swallow_the_page() -> None:
    assert text_of("<html><head><title>no</title><body><p>yes</p>") == "yes\n"


def test_unbalanced_ends_are_harmless() -> None:
    assert text_of("</pre></tr></li></table><p>yes</p></div></td>") == "yes\n"


def test_sections() -> None:
    page = "<p>0</p><h1>A</h1><p>a</p><h2>B</h2><h3>C</h3><p>c</p><h1></h1><h2>D</h2>"
    whole = "0\n\nA\n\na\n\nB\n\nC\n\nc\n\nD\n"
    assert html_to_sections(page, 0) == [whole]
    assert html_to_sections(page, 1) == ["0\n", "A\n\na\n\nB\n\nC\n\nc\n", "D\n"]
    assert html_to_sections(page, 2) == ["0\n", "A\n\na\n", "B\n\nC\n\nc\n", "D\n"]


PIECES = (
    "<p> </p> <pre> </pre> <li> </li> <table> </table> <tr> </tr> <td> </td> <h2> </h2> <nav> "
    "</nav> <br> <br/> text &amp; &#0; < > <!-- --> <![CDATA[ ]]> <script> </script>"
)
FRAGMENTS = st.sampled_from([*PIECES.split(), "\n", "\t"])


@given(st.lists(FRAGMENTS, max_size=30).map(" ".join), st.integers(0, 6))
def test_any_page_gives_text(page: str, split_level: int) -> None:
    sections = html_to_sections(page, split_level)
    assert all(section.strip() and section.endswith("\n") for section in sections)
    cut = "".join("".join(sections).split())
    assert cut == "".join("".join(html_to_sections(page, 0)).split())
