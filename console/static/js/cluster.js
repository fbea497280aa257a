// The cluster: brokers, what they lead, their disks, and the alerts that would fire.
import * as api from "./api.js";
import { address, badge, figures, h, head, link, notice, panel, set } from "./dom.js";
import { liveMark } from "./page.js";
import { table } from "./table.js";
import { bytes, count, duration, plural } from "./units.js";

export function clusterPage(main) {
  const live = liveMark();
  const top = head("Cluster", { beside: live.mark, actions: [h("a", { class: "button", href: address("transactions") }, "Transactions")] });
  const under = h("p", { class: "under" });
  top.append(under);
  const meanings = h("dl", { class: "pairs" });
  const moves = movesPanel();
  const alerts = h("div");
  const numbers = h("div");
  const disks = h("div");
  const brokers = table({
    caption: "Brokers of the cluster",
    tall: false,
    rowKey: (row) => row.id,
    columns: [
      { title: "Broker", sort: (row) => row.id, cell: (row) => link(`Broker ${row.id}`, "broker", { broker: row.id }) },
      { title: "Address", cell: (row) => h("span", { class: "mono" }, row.address) },
      { title: "Rack", cell: (row) => row.rack ?? "–" },
      { title: "State", cell: (row) => [row.fenced ? badge("Fenced", "bad") : badge("Live", "good"), " ", row.controller && badge("Controller", "sea")] },
      { title: "Leads", number: true, sort: (row) => row.leads, cell: (row) => [count(row.leads), row.preferred !== row.leads && h("small", {}, ` of ${count(row.preferred)} preferred`)] },
      { title: "Replicas", number: true, sort: (row) => row.replicas, cell: (row) => count(row.replicas) },
      { title: "Not in sync", number: true, sort: (row) => row.behind, cell: (row) => (row.behind ? badge(count(row.behind), "warn") : "0") },
      { title: "Loop lag, p99", number: true, sort: (row) => row.health?.lag_p99_ms ?? null, cell: (row) => lagOf(row.health) },
      { title: "Connections", number: true, sort: (row) => row.health?.connections ?? null, cell: (row) => count(row.health?.connections) },
      { title: "Up for", number: true, sort: (row) => row.health?.up_ms ?? null, cell: (row) => duration(row.health?.up_ms) },
    ],
  });
  main.append(top, live.trouble, numbers,
    panel("Alerts", { aside: "that fire now" }, h("div", { class: "body" }, alerts, h("details", {}, h("summary", {}, "What each alert means"), meanings))),
    moves.element, panel("Brokers", {}, brokers.element), panel("Disks", { aside: "of each log directory" }, disks));

  const stop = moves.start();
  const end = api.watch("cluster", {}, (value) => {
    under.textContent = value.cluster_id ? `Id ${value.cluster_id}` : "";
    const behind = value.brokers.reduce((sum, broker) => sum + broker.behind, 0);
    set(numbers, figures([
      ["Brokers", [count(value.brokers.filter((each) => !each.fenced).length), h("small", {}, ` of ${count(value.brokers.length)}`)], value.brokers.some((each) => each.fenced) ? "bad" : ""],
      ["Controller", value.controller ?? "none", value.controller === null ? "bad" : ""],
      ["Topics", count(value.topics)],
      ["Partitions", count(value.partitions)],
      ["Replicas not in sync", count(behind), behind ? "warn" : ""],
      value.waiting_deletes !== undefined && value.waiting_deletes !== null ? ["Deletes that wait", count(value.waiting_deletes)] : null,
    ].filter(Boolean)));
    set(alerts, value.alerts.length
      ? h("ul", { class: "notices" }, value.alerts.map((alert) => h("li", { class: `notice ${alert.severity}` }, h("b", {}, alert.name), " – ", alert.sentence)))
      : value.sees_disks ? notice("good", "None: every partition has its leader and all its replicas, and every disk has room.")
        : notice("", "None, as far as you may see: you may not see the log directories of all brokers, and only topics that you may describe count."));
    if (!meanings.childElementCount) set(meanings, value.meanings.map((each) => [h("dt", {}, each.name), h("dd", {}, `${each.meaning} ${each.remedy}`)]));
    brokers.show(value.brokers.map((broker) => ({ ...broker, controller: broker.id === value.controller })));
    set(disks, value.brokers.map(diskRows));
  }, live.mood);
  return () => { stop(); end(); };
}

/** The moves of replicas; the panel is hidden while there are none. */
function movesPanel() {
  const trouble = h("div", { role: "alert" });
  const rows = table({
    caption: "Moves in progress",
    tall: false,
    rowKey: (row) => `${row.topic} ${row.partition} ${row.broker} ${row.to}`,
    columns: [
      { title: "Topic", sort: (row) => row.topic, cell: (row) => link(row.topic, "topic", { topic: row.topic, partition: row.partition }, { class: "name" }) },
      { title: "Partition", number: true, sort: (row) => row.partition, cell: (row) => row.partition },
      { title: "To", sort: (row) => row.to, cell: (row) => (row.broker === null ? "Fewer replicas" : h("span", { class: "name" }, `Broker ${row.broker}`, row.to.startsWith("/") && [", ", h("span", { class: "mono" }, row.to)])) },
      { title: "From", cell: (row) => row.from.map((each) => (typeof each === "number" ? `Broker ${each}` : each)).join(", ") || "–" },
      { title: "Bytes", number: true, sort: (row) => row.bytes, cell: (row) => bytes(row.bytes) },
      { title: "Bytes left", number: true, sort: (row) => row.left_bytes, cell: (row) => bytes(row.left_bytes) },
      { title: "Progress", number: true, sort: (row) => row.share, cell: (row) => (row.share === null ? "–" : `${Math.floor(100 * row.share)} %`) },
    ],
  });
  const element = panel("Moves of replicas", { aside: "in progress" }, trouble, rows.element);
  element.hidden = true;
  return {
    element,
    start: () => api.watch("moves", {}, (value) => {
      element.hidden = !value.moves.length && !value.errors.length;
      rows.show(value.moves);
      const left = value.left_out ? [`The page leaves out ${plural(value.left_out, "move")}: there are too many.`] : [];
      set(trouble, [...value.errors, ...left].map((each) => notice("warning", each)));
    }),
  };
}

function lagOf(health) {
  const lag = health?.lag_p99_ms;
  if (lag === null || lag === undefined) return "–";
  return lag > 100 ? badge(`≤ ${lag} ms`, "warn") : `≤ ${lag} ms`;
}

/** The log directories of a broker. */
export function diskRows(broker) {
  if (!broker.disks) {
    return h("div", { class: "disk" }, `Broker ${broker.id}: `, broker.disks_error ?? "you may not see its log directories, or it does not answer.");
  }
  return broker.disks.map((disk) => diskRow(broker, disk));
}

function diskRow(broker, disk) {
  if (disk.error) return h("div", { class: "disk" }, h("div", { class: "where" }, h("b", {}, `Broker ${broker.id}`), h("span", { class: "path" }, disk.path)), notice("trouble", disk.error));
  const deleted = disk.deleted_bytes ?? 0;
  const used = disk.total_bytes === null || disk.usable_bytes === null ? null : disk.total_bytes - disk.usable_bytes;
  const other = used === null ? null : Math.max(0, used - disk.live_bytes - deleted);
  const whole = disk.total_bytes ?? disk.live_bytes + deleted;
  const share = (value) => (whole ? (100 * value) / whole : 0);
  const part = (kind, value) => {
    const span = h("span", { class: kind });
    span.style.width = value ? `max(2px, ${share(value)}%)` : "0";
    return span;
  };
  const said = `Live ${bytes(disk.live_bytes)}${disk.deleted_bytes === null ? "" : `, deleted but not yet freed ${bytes(deleted)}`}${other === null ? "" : `, other ${bytes(other)}, usable ${bytes(disk.usable_bytes)}`}`;
  return h("div", { class: "disk" },
    h("div", { class: "where" }, h("span", {}, h("b", {}, `Broker ${broker.id}`), "  ", h("span", { class: "path" }, disk.path)),
      h("span", {}, disk.total_bytes === null ? bytes(disk.live_bytes) : `${bytes(disk.usable_bytes)} usable of ${bytes(disk.total_bytes)}`)),
    h("div", { class: "bar", role: "img", "aria-label": said }, part("one", disk.live_bytes), part("two", deleted), part("three", other ?? 0)),
    h("ul", { class: "legend" },
      h("li", {}, h("i", { class: "one" }), "Live ", h("b", {}, bytes(disk.live_bytes))),
      disk.deleted_bytes !== null && h("li", {}, h("i", { class: "two" }), "Deleted, not yet freed ", h("b", {}, bytes(deleted))),
      ...disk.unfreed.map((each) => h("li", {}, `${bytes(each.bytes)}: ${each.why}`)),
      other !== null && h("li", {}, h("i", { class: "three" }), "Other ", h("b", {}, bytes(other))),
      disk.usable_bytes !== null && h("li", {}, h("i", { class: "room" }), "Usable ", h("b", {}, bytes(disk.usable_bytes)))));
}
