// Records of a partition, a few at a time.
import * as api from "./api.js";
import { address, badge, field, h, head, notice, panel, select, set } from "./dom.js";
import { bytes, count, moment, plural } from "./units.js";

const FORMS = { json: "JSON", text: "Text", hex: "Hex" };

export function recordsPage(main, given) {
  const topic = h("input", { name: "topic", required: true, maxlength: 249, value: given.topic ?? "", list: "topic-names", autocomplete: "off", spellcheck: "false" });
  const names = h("datalist", { id: "topic-names" });
  const partition = h("input", { name: "partition", type: "number", min: 0, required: true, value: given.partition ?? "0" });
  const place = select([["end", "The newest"], ["before", "Before an offset"], ["start", "The oldest"], ["offset", "From an offset"], ["time", "From a time"]], given.place ?? "end", { name: "place", change: () => fit() });
  const value = h("input", { name: "value", value: given.value ?? "", maxlength: 64 });
  const number = select([["10", "10"], ["50", "50"], ["100", "100"], ["200", "200"]], given.count ?? "50", { name: "count" });
  const valueField = field("Offset", value);
  const trouble = h("div", { role: "alert" });
  const found = h("div");
  const form = h("form", {
    submit: (event) => {
      event.preventDefault();
      go({ place: place.value, value: value.value });
    },
  }, h("div", { class: "fields" }, field("Topic", topic), field("Partition", partition), field("Which", place), valueField, field("Up to", number), h("button", { class: "main" }, "Show")), names);
  main.append(head("Records", { under: "Shown, not consumed: nothing is committed, and never more than one bounded read." }), panel("Browse", {}, h("div", { class: "body" }, form)), trouble, found);

  function fit() {
    const needed = place.value !== "end" && place.value !== "start";
    valueField.hidden = !needed;
    value.required = needed;
    valueField.querySelector("label").textContent = place.value === "time" ? "Time" : "Offset";
    value.type = place.value === "time" ? "datetime-local" : "text";
    value.step = "0.001";
    value.inputMode = place.value === "time" ? "text" : "numeric";
    if (place.value === "time" && !/T/.test(value.value)) value.value = "";
  }
  fit();

  function go(which) {
    const wanted = { topic: topic.value, partition: partition.value, place: which.place, value: which.value || null, count: number.value };
    const next = address("records", wanted);
    if (location.hash === next) show(wanted);
    else location.hash = next;
  }

  async function show(wanted) {
    set(trouble);
    const asked = { ...wanted };
    if (asked.place === "time" && asked.value && !/^\d+$/.test(asked.value)) asked.value = new Date(asked.value).toISOString();
    try {
      const page = await api.view("records", asked);
      set(found, resultOf(page, go));
    } catch (error) {
      set(found);
      set(trouble, notice("trouble", error.message));
    }
  }

  api.view("topics", { internal: 1 }).then((value_) => set(names, value_.topics.map((each) => h("option", { value: each.name }))), () => {});
  if (given.topic) show({ topic: given.topic, partition: given.partition ?? "0", place: given.place ?? "end", value: given.value ?? null, count: given.count ?? "50" });
}

function resultOf(page, go) {
  const last = page.records.length ? page.records[page.records.length - 1].offset : null;
  const aside = page.records.length ? `offsets ${count(page.first)} to ${count(last)}, of ${count(page.log_start)} to ${count(page.high_watermark)}` : `log start ${count(page.log_start)}, high watermark ${count(page.high_watermark)}`;
  const older = h("button", { type: "button", disabled: Number(page.first) <= Number(page.log_start), click: () => go({ place: "before", value: String(page.first) }) }, "Older");
  const newer = h("button", { type: "button", disabled: Number(page.next) >= Number(page.high_watermark), click: () => go({ place: "offset", value: String(page.next) }) }, "Newer");
  const list = page.records.map(recordOf);
  const cut = page.complete ? null : notice("note", "These records are large: older ones are on the page before.");
  return panel(plural(page.records.length, "record"), { aside, actions: [older, newer] }, cut,
    page.records.length ? [h("div", { class: "records-head", "aria-hidden": "true" }, h("span", {}, "Offset"), h("span", {}, "Time"), h("span", {}, "Key"), h("span", {}, "Value")), list]
      : h("p", { class: "empty" }, "Nothing is there."));
}

function recordOf(row) {
  if (row.marker) {
    return h("details", { class: "record" }, h("summary", {}, h("span", {}, count(row.offset)), h("span", {}, moment(row.timestamp)), badge(`${row.marker} marker`, "sea"), h("span", {}, `of producer ${row.producer_id}`)));
  }
  const inside = h("div", { class: "inside" });
  const element = h("details", {
    class: "record",
    toggle: () => { if (element.open && !inside.hasChildNodes()) set(inside, insideOf(row)); },
  }, h("summary", {}, h("span", {}, count(row.offset)), h("span", {}, moment(row.timestamp)), h("span", { class: "mono" }, brief(row.key)), h("span", { class: "mono" }, brief(row.value))), inside);
  return element;
}

function brief(content) {
  if (content === null) return h("span", { class: "null" }, "null");
  if (content.bytes === 0) return h("span", { class: "null" }, "empty");
  return (content.text ?? content.hex).slice(0, 240);
}

function insideOf(row) {
  return [
    contentOf("Key", row.key),
    contentOf("Value", row.value),
    row.headers.map((header) => contentOf(`Header ${header.name}`, header.value)),
    row.headers_left_out > 0 && h("p", {}, `${plural(row.headers_left_out, "header")} more.`),
  ];
}

/** Bytes in the forms that they have, the most telling one first. */
function contentOf(name, content) {
  if (content === null) return h("div", {}, h("h3", {}, name), h("span", { class: "null" }, "null"));
  const forms = Object.keys(FORMS).filter((form) => content[form] !== undefined);
  const shown = h("pre", { tabindex: "0", "aria-label": name }, content[forms[0]]);
  const buttons = forms.map((form, index) => h("button", {
    type: "button",
    class: "plain",
    "aria-pressed": String(index === 0),
    click: (event) => {
      shown.textContent = form === "hex" ? dump(content.hex) : content[form];
      for (const each of event.target.parentElement.querySelectorAll("button")) each.setAttribute("aria-pressed", String(each === event.target));
    },
  }, FORMS[form]));
  if (forms[0] === "hex") shown.textContent = dump(content.hex);
  const cut = content.bytes * 2 > content.hex.length ? `, the first ${bytes(content.hex.length / 2)} of them here` : "";
  return h("div", {}, h("div", { class: "choice" }, h("h3", {}, name), h("span", { class: "badge" }, `${bytes(content.bytes)}${cut}`), buttons), shown);
}

/** Sixteen bytes a line: place, hex digits, printable characters. */
function dump(hex) {
  const lines = [];
  for (let at = 0; at < hex.length; at += 32) {
    const pairs = hex.slice(at, at + 32).match(/../g) ?? [];
    const letters = pairs.map((pair) => { const code = parseInt(pair, 16); return code >= 32 && code < 127 ? String.fromCharCode(code) : "."; }).join("");
    lines.push(`${(at / 2).toString(16).padStart(6, "0")}  ${pairs.join(" ").padEnd(47)}  ${letters}`);
  }
  return lines.join("\n");
}
