// The groups that read a topic.
import * as api from "./api.js";
import { badge, h, link, notice, panel, set } from "./dom.js";
import { stateOf } from "./page.js";
import { table } from "./table.js";
import { count, plural } from "./units.js";

/** A panel with the groups of a topic; `start` returns what ends it. */
export function readersPanel(topic) {
  const trouble = h("div", { role: "alert" });
  const groups = table({
    caption: `Groups of ${topic}`,
    tall: false,
    empty: "No group that you may see has committed offsets for it or reads it now.",
    rowKey: (row) => row.group,
    sorted: { key: "lag", down: true },
    columns: [
      { title: "Group", sort: (row) => row.group, cell: (row) => link(row.group, "group", { group: row.group }, { class: "name" }) },
      { title: "Kind", sort: (row) => row.kind, cell: (row) => row.kind || "–" },
      { title: "State", sort: (row) => row.state, cell: (row) => stateOf(row.state) },
      { title: "Lag", key: "lag", number: true, sort: (row) => row.lag, cell: (row) => (row.lag === null ? badge("no commit") : count(row.lag)) },
      { title: "Furthest behind", cell: (row) => (row.furthest_lag ? link(`Partition ${row.furthest}: ${count(row.furthest_lag)}`, "topic", { topic, partition: row.furthest }) : "–") },
      { title: "Committed partitions", number: true, sort: (row) => row.committed, cell: (row) => count(row.committed) },
      { title: "Members that read it", number: true, sort: (row) => row.members, cell: (row) => count(row.members) },
    ],
  });
  return {
    element: panel("Groups", { aside: "that have committed offsets for it, or read it now" }, trouble, groups.element),
    start: () => api.watch("readers", { topic }, (value) => {
      groups.show(value.groups);
      const left = value.left_out ? [`The page leaves out ${plural(value.left_out, "group")}: there are too many.`] : [];
      set(trouble, [...value.errors, ...left].map((each) => notice("warning", each)));
    }, (sentence) => sentence && set(trouble, notice("trouble", sentence))),
  };
}
