"""The colours of pages, figures and pictures, for light and dark mode.

The eight colours of series are near those of Okabe and Ito, which colour-blind readers tell apart.
"""

from __future__ import annotations

import re
from collections.abc import Mapping

LIGHT = {
    "ink": "#1c1e21",  # text
    "soft": "#5c6370",  # secondary text
    "line": "#d9dce1",  # grids and rules
    "paper": "#ffffff",
    "panel": "#f6f7f9",  # behind code and controls
    **{"s0": "#0072b2", "s1": "#d55e00", "s2": "#009e73", "s3": "#cc79a7"},
    **{"s4": "#8a6d00", "s5": "#3a8fbf", "s6": "#7f4fc9", "s7": "#5c6370"},
}
DARK = {
    "ink": "#e6e7ea",
    "soft": "#a0a6b1",
    "line": "#3a3f47",
    "paper": "#17191c",
    "panel": "#202327",
    **{"s0": "#56b4e9", "s1": "#f08a3c", "s2": "#2fc79a", "s3": "#f7c4df"},
    **{"s4": "#e0c341", "s5": "#8fd0f5", "s6": "#b493ea", "s7": "#a0a6b1"},
}


def css() -> str:
    """The colours as CSS variables for light and dark mode; print is always light."""
    light, dark = (
        " ".join(f"--{name}: {colour};" for name, colour in colours.items())
        for colours in (LIGHT, DARK)
    )
    return (
        f":root {{ color-scheme: light dark; {light} }}\n"
        f"@media screen and (prefers-color-scheme: dark) {{ :root {{ {dark} }} }}\n"
        "@media print { :root { color-scheme: light; } }\n"
    )


def themed(svg: str, colours: Mapping[str, str] | None = None) -> str:
    """A drawing in the colours of LIGHT with a style sheet for those of DARK.

    The light colours stay in the drawing, for viewers without style sheets; `colours` are other
    pairs of light and dark.
    """
    pairs = {LIGHT[name]: DARK[name] for name in LIGHT} if colours is None else colours
    rules = "".join(
        f'[style*="{what}: {light}"], [{what}="{light}"] {{ {what}: {dark} !important; }}\n'
        for light, dark in pairs.items()
        for what in ("fill", "stroke")
        if re.search(f'{what}(: |="){light}', svg)
    )
    style = f"<style>@media (prefers-color-scheme: dark) {{\n{rules}}}</style>\n"
    opening = re.search(r"<svg\b[^>]*>\n?", svg)
    assert opening is not None
    return svg[: opening.end()] + style + svg[opening.end() :]
