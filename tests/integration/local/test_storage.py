"""Storage that is formatted without Kafka's tool, once the tool has shown what it writes."""

from __future__ import annotations

from pathlib import Path

import pytest

from logtx.integration.local.cluster import LocalKafka
from logtx.integration.local.errors import BrokerStartError
from logtx.integration.local.storage import Features, is_formatted

from .fake_java import fake_java

LIKE_THE_TOOL = """
for argument in "$@"; do
  case "$argument" in --config=*) config="${argument#--config=}" ;; esac
done
data="$(dirname "$config")/data"
mkdir "$data" && echo levels > "$data/bootstrap.checkpoint" && echo ids > "$data/meta.properties"
"""


def formatted_by_the_tool(data: Path) -> Path:
    """Writes what Kafka's tool writes."""
    data.mkdir()
    (data / "bootstrap.checkpoint").write_bytes(b"levels")
    (data / "meta.properties").write_text("version=1\n")
    return data


def ids(data: Path) -> dict[str, str]:
    lines = (data / "meta.properties").read_text().splitlines()
    return dict(line.split("=", 1) for line in lines if "=" in line)


def test_the_first_storage_needs_the_tool(tmp_path: Path) -> None:
    features, data = Features(tmp_path / "kept"), tmp_path / "data"
    assert not features.format(data, cluster_id="c", broker_id=1)
    assert not is_formatted(data)


def test_storages_have_the_same_features_and_ids_of_their_own(tmp_path: Path) -> None:
    features = Features(tmp_path / "cache" / "kept")
    features.keep(formatted_by_the_tool(tmp_path / "first"))
    for broker_id in (1, 2):
        assert features.format(tmp_path / str(broker_id), cluster_id="c", broker_id=broker_id)
    one, two = tmp_path / "1", tmp_path / "2"
    assert is_formatted(one)
    assert (one / "bootstrap.checkpoint").read_bytes() == b"levels"
    found = ids(one)
    assert len(found.pop("directory.id")) == 22
    assert found == {"version": "1", "cluster.id": "c", "node.id": "1"}
    assert ids(two)["node.id"] == "2"
    assert ids(two)["directory.id"] != ids(one)["directory.id"]


def test_a_storage_without_features_is_not_kept(tmp_path: Path) -> None:
    features, data = Features(tmp_path / "kept"), tmp_path / "data"
    data.mkdir()
    features.keep(data)
    assert not features.format(data, cluster_id="c", broker_id=1)


def test_a_cache_that_cannot_be_written_is_no_loss(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    features = Features(tmp_path / "file" / "kept")
    features.keep(formatted_by_the_tool(tmp_path / "data"))
    assert not features.format(tmp_path / "other", cluster_id="c", broker_id=1)


def test_the_tool_runs_once_for_all_clusters(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    runs = tmp_path / "runs"
    fake_java(tmp_path, monkeypatch, format=f"echo run >> {runs}\n{LIKE_THE_TOOL}", run="exit 5")
    for name in ("one", "two"):
        with pytest.raises(BrokerStartError, match="exit status 5"):
            LocalKafka(tmp_path / name).start()
        assert (tmp_path / name / "data" / "bootstrap.checkpoint").read_text() == "levels\n"
    assert runs.read_text() == "run\n"
    assert ids(tmp_path / "two" / "data")["node.id"] == "1"
