// Groups: how far they are behind, who reads, and changes of what they have committed.
import * as api from "./api.js";
import { address, badge, figures, h, head, link, notice, panel, select, set } from "./dom.js";
import { offsetChanges } from "./offsets.js";
import { liveMark, stateOf } from "./page.js";
import { table } from "./table.js";
import { count, plural } from "./units.js";

const KINDS = [["", "All kinds"], ["classic", "Classic"], ["consumer", "Consumer (KIP-848)"], ["share", "Share"], ["streams", "Streams"]];

export function groupsPage(main, given) {
  const live = liveMark();
  const show = () => { location.hash = address("groups", { kind: kind.value || null, state: state.value || null }); };
  const kind = select(KINDS, given.kind ?? "", { "aria-label": "Kind of group", change: show });
  const state = select([["", "All states"], ...given.state ? [[given.state, given.state]] : []], given.state ?? "", { "aria-label": "State of group", change: show });
  const groups = table({
    caption: "Groups",
    filter: "Filter by name",
    empty: given.kind || given.state ? "There is no such group that you may see." : "There is no group that you may see.",
    rowKey: (row) => row.group,
    sorted: { key: "lag", down: true },
    columns: [
      { title: "Group", key: "group", text: (row) => row.group, sort: (row) => row.group, cell: (row) => link(row.group, "group", { group: row.group }, { class: "name" }) },
      { title: "State", sort: (row) => row.state, cell: (row) => stateOf(row.state) },
      { title: "Lag", key: "lag", number: true, sort: (row) => row.lag, cell: (row) => count(row.lag) },
      { title: "Topics", number: true, sort: (row) => row.topics, cell: (row) => count(row.topics) },
      { title: "Partitions", number: true, sort: (row) => row.partitions, cell: (row) => count(row.partitions) },
      { title: "Kind", sort: (row) => row.kind, cell: (row) => row.kind || row.protocol || "–" },
      { title: "Coordinator", number: true, sort: (row) => row.coordinator, cell: (row) => link(row.coordinator, "broker", { broker: row.coordinator }) },
    ],
  });
  main.append(head("Groups", { beside: live.mark }), live.trouble, panel("All groups", { aside: "lag is in offsets, without what is deleted by now", actions: [kind, state] }, groups.element));
  return api.watch("groups", {}, (value) => {
    for (const each of [...new Set(value.groups.map((row) => row.state))].sort()) {
      if (![...state.options].some((option) => option.value === each)) state.append(h("option", { value: each }, each || "unknown"));
    }
    groups.show(value.groups.filter((row) => (!given.kind || row.kind === given.kind) && (!given.state || row.state === given.state)));
    live.warn([...value.errors, value.without_lag && `The lag of ${plural(value.without_lag, "group")} was not looked up: there are too many.`]);
  }, live.mood);
}

export function groupPage(main, given, { session }) {
  const name = given.group ?? "";
  const live = liveMark();
  const numbers = h("div");
  const outcomes = h("div", { role: "status" });
  const details = h("div", { class: "stack" });
  const members = membersTable(name);
  const byTopic = table({
    caption: `Topics of ${name}`,
    tall: false,
    empty: "It has committed nothing, and reads nothing now.",
    rowKey: (row) => row.topic,
    sorted: { key: "lag", down: true },
    columns: [
      { title: "Topic", sort: (row) => row.topic, cell: (row) => link(row.topic, "topic", { topic: row.topic }, { class: "name" }) },
      { title: "Partitions", number: true, sort: (row) => row.partitions, cell: (row) => count(row.partitions) },
      { title: "Read now", number: true, sort: (row) => row.read, cell: (row) => count(row.read) },
      { title: "Lag", key: "lag", number: true, sort: (row) => row.lag, cell: (row) => count(row.lag) },
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
  let described = "";
  const change = offsetChanges(name, session.write, outcomes);
  main.append(head(name, { beside: live.mark, actions: change.actions }), live.trouble, outcomes, numbers, panel("Topics", {}, byTopic.element), panel("Members", {}, members.element), details, panel("Offsets", {}, partitions.element));

  return api.watch("group", { group: name }, (value) => {
    members.show(value.members);
    partitions.show(value.partitions);
    change.show(value.partitions);
    const lag = value.partitions.reduce((sum, row) => sum + Number(row.lag ?? 0), 0);
    byTopic.show(topicsOf(value.partitions));
    set(numbers, figures([["State", stateOf(value.state)], ["Kind", value.kind], ["Lag", count(lag)], ["Members", count(value.members.length)], ["Partitions", count(value.partitions.length)],
      ["Assignor", value.assignor || "–"], ["Coordinator", link(value.coordinator, "broker", { broker: value.coordinator })], value.epoch !== null && ["Epoch", count(value.epoch)]].filter(Boolean)));
    const now = JSON.stringify([value.topology, value.kind, value.topology && value.members]);
    if (now !== described) set(details, value.topology && topologyPanel(name, value),
      value.kind === "share" && notice("", "Members of a share group read the same partitions. A committed offset is the start offset: everything below it is done. Records behind it that are done already do not count as lag. Brokers do not tell which records are in flight."));
    described = now;
    live.warn(value.errors);
  }, live.mood);
}

/** The topics of a group, with the sums of their partitions. */
function topicsOf(partitions) {
  const found = new Map();
  for (const row of partitions) {
    const topic = found.get(row.topic) ?? { topic: row.topic, partitions: 0, read: 0, lag: null };
    topic.partitions += 1;
    topic.read += row.reader ? 1 : 0;
    if (row.lag !== null) topic.lag = (topic.lag ?? 0) + Number(row.lag);
    found.set(row.topic, topic);
  }
  return [...found.values()];
}

function membersTable(name) {
  return table({
    caption: `Members of ${name}`,
    tall: false,
    empty: "It has no members: its offsets can be reset.",
    rowKey: (row) => row.id,
    columns: [
      { title: "Member", cell: (row) => h("span", { class: "name mono", title: row.id }, row.id) },
      { title: "Client", sort: (row) => row.client, cell: (row) => h("span", { class: "name" }, row.client) },
      { title: "Instance", cell: (row) => row.instance ?? "–" },
      { title: "Host", sort: (row) => row.host, cell: (row) => row.host },
      { title: "Reads", wrap: true, cell: (row) => [readsOf(row.partitions), row.awaited.length > 0 && h("div", {}, badge("will get", "warn"), " ", readsOf(row.awaited))] },
    ],
  });
}

/** Partitions as links to their topics: flights 0–2, 5. */
function readsOf(partitions) {
  if (!partitions.length) return "–";
  const by = new Map();
  for (const { topic, partition } of partitions) by.set(topic, [...by.get(topic) ?? [], partition]);
  return [...by].slice(0, 20).map(([topic, numbers], index) => [index > 0 && "; ", link(topic, "topic", { topic }), ` ${ranges(numbers)}`]);
}

function ranges(numbers) {
  const found = [];
  for (const number of [...numbers].sort((one, other) => one - other)) {
    const last = found.at(-1);
    if (last && last[1] === number - 1) last[1] = number;
    else found.push([number, number]);
  }
  return found.map(([first, last]) => (first === last ? first : `${first}–${last}`)).join(", ");
}

/** What a streams application runs, and which member has which tasks. */
function topologyPanel(name, value) {
  const parts = table({
    caption: `Topology of ${name}`,
    tall: false,
    rowKey: (row) => row.id,
    columns: [
      { title: "Subtopology", cell: (row) => row.id },
      { title: "Reads", wrap: true, cell: (row) => topicLinks([...row.sources, ...row.repartition_sources]) },
      { title: "Writes to repartition", wrap: true, cell: (row) => topicLinks(row.repartition_sinks) },
      { title: "Changelogs of its stores", wrap: true, cell: (row) => topicLinks(row.changelogs) },
    ],
  });
  const tasks = table({
    caption: `Tasks of ${name}`,
    tall: false,
    empty: "No member has a task.",
    rowKey: (row) => row.id,
    columns: [
      { title: "Member", cell: (row) => h("span", { class: "name mono", title: row.id }, row.id) },
      { title: "Process", cell: (row) => h("span", { class: "name mono" }, row.streams.process) },
      { title: "Endpoint", cell: (row) => row.streams.endpoint ?? "–" },
      { title: "Active", wrap: true, cell: (row) => row.streams.tasks.active.join(" ") || "–" },
      { title: "Standby", wrap: true, cell: (row) => row.streams.tasks.standby.join(" ") || "–" },
      { title: "Warm-up", wrap: true, cell: (row) => row.streams.tasks.warmup.join(" ") || "–" },
      { title: "Will have", wrap: true, cell: (row) => (row.streams.target ? row.streams.target.active.join(" ") || "nothing" : "the same") },
    ],
  });
  parts.show(value.topology.subtopologies);
  tasks.show(value.members.filter((row) => row.streams));
  return [panel("Topology", { aside: `epoch ${value.topology.epoch}` }, parts.element), panel("Tasks", { aside: "subtopology and partition" }, tasks.element)];
}

function topicLinks(names) {
  return names.length ? names.map((topic, index) => [index > 0 && ", ", link(topic, "topic", { topic })]) : "–";
}
