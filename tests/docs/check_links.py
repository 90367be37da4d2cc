"""check_links.py ROOT: every relative link of every Markdown file leads to a file of the tree, and to a heading of it
where the link names one. Links to other sites are not followed. Prints each link that leads nowhere and exits with 1."""

import pathlib
import re
import sys

FENCE = re.compile(r"^(```|~~~).*?^\1", re.MULTILINE | re.DOTALL)
CODE = re.compile(r"`[^`\n]*`")
LINK = re.compile(r"\[[^\]]*\]\(([^)\s]+)[^)]*\)")
HEADING = re.compile(r"^#{1,6} +(.*?) *#*$", re.MULTILINE)


def blank(match):
    """The lines of a match without their text, so that line numbers stay right."""
    return re.sub(r"[^\n]", " ", match.group())


def anchors(text):
    """The anchors that GitHub gives to the headings of a page: lower case, words joined by '-', numbered when repeated."""
    found = set()
    for heading in HEADING.findall(FENCE.sub(blank, text)):
        heading = re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", heading).lower()
        name = re.sub(r"[^\w\- ]", "", heading).replace(" ", "-")
        unique, count = name, 0
        while unique in found:
            count += 1
            unique = f"{name}-{count}"
        found.add(unique)
    return found


def broken_links(page, root):
    """(line, link, reason) of each link in `page`, a path, that leads nowhere below `root`."""
    text = page.read_text(encoding="utf-8")
    prose = CODE.sub(blank, FENCE.sub(blank, text))
    for match in LINK.finditer(prose):
        link = match.group(1)
        if re.match(r"[a-z]+:", link):
            continue
        path, _, anchor = link.partition("#")
        target = (page.parent / path).resolve() if path else page
        line = prose.count("\n", 0, match.start()) + 1
        if not target.is_relative_to(root):
            yield line, link, "leads out of the tree"
        elif not target.exists():
            yield line, link, "no such file"
        elif anchor and target.suffix == ".md" and anchor not in anchors(target.read_text(encoding="utf-8")):
            yield line, link, "no such heading"


def main():
    root = pathlib.Path(sys.argv[1]).resolve()
    pages = [page for page in sorted(root.rglob("*.md")) if page.relative_to(root).parts[0] != "build"]
    if not pages:
        sys.exit(f"there is no Markdown file below {root}")
    problems = 0
    for page in pages:
        for line, link, reason in broken_links(page, root):
            print(f"{page.relative_to(root)}:{line}: {link}: {reason}")
            problems += 1
    sys.exit(1 if problems else 0)


if __name__ == "__main__":
    main()
