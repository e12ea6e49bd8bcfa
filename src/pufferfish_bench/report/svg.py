"""A shorter text for the same picture: what the page embeds of the charts that matplotlib wrote."""

import re

TAG = re.compile(r"<[^>]*>")
GROUP = re.compile(r"<(/?)g( [^>]*)?>")
STYLED = re.compile(r' style="([^"]*)"')
LONG = re.compile(r"-?\d+\.\d{3,}")
LINES = re.compile(r' d="([^"A-KN-Ya-y]*)"')  # paths of straight lines: no command but M, L and z
NEIGHBOURS = re.compile(r'(<g clip-path="[^"]*">)((?:<use [^>]*/>)+)</g>\1')


def smaller(svg: str) -> str:
    """The same picture, to a tenth of a point, in half of the letters; no text in it changes.

    Equal styles become a class, groups without attributes go, and ids are short.
    """
    svg = re.sub(r"<!DOCTYPE[^>]*>|<metadata>.*?</metadata>|<\?xml[^>]*>", "", svg, flags=re.DOTALL)
    svg = re.sub(r">\s+<", "><", svg.strip())
    svg = without_bare_groups(TAG.sub(lambda tag: shorter(tag[0]), svg))
    joined = 1
    while joined:
        svg, joined = NEIGHBOURS.subn(r"\1\2", svg)
    return with_classes(with_short_ids(svg))


def shorter(tag: str) -> str:
    """A tag without digits that nobody sees and spaces that say nothing."""
    tag = LONG.sub(rounded, re.sub(r"\s+", " ", tag)).replace("xlink:href", "href").replace(' "', '"')
    return LINES.sub(lambda path: " " + re.sub(r" ?([Mz]) ?", r"\1", path[0].strip().replace(" L ", " ")), tag)


def rounded(number: re.Match[str]) -> str:
    value = float(number[0])
    return f"{value:.{1 if abs(value) >= 10 else 2}f}".rstrip("0").rstrip(".")


def without_bare_groups(svg: str) -> str:
    """Without the groups that have no attribute, which change nothing."""
    bare: list[bool] = []

    def kept(tag: re.Match[str]) -> str:
        closing, attributes = tag.groups()
        if not closing:
            bare.append(not attributes)
        return "" if (bare.pop() if closing else bare[-1]) else tag[0]

    return GROUP.sub(kept, svg)


def with_short_ids(svg: str) -> str:
    """Markers and clip paths numbered in order of their definition."""
    names = dict.fromkeys(re.findall(r' id="([^"]*)"', svg))
    short = {name: f"i{place}" for place, name in enumerate(names)}

    def renamed(tag: re.Match[str]) -> str:
        found = re.sub(r' id="([^"]*)"', lambda name: f' id="{short[name[1]]}"', tag[0])
        return re.sub(r'(href="|url\()#([^")]*)', lambda use: f"{use[1]}#{short[use[2]]}", found)

    return TAG.sub(renamed, svg)


def with_classes(svg: str) -> str:
    """Each style once, at the top, and a short class where it is used."""
    styles = dict.fromkeys(style for tag in TAG.findall(svg) for style in STYLED.findall(tag))
    names = {style: f"c{place}" for place, style in enumerate(styles)}
    rules = "".join(f".{name}{{{style.replace(': ', ':').replace('; ', ';')}}}" for style, name in names.items())
    svg = TAG.sub(lambda tag: STYLED.sub(lambda style: f' class="{names[style[1]]}"', tag[0]), svg)
    return svg.replace("</style>", f"{rules}</style>", 1)
