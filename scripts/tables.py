"""Tables of the pages in docs/: how they are written, and where they go."""

import sys


def markdown(head, alignment, rows):
    """A table. Numbers that are whole have their thousands apart."""
    lines = [head, alignment, *([f"{cell:,}" if isinstance(cell, int) else cell for cell in row] for row in rows)]
    return "".join("| " + " | ".join(line) + " |\n" for line in lines)


def put(page, begin, end, text):
    """The page with this text between two marks."""
    before, found, rest = page.partition(begin)
    _, ends, after = rest.partition(end)
    if not found or not ends:
        sys.exit(f"the page has no place for a table between {begin!r} and {end!r}")
    return before + begin + text + end + after
