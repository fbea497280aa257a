// The cluster: brokers, what they lead, their disks, and the alerts that would fire.
import * as api from "./api.js";
import { badge, figures, h, head, notice, panel, set } from "./dom.js";
import { table } from "./table.js";
import { bytes, count, duration } from "./units.js";

export function clusterPage(main) {
  const live = h("span", { class: "live still" }, "Connecting");
  const top = head("Cluster", { beside: live });
  const under = h("p", { class: "under" });
  top.append(under);
  const trouble = h("div", { role: "alert" });
  const alerts = h("div");
  const numbers = h("div");
  const disks = h("div");
  const brokers = table({
    caption: "Brokers",
    tall: false,
    rowKey: (row) => row.id,
    columns: [
      { title: "Broker", sort: (row) => row.id, cell: (row) => ["Broker ", row.id] },
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
  main.append(top, trouble, numbers, panel("Alerts", { aside: "that would fire now" }, h("div", { class: "body" }, alerts)), panel("Brokers", {}, brokers.element),
    panel("Disks", { aside: "of each log directory" }, disks));

  return api.watch("cluster", {}, (value) => {
    live.className = "live";
    live.textContent = "Live";
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
      : notice("good", "None: every partition has its leader and all its replicas, and every disk has room."));
    brokers.show(value.brokers.map((broker) => ({ ...broker, controller: broker.id === value.controller })));
    set(disks, value.brokers.map(diskRows));
  }, (sentence) => {
    live.className = sentence ? "live away" : "live";
    live.textContent = sentence ? "Not connected" : "Live";
    set(trouble, sentence && notice("trouble", sentence));
  });
}

function lagOf(health) {
  const lag = health?.lag_p99_ms;
  if (lag === null || lag === undefined) return "–";
  return lag > 100 ? badge(`≤ ${lag} ms`, "warn") : `≤ ${lag} ms`;
}

function diskRows(broker) {
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
