// Changes of what a group has committed, in dialogs: reset, delete, with a rehearsal first; and the offsets as a file.
import * as api from "./api.js";
import { notes } from "./change.js";
import { dialog } from "./dialog.js";
import { field, h, notice, say, select, set } from "./dom.js";
import { table } from "./table.js";
import { count, plural } from "./units.js";

const PLACES = [
  ["earliest", "The log start"], ["latest", "The end"], ["offset", "An offset"], ["time", "A time"], ["duration", "A time ago"],
  ["shift", "By so many records"], ["table", "A table of offsets"],
];
const HINTS = {
  offset: "The next offset that the group reads, such as 1200.",
  time: "The first record of this time or later, such as 2026-11-01T12:00:00Z.",
  duration: "The first record of the last 90min, 1 d 12 h, or PT1H30M.",
  shift: "Forward by 100, or back by -100.",
  table: "Lines of topic,partition,offset, as an export has them.",
};

/** The buttons of a group's page; `show(rows)` tells them what the group has committed. */
export function offsetChanges(name, write, trouble) {
  let rows = [];
  const topics = () => [...new Set(rows.map((row) => row.topic))];
  const actions = [
    h("button", { type: "button", click: () => download(name, rows) }, "Export offsets"),
    h("button", { type: "button", click: () => reset() }, write ? "Reset offsets" : "Rehearse a reset"),
    h("button", { type: "button", class: "danger", click: () => forget(topics()[0] ?? "") }, write ? "Delete offsets" : "Rehearse a deletion"),
    write && h("button", { type: "button", class: "danger", click: () => forget("") }, "Delete the group"),
  ];

  async function reset() {
    const outcome = await dialog(`Reset offsets of ${name}`, (close) => resetForm(name, topics(), write, close));
    if (outcome) done(outcome, "Offsets were set");
  }
  async function forget(chosen) {
    const outcome = await dialog(chosen ? `Delete offsets of ${name}` : `Delete the group ${name}`, (close) => forgetForm(name, topics(), chosen, write, close));
    if (outcome?.whole) location.hash = "#/groups";
    else if (outcome) done(outcome, "Offsets were deleted");
  }
  function done(outcome, words) {
    const failed = outcome.partitions.filter((row) => row.error);
    set(trouble, failed.length ? notice("warning", `${plural(failed.length, "partition")} failed: ${failed[0].error}`) : notice("good", `${words}.`));
    say(words);
  }
  return { actions, show: (given) => { rows = given; } };
}

/** Saves committed offsets as Kafka's tool exports them. */
function download(name, rows) {
  const lines = rows.filter((row) => row.committed !== null).map((row) => `${row.topic},${row.partition},${row.committed}\n`);
  const address = URL.createObjectURL(new Blob(lines, { type: "text/csv" }));
  h("a", { href: address, download: `offsets-${name.replaceAll(/[^\w.-]/g, "_")}.csv` }).click();
  setTimeout(() => URL.revokeObjectURL(address), 60_000);
}

/** A form that rehearses, shows what would change, and carries that out. */
function changing({ fields, rehearse, rows, confirm, carry, write, close }) {
  const trouble = h("div", { role: "alert" });
  const shown = h("div", { class: "stack" });
  const go = h("button", { type: "button", class: "main danger", hidden: true });
  const ask = h("button", { class: "main" }, "Rehearse");
  const clear = () => { set(shown); go.hidden = true; };
  return h("form", {
    input: clear,
    change: clear,
    submit: async (event) => {
      event.preventDefault();
      set(trouble);
      clear();
      try {
        const plan = await rehearse();
        const view = rows();
        set(shown, notes(plan.notes), view.element);
        view.show(plan.partitions);
        go.textContent = confirm(plan);
        go.hidden = !write;
        go.onclick = async () => {
          go.disabled = true;
          set(trouble);
          try { close(await carry(plan.plan)); } catch (error) { set(trouble, notice("trouble", error.message)); clear(); } finally { go.disabled = false; }
        };
        if (!write) set(trouble, notice("", "This console is read-only: nothing can be carried out."));
      } catch (error) {
        set(trouble, notice("trouble", error.message));
      }
    },
  }, fields, trouble, shown, h("div", { class: "actions" }, h("button", { type: "button", click: () => close() }, "Cancel"), ask, go));
}

function resetForm(group, topics, write, close) {
  const names = h("datalist", { id: "reset-topics" }, topics.map((each) => h("option", { value: each })));
  const topic = h("input", { maxlength: 249, list: "reset-topics", autocomplete: "off", spellcheck: "false", placeholder: "all that it has committed" });
  const partitions = h("input", { maxlength: 400, placeholder: "all" });
  const to = select(PLACES, "earliest", { change: () => fit() });
  const value = h("input", { maxlength: 64 });
  const lines = h("textarea", { rows: 6, maxlength: 60000, spellcheck: "false", class: "wide mono" });
  const topicField = field("Topic", topic, "A topic that it has not read yet is allowed too.");
  const partitionsField = field("Partitions", partitions, "Such as 0,2-4; empty means all.");
  const valueField = field("Value", value, " ");
  const linesField = field("Offsets", lines, HINTS.table);
  const fit = () => {
    const is_table = to.value === "table";
    topicField.hidden = partitionsField.hidden = is_table;
    linesField.hidden = !is_table;
    valueField.hidden = is_table || !Object.hasOwn(HINTS, to.value);
    valueField.querySelector(".hint").textContent = HINTS[to.value] ?? "";
    value.required = !valueField.hidden;
    lines.required = is_table;
  };
  fit();
  return changing({
    write,
    close,
    fields: [h("div", { class: "fields start" }, field("Set to", to), topicField, partitionsField, valueField), linesField, names],
    rehearse: () => api.post("reset/rehearsal", to.value === "table" ? { group, to: "table", value: lines.value }
      : { group, topic: topic.value.trim() || null, partitions: topic.value.trim() ? numbers(partitions.value) : null, to: to.value, value: value.value || null }),
    carry: (plan) => api.post("reset", { plan }),
    confirm: (plan) => `Set ${plural(plan.partitions.filter((row) => row.new !== null).length, "offset")}`,
    rows: () => table({
      caption: "What would be set",
      tall: false,
      rowKey: (row) => `${row.topic}-${row.partition}`,
      columns: [
        { title: "Topic", cell: (row) => row.topic },
        { title: "Partition", number: true, cell: (row) => row.partition },
        { title: "Is", number: true, cell: (row) => count(row.old) },
        { title: "Will be", number: true, cell: (row) => count(row.new) },
        { title: "Effect", cell: (row) => row.error ?? effect(row) },
      ],
    }),
  });
}

/** What a new offset means for the group's next reads; offsets are not exactly records. */
function effect(row) {
  if (row.new === null) return "–";
  if (row.old === null) return "first commit";
  const forward = Number(row.new) - Number(row.old);
  if (forward === 0) return "none";
  return forward > 0 ? `${count(forward)} skipped` : `${count(-forward)} read again`;
}

/** `0,2-4` as numbers; null for all. */
export function numbers(text) {
  if (!text.trim()) return null;
  return text.split(",").flatMap((part) => {
    const match = /^\s*(\d{1,9})(?:\s*-\s*(\d{1,9}))?\s*$/.exec(part);
    if (!match) return [-1];
    const [first, last] = [Number(match[1]), Number(match[2] ?? match[1])];
    return last - first < 10_000 ? Array.from({ length: Math.max(0, last - first + 1) }, (_, index) => first + index) : [-1];
  });
}

function forgetForm(group, topics, chosen, write, close) {
  const topic = select([...topics.map((each) => [each, `Only of ${each}`]), ["", "All, with the group"]], chosen);
  return changing({
    write,
    close,
    fields: [h("p", {}, "A group that has no offset begins where its reset policy says. A group with members keeps what these read."), field("Which", topic)],
    rehearse: () => api.post("forget/rehearsal", { group, topic: topic.value || null }),
    carry: (plan) => api.post("forget", { plan }),
    confirm: (plan) => (plan.whole ? "Delete the group" : `Delete ${plural(plan.partitions.length, "offset")}`),
    rows: () => table({
      caption: "What would be deleted",
      tall: false,
      empty: "Nothing is committed.",
      rowKey: (row) => `${row.topic}-${row.partition}`,
      columns: [{ title: "Topic", cell: (row) => row.topic }, { title: "Partition", number: true, cell: (row) => row.partition }, { title: "Offset", number: true, cell: (row) => count(row.old) }],
    }),
  });
}
