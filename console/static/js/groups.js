// Groups: how far they are behind, who reads, and changes of what they have committed.
import * as api from "./api.js";
import { dialog } from "./dialog.js";
import { badge, field, figures, h, head, link, notice, panel, say, select, set } from "./dom.js";
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

/** The state of a group, coloured by whether it reads. */
export function stateOf(state) {
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
  let topics = [];
  const actions = [
    h("button", { type: "button", click: () => reset() }, session.write ? "Reset offsets" : "Rehearse a reset"),
    h("button", { type: "button", class: "danger", click: () => forget() }, session.write ? "Delete offsets" : "Rehearse a deletion"),
  ];
  main.append(head(name, { beside: live, actions }), trouble, numbers, panel("Members", {}, members.element), panel("Offsets", {}, partitions.element));

  async function reset() {
    const outcome = await dialog(`Reset offsets of ${name}`, (close) => resetForm(name, topics, session.write, close));
    if (outcome) done(outcome, "Offsets were set");
  }
  async function forget() {
    const outcome = await dialog(`Delete offsets of ${name}`, (close) => forgetForm(name, topics, session.write, close));
    if (outcome?.whole) location.hash = "#/groups";
    else if (outcome) done(outcome, "Offsets were deleted");
  }
  function done(outcome, words) {
    const failed = outcome.partitions.filter((row) => row.error);
    set(trouble, failed.length ? notice("warning", `${plural(failed.length, "partition")} failed: ${failed[0].error}`) : notice("good", `${words}.`));
    say(words);
  }

  return api.watch("group", { group: name }, (value) => {
    members.show(value.members);
    partitions.show(value.partitions);
    topics = [...new Set(value.partitions.map((row) => row.topic))];
    const lag = value.partitions.reduce((sum, row) => sum + Number(row.lag ?? 0), 0);
    set(numbers, figures([["State", stateOf(value.state)], ["Lag", count(lag)], ["Members", count(value.members.length)], ["Partitions", count(value.partitions.length)],
      ["Assignor", value.assignor || "–"], ["Coordinator", value.coordinator]]));
    if (value.errors.length) set(trouble, value.errors.map((each) => notice("warning", each)));
  }, mood(live, trouble));
}

/** A form that rehearses, shows what would change, and carries that out. */
function changing({ fields, rehearse, rows, confirm, carry, write, close }) {
  const trouble = h("div", { role: "alert" });
  const shown = h("div");
  const go = h("button", { type: "button", class: "main danger", hidden: true });
  const ask = h("button", { class: "main" }, "Rehearse");
  const element = h("form", {
    submit: async (event) => {
      event.preventDefault();
      set(trouble);
      go.hidden = true;
      try {
        const plan = await rehearse();
        const view = rows();
        set(shown, view.element);
        view.show(plan.partitions);
        go.textContent = confirm(plan);
        go.hidden = !write;
        go.onclick = async () => {
          go.disabled = true;
          try { close(await carry(plan.plan)); } catch (error) { set(trouble, notice("trouble", error.message)); go.hidden = true; } finally { go.disabled = false; }
        };
        if (!write) set(trouble, notice("", "This console is read-only: nothing can be carried out."));
      } catch (error) {
        set(shown);
        set(trouble, notice("trouble", error.message));
      }
    },
  }, fields, trouble, shown, h("div", { class: "actions" }, h("button", { type: "button", click: () => close() }, "Cancel"), ask, go));
  return element;
}

function resetForm(group, topics, write, close) {
  const topic = select([["", "All that it has committed"], ...topics.map((each) => [each, each])], "");
  const to = select([["earliest", "The log start"], ["latest", "The end"], ["offset", "An offset"], ["time", "A time"], ["shift", "By so many records"]], "earliest", { change: () => fit() });
  const value = h("input", { maxlength: 64, placeholder: "" });
  const valueField = field("Value", value, "An offset, a time such as 2026-11-01T12:00:00Z, or a number such as -100.");
  const fit = () => { valueField.hidden = to.value === "earliest" || to.value === "latest"; value.required = !valueField.hidden; };
  fit();
  return changing({
    write,
    close,
    fields: h("div", { class: "fields" }, field("Topic", topic), field("Set to", to), valueField),
    rehearse: () => api.post("reset/rehearsal", { group, topic: topic.value || null, to: to.value, value: value.value || null }),
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
        { title: "Remark", cell: (row) => row.error ?? "" },
      ],
    }),
  });
}

function forgetForm(group, topics, write, close) {
  const topic = select([...topics.map((each) => [each, `Only of ${each}`]), ["", "All, with the group"]], topics[0] ?? "");
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
      columns: [{ title: "Topic", cell: (row) => row.topic }, { title: "Partition", number: true, cell: (row) => row.partition }],
    }),
  });
}
