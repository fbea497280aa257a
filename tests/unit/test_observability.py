"""The board, the rules and the configuration of Prometheus use metrics that there are."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

ROOT = Path(__file__).resolve().parents[2]
FOLDER = ROOT / "observability"
BOARD = json.loads((FOLDER / "grafana/boards/lowtide.json").read_text(encoding="utf-8"))
RULES = {
    name: yaml.safe_load((FOLDER / f"prometheus/{name}.yml").read_text(encoding="utf-8"))
    for name in ("alerts", "confluent")
}
SERVED = set(re.findall(r"^\| `(\w+)` \|", (ROOT / "docs/metrics.md").read_text(encoding="utf-8"), re.MULTILINE))
PAGE = (ROOT / "docs/observability.md").read_text(encoding="utf-8")


def expressions(node: Any) -> Iterator[str]:
    """All of a document, in any depth."""
    if isinstance(node, dict):
        for key, value in node.items():
            if key in ("expr", "definition"):
                yield value
            else:
                yield from expressions(value)
    elif isinstance(node, list):
        for each in node:
            yield from expressions(each)


def rules(name: str) -> list[dict[str, Any]]:
    return [rule for group in RULES[name]["groups"] for rule in group["rules"]]


def names(expression: str) -> set[str]:
    found = re.findall(r"\b(?:kafka|lowtide|process)_\w+", re.sub(r'"[^"]*"', "", expression))
    return {name if name in SERVED else re.sub(r"_(bucket|count)$", "", name) for name in found}


@pytest.mark.parametrize("document", [BOARD, RULES["alerts"], RULES["confluent"]], ids=["board", "alerts", "confluent"])
def test_every_metric_is_served(document):
    used = set().union(*map(names, expressions(document)))
    assert len(used) > 5
    assert used - SERVED == set()


def test_no_two_panels_overlap_and_each_says_what_it_shows():
    taken: set[tuple[int, int]] = set()
    for panel in BOARD["panels"]:
        place = panel["gridPos"]
        cells = {
            (x, y)
            for x in range(place["x"], place["x"] + place["w"])
            for y in range(place["y"], place["y"] + place["h"])
        }
        assert not cells & taken, panel["title"]
        assert place["x"] + place["w"] <= 24
        taken |= cells
        assert panel["type"] == "row" or panel["description"].endswith("."), panel["title"]
    identifiers = [panel["id"] for panel in BOARD["panels"]]
    assert len(identifiers) == len(set(identifiers))


def test_each_alert_has_a_section_on_the_page():
    for rule in rules("alerts"):
        assert rule["labels"]["severity"] in ("warning", "critical")
        assert set(rule["annotations"]) == {"summary", "description"}
        assert f"| `{rule['alert']}` |" in PAGE


def test_each_alert_has_a_case_in_which_it_fires_and_one_in_which_it_does_not():
    """`promtool test rules` runs them (tests/interop)."""
    cases = yaml.safe_load((ROOT / "tests/interop/alerts_test.yml").read_text(encoding="utf-8"))["tests"]
    asked = [(case["alertname"], bool(case["exp_alerts"])) for test in cases for case in test["alert_rule_test"]]
    assert set(asked) == {(rule["alert"], fires) for rule in rules("alerts") for fires in (True, False)}


def test_recorded_names_are_others():
    """Or with another job: a series isn't there twice."""
    for rule in rules("confluent"):
        assert rule["record"] not in SERVED or rule["labels"]["job"] == "kafka-controller"


def test_the_scrapes_set_the_labels_that_boards_filter_by():
    for name in ("prometheus", "compose"):
        (scrape,) = yaml.safe_load((FOLDER / f"prometheus/{name}.yml").read_text(encoding="utf-8"))["scrape_configs"]
        labels = {each["target_label"] for each in scrape["relabel_configs"]}
        assert labels == {
            "env",
            "namespace",
            "kubernetes_namespace",
            "container",
            "pod",
            "kubernetes_pod_name",
            "strimzi_io_cluster",
            "strimzi_io_name",
        }
        assert scrape["job_name"] == "kafka-broker"
        assert "password_file" in scrape["basic_auth"]
