"""What homes made of other journals' transactions: joins it with the decisions, and checks it.

The journal that decides hands a transaction over to the home of a topic. The home adopts it, in the
order of that journal, and places it or refuses. What it refuses gets a marker
(docs/decisions/0028).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from .facts import Facts
from .findings import Evidence, Findings, decided, in_journal
from .journal import METADATA, Adoption, Fate, Journal, Partition


def join_homes(journals: Mapping[int, Journal]) -> None:
    """Tells each decision what the homes made of it: `answers`, `unmarked`, `places`."""
    for home in journals.values():
        for adoption in home.adoptions:
            decider = journals.get(adoption.txid.partition)
            fate = None if decider is None else decider.fate(adoption.txid)
            if fate is not None:
                _answer(home, adoption, fate)


def _answer(home: Journal, adoption: Adoption, fate: Fate) -> None:
    for partition in adoption.writes:
        if fate.handed.get(partition) != home.number:
            continue
        fate.answers[partition] = adoption
        if adoption.is_unmarked(partition):
            fate.unmarked.add(partition)
            if partition in adoption.places:
                fate.places[partition] = adoption.places[partition]


def check_adoptions(facts: Facts, found: Findings) -> None:
    """Finds adoption-mismatch, and missing-place of what is handed over."""
    for home in facts.journals.values():
        last: dict[tuple[int, int], Adoption] = {}
        for adoption in home.adoptions:
            _check_order(home, adoption, last.get(adoption.txid.journal), found)
            last[adoption.txid.journal] = adoption
            for wrong, *evidence in _wrong(facts, home, adoption):
                sentence = f"the home of journal[{home.number}] adopts {adoption.txid} {wrong}"
                found.add("adoption-mismatch", sentence, _adopts(home, adoption), *evidence)
        for again in home.adopted_again:
            first = _adopts(home, home.adopted[again.txid])
            sentence = f"{again.txid} is adopted twice"
            found.add("adoption-mismatch", sentence, first, _adopts(home, again))
    for journal in facts.journals.values():
        for fate in journal.decisions:
            for partition in sorted(fate.handed):
                _check_answered(facts, journal, fate, partition, found)


def _adopts(home: Journal, adoption: Adoption) -> Evidence:
    what = f"ADOPT {adoption.txid}, commit sequence {adoption.commit_sequence} there"
    return in_journal(home.number, adoption.offset, what)


def _check_order(
    home: Journal, adoption: Adoption, before: Adoption | None, found: Findings
) -> None:
    if before is not None and before.more and before.txid != adoption.txid:
        found.add(
            "adoption-mismatch",
            f"{adoption.txid} is adopted before the rest of {before.txid}",
            _adopts(home, before),
            _adopts(home, adoption),
        )
    if before is not None and before.commit_sequence > adoption.commit_sequence:
        found.add(
            "adoption-mismatch",
            f"{adoption.txid} is adopted behind {before.txid}, which was decided later",
            _adopts(home, before),
            _adopts(home, adoption),
        )


def _wrong(
    facts: Facts, home: Journal, adoption: Adoption
) -> Iterator[tuple[str, *tuple[Evidence, ...]]]:
    """Yields what does not fit the decision or the topic's mode, with evidence."""
    for partition, writes in adoption.writes.items():
        if not writes.is_placed or home.is_placed_at(partition, writes.topic_id, adoption.offset):
            continue
        topic, number = partition
        step = home.mode_at(topic, writes.topic_id, adoption.offset)
        if step is None and home.start > 0:
            facts.unverifiable["place whose switch was trimmed"] += 1
        else:
            yield (f"to place it in {topic}[{number}], which is not in {METADATA} mode",)
    decider = facts.journals.get(adoption.txid.partition)
    if decider is None:
        yield ("of a journal that there is not",)
    elif not decider.start <= adoption.commit_sequence < decider.end:
        facts.unverifiable["adoption of a decision that is not in the dump"] += 1
    else:
        yield from _differs(home, adoption, decider.fate(adoption.txid))


def _differs(
    home: Journal, adoption: Adoption, fate: Fate | None
) -> Iterator[tuple[str, *tuple[Evidence, ...]]]:
    if fate is None or fate.decided is None:
        yield ("which is not decided",)
        return
    if (fate.decided, fate.committed) != (adoption.commit_sequence, adoption.committed):
        yield "as something else than it was decided", decided(fate)
    for partition, writes in adoption.writes.items():
        topic, number = partition
        if fate.handed.get(partition) != home.number:
            yield f"in {topic}[{number}], which is not handed over to it", decided(fate)
        elif writes.is_placed and sorted(writes.ranges) != sorted(fate.writes.get(partition, ())):
            yield f"with other records in {topic}[{number}] than its decision has", decided(fate)


def _check_answered(
    facts: Facts, journal: Journal, fate: Fate, partition: Partition, found: Findings
) -> None:
    if fate.finished is None or fate.finished >= journal.end_before_data:
        return
    answer, home = fate.answers.get(partition), facts.journals.get(fate.handed[partition])
    if answer is None and home is not None and home.start > 0:
        facts.unverifiable["adoption that may have been trimmed"] += 1
        return
    what = f"{fate.txid} is finished, and "
    if answer is None:
        what += f"journal[{fate.handed[partition]}] did not adopt it for"
    elif fate.lacks_place(partition):
        what += "has no place, for which it was adopted, in"
    else:
        return
    found.add(
        "missing-place",
        f"{what} {partition[0]}[{partition[1]}]",
        decided(fate),
        in_journal(journal.number, fate.finished, "all its places are given"),
    )
