"""Texts in figures: plotly reads a few HTML tags, which texts of users must not be."""

from html import escape


def plain(text: object) -> str:
    """Return a text that plotly displays as it is.

    Args:
        text: A class name, a path or another text that was not written for plotly.

    >>> plain("<b>tulip</b>")
    '&lt;b&gt;tulip&lt;/b&gt;'
    """
    return escape(str(text), quote=False)
