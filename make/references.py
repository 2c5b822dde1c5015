"""Checks that every reference in the code and the docs leads somewhere.

    python make/references.py

Checked are links and their anchors, paths of files, decisions and traps by number, sources by name
and section, and names of code in backticks. Prints each reference that leads nowhere and ends with
status 1; needs nothing but Python.
"""

from __future__ import annotations

import ast
import io
import re
import subprocess
import sys
import tokenize
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Final, NamedTuple

ROOT: Final = Path(__file__).resolve().parents[1]
ROOMS: Final = "journal|coordinator|producer|consumer|integration|chaos|tests|benchmarks|docs|make"
PATH: Final = re.compile(
    rf"(?<![\w/.-])(?:{ROOMS})/[\w./-]*\w\.(?:py|md|proto|txt|sh|lock|in|avsc)\b"
)
LINK: Final = re.compile(r"\]\((?!https?:)([^)#\s]*)(?:#([^)\s]*))?\)")
DECISION: Final = re.compile(r"\bdecisions?[ /]0*(\d+)\b")
TRAPS: Final = re.compile(
    r"(?<![A-Za-z])[Tt]raps?[ _]((?:\d+)(?:(?:, | and | to |_and_|_)\d+)*)(?!\d)"
)
TRAP: Final = re.compile(r"^\*\*(\d+)\.\*\*(.*?)(?=^\*\*\d+\.\*\*|^## |\Z)", re.M | re.S)
QUOTED: Final = r"\"[^\"]+\"(?: \([^)]*\))?"
CODE: Final = re.compile(r"(?<!`)`([A-Za-z_][\w.]*)(?:\([^`]*\))?`(?!`)")
NAME_LIKE: Final = re.compile(r"\w*[a-z]_[a-z]\w*|_\w+|[A-Z][a-z]+[A-Z]\w*|[A-Z][A-Z\d]*_[A-Z\d_]+")

FOREIGN: Final = frozenset(
    {
        *("AlterConsumerGroupOffsets", "ListConsumerGroupOffsets", "IllegalStateException"),
        *("rd_kafka_cgrp_op", "rd_kafka_handle_OffsetFetch", "bytes_per_sync", "preexec_fn"),
        *("__consumer_offsets", "__transaction_key", "pulsar_txn_transaction_key_count"),
        *("pulsar_txn_transaction_key_age", "pulsar_txn_transaction_key_epoch"),
        *("on_acknowledgement", "on_send"),
        "pulsar_txn_metadata_store_op_writes_total",
        "pulsar_txn_metadata_store_header_cas_total",
        "pulsar_txn_metadata_store_index_query_seconds",
        "pulsar_txn_metadata_store_outstanding_op_records",
    }
)
"""Names from others' code that the pages mention and our code does not use."""


class Text(NamedTuple):
    """The prose of a file: a page, or the docstrings and comments of a module."""

    path: str
    words: str


def files(*suffixes: str) -> list[str]:
    """Returns the files that git tracks or could add, and whose names end with a suffix."""
    listed = subprocess.run(
        ["git", "ls-files", "-co", "--exclude-standard"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=True,
    )
    found = (name for name in listed.stdout.splitlines() if (ROOT / name).is_file())
    return [name for name in found if name.endswith(suffixes) and "_pb2" not in name]


@cache
def read(name: str) -> str:
    """Returns a file's text."""
    return (ROOT / name).read_text("utf-8")


def prose(name: str) -> str:
    """Returns the docstrings and comments of a module, each paragraph on one line."""
    tree = ast.parse(read(name))
    parts = [
        node.value.value
        for node in ast.walk(tree)
        if isinstance(node, ast.Expr)
        and isinstance(node.value, ast.Constant)
        and isinstance(node.value.value, str)
    ]
    tokens = tokenize.generate_tokens(io.StringIO(read(name)).readline)
    comments = "\n".join(t.string.lstrip("# ") for t in tokens if t.type == tokenize.COMMENT)
    return "\n\n".join([*parts, comments])


def texts() -> Iterator[Text]:
    """Yields every page, and the prose of every module."""
    for name in files(".md", ".txt"):
        yield Text(name, read(name))
    for name in files(".py"):
        yield Text(name, prose(name))


def unfold(text: str) -> str:
    """Returns a text with each paragraph on one line."""
    return re.sub(r"[ \t]*\n(?:[ \t]*# ?)?[ \t]*(?=\S)", " ", text)


# ---- links, paths, decisions --------------------------------------------------------------------


def anchors(page: str) -> set[str]:
    """Returns the anchors of a page's headings, as GitHub makes them."""
    titles = re.findall(r"^#+ (.*)$", read(page), re.M)
    return {re.sub(r"[^\w -]", "", title.lower()).replace(" ", "-") for title in titles}


def dead_links(page: Text) -> Iterator[str]:
    """Yields the links of a page that lead to no file or heading."""
    for target, anchor in LINK.findall(page.words):
        path = (ROOT / page.path).parent / target if target else ROOT / page.path
        if not path.exists():
            yield f"links to {target}"
        elif anchor and anchor not in anchors(path.resolve().relative_to(ROOT).as_posix()):
            yield f"links to {target}#{anchor}"


def dead_paths(text: Text) -> Iterator[str]:
    """Yields paths of files that don't exist."""
    for path in PATH.findall(text.words):
        if not (ROOT / path).exists():
            yield f"names {path}"


def dead_decisions(text: Text) -> Iterator[str]:
    """Yields numbers of decisions that were not written down."""
    for number in DECISION.findall(unfold(text.words)):
        if not list((ROOT / "docs/decisions").glob(f"{int(number):04}-*.md")):
            yield f"names decision {number}"


# ---- traps --------------------------------------------------------------------------------------


def numbers(listed: str) -> set[int]:
    """Returns the numbers of a list such as `1 to 3, 7 and 9`."""
    found = set[int]()
    for part in re.split(r", | and |_and_|_", listed):
        first, _, last = part.partition(" to ")
        found.update(range(int(first), int(last or first) + 1))
    return found


def traps_in(words: str) -> set[int]:
    """Returns the numbers of all traps that a text cites."""
    return {n for listed in TRAPS.findall(unfold(words)) for n in numbers(listed)}


def bad_traps(everything: list[Text]) -> Iterator[tuple[str, str]]:
    """Yields citations of traps that don't exist, and tests of a trap that don't cite it."""
    page = "docs/traps.md"
    told = {int(number): body for number, body in TRAP.findall(read(page))}
    for text in everything:
        if text.path != page:
            for number in sorted(traps_in(text.words) - told.keys()):
                yield text.path, f"names trap {number}"
    for number, body in told.items():
        tests = re.findall(r"`(tests/[^`]+)`", body)
        if not tests:
            yield page, f"trap {number} names no test"
        for test in tests:
            if (ROOT / test).exists() and number not in traps_in(read(test)):
                yield page, f"{test} doesn't cite trap {number}"


# ---- sources ------------------------------------------------------------------------------------


def bad_sources(everything: list[Text]) -> Iterator[tuple[str, str]]:
    """Yields citations of sections that `docs/sources.md` lacks, or lacks for this module."""
    page = "docs/sources.md"
    rows: dict[tuple[str, str], str] = {}
    names = []
    for chapter in read(page).split("\n## ")[1:]:
        name, _, body = chapter.partition("\n")
        names.append(name)
        for section, here in re.findall(r"^\| \"([^\"]+)\" \| (.*) \|$", body, re.M):
            rows[name, section] = here
    cited = re.compile(rf"\b({'|'.join(names)}), ({QUOTED}(?:(?:,| and|;) {QUOTED})*)")
    for text in everything:
        if not text.path.endswith(".py") or text.path.startswith("tests/"):
            continue
        for name, sections in cited.findall(unfold(text.words)):
            for section in re.findall(r"\"([^\"]+)\"", sections):
                if (name, section) not in rows:
                    yield text.path, f"cites {name}, {section!r}"
                elif f"`{text.path}`" not in rows[name, section]:
                    yield page, f"{text.path} is missing at {name}, {section!r}"


# ---- names of code ------------------------------------------------------------------------------


@cache
def vocabulary() -> frozenset[str]:
    """Returns every word of the code: names, and words in strings other than docstrings."""
    words = {Path(name).stem for name in files("")}
    for name in files(".py", ".pyi", ".proto", ".toml", ".sh", ".avsc", "Makefile"):
        if not name.endswith(".py"):
            words.update(re.findall(r"\w+", read(name)))
            continue
        previous = tokenize.INDENT
        for token in tokenize.generate_tokens(io.StringIO(read(name)).readline):
            if token.type == tokenize.NAME:
                words.add(token.string)
            elif token.type not in {tokenize.COMMENT, tokenize.NL} and not (
                token.type == tokenize.STRING
                and previous in {tokenize.INDENT, tokenize.DEDENT, tokenize.NEWLINE}
            ):
                words.update(re.findall(r"\w+", token.string))
            if token.type not in {tokenize.COMMENT, tokenize.NL}:
                previous = token.type
    return FOREIGN | words


def dead_names(text: Text) -> Iterator[str]:
    """Yields names of code in backticks that occur nowhere in the code."""
    for found in CODE.findall(text.words):
        for part in found.split("."):
            # The exporter puts the first word before a metric's name.
            if NAME_LIKE.fullmatch(part) and not {part, part.removeprefix("logtx_")} & vocabulary():
                yield f"names `{found}`"


def main() -> int:
    """Prints every reference that leads nowhere; returns 1 if there is any, else 0."""
    everything = list(texts())
    found = [
        (text.path, why)
        for text in everything
        for check in (dead_links, dead_paths, dead_decisions, dead_names)
        if check is not dead_links or text.path.endswith(".md")
        for why in check(text)
    ]
    found += [*bad_traps(everything), *bad_sources(everything)]
    for path, why in sorted(set(found)):
        print(f"{path}: {why}")
    return min(len(found), 1)


if __name__ == "__main__":
    sys.exit(main())
