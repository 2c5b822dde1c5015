"""Cycles among committed transactions: write-write (g0), and with reads (g1c).

The graph has two kinds of edges. *ww*: T1 → T2 if T2's writes come directly behind T1's. For logtx
this is per data partition, in the order of delivery, among the transactions of one journal
partition: their order is promised to be the same everywhere. Between different journal partitions
no order is promised. For Kafka this is per key, in the order of the log, because a partition's
order interleaves transactions. *wr*: T1 → T2 if T2 made an output of a record of T1.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Hashable, Iterator
from typing import Final, NamedTuple

from .facts import KAFKA, Facts
from .findings import Evidence, Findings, at, lies
from .history import Op
from .journal import Partition

Node = str
"""Name of an operation."""


class Edge(NamedTuple):
    """One transaction precedes another, shown by two places in the logs."""

    kind: str
    at: tuple[Partition, int]
    """Place of the one that precedes."""
    then: tuple[Partition, int]


Graph = dict[Node, dict[Node, Edge]]


class _Span(NamedTuple):
    """Where a transaction's writes to one register begin and end."""

    first: int
    last: int
    first_at: tuple[Partition, int]
    last_at: tuple[Partition, int]


Spans = dict[Hashable, dict[Node, _Span]]
LOOKED_AT: Final = 200
"""Transactions of a component that are compared in pairs for the shortest cycle. The time grows
with its square; with a smaller value a longer cycle may be shown."""
STARTS: Final = 20
"""Transactions of a component from which the shortest cycle is searched along the edges. More of
them take longer, fewer may show a longer cycle."""


def check_cycles(facts: Facts, found: Findings) -> None:
    """Finds g0, and g1c if reads are part of the cycle."""
    writes, spans = _write_graph(facts)
    for component in _cyclic(writes):
        wide = _precedences(spans, component[:LOOKED_AT])
        cycle = _shortest_cycle(wide, component)
        if cycle:
            _report(facts, "g0", wide, cycle, found)
        else:
            _report(facts, "g0", writes, _shortest_cycle(writes, component), found)
    whole = {node: dict(edges) for node, edges in writes.items()}
    for one, other, edge in _reads(facts):
        whole.setdefault(one, {}).setdefault(other, edge)
    for component in _cyclic(whole):
        cycle = _shortest_cycle(whole, component)
        if any(edge.kind == "wr" for edge in _edges(whole, cycle)):
            _report(facts, "g1c", whole, cycle, found)


def _write_graph(facts: Facts) -> tuple[Graph, Spans]:
    graph: Graph = {}
    spans: Spans = {}
    last: dict[Hashable, Node] = {}
    count = 0
    for view, offset, value in facts.delivered_order():
        op = facts.op_of(value)
        if op is None:
            continue
        place, count = (view.partition, offset), count + 1
        register = _register(facts, op, view.partition, value)
        known = spans.setdefault(register, {})
        before = last.get(register)
        last[register] = op.name
        if before is not None and before != op.name:
            edge = Edge("ww", known[before].last_at, place)
            graph.setdefault(before, {}).setdefault(op.name, edge)
        span = known.get(op.name)
        first, first_at = (count, place) if span is None else (span.first, span.first_at)
        known[op.name] = _Span(first, count, first_at, place)
    return graph, spans


def _precedences(spans: Spans, nodes: list[Node]) -> Graph:
    """Returns which transactions precede which, even with others in between."""
    graph: Graph = {}
    for known in spans.values():
        here = [(node, known[node]) for node in nodes if node in known]
        for one, span in here:
            for other, behind in here:
                if one != other and span.first < behind.last:
                    edge = Edge("ww", span.first_at, behind.last_at)
                    graph.setdefault(one, {}).setdefault(other, edge)
    return graph


def _register(facts: Facts, op: Op, partition: Partition, value: int) -> Hashable:
    if facts.system == KAFKA:
        return partition, facts.history.appends[value].key
    txid = facts.txid(op)
    return partition, None if txid is None else txid.journal


def _reads(facts: Facts) -> Iterator[tuple[Node, Node, Edge]]:
    for op in facts.history.ops.values():
        if not facts.committed(op):
            continue
        for append in op.appends:
            if append.source is None or append.value not in facts.where:
                continue
            partition = facts.input_topic, append.source[0]
            view = facts.views.get(partition)
            record = None if view is None else view.records.get(append.source[1])
            writer = None if record is None else facts.op_of(record.value)
            if writer is not None and writer is not op:
                place = partition, append.source[1]
                yield writer.name, op.name, Edge("wr", place, facts.where[append.value])


def _edges(graph: Graph, cycle: list[Node]) -> list[Edge]:
    return [graph[one][other] for one, other in zip(cycle, cycle[1:] + cycle[:1], strict=True)]


def _report(facts: Facts, name: str, graph: Graph, cycle: list[Node], found: Findings) -> None:
    evidence: list[Evidence] = []
    for edge, node in zip(_edges(graph, cycle), cycle, strict=True):
        verb = "was read at" if edge.kind == "wr" else "comes before"
        what = f"{node} {verb} {at(*edge.then)}: {lies(facts, *edge.then).what}"
        evidence.append(Evidence(at(*edge.at), what))
    round_trip = " → ".join([*cycle, cycle[0]])
    found.add(name, f"{len(cycle)} transactions precede each other: {round_trip}", *evidence)


def _cyclic(graph: Graph) -> Iterator[list[Node]]:
    return (component for component in _components(graph) if len(component) > 1)


def _shortest_cycle(graph: Graph, component: list[Node]) -> list[Node]:
    inside = set(component)
    best: list[Node] = []
    for start in component[:STARTS]:
        cycle = _cycle_through(graph, start, inside)
        if cycle and (not best or len(cycle) < len(best)):
            best = cycle
        if len(best) == 2:
            break
    return best


def _cycle_through(graph: Graph, start: Node, inside: set[Node]) -> list[Node]:
    came_from: dict[Node, Node] = {}
    queue = deque([start])
    while queue:
        node = queue.popleft()
        for after in graph.get(node, ()):
            if after == start:
                path = [node]
                while path[-1] != start:
                    path.append(came_from[path[-1]])
                return path[::-1]
            if after in inside and after not in came_from:
                came_from[after] = node
                queue.append(after)
    return []


def _components(graph: Graph) -> Iterator[list[Node]]:
    """Yields strongly connected components (Tarjan), without recursion."""
    index: dict[Node, int] = {}
    low: dict[Node, int] = {}
    stack: list[Node] = []
    on_stack: set[Node] = set()
    for root in graph:
        if root in index:
            continue
        work: list[tuple[Node, Iterator[Node]]] = [(root, iter(graph.get(root, ())))]
        index[root] = low[root] = len(index)
        stack.append(root)
        on_stack.add(root)
        while work:
            node, following = work[-1]
            after = next(following, None)
            if after is None:
                work.pop()
                if work:
                    parent = work[-1][0]
                    low[parent] = min(low[parent], low[node])
                if low[node] == index[node]:
                    yield _unwind(stack, on_stack, node)
            elif after not in index:
                index[after] = low[after] = len(index)
                stack.append(after)
                on_stack.add(after)
                work.append((after, iter(graph.get(after, ()))))
            elif after in on_stack:
                low[node] = min(low[node], index[after])


def _unwind(stack: list[Node], on_stack: set[Node], until: Node) -> list[Node]:
    component: list[Node] = []
    while not component or component[-1] != until:
        component.append(stack.pop())
        on_stack.discard(component[-1])
    return component
