// One broker: what it leads and has on its disks, and its settings with where each value comes from. One setting.
import * as api from "./api.js";
import { diskRows } from "./cluster.js";
import { address, badge, figures, h, head, link, notice, panel, set } from "./dom.js";
import { liveMark } from "./page.js";
import { table } from "./table.js";
import { bytes, count, duration, plural } from "./units.js";

export function brokerPage(main, given) {
  const live = liveMark();
  const broker = given.broker ?? "0";
  const numbers = h("div");
  const disks = h("div");
  const under = h("p", { class: "under" });
  const top = head(`Broker ${broker}`, { beside: live.mark, actions: [h("a", { class: "button", href: address("cluster") }, "Cluster")] });
  top.append(under);
  const replicas = table({
    caption: `Replicas of broker ${broker}`,
    filter: "Filter by topic or directory",
    empty: "It has no replica.",
    rowKey: (row) => `${row.topic} ${row.partition}`,
    columns: [
      { title: "Topic", text: (row) => row.topic, sort: (row) => row.topic, cell: (row) => link(row.topic, "topic", { topic: row.topic, partition: row.partition }, { class: "name" }) },
      { title: "Partition", number: true, sort: (row) => row.partition, cell: (row) => row.partition },
      { title: "Role", sort: (row) => row.leads, cell: (row) => (row.leads ? badge("Leader", "sea") : row.preferred ? badge("Follower, preferred leader", "warn") : "Follower") },
      { title: "State", sort: (row) => row.in_sync, cell: (row) => (row.in_sync ? badge("In sync", "good") : badge("Not in sync", "warn")) },
      { title: "Bytes", number: true, sort: (row) => row.bytes, cell: (row) => bytes(row.bytes) },
      { title: "Lag", number: true, sort: (row) => row.lag, cell: (row) => count(row.lag) },
      { title: "Directory", text: (row) => row.directory ?? "", sort: (row) => row.directory, cell: (row) => h("span", { class: "name mono" }, row.directory ?? "–") },
    ],
  });
  const settingsTrouble = h("div", { role: "alert" });
  const settings = settingsTable(`Settings of broker ${broker}`);
  main.append(top, live.trouble, numbers, panel("Log directories", {}, disks), panel("Settings", { aside: "with where each value comes from" }, settingsTrouble, settings.element), panel("Replicas", { aside: "the largest first" }, replicas.element));
  api.view("broker.settings", { broker }).then((value) => settings.show(value.settings), (trouble) => set(settingsTrouble, notice("warning", trouble.message)));

  return api.watch("broker", { broker }, (value) => {
    under.textContent = value.known ? [value.address, value.rack && `rack ${value.rack}`].filter(Boolean).join(", ") : "The cluster has no such broker.";
    set(numbers, figures([
      ["State", !value.known ? "Unknown" : value.fenced ? "Fenced" : value.controller ? "Live, controller" : "Live", !value.known || value.fenced ? "bad" : ""],
      ["Leads", [count(value.leads), value.preferred !== value.leads && h("small", {}, ` of ${count(value.preferred)} preferred`)]],
      ["Replicas", count(value.replicas)],
      ["Not in sync", count(value.behind), value.behind ? "warn" : ""],
      value.health && ["Loop lag, p99", value.health.lag_p99_ms === null ? "–" : `≤ ${value.health.lag_p99_ms} ms`],
      value.health && ["Connections", count(value.health.connections)],
      value.health && ["Up for", duration(value.health.up_ms)],
    ].filter(Boolean)));
    set(disks, diskRows(value));
    replicas.show(value.replicas_shown);
    live.warn([value.replicas_left_out && `The page leaves out ${plural(value.replicas_left_out, "replica")}: there are too many.`]);
  }, live.mood);
}

/** A table of settings: those that are set first. */
function settingsTable(caption) {
  return table({
    caption,
    filter: "Filter by name, value or source",
    rowKey: (row) => row.key,
    empty: "There is no such setting.",
    sorted: { key: "source" },
    columns: [
      { title: "Setting", text: (row) => row.key, sort: (row) => row.key, cell: (row) => link(row.key, "setting", { key: row.key }, { class: "name mono" }) },
      { title: "Value", text: (row) => row.value ?? "", sort: (row) => row.value, cell: valueOf },
      { title: "Comes from", key: "source", text: (row) => row.source, sort: (row) => `${row.default ? 1 : 0} ${row.source} ${row.key}`, cell: (row) => (row.default ? h("span", { class: "quiet" }, "Default") : badge(row.source, "sea")) },
      { title: "Changes", sort: (row) => row.read_only, cell: (row) => (row.read_only ? "At a restart" : "While it runs") },
    ],
  });
}

function valueOf(row) {
  if (row.secret) return h("i", {}, "secret");
  return h("span", { class: "name mono", title: row.value }, row.value === null || row.value === "" ? "–" : row.value);
}

export function settingPage(main, given) {
  const key = given.key ?? "";
  const trouble = h("div", { role: "alert" });
  const meaning = h("p", { class: "under" });
  const place = h("div", { class: "stack" });
  const top = head(key, {});
  top.append(meaning);
  main.append(top, trouble, place);
  const columns = (name, page) => [
    { title: name, sort: (row) => row[page], cell: (row) => link(row[page], page, { [page]: row[page] }, { class: "name" }) },
    { title: "Value", sort: (row) => row.value, cell: valueOf },
    { title: "Comes from", sort: (row) => row.source, cell: (row) => row.source },
  ];
  const brokers = table({ caption: `${key} of brokers`, tall: false, rowKey: (row) => row.broker, columns: columns("Broker", "broker") });
  const topics = table({ caption: `${key} of topics`, rowKey: (row) => row.topic, empty: "No topic that was asked sets it.", columns: columns("Topic", "topic") });
  api.view("setting", { key }).then((value) => {
    meaning.textContent = value.meaning ?? "";
    brokers.show(value.brokers);
    topics.show(value.topics);
    set(place, value.brokers.length > 0 && panel("Brokers", {}, brokers.element), value.of_topics && panel("Topics that set it", { aside: value.others === null ? null : `all others have ${value.others === "" ? "no value" : value.others}` }, topics.element),
      !value.brokers.length && !value.of_topics && notice("warning", "No broker and no topic that you may see has this setting."));
    set(trouble, [...value.errors, value.left_out && `The page leaves out ${plural(value.left_out, "topic")}: there are too many.`].filter(Boolean).map((each) => notice("warning", each)));
  }, (error) => set(trouble, notice("trouble", error.message)));
}
