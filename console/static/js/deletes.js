// Deletes: those of this console with their progress, those that wait, and those that ended last.
import * as api from "./api.js";
import { badge, figures, h, head, link, notice, panel, set } from "./dom.js";
import { liveMark } from "./page.js";
import { table } from "./table.js";
import { ago, bytes, clock, count, duration, plural } from "./units.js";

const STEPS = [["asked", "Asked"], ["leader", "Deleted at the leader"], ["replicas", "Deleted at every replica"], ["freed", "Bytes freed"]];

/** The progress of one delete. */
export function jobPanel() {
  const steps = h("ol", { class: "steps", "aria-label": "Progress" });
  const said = h("p", { role: "status" });
  const trouble = h("div", { role: "alert" });
  const rows = table({
    caption: "Partitions of this delete",
    rowKey: (row) => row.partition,
    columns: [
      { title: "Partition", number: true, cell: (row) => row.partition },
      { title: "Delete to", number: true, cell: (row) => count(row.delete_to) },
      { title: "Log start", number: true, cell: (row) => count(row.log_start) },
      { title: "Low watermark", number: true, cell: (row) => count(row.low_watermark) },
      { title: "State", cell: (row) => ({ done: badge("Done", "good"), leader: badge("At the leader", "sea"), failed: badge("Failed", "bad"), asked: badge("Asked") })[row.state] },
      { title: "Remark", wrap: true, cell: (row) => row.error ?? "" },
    ],
  });
  const element = h("div", {}, h("div", { class: "body" }, steps, said, trouble), rows.element);
  return {
    element,
    show(job) {
      const failed = job.error || job.partitions.some((row) => row.state === "failed");
      let now = true;
      set(steps, STEPS.map(([key, words], index) => {
        const at = job.times[key];
        const kind = at ? "done" : now && !job.over ? "now" : now && failed ? "failed" : "";
        if (!at) now = false;
        return h("li", { class: kind, "data-step": key, "data-done": at ? "yes" : "no" }, h("b", {}, words), h("small", {}, stepText(job, key, at, index)));
      }));
      const freed = job.freed_bytes === null ? "" : ` ${bytes(job.freed_bytes)}${job.expected_bytes === null ? "" : ` of ${bytes(job.expected_bytes)}`} freed on all disks.`;
      said.textContent = `${plural(job.records, "record")}: ${job.target}.${freed}`;
      set(trouble, job.error && notice("trouble", job.error));
      rows.show(job.partitions);
    },
  };
}

function stepText(job, key, at, index) {
  if (!at) return job.over ? (key === "freed" ? "not all planned bytes were freed in time" : "–") : "waiting";
  return index === 0 ? clock(at) : `after ${duration(at - job.times.asked)}`;
}

export function deletesPage(main, given, { session }) {
  const live = liveMark();
  const numbers = h("div");
  const own = h("div");
  const waiting = table({
    caption: "Deletes that wait",
    empty: "No delete that you may see waits.",
    rowKey: (row) => `${row.broker}-${row.topic}-${row.partition}-${row.offset}-${row.asked_at_ms}`,
    columns: [
      { title: "Partition", sort: (row) => row.topic, cell: partitionOf },
      { title: "To offset", number: true, cell: (row) => count(row.offset) },
      { title: "Waits", number: true, sort: (row) => -row.asked_at_ms, cell: (row) => duration(row.now_ms - row.asked_at_ms) },
      { title: "Durable at the leader", number: true, cell: (row) => (row.durable_at_ms === null ? "not yet" : `after ${duration(row.durable_at_ms - row.asked_at_ms)}`) },
      { title: "Waits for", wrap: true, cell: followers },
      { title: "Low watermark", number: true, cell: (row) => count(row.low_watermark) },
      { title: "Who", cell: who },
    ],
  });
  const finished = table({
    caption: "Deletes that ended last",
    filter: "Filter by topic or user",
    empty: "No delete that you may see has ended since the brokers started.",
    rowKey: (row) => `${row.broker}-${row.number}`,
    columns: [
      { title: "Ended", sort: (row) => row.answered_at_ms, cell: (row) => h("span", { title: ago(row.answered_at_ms) }, clock(row.answered_at_ms)) },
      { title: "Partition", text: (row) => row.topic, sort: (row) => row.topic, cell: partitionOf },
      { title: "Log start", number: true, cell: (row) => (row.log_start < 0 ? "–" : `${count(row.old_log_start)} → ${count(row.log_start)}`) },
      { title: "Durable", number: true, sort: (row) => row.durable_at_ms && row.durable_at_ms - row.asked_at_ms, cell: (row) => stage(row, row.durable_at_ms) },
      { title: "Every replica", number: true, sort: (row) => row.replicated_at_ms && row.replicated_at_ms - row.asked_at_ms, cell: (row) => (row.leader_only ? "leader only" : stage(row, row.replicated_at_ms)) },
      { title: "Answered", number: true, sort: (row) => row.answered_at_ms - row.asked_at_ms, cell: (row) => stage(row, row.answered_at_ms) },
      { title: "Outcome", sort: (row) => row.error, cell: (row) => (row.error ? badge(row.error, "bad") : badge("Done", "good")) },
      { title: "Who", text: (row) => row.who?.principal ?? "", sort: (row) => row.who?.principal ?? null, cell: who },
    ],
  });
  const cluster = h("div", { class: "cluster-deletes" });
  main.append(head("Deletes", { beside: live.mark, actions: [h("a", { class: "button", href: "#/erase" }, session.write ? "Erase a person" : "Search a person"), h("a", { class: "button danger", href: "#/purge" }, session.write ? "Delete records" : "Rehearse a delete")] }), live.trouble, numbers, own, cluster);
  const panels = [panel("Waiting", { aside: "live" }, waiting.element), panel("Ended", { aside: "the last thousand, in memory" }, finished.element)];
  const jobs = new Map();

  return api.watch("deletes", {}, (value) => {
    showOwn(own, jobs, value.own);
    if (value.known) {
      if (!panels[0].isConnected) set(cluster, h("div", { class: "stack" }, panels));
      waiting.show(value.waiting);
      finished.show(value.finished);
      set(numbers, figures([
        ["Wait now", count(value.waiting_count), value.waiting_count ? "warn" : ""],
        ["The oldest waits", value.waiting.length ? duration(Math.max(...value.waiting.map((row) => row.now_ms - row.asked_at_ms))) : "–"],
        ["Ended lately", count(value.finished.length)],
        ["Median time", duration(median(value.finished.filter((row) => !row.error).map((row) => row.answered_at_ms - row.asked_at_ms)))],
      ]));
    } else {
      set(cluster, notice("", "These brokers do not say which deletes wait: only Lowtide's do, to users who may describe the cluster or the topic."));
    }
    live.warn(value.errors);
  }, live.mood);
}

function showOwn(place, jobs, own) {
  for (const job of own) {
    if (!jobs.has(job.id)) {
      const part = jobPanel();
      jobs.set(job.id, part);
      place.prepend(panel(`Delete from ${job.partitions[0]?.topic ?? "a topic"}`, { aside: `of this console, ${clock(job.times.asked)}` }, part.element));
    }
    jobs.get(job.id).show(job);
  }
}

function median(values) {
  if (!values.length) return null;
  const sorted = [...values].sort((one, other) => one - other);
  return sorted[Math.floor(sorted.length / 2)];
}

function partitionOf(row) {
  return [link(row.topic, "topic", { topic: row.topic, partition: row.partition }, { class: "name" }), " ", h("span", {}, row.partition)];
}

function stage(row, at) {
  return at === null ? "–" : `after ${duration(at - row.asked_at_ms)}`;
}

function followers(row) {
  if (!row.followers.length) return row.durable_at_ms === null ? "the leader's disk" : "–";
  return row.followers.map((each) => [badge(`Broker ${each.broker}${each.in_sync ? "" : ", not in sync"}`, each.in_sync ? "sea" : "warn"),
    ` at ${each.log_start < 0 ? "nothing so far" : count(each.log_start)}${each.silent_ms > 1000 ? `, silent for ${duration(each.silent_ms)}` : ""} `]);
}

function who(row) {
  if (!row.who) return "–";
  return h("span", { class: "name", title: `${row.who.client ?? ""} ${row.who.address}` }, `${row.who.principal} from ${row.who.address}`);
}
