// Writing records by hand: keys, values and headers as text, JSON, hex or base64; tombstones; one record or a line for each.
import { change } from "./change.js";
import * as api from "./api.js";
import { field, figures, h, head, link, panel, put, say, select, set } from "./dom.js";
import { table } from "./table.js";
import { bytes, count, plural } from "./units.js";

const FORMS = [["text", "Text"], ["json", "JSON"], ["hex", "Hex"], ["base64", "Base64"]];
const HEADERS_MAX = 100;

export function producePage(main, given, { session }) {
  const topic = h("input", { name: "topic", required: true, maxlength: 249, value: given.topic ?? "", list: "topic-names", autocomplete: "off", spellcheck: "false" });
  const names = h("datalist", { id: "topic-names" });
  const partition = h("input", { name: "partition", inputmode: "numeric", maxlength: 10, value: given.partition ?? "", placeholder: "by key" });
  const time = h("input", { name: "time", type: "datetime-local", step: "0.001" });
  const keyForm = select([["null", "No key"], ...FORMS], "text", { name: "key-form", change: () => fit() });
  const key = h("textarea", { name: "key", rows: 1, maxlength: 60000, spellcheck: "false", class: "wide mono", "aria-label": "The key" });
  const valueForm = select([...FORMS, ["null", "Tombstone (no value)"]], "text", { name: "value-form", change: () => fit() });
  const value = h("textarea", { name: "value", rows: 8, maxlength: 60000, spellcheck: "false", class: "wide mono", "aria-label": "The value" });
  const lines = h("input", { type: "checkbox", id: "lines", change: () => fit() });
  const headers = h("div", { class: "rows" });
  const more = h("button", { type: "button", click: () => { addHeader().querySelector("input").focus(); } }, "Add a header");
  const written = h("div", { "aria-live": "polite" });
  const fit = () => {
    key.hidden = keyForm.value === "null";
    value.hidden = valueForm.value === "null";
    lines.disabled = value.hidden;
  };
  fit();

  function addHeader() {
    if (headers.childElementCount >= HEADERS_MAX) return headers;
    const row = h("div", { class: "header-row" },
      h("input", { maxlength: 1000, placeholder: "Name", "aria-label": "Name of the header" }),
      h("input", { maxlength: 10000, placeholder: "Value", "aria-label": "Value of the header" }),
      select([...FORMS, ["null", "No value"]], "text", { "aria-label": "Form of the header" }),
      h("button", { type: "button", class: "plain", "aria-label": "Remove this header", click: () => { row.remove(); form.form.dispatchEvent(new Event("change")); } }, "Remove"));
    put(headers, row);
    return row;
  }

  function asked() {
    const rows = [...headers.children].map((row) => {
      const [name, text, shape] = row.querySelectorAll("input, select");
      return { name: name.value, value: { form: shape.value, text: text.value } };
    });
    const values = lines.checked && !value.hidden ? value.value.split("\n").filter((each) => each !== "") : [value.value];
    const timestamp = time.value ? new Date(time.value).getTime() : null;
    return {
      topic: topic.value.trim(),
      partition: partition.value.trim(),
      records: values.map((text) => ({ key: { form: keyForm.value, text: key.value }, value: { form: valueForm.value, text }, headers: rows, timestamp })),
    };
  }

  const form = change({
    title: "The record",
    path: "records",
    write: session.write,
    fields: [
      h("div", { class: "fields start" }, field("Topic", topic), field("Partition", partition, "Empty: the partition of the key, as Kafka's clients choose it."),
        field("Timestamp", time, "Empty: now.")),
      h("div", { class: "fields" }, field("Key", keyForm)), key,
      h("div", { class: "fields" }, field("Value", valueForm)), value,
      h("div", { class: "choice" }, lines, h("label", { for: "lines" }, "Each line is a record of its own")),
      h("fieldset", {}, h("legend", {}, "Headers"), h("div", { class: "rows" }, headers, more)),
      names,
    ],
    asked,
    shown: (plan) => {
      const rows = table({
        caption: "What would be written",
        tall: false,
        rowKey: (row) => row.partition,
        columns: [
          { title: "Partition", number: true, cell: (row) => row.partition },
          { title: "Records", number: true, cell: (row) => count(row.records) },
          { title: "Bytes of the batch", number: true, cell: (row) => bytes(row.bytes) },
        ],
      });
      rows.show(plan.partitions);
      return [figures([["Topic", plan.topic], ["Records", count(plan.records)], ["Tombstones", count(plan.tombstones)]]), rows.element];
    },
    confirm: (plan) => `Write ${plural(plan.records, "record")}`,
    done: (outcome) => {
      set(written, outcomePanel(outcome));
      const failed = outcome.partitions.filter((row) => row.error).length;
      say(failed ? "Some records could not be written." : "The records are written.");
    },
  });
  main.append(head("Write records", { under: "With acks=all: a record is written when all in-sync replicas have it. Larger records than a form takes: lowtide records produce." }), form.element, written);
  api.view("topics").then((found) => set(names, found.topics.map((each) => h("option", { value: each.name }))), () => {});
}

function outcomePanel(outcome) {
  return panel("Written", {}, h("div", { class: "body" }, h("ul", { class: "notices" }, outcome.partitions.map((row) => (row.error
    ? h("li", { class: "notice trouble" }, row.error)
    : h("li", { class: "notice good" }, link(placeOf(outcome.topic, row), "records", { topic: outcome.topic, partition: row.partition, place: "offset", value: row.offset, offset: row.offset })))))));
}

function placeOf(topic, row) {
  return row.records === 1 ? `${topic}, partition ${row.partition}, offset ${count(row.offset)}`
    : `${topic}, partition ${row.partition}, ${plural(row.records, "record")} from offset ${count(row.offset)} on`;
}
