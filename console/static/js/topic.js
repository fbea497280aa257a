// One topic: its partitions, and of the chosen one the segments, the replicas and the last hour.
import * as api from "./api.js";
import { address, badge, figures, h, head, link, panel, set } from "./dom.js";
import { historyPanel } from "./history.js";
import { liveMark } from "./page.js";
import { readersPanel } from "./readers.js";
import { segmentsPanel } from "./segments.js";
import { table } from "./table.js";
import { bytes, count, plural, setting } from "./units.js";

export function topicPage(main, given, { session }) {
  const name = given.topic ?? "";
  const live = liveMark();
  const numbers = h("div");
  const under = h("p", { class: "under" });
  const settings = h("dl", { class: "pairs" });
  const detail = h("div", { class: "detail" });
  const actions = [
    h("a", { class: "button", href: address("records", { topic: name, partition: given.partition }) }, "Browse records"),
    h("a", { class: "button", href: address("produce", { topic: name, partition: given.partition }) }, "Write records"),
    h("a", { class: "button", href: address("settings", { topic: name }) }, "Settings"),
    h("a", { class: "button danger", href: address("purge", { topic: name, partition: given.partition }) }, session.write ? "Delete records" : "Rehearse a delete"),
  ];
  const top = head(name, { beside: live.mark, actions });
  top.append(under);
  const rows = table({
    caption: `Partitions of ${name}`,
    empty: "The topic has no partition.",
    rowKey: (row) => row.partition,
    columns: [
      { title: "Partition", number: true, sort: (row) => row.partition, cell: (row) => link(row.partition, "topic", { topic: name, partition: row.partition }, { "aria-label": `Partition ${row.partition}`, "aria-current": String(row.partition) === given.partition ? "true" : null }) },
      { title: "Leader", sort: (row) => row.leader, cell: (row) => (row.leader === null ? badge("Offline", "bad") : row.leader) },
      { title: "In sync", sort: (row) => row.replicas.filter((each) => each.in_sync).length, cell: inSync },
      { title: "Log start", number: true, sort: (row) => row.log_start, cell: (row) => count(row.log_start) },
      { title: "High watermark", number: true, sort: (row) => row.high_watermark, cell: (row) => count(row.high_watermark) },
      { title: "End", number: true, sort: (row) => row.log_end, cell: (row) => count(row.log_end) },
      { title: "Records", number: true, sort: records, cell: (row) => count(records(row)) },
      { title: "Bytes", number: true, sort: (row) => leaderBytes(row), cell: (row) => bytes(leaderBytes(row)) },
      { title: "Replica starts", cell: (row) => starts(row) },
      { title: "What keeps the oldest segment", wrap: true, cell: (row) => row.kept ?? "–" },
    ],
  });
  rows.mark(given.partition ?? null);
  const readers = readersPanel(name);
  main.append(top, live.trouble, numbers, detail, panel("Partitions", {}, rows.element), readers.element, panel("What is kept", { aside: "settings of the topic" }, h("div", { class: "body" }, settings)));

  const stops = [readers.start()];
  const parts = given.partition === undefined ? null : detailOf(detail, name, Number(given.partition), stops);
  stops.push(api.watch("topic", { topic: name }, (value) => {
    rows.show(value.partitions);
    under.textContent = value.id ? `Id ${value.id}` : "";
    set(numbers, figuresOf(value));
    set(settings, value.settings.length ? value.settings.map((each) => [h("dt", { class: "mono" }, each.key), h("dd", { class: each.set ? "" : "default" }, setting(each.key, each.value), each.set ? "" : " (default)")])
      : [h("dt", {}, "Settings"), h("dd", {}, "You may not see them.")]);
    const chosen = parts && value.partitions.find((row) => String(row.partition) === given.partition);
    if (chosen) parts.show(chosen);
  }, live.mood));
  return () => stops.forEach((stop) => stop());
}

function records(row) {
  return row.log_start === null || row.high_watermark === null ? null : Number(row.high_watermark) - Number(row.log_start);
}

function leaderBytes(row) {
  return row.replicas.find((each) => each.broker === row.leader)?.bytes ?? null;
}

function inSync(row) {
  const count_in = row.replicas.filter((each) => each.in_sync).length;
  return count_in < row.replicas.length ? badge(`${count_in} of ${row.replicas.length}`, "warn") : `${count_in} of ${row.replicas.length}`;
}

function starts(row) {
  const known = row.replicas.filter((each) => each.log_start !== undefined && each.log_start !== null);
  if (!known.length) return "–";
  const alike = known.every((each) => each.log_start === row.log_start) && known.length === row.replicas.length;
  if (alike) return badge("alike", "good");
  return known.filter((each) => each.log_start !== row.log_start).map((each) => [badge(`${each.broker}: ${count(each.log_start)}`, "warn"), " "]);
}

function figuresOf(value) {
  const all = value.partitions;
  const sum = (list) => (list.some((each) => each === null) ? null : list.reduce((one, other) => one + Number(other), 0));
  const offline = all.filter((row) => row.leader === null).length;
  const behind = all.filter((row) => row.replicas.some((each) => !each.in_sync)).length;
  return figures([
    ["Partitions", count(all.length)],
    ["Offline", count(offline), offline ? "bad" : ""],
    ["Under-replicated", count(behind), behind ? "warn" : ""],
    ["Records", count(sum(all.map(records)))],
    ["Bytes on leaders", bytes(sum(all.map(leaderBytes)))],
    ["Bytes on all disks", bytes(sum(all.flatMap((row) => row.replicas.map((each) => each.bytes))))],
  ]);
}

/** The parts about one partition. */
function detailOf(place, topic, partition, stops) {
  const sentence = h("p", { class: "sentence" });
  const picture = segmentsPanel(topic, partition);
  const lastHour = historyPanel(topic, partition);
  const replicas = table({
    caption: `Replicas of partition ${partition}`,
    tall: false,
    rowKey: (row) => row.broker,
    columns: [
      { title: "Broker", cell: (row) => ["Broker ", row.broker, " ", row.leads && badge("Leader", "sea")] },
      { title: "State", cell: (row) => (row.offline ? badge("Offline", "bad") : row.in_sync ? badge("In sync", "good") : badge("Not in sync", "warn")) },
      { title: "Log start", number: true, cell: (row) => (row.log_start === undefined ? "–" : count(row.log_start)) },
      { title: "End", number: true, cell: (row) => (row.log_end === undefined ? "–" : count(row.log_end)) },
      { title: "Lag", number: true, cell: (row) => count(row.lag) },
      { title: "Bytes", number: true, cell: (row) => bytes(row.bytes) },
    ],
  });
  set(place, panel(`Partition ${partition}`, { actions: [h("a", { class: "button", href: address("topic", { topic }) }, "Close")] },
    h("div", { class: "body" }, sentence, picture.element, lastHour.element), replicas.element));
  stops.push(picture.start(), lastHour.start());
  return {
    show(row) {
      const held = records(row);
      sentence.textContent = row.kept ? row.kept_sentences : held === null ? "Its leader does not say what it has." : `It has ${plural(held, "record")}. What keeps the oldest, only Lowtide's brokers say.`;
      replicas.show(row.replicas.map((each) => ({ ...each, leads: each.broker === row.leader })));
      lastHour.add(row);
    },
  };
}
