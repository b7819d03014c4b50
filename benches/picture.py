"""One table as a picture: horizontal bars, as SVG, readable on a light page and on a dark one."""

from xml.sax.saxutils import escape

WIDTH, LABEL, VALUE = 760, 300, 70  # of the picture, of the words before the bars, of the number behind them
LINE, BAR, TOP = 22, 14, 48
WORDS, PEER, OURS, MARK = "#7d8590", "#8c959f", "#2f81f7", "#d1570f"


def text(x, y, words, size=12, anchor="start", more=""):
    return f'<text x="{x:g}" y="{y:g}" font-size="{size}" text-anchor="{anchor}"{more}>{escape(words)}</text>'


def draw(title, subtitle, bars):
    """`bars` are (label, value, value in words, target or None, whether it is ours). The mark on a bar is its target."""
    longest = max([value for _, value, *_ in bars] + [target or 0 for *_, target, _ in bars]) or 1
    room = WIDTH - LABEL - VALUE

    def length(value):
        return room * value / longest

    height = TOP + LINE * len(bars) + 6
    parts = [f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {height}" width="{WIDTH}" '
             f'height="{height}" font-family="sans-serif" fill="{WORDS}">',
             text(4, 18, title, 15, more=' font-weight="bold"'), text(4, 36, subtitle)]
    for at, (label, value, words, target, ours) in enumerate(bars):
        top = TOP + LINE * at
        parts.append(text(LABEL - 8, top + BAR - 2, label, anchor="end"))
        parts.append(f'<rect x="{LABEL}" y="{top}" width="{max(length(value), 1):.1f}" height="{BAR}" '
                     f'fill="{OURS if ours else PEER}"/>')
        end = length(value)
        if target is not None:
            parts.append(f'<rect x="{LABEL + length(target) - 1:.1f}" y="{top - 3}" width="2" height="{BAR + 6}" '
                         f'fill="{MARK}"/>')
            if end < length(target) < end + 45:
                end = length(target)
        parts.append(text(LABEL + end + 6, top + BAR - 2, words))
    return "\n".join(parts) + "\n</svg>\n"
