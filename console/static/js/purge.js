// Deleting records: say up to where, see what would go, then delete just that, and watch it.
import * as api from "./api.js";
import { address, badge, field, figures, h, head, notice, panel, say, set } from "./dom.js";
import { jobPanel } from "./deletes.js";
import { numbers } from "./offsets.js";
import { table } from "./table.js";
import { bytes, count, duration, plural } from "./units.js";

export function purgePage(main, given, { session }) {
  const topic = h("input", { name: "topic", required: true, maxlength: 249, value: given.topic ?? "", list: "topic-names", autocomplete: "off", spellcheck: "false" });
  const names = h("datalist", { id: "topic-names" });
  const partitions = h("input", { name: "partitions", value: given.partition ?? "", placeholder: "all", maxlength: 400 });
  const offset = h("input", { name: "offset", inputmode: "numeric", maxlength: 20, "aria-label": "The first offset that stays" });
  const time = h("input", { name: "time", type: "datetime-local", step: "1", "aria-label": "The time" });
  const groups = h("input", { name: "groups", list: "group-names", maxlength: 2000, "aria-label": "Groups, with commas between" });
  const groupNames = h("datalist", { id: "group-names" });
  const leaderOnly = h("input", { type: "checkbox", id: "leader-only" });
  const kinds = [["offset", "Below an offset", offset], ["time", "Older than", time], ["committed", "What groups have consumed", groups], ["all", "Everything that is there now", null]];
  const radios = kinds.map(([value, words, control], index) => {
    const radio = h("input", { type: "radio", name: "to", value, id: `to-${value}`, checked: index === 0 });
    control?.addEventListener("focus", () => { radio.checked = true; });
    return h("div", { class: "choice" }, radio, h("label", { for: `to-${value}` }, words), control);
  });
  const trouble = h("div", { role: "alert" });
  const shown = h("div");
  const form = h("form", { submit: (event) => { event.preventDefault(); rehearse(); } },
    h("div", { class: "body" },
      h("div", { class: "fields start" }, field("Topic", topic), field("Partitions", partitions, "Such as 0,2-4; empty means all.")),
      h("fieldset", {}, h("legend", {}, "Up to where"), radios),
      h("div", { class: "choice" }, leaderOnly, h("label", { for: "leader-only" }, "Done when the leader has deleted; the other replicas follow (KIP-1343)")),
      h("div", {}, h("button", { class: "main" }, "Rehearse"))), names, groupNames);
  main.append(head("Delete records", { under: "From the beginning of partitions. First a rehearsal: nothing is deleted until you say so, and then nothing but what it shows." }),
    panel("What", {}, form), trouble, shown);
  api.view("topics").then((value) => set(names, value.topics.map((each) => h("option", { value: each.name }))), () => {});
  api.view("groups").then((value) => set(groupNames, value.groups.map((each) => h("option", { value: each.group }))), () => {});

  let stop = () => {};

  async function rehearse() {
    stop();
    set(trouble);
    const to = form.elements.to.value;
    const asked = { topic: topic.value, partitions: numbers(partitions.value), to, leader_only: leaderOnly.checked };
    if (to === "offset") asked.value = offset.value.trim();
    if (to === "time") asked.value = time.value ? new Date(time.value).toISOString() : "";
    if (to === "committed") asked.groups = groups.value.split(",").map((each) => each.trim()).filter(Boolean);
    try {
      const plan = await api.post("delete/rehearsal", asked);
      set(shown, planPanel(plan, session.write, carryOut));
      say(`${plural(plan.records, "record")} would go.`);
      shown.querySelector("h2").setAttribute("tabindex", "-1");
      shown.querySelector("h2").focus();
    } catch (error) {
      set(shown);
      set(trouble, notice("trouble", error.message));
    }
  }

  async function carryOut(plan) {
    try {
      const { job } = await api.post("delete", { plan });
      const own = jobPanel();
      set(shown, panel("This delete", { actions: [h("a", { class: "button", href: address("deletes") }, "All deletes")] }, own.element));
      own.element.closest("section").querySelector("h2").setAttribute("tabindex", "-1");
      own.element.closest("section").querySelector("h2").focus();
      stop = api.watch("deletes", {}, (value) => {
        const found = value.own.find((each) => each.id === job);
        if (found) own.show(found);
      }, (sentence) => set(trouble, sentence && notice("trouble", sentence)));
    } catch (error) {
      set(trouble, notice("trouble", error.message));
    }
  }
  return () => stop();
}

function planPanel(plan, write, carryOut) {
  const rows = table({
    caption: "What would be deleted",
    rowKey: (row) => row.partition,
    columns: [
      { title: "Partition", number: true, sort: (row) => row.partition, cell: (row) => row.partition },
      { title: "Log start", number: true, cell: (row) => count(row.log_start) },
      { title: "Delete to", number: true, cell: (row) => count(row.delete_to) },
      { title: "Records", number: true, sort: (row) => row.records, cell: (row) => count(row.records) },
      { title: "Their bytes, about", number: true, sort: (row) => row.bytes, cell: (row) => bytes(row.bytes) },
      { title: "Freed", number: true, cell: (row) => bytes(row.freed?.bytes) },
      { title: "When, and what stays", wrap: true, cell: remark },
    ],
  });
  rows.show(plan.partitions);
  const possible = plan.partitions.filter((row) => row.delete_to !== null);
  const go = h("button", { type: "button", class: "main danger", click: () => { go.disabled = true; carryOut(plan.plan).finally(() => { go.disabled = false; }); } }, `Delete ${plural(plan.records, "record")}`);
  const freed = plan.partitions.some((row) => row.freed) ? plan.partitions.reduce((sum, row) => sum + Number(row.freed?.bytes ?? 0), 0) : null;
  const delay = Math.max(0, ...plan.partitions.map((row) => row.freed?.delay_ms ?? 0));
  return panel("Rehearsal", { aside: `${plan.target}` },
    h("div", { class: "body" },
      figures([["Records that go", count(plan.records)], ["Their bytes on a leader, about", bytes(plan.bytes)], ["Bytes freed on leaders", bytes(freed)], ["Freed after", freed === null ? "–" : delay ? duration(delay) : "at once"]]),
      possible.length < plan.partitions.length && notice("warning", `${plural(plan.partitions.length - possible.length, "partition")} would be left alone: the remark says why.`),
      write ? h("div", {}, go) : notice("", "This console is read-only: nothing can be carried out.")),
    rows.element);
}

function remark(row) {
  if (row.reason) return [badge("left alone", "warn"), " ", row.reason];
  if (!row.freed) return row.records ? "The leader does not say what this frees." : "Nothing is below that offset.";
  return row.freed.text;
}
