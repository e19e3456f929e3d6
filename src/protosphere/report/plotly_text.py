"""Texts in figures: plotly reads some HTML tags and templates, which texts of users are not."""

from html import escape


def plain(text: object) -> str:
    """Return a text that plotly displays as it is.

    Args:
        text: A class name, a path or another text that was not written for plotly.

    >>> plain("<b>tulip</b>")
    '&lt;b&gt;tulip&lt;/b&gt;'
    >>> plain("%{x}")
    '%&#123;x}'
    """
    return escape(str(text), quote=False).replace("%{", "%&#123;")
