// Groups: how far they are behind, who reads, and changes of what they have committed.
import * as api from "./api.js";
import { badge, figures, h, head, link, notice, panel, set } from "./dom.js";
import { offsetChanges } from "./offsets.js";
import { table } from "./table.js";
import { count, plural } from "./units.js";

const GOOD = new Set(["stable"]);

export function groupsPage(main) {
  const live = h("span", { class: "live still" }, "Connecting");
  const trouble = h("div", { role: "alert" });
  const groups = table({
    caption: "Groups",
    filter: "Filter by name",
    empty: "There is no group that you may see.",
    rowKey: (row) => row.group,
    sorted: { key: "lag", down: true },
    columns: [
      { title: "Group", key: "group", text: (row) => row.group, sort: (row) => row.group, cell: (row) => link(row.group, "group", { group: row.group }, { class: "name" }) },
      { title: "State", sort: (row) => row.state, text: (row) => row.state, cell: (row) => stateOf(row.state) },
      { title: "Lag", key: "lag", number: true, sort: (row) => row.lag, cell: (row) => count(row.lag) },
      { title: "Topics", number: true, sort: (row) => row.topics, cell: (row) => count(row.topics) },
      { title: "Partitions", number: true, sort: (row) => row.partitions, cell: (row) => count(row.partitions) },
      { title: "Kind", sort: (row) => row.kind, cell: (row) => row.kind || row.protocol || "–" },
      { title: "Coordinator", number: true, sort: (row) => row.coordinator, cell: (row) => row.coordinator },
    ],
  });
  main.append(head("Groups", { beside: live }), trouble, panel("All groups", { aside: "lag is in offsets, without what is deleted by now" }, groups.element));
  return api.watch("groups", {}, (value) => {
    groups.show(value.groups);
    const left = value.without_lag ? [`The lag of ${plural(value.without_lag, "group")} was not looked up: there are too many.`] : [];
    set(trouble, [...value.errors, ...left].map((each) => notice("warning", each)));
  }, mood(live, trouble));
}

function mood(live, trouble) {
  return (sentence) => {
    live.className = sentence ? "live away" : "live";
    live.textContent = sentence ? "Not connected" : "Live";
    if (sentence) set(trouble, notice("trouble", sentence));
  };
}

function stateOf(state) {
  const known = state.toLowerCase();
  return badge(state || "unknown", GOOD.has(known) ? "good" : known.includes("rebalanc") || known === "assigning" || known === "reconciling" ? "warn" : "");
}

export function groupPage(main, given, { session }) {
  const name = given.group ?? "";
  const live = h("span", { class: "live still" }, "Connecting");
  const trouble = h("div", { role: "alert" });
  const numbers = h("div");
  const members = table({
    caption: `Members of ${name}`,
    tall: false,
    empty: "It has no members: its offsets can be reset.",
    rowKey: (row) => row.id,
    columns: [
      { title: "Member", cell: (row) => h("span", { class: "name mono" }, row.id) },
      { title: "Client", cell: (row) => h("span", { class: "name" }, row.client) },
      { title: "Instance", cell: (row) => row.instance ?? "–" },
      { title: "Host", cell: (row) => row.host },
      { title: "Partitions", number: true, cell: (row) => count(row.partitions.length) },
    ],
  });
  const partitions = table({
    caption: `Offsets of ${name}`,
    filter: "Filter by topic",
    empty: "It has committed nothing.",
    rowKey: (row) => `${row.topic}-${row.partition}`,
    sorted: { key: "lag", down: true },
    columns: [
      { title: "Topic", text: (row) => row.topic, sort: (row) => row.topic, cell: (row) => link(row.topic, "topic", { topic: row.topic, partition: row.partition }, { class: "name" }) },
      { title: "Partition", number: true, sort: (row) => row.partition, cell: (row) => row.partition },
      { title: "Committed", number: true, sort: (row) => row.committed, cell: (row) => (row.committed === null ? badge("no commit") : count(row.committed)) },
      { title: "Log start", number: true, sort: (row) => row.log_start, cell: (row) => count(row.log_start) },
      { title: "High watermark", number: true, sort: (row) => row.high_watermark, cell: (row) => count(row.high_watermark) },
      { title: "Lag", key: "lag", number: true, sort: (row) => row.lag, cell: (row) => count(row.lag) },
      { title: "Read by", cell: (row) => h("span", { class: "name mono" }, row.reader ?? "–") },
    ],
  });
  const change = offsetChanges(name, session.write, trouble);
  main.append(head(name, { beside: live, actions: change.actions }), trouble, numbers, panel("Members", {}, members.element), panel("Offsets", {}, partitions.element));

  return api.watch("group", { group: name }, (value) => {
    members.show(value.members);
    partitions.show(value.partitions);
    change.show(value.partitions);
    const lag = value.partitions.reduce((sum, row) => sum + Number(row.lag ?? 0), 0);
    set(numbers, figures([["State", stateOf(value.state)], ["Lag", count(lag)], ["Members", count(value.members.length)], ["Partitions", count(value.partitions.length)],
      ["Assignor", value.assignor || "–"], ["Coordinator", value.coordinator]]));
    if (value.errors.length) set(trouble, value.errors.map((each) => notice("warning", each)));
  }, mood(live, trouble));
}
