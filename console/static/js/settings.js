// The settings of a topic: each with its default, its source and its meaning; changes, more partitions, and its end.
import { change } from "./change.js";
import * as api from "./api.js";
import { address, badge, field, figures, freshId, h, head, notice, panel, put, set } from "./dom.js";
import { table } from "./table.js";
import { bytes, count, duration, plural, setting } from "./units.js";

export function settingsPage(main, given, { session }) {
  const name = given.topic ?? "";
  const trouble = h("div", { role: "alert" });
  const rows = table({
    caption: `Settings of ${name}`,
    filter: "Filter by name or meaning",
    empty: "You may not see its settings.",
    rowKey: (row) => row.key,
    columns: [
      { title: "Setting", text: (row) => `${row.key} ${row.about ?? ""}`, sort: (row) => row.key, cell: (row) => h("span", { class: "mono" }, row.key) },
      { title: "Change", cell: (row) => (row.read_only ? "–" : h("button", { type: "button", "aria-label": `Change ${row.key}`, click: () => choose(row) }, "Change")) },
      { title: "Value", sort: (row) => row.set, cell: (row) => [valueOf(row.key, row.value, row), " ", row.set && badge("set here", "sea")] },
      { title: "Default", cell: (row) => (row.default === null ? "–" : valueOf(row.key, row.default, row)) },
      { title: "From", sort: (row) => row.source, cell: (row) => row.source },
      { title: "Meaning", wrap: true, cell: (row) => row.about ?? "–" },
    ],
  });

  // ------------------------------------------------------------------ changes
  const chosen = new Map();
  const fields = h("div", { class: "rows" });
  const nothing = h("p", {}, "Choose settings in the table below.");
  const form = change({
    title: "Changes",
    path: "settings",
    write: session.write,
    fields: [nothing, fields],
    asked: () => ({ topic: name, settings: Object.fromEntries([...chosen].map(([key, each]) => [key, each.value()])) }),
    shown: (plan) => [changesOf(plan), forecastOf(plan.forecast)],
    confirm: (plan) => `Change ${plural(plan.changes.length, "setting")}`,
    done: (outcome) => {
      for (const each of chosen.values()) each.element.remove();
      chosen.clear();
      nothing.hidden = false;
      put(form.trouble, notice("good", `${plural(outcome.changed.length, "setting")} changed: ${outcome.changed.join(", ")}.`));
      load();
    },
  });

  function choose(row) {
    if (!chosen.has(row.key)) {
      const input = h("input", { value: row.value ?? "", maxlength: 16000, spellcheck: "false", autocomplete: "off", class: "mono" });
      const id = freshId("default");
      const resets = h("input", { type: "checkbox", id, disabled: !row.set, change: () => { input.disabled = resets.checked; } });
      const remove = h("button", { type: "button", class: "plain", "aria-label": `Remove the change of ${row.key}`, click: () => {
        element.remove();
        chosen.delete(row.key);
        nothing.hidden = chosen.size > 0;
        form.form.dispatchEvent(new Event("change"));
      } }, "Remove");
      const element = h("div", { class: "setting-row" }, field(row.key, input, row.about ?? null),
        h("span", { class: "choice" }, resets, h("label", { for: id }, row.set ? "Restore the default" : "It has its default")), remove);
      chosen.set(row.key, { element, input, value: () => (resets.checked ? null : input.value) });
      put(fields, element);
      nothing.hidden = true;
      form.form.dispatchEvent(new Event("change"));
    }
    chosen.get(row.key).input.focus();
  }

  // ------------------------------------------------------------------ partitions, and the end
  const total = h("input", { inputmode: "numeric", maxlength: 6, required: true });
  const growth = change({
    title: "More partitions",
    path: "growth",
    write: session.write,
    fields: h("div", { class: "fields" }, field("Partitions in total", total)),
    asked: () => ({ topic: name, partitions: total.value.trim() }),
    shown: (plan) => figures([["Partitions now", count(plan.old)], ["Partitions then", count(plan.new)]]),
    confirm: (plan) => `Add ${plural(plan.new - plan.old, "partition")}`,
    done: (outcome) => put(growth.trouble, notice("good", `The topic has ${plural(outcome.partitions, "partition")} now.`)),
  });
  const end = change({
    title: "Delete the topic",
    path: "topic-deletion",
    write: session.write,
    danger: true,
    fields: h("p", {}, "With all its records, on all brokers. First a rehearsal says what that is."),
    asked: () => ({ topic: name }),
    shown: deletionOf,
    typed: (plan) => plan.topic,
    confirm: () => "Delete the topic",
    done: () => { location.hash = address("topics"); },
  });

  main.append(
    head(`Settings of ${name}`, { under: "Every change is rehearsed first: the brokers check it, and say what it would delete.", actions: h("a", { class: "button", href: address("topic", { topic: name }) }, "The topic") }),
    trouble, form.element, panel("All settings", {}, rows.element), growth.element, end.element);

  function load() {
    api.view("settings", { topic: name }).then((value) => rows.show(value.settings), (error) => set(trouble, notice("trouble", error.message)));
  }
  load();
}

function valueOf(key, value, row) {
  if (row.sensitive) return h("span", { class: "quiet" }, "secret");
  if (value === null || value === "") return h("span", { class: "quiet" }, "empty");
  const shown = value.startsWith("-") && !["retention.ms", "retention.bytes"].includes(key) ? value : setting(key, value);
  return h("span", { class: "name", title: value }, shown, shown !== value && h("span", { class: "quiet mono" }, ` ${value}`));
}

function changesOf(plan) {
  const rows = table({
    caption: "What would be changed",
    tall: false,
    rowKey: (row) => row.key,
    columns: [
      { title: "Setting", cell: (row) => h("span", { class: "mono" }, row.key) },
      { title: "Is", cell: (row) => valueOf(row.key, row.old, {}) },
      { title: "Will be", cell: (row) => [row.restores_default && row.new === null ? "the brokers' default" : valueOf(row.key, row.new, {}), " ", row.restores_default && badge("default")] },
    ],
  });
  rows.show(plan.changes);
  return rows.element;
}

function forecastOf(forecast) {
  if (forecast === null) return null;
  const rows = table({
    caption: "What the next retention pass would delete",
    tall: false,
    rowKey: (row) => row.partition,
    columns: [
      { title: "Partition", number: true, cell: (row) => row.partition },
      { title: "Log start", number: true, cell: (row) => count(row.log_start) },
      { title: "Delete to", number: true, cell: (row) => count(row.delete_to) },
      { title: "Records", number: true, cell: (row) => count(row.records) },
      { title: "Of these anyway", number: true, cell: (row) => count(row.anyway) },
      { title: "Files", number: true, cell: (row) => count(row.segments) },
      { title: "Bytes", number: true, cell: (row) => bytes(row.bytes) },
      { title: "Kept by the change", number: true, cell: (row) => count(row.kept) },
      { title: "Rule", cell: (row) => row.reasons.join(", ") || "–" },
    ],
  });
  rows.show(forecast.partitions);
  return [
    h("h3", {}, "What the next retention pass would delete"),
    figures([["Records", count(forecast.records), forecast.records ? "warn" : ""], ["Of these without the change too", count(forecast.anyway)], ["Bytes on leaders", bytes(forecast.bytes)],
      ["Bytes on all disks", bytes(forecast.on_all_disks)], ["The next pass", forecast.in_ms === null ? "is running" : `in ${duration(forecast.in_ms)}`]]),
    forecast.partitions.length > 0 ? rows.element : h("p", {}, "No record would be deleted now. Later passes delete what becomes old enough, or too much, by then."),
    forecast.unknown > 0 && notice("warning", `${plural(forecast.unknown, "partition")} could not be forecast.`),
  ];
}

function deletionOf(plan) {
  const groups = table({
    caption: "Groups with offsets in the topic",
    tall: false,
    empty: "No group that you may see has an offset there.",
    rowKey: (row) => row.group,
    columns: [
      { title: "Group", cell: (row) => h("span", { class: "name" }, row.group) },
      { title: "State", cell: (row) => row.state || "–" },
      { title: "Partitions with an offset", number: true, cell: (row) => count(row.partitions) },
    ],
  });
  groups.show(plan.groups);
  return [
    figures([["Partitions", count(plan.partitions)], ["Records that go", count(plan.records), "bad"], ["Bytes on leaders", bytes(plan.bytes)], ["Bytes on all disks", bytes(plan.on_all_disks)], ["Groups with offsets", count(plan.groups.length)]]),
    groups.element,
  ];
}
