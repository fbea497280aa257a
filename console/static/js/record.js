// One record: a line of a list, and inside it everything that is known of the record.
import { address, badge, h, say, set } from "./dom.js";
import { bytes, count, moment, plural } from "./units.js";

const FORMS = { schema: "By its schema", json: "JSON", text: "Text", msgpack: "MessagePack", hex: "Hex", base64: "Base64" };
const BRIEF = 240;
const SAID_MS = 2000;

/** The forms that values can be shown in: the best of each value, or always the same. */
export const CHOICES = [["", "Best form"], ...Object.entries(FORMS)];

/** A line of the list. Its inside is made when it is opened. */
export function recordOf(row, topic, form, open = false) {
  const places = [h("span", {}, count(row.partition)), h("span", {}, count(row.offset)), h("span", {}, moment(row.timestamp))];
  if (row.marker) {
    return h("details", { class: "record" }, h("summary", {}, places, badge(`${row.marker} marker`, "sea"), h("span", {}, `of producer ${row.producer_id}`)));
  }
  const inside = h("div", { class: "inside" });
  const fill = () => { if (element.open && !inside.hasChildNodes()) set(inside, insideOf(row, topic, form)); };
  const element = h("details", { class: "record", toggle: fill, open },
    h("summary", {}, places, h("span", { class: "mono" }, brief(row.key, form)), h("span", { class: "mono" }, brief(row.value, form))), inside);
  fill();
  return element;
}

function brief(content, form) {
  if (content === null) return h("span", { class: "null" }, "null");
  if (content.bytes === 0) return h("span", { class: "null" }, "empty");
  const shown = form && inForm(content, form) !== undefined ? inForm(content, form) : content.schema ?? content.text ?? content.msgpack ?? content.hex;
  return shown.slice(0, BRIEF).replace(/\s+/g, " ");
}

function insideOf(row, topic, form) {
  const place = { topic, partition: row.partition, offset: row.offset };
  return [
    h("div", { class: "choice" },
      copyButton("Copy as JSON", () => JSON.stringify(valueOf(row, topic), null, 2)),
      copyButton("Copy kcat command", () => `kcat -C -b BROKER:9092 -t ${quoted(topic)} -p ${row.partition} -o ${row.offset} -c 1 -J`),
      h("a", { class: "button plain", href: address("records", place) }, "Link to this record")),
    contentOf("Key", row.key, form),
    contentOf("Value", row.value, form),
    row.headers.map((header) => contentOf(`Header ${header.name}`, header.value, form)),
    row.headers_left_out > 0 && h("p", {}, `${plural(row.headers_left_out, "header")} more.`),
  ];
}

function quoted(text) {
  return /^[\w.-]+$/.test(text) ? text : `'${text.replaceAll("'", "'\\''")}'`;
}

/** A record for programs: JSON as such, texts, or hex digits for other bytes. What is cut says so. */
function valueOf(row, topic) {
  const headers = row.headers.map((each) => ({ name: each.name, ...named("value", each.value) }));
  return { topic, partition: row.partition, offset: row.offset, timestamp: row.timestamp, ...named("key", row.key), ...named("value", row.value), headers };
}

function named(name, content) {
  if (content === null) return { [name]: null };
  const cut = isCut(content) ? { [`${name}_bytes`]: content.bytes } : {};
  if (content.schema !== undefined && exact(content.schema)) return { [name]: JSON.parse(content.schema) };
  if (content.json !== undefined && exact(content.json)) return { [name]: JSON.parse(content.json), ...cut };
  return content.text !== undefined ? { [name]: content.text, ...cut } : { [`${name}_hex`]: content.hex, ...cut };
}

/** Whether a browser reads a JSON text without rounding its numbers. */
function exact(json) {
  return !/\d{16}/.test(json);
}

function isCut(content) {
  return content.bytes * 2 > content.hex.length;
}

function copyButton(name, text) {
  const button = h("button", {
    type: "button",
    class: "plain",
    click: async () => {
      const done = await copy(text());
      button.textContent = done ? "Copied" : "The browser does not allow copying";
      say(button.textContent);
      setTimeout(() => { button.textContent = name; }, SAID_MS);
    },
  }, name);
  return button;
}

/** Browsers have a clipboard for pages of this machine and of https; elsewhere the older way may work. */
async function copy(text) {
  try {
    await navigator.clipboard.writeText(text);
    return true;
  } catch { /* not allowed here */ }
  const area = h("textarea", { class: "unseen", "aria-hidden": "true" });
  area.value = text;
  document.body.append(area);
  area.select();
  const done = document.execCommand("copy");
  area.remove();
  return done;
}

function inForm(content, form) {
  if (form === "base64") return base64(content.hex);
  return content[form];
}

/** Bytes in the forms that they have, the chosen one or the most telling one first. */
function contentOf(name, content, chosen) {
  if (content === null) return h("div", {}, h("h3", {}, name), h("span", { class: "null" }, "null"));
  const forms = Object.keys(FORMS).filter((form) => inForm(content, form) !== undefined);
  const first = forms.includes(chosen) ? chosen : forms[0];
  const text = (form) => (form === "hex" ? dump(content.hex) : inForm(content, form));
  const shown = h("pre", { tabindex: "0", "aria-label": name }, text(first));
  const buttons = forms.map((form) => h("button", {
    type: "button",
    class: "plain",
    "aria-pressed": String(form === first),
    click: (event) => {
      shown.textContent = text(form);
      for (const each of event.target.parentElement.querySelectorAll("button")) each.setAttribute("aria-pressed", String(each === event.target));
    },
  }, form === "schema" ? content.schema_name : FORMS[form]));
  const cut = isCut(content) ? `, the first ${bytes(content.hex.length / 2)} of them here` : "";
  return h("div", {}, h("div", { class: "choice" }, h("h3", {}, name), h("span", { class: "badge" }, `${bytes(content.bytes)}${cut}`), buttons),
    content.unread && h("p", { class: "hint" }, `Not read by a schema: ${content.unread}`), shown);
}

function base64(hex) {
  return btoa((hex.match(/../g) ?? []).map((pair) => String.fromCharCode(parseInt(pair, 16))).join(""));
}

/** Sixteen bytes a line: place, hex digits, printable characters. */
function dump(hex) {
  const found = [];
  for (let at = 0; at < hex.length; at += 32) {
    const pairs = hex.slice(at, at + 32).match(/../g) ?? [];
    const letters = pairs.map((pair) => { const code = parseInt(pair, 16); return code >= 32 && code < 127 ? String.fromCharCode(code) : "."; }).join("");
    found.push(`${(at / 2).toString(16).padStart(6, "0")}  ${pairs.join(" ").padEnd(47)}  ${letters}`);
  }
  return found.join("\n");
}
