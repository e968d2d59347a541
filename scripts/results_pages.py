"""Tables of results pages, which stand between `<!-- measured: NAME -->` and `<!-- end -->`.

They are written there, read back, and compared with tables that are made anew. A table made anew may be a sample: it may lack
rows and columns, and a cell with a question mark is not known. The tables of a page stand on it or in its appendix, the file of
the same name in the folder `appendix` beside it; scripts name the page.
"""

import pathlib
import re
import sys

MARKED = re.compile(r"<!-- measured: (?P<name>.+?) -->\n(?P<table>.*?)<!-- end -->", re.DOTALL)


class Unknown:
    """An outcome that a sample leaves out. All that is computed from it is unknown, too, and prints as a question mark."""

    def _unknown(self, *_):
        return self

    __add__ = __radd__ = __sub__ = __rsub__ = __mul__ = __rmul__ = __truediv__ = __rtruediv__ = __getitem__ = get = _unknown

    def __format__(self, _):
        return "?"

    def __iter__(self):
        return iter([self, self])


def sampled(chosen, work, items):
    """`work` of the chosen items, by their places; unknown for the others."""
    return [work(*item) if at in chosen else Unknown() for at, item in enumerate(items)]


def files(path):
    """The files of a page: the page itself and, where there is one, its appendix."""
    return [file for file in (path, path.parent / "appendix" / path.name) if file.exists()]


def text_of(path):
    """The text of a page with that of its appendix; empty where there is no such page."""
    return "\n".join(file.read_text() for file in files(path))


def into(path, made, wants_all=False):
    """Replaces the tables of the page that were made. With `wants_all` each table of the page has to be among them."""

    def replaced(mark):
        name = mark["name"]
        if name in made:
            return f"<!-- measured: {name} -->\n\n{made[name]}\n\n<!-- end -->"
        if wants_all:
            sys.exit(f"{path} wants the table {name!r}, which there is not")
        return mark[0]

    places = {mark["name"] for mark in MARKED.finditer(text_of(path))}
    if not places & made.keys():
        sys.exit(f"{path} has no place for a table: <!-- measured: {next(iter(made), 'TABLE')} -->, a line below <!-- end -->")
    for file in files(path):
        file.write_text(MARKED.sub(replaced, file.read_text()))
    return [name for name in made if name not in places]


def put(path, part, text):
    """Replaces the text between `<!-- PART: generated -->` and `<!-- PART: end -->` of a page."""
    begin, end = f"<!-- {part}: generated -->", f"<!-- {part}: end -->"
    file = next((file for file in files(path) if begin in file.read_text()), None)
    if file is None:
        sys.exit(f"{path} has no place for a part: {begin}")
    before, rest = file.read_text().split(begin)
    file.write_text(f"{before}{begin}\n\n{text.strip()}\n\n{end}{rest.split(end)[1]}")


def tables(path):
    """The marked tables of a page and its appendix, as text."""
    return {mark["name"]: mark["table"] for mark in MARKED.finditer(text_of(path))}


def cells(table):
    """Heads and rows of a table in Markdown."""
    lines = [line.strip() for line in table.splitlines() if line.startswith("|")]
    split = [[cell.strip() for cell in line.removeprefix("|").removesuffix("|").split("|")] for line in lines]
    return split[0], split[2:]


def differences(path, name, made):
    """The differences of a table on a page from the one that was made anew, a line each, and the number of cells compared."""
    printed = tables(path).get(name)
    if printed is None:
        return [f"{path}: there is no table {name!r}"], 0
    heads, rows = cells(printed)
    new_heads, new_rows = cells(made)
    columns, at = [], 0
    for head in new_heads:
        if head not in heads[at:]:
            return [f"{path}, {name}: no column {head!r} after {heads[at - 1]!r}" if at else f"{path}, {name}: no column {head!r}"], 0
        at = heads.index(head, at) + 1
        columns.append(at - 1)
    firsts = [row[0] for row in rows]
    by_first = len(set(firsts)) == len(firsts)
    found, compared = [], 0
    for place, new in enumerate(new_rows):
        row = rows[firsts.index(new[0])] if by_first and new[0] in firsts else rows[place] if place < len(rows) else None
        if row is None:
            found.append(f"{path}, {name}: no row {' | '.join(new)}")
            continue
        for column, cell in zip(columns, new):
            if "?" in cell:
                continue
            compared += 1
            if row[column] != cell:
                found.append(f"{path}, {name}, row {place + 1} ({' | '.join(row[:3])}), {heads[column] or 'last column'}: "
                             f"the page prints {row[column]!r}, computed anew it is {cell!r}")
    return found, compared


def check(path, made):
    """Compares tables with those of a page, prints the differences, and exits with 1 if there are any."""
    failed, compared = [], 0
    for name, table in made.items():
        found, count = differences(path, name, table)
        failed += found
        compared += count
        if not found and not count:
            failed.append(f"{path}, {name}: nothing was compared")
    for line in failed:
        print(line, file=sys.stderr)
    if failed:
        command = " ".join(sys.argv).replace("--check", "--into")
        print(f"Where the change is meant, make the tables anew: {command} (without --runs and the like)", file=sys.stderr)
    print(f"{path}: {compared} cells computed anew, {len(failed)} differ")
    sys.exit(bool(failed))
