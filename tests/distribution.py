"""Gives files of tests to the processes of pytest-xdist: which ones together, and in which order.

A process loads a file when its turn comes. Loading all 7,700 tests takes 12 s of CPU, which each
process would spend before the first test. So a process collects one `WholeFile` for each file of
tests, and that is what pytest-xdist gives out. Its turn come, it loads the file and runs the tests
in it: reports, marks, `-k` and `-m` are those of the tests.
"""

from __future__ import annotations

import gc
from collections.abc import Generator, Iterator
from pathlib import Path
from typing import Any, Final

import pytest
from xdist.scheduler import LoadFileScheduling

ON_KAFKA: Final = (
    (
        "test_sidecars.py",
        "test_queues.py",
        "consumer/test_columns.py",
        "consumer/test_commits.py",
    ),
    (
        "consumer/test_interruptions.py",
        "test_end_to_end.py",
        "test_faults_kafka.py",
        "producer/test_sharing.py",
        "coordinator/runtime/test_markers_kafka.py",
    ),
    (
        "coordinator/test_service.py",
        "test_sidecars_grown.py",
        "test_sidecar_trimming.py",
        "test_sidecars_placed.py",
        "consumer/test_rebalance.py",
        "test_sidecar_compaction.py",
        "consumer/test_kafka_transactions.py",
        "journal/test_reader.py",
        "coordinator/server/test_retention.py",
    ),
    (
        "producer/test_over_frames.py",
        "consumer/test_consumer.py",
        "producer/test_transactions.py",
        "consumer/test_lag.py",
        "producer/test_branches.py",
        "journal/logs/test_contract.py",
        "coordinator/runtime/test_markers.py",
        "producer/test_confluent_style.py",
        "integration/local/test_broker.py",
        "consumer/test_dropped.py",
        "integration/test_pytest_plugin.py",
        "producer/test_dropped.py",
        "consumer/test_inquiries.py",
        "consumer/test_confluent_style.py",
        "producer/test_sender.py",
    ),
)
"""Files of the tests of `logtx_kafka`, which take about as long in each of these groups. A group is
given to one process: a Kafka costs twenty seconds of CPU in each process that has one."""


LONGEST: Final = (
    "integration/spark/test_sink.py",
    "test_places_kafka.py",
    "simulation/test_simulation.py",
    "consumer/test_share_topics.py",
    "integration/test_queue_blocks.py",
    "simulation/test_mutations.py",
    "consumer/test_share_sidecars.py",
    "search/test_search.py",
    "consumer/test_share_consumer.py",
    "test_failover_kafka.py",
    "integration/test_blocks.py",
    "histories/test_producer.py",
    "coordinator/transport/test_alive.py",
    "chaos/test_faults.py",
    "test_plain_reader_kafka.py",
    "test_secured_kafka.py",
    "journal/native/test_reader.py",
    "consumer/test_share_letters.py",
    "coordinator/test_ownership.py",
    "coordinator/transport/test_connections.py",
    "coordinator/test_topic_answers.py",
    "integration/demo/test_runs.py",
    "golden/test_golden.py",
    "coordinator/store/test_etcd_faults.py",
    "consumer/test_share_attaching.py",
    "consumer/test_share_rests.py",
    "coordinator/server/test_rules.py",
    "integration/cli/test_up.py",
    "search/test_trimming.py",
    # Nearly all of their tests are slow ones.
    "test_rules_kafka.py",
    "chaos/test_run.py",
    "integration/local/test_cluster.py",
    "integration/local/test_kafka_versions.py",
    "benchmarks/test_scenarios.py",
    "integration/demo/test_faults.py",
    "chaos/test_mutations.py",
    "integration/demo/test_spark.py",
)
"""Files that take longest, behind those of `ON_KAFKA`. If one of them began last, all other
processes would wait for it."""


WITH_ONE_CLUSTER: Final = (
    "integration/spark/",
    "test_groups_kafka.py",
    "integration/inspect/test_processes.py",
    "chaos/test_checker_dump.py",
)
"""Files and folders of the tests of `logtx_cluster` and of Spark. One process has them all: a Kafka
with a coordinator, and a Spark, cost half a minute of CPU in each process that starts them."""


def group_of(file: str) -> str:
    """Returns the group of a file of tests, which one process has: of many it is their own."""
    file = file.removeprefix("tests/")
    if file.startswith(WITH_ONE_CLUSTER):
        return "cluster"
    return next((f"kafka {n}" for n, files in enumerate(ON_KAFKA) if file in files), file)


def ends_its_group(item: pytest.Item, nextitem: pytest.Item | None) -> bool:
    """Returns whether an item's group shares a Kafka or a Spark, and the next item is of another.

    They take 1.4 s of CPU in each minute in which nobody asks them anything, and other files would
    follow for minutes. So a process ends them there, as if the session ended.
    """
    group = group_of(_file(item.nodeid))
    if not group.startswith(("kafka ", "cluster")):
        return False
    return nextitem is None or group_of(_file(nextitem.nodeid)) != group


def lacks_a_group(item: pytest.Item) -> bool:
    """Returns whether a test needs `logtx_kafka`, and its file is in no group that shares one."""
    fixtures = getattr(item, "fixturenames", ())
    given = getattr(getattr(item, "callspec", None), "params", {})
    of_a_log = "log" in fixtures and given.get("transport") == "kafka"
    alone = group_of(_file(item.nodeid)) == _file(item.nodeid).removeprefix("tests/")
    quick = item.get_closest_marker("slow") is None
    return alone and quick and (of_a_log or "logtx_kafka" in fixtures)


class ByGroup(LoadFileScheduling):
    """Gives each group of files to one process."""

    def _split_scope(self, nodeid: str) -> str:
        return group_of(super()._split_scope(nodeid))

    def _reschedule(self, node: Any) -> None:
        # A process needs to know the next item when it begins one. What it is given earlier waits
        # for the last files of its group, while others have nothing to do.
        if self._pending_of(self.assigned_work[node]) < 2:
            super()._reschedule(node)

    def mark_test_complete(self, node: Any, item_index: int, duration: float = 0) -> None:
        """Counts the file as done, also if none of its tests was to run."""
        if by_file(self.config):
            nodeid = self.registered_collections[node][item_index]
            _reporter(self.config)._progress_nodeids_reported.add(nodeid)
        super().mark_test_complete(node, item_index, duration)


class WholeFile(pytest.Item):
    """Stands for all tests of a file, which it loads and runs when its turn comes."""

    misplaced = False
    """Whether the tests may not be where they are: it then runs itself in their place and fails."""

    def run_all(self, nextitem: pytest.Item | None) -> None:
        """Loads the file and runs its tests, as if they stood in this item's place."""
        tests = self._load()
        if any(lacks_a_group(test) for test in tests):
            self.misplaced, tests = True, [self]
        place = self.session.items.index(self)
        for test, following in zip(tests, [*tests[1:], nextitem], strict=False):
            # pytest-xdist wants a report to be of the item that it gave out.
            self.session.items[place] = test
            self.config.hook.pytest_runtest_protocol(item=test, nextitem=following)
            if self.session.shouldfail or self.session.shouldstop:
                break
        self.session.items[place] = self
        if not tests:  # the test before left standing what it shares with this file
            kept = None if ends_its_group(self, nextitem) else nextitem
            self.session._setupstate.teardown_exact(kept)

    def _load(self) -> list[pytest.Item]:
        """Returns the tests that are to run. pytest reports what can't be loaded."""
        assert self.parent is not None
        module = pytest.Module.from_parent(self.parent.parent, path=self.path)
        gc.disable()  # nothing of what is loaded is garbage
        try:
            tests = list(self.session.genitems(module))
            self.config.hook.pytest_collection_modifyitems(
                session=self.session, config=self.config, items=tests
            )
        finally:
            gc.enable()
        return tests

    def runtest(self) -> None:
        """Fails, for it is misplaced."""
        why = f"Tests of {self.path.name} need logtx_kafka: add it to a group of ON_KAFKA."
        pytest.fail(why, pytrace=False)


class _Unloaded(pytest.File):
    """A file of tests in the place of its `pytest.Module`."""

    def collect(self) -> Iterator[pytest.Item]:
        whole = WholeFile.from_parent(self, name="all")
        whole.add_marker(pytest.mark.timeout(0))  # each test has a timeout of its own
        yield whole


class _Files(set[str]):
    """Files of which tests have begun. pytest would count tests, but of these it knows no total."""

    def add(self, nodeid: object) -> None:
        super().add(_file(str(nodeid)))


def _file(nodeid: str) -> str:
    return nodeid.partition("::")[0]


def _reporter(config: pytest.Config) -> Any:
    return config.pluginmanager.get_plugin("terminalreporter")


def by_file(config: pytest.Config) -> bool:
    """Returns whether processes of pytest-xdist get whole files. Single tests are named by `::`."""
    return config.getoption("dist") == "loadfile" and not any("::" in arg for arg in config.args)


# --- hooks of pytest and pytest-xdist


def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> ByGroup | None:
    """Takes the place of pytest-xdist's `--dist loadfile`."""
    if config.getoption("dist") != "loadfile":
        return None
    if by_file(config):
        _reporter(config)._progress_nodeids_reported = _Files()
    return ByGroup(config, log)


def pytest_configure_node(node: Any) -> None:
    """Tells a process, which is about to start, whether it gets whole files."""
    node.workerinput["by_file"] = by_file(node.config)


def pytest_pycollect_makemodule(module_path: Path, parent: pytest.Collector) -> Any:
    """Leaves a file unloaded in a process that gets whole files."""
    if not getattr(parent.config, "workerinput", {}).get("by_file"):
        return None
    return _Unloaded.from_parent(parent, path=module_path)


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> Generator[None, Any, Any]:
    """Puts the longest files first, and keeps the order of tests in each.

    `-k` and `-m` choose among tests: they never see an item that stands for a file.
    """
    files = [item for item in items if isinstance(item, WholeFile)]
    items[:] = [item for item in items if not isinstance(item, WholeFile)]
    result = yield
    here = Path(__file__).parent
    firsts = [*(file for group in ON_KAFKA for file in group), *LONGEST]
    places = {here / name: place for place, name in enumerate(firsts)}
    items += files
    items.sort(key=lambda item: (places.get(item.path, len(places)), item.path))
    return result


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_protocol(item: pytest.Item, nextitem: pytest.Item | None) -> bool | None:
    """Runs what a `WholeFile` stands for, and ends what a group shares with its last test."""
    if not hasattr(item.config, "workerinput"):
        return None
    if isinstance(item, WholeFile) and not item.misplaced:
        item.run_all(nextitem)
        return True
    if nextitem is not None and ends_its_group(item, nextitem):
        return bool(item.config.hook.pytest_runtest_protocol(item=item, nextitem=None))
    return None


def pytest_sessionfinish(session: pytest.Session) -> None:
    """Says by pytest's status that no test ran: files were collected all the same."""
    config = session.config
    alone = hasattr(config, "workerinput") or not by_file(config)
    if not (alone or session.exitstatus or _reporter(config).stats.get("")):
        session.exitstatus = pytest.ExitCode.NO_TESTS_COLLECTED
