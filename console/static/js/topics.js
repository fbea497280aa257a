// All topics.
import * as api from "./api.js";
import { address, badge, h, head, link, panel } from "./dom.js";
import { liveMark } from "./page.js";
import { table } from "./table.js";
import { bytes, count } from "./units.js";

export function topicsPage(main) {
  const live = liveMark();
  const internal = h("input", { type: "checkbox", id: "internal", change: () => again() });
  const topics = table({
    caption: "Topics",
    filter: "Filter by name",
    empty: "There is no topic that you may see.",
    rowKey: (row) => row.name,
    sorted: { key: "name" },
    columns: [
      { title: "Topic", key: "name", text: (row) => row.name, sort: (row) => row.name, cell: (row) => [link(row.name, "topic", { topic: row.name }, { class: "name" }), row.internal && [" ", badge("internal")]] },
      { title: "Partitions", number: true, sort: (row) => row.partitions, cell: (row) => count(row.partitions) },
      { title: "Replicas", number: true, sort: (row) => row.replicas, cell: (row) => count(row.replicas) },
      { title: "State", sort: (row) => row.offline * 1e6 + row.behind, cell: stateOf },
      { title: "Records", number: true, sort: (row) => row.records, cell: (row) => count(row.records) },
      { title: "On leaders", number: true, sort: (row) => row.bytes, cell: (row) => bytes(row.bytes) },
      { title: "On all disks", number: true, sort: (row) => row.replica_bytes, cell: (row) => bytes(row.replica_bytes) },
    ],
  });
  main.append(head("Topics", { beside: live.mark, actions: [h("span", { class: "choice" }, internal, h("label", { for: "internal" }, "Internal topics")), h("a", { class: "button", href: address("create") }, "Create a topic")] }), live.trouble,
    panel("All topics", { aside: "records are offsets between log start and high watermark" }, topics.element));

  let stop = () => {};
  function again() {
    stop();
    stop = api.watch("topics", { internal: internal.checked ? 1 : 0 }, (value) => topics.show(value.topics), live.mood);
  }
  again();
  return () => stop();
}

function stateOf(row) {
  if (row.offline) return badge(`${count(row.offline)} offline`, "bad");
  return row.behind ? badge(`${count(row.behind)} under-replicated`, "warn") : badge("In sync", "good");
}
