// Whose records are searched, and where: keys typed, pasted or from a file, or a header; topics by name, by pattern, or all.
// Keys go into the body of one request and are kept nowhere.
import * as api from "./api.js";
import { field, h, notice, panel, select, set } from "./dom.js";
import { bytes, count, plural } from "./units.js";

const BODY_MAX = 60_000;
const KEYS_MAX = 1000;

/** The form. `begun` gets the id of the search. */
export function whomPanel(trouble, begun) {
  const keys = h("textarea", { rows: 4, autocomplete: "off", autocapitalize: "off", spellcheck: "false", class: "mono keys", name: "keys" });
  const format = select([["text", "Text"], ["hex", "Hexadecimal"], ["base64", "Base64"]], "text");
  const file = h("input", { type: "file", change: () => take() });
  const taken = h("span", { class: "hint", role: "status" });
  const header = h("input", { autocomplete: "off", spellcheck: "false", maxlength: 8192, placeholder: "person=4711" });
  const topics = h("input", { autocomplete: "off", spellcheck: "false", maxlength: 20_000, list: "erase-topics" });
  const names = h("datalist", { id: "erase-topics" });
  let fromFile = [];

  async function take() {
    set(trouble);
    fromFile = [];
    const [chosen] = file.files;
    if (!chosen) {
      taken.textContent = "";
      return;
    }
    if (chosen.size > BODY_MAX) {
      set(trouble, notice("trouble", `The file has more than ${bytes(BODY_MAX)}: use lowtide records erase --keys-from for so many keys.`));
      file.value = "";
      return;
    }
    fromFile = lines(await chosen.text());
    taken.textContent = `${plural(fromFile.length, "key")} from the file.`;
  }

  const by = radios("by", [["keys", "By key"], ["header", "By header"]], () => fit());
  const where = radios("where", [["some", "These topics"], ["all", "All topics that you may read"]], () => fit());
  const keyFields = h("div", { class: "fields start" }, field("Keys, one in each line", keys, "At most 1,000. They are sent once, and kept in the console's memory until they are erased."),
    field("Written as", format), h("div", {}, field("Or a file with a key in each line", file), taken));
  const headerFields = h("div", { class: "fields start" }, field("Header, as NAME=VALUE", header, "Records that have this header with this value."));
  const topicFields = h("div", { class: "fields start" }, field("Topics", topics, "Names, or patterns with * and ?, with commas between: orders, clicks-*"));
  const fit = () => {
    keyFields.hidden = by.value() !== "keys";
    headerFields.hidden = !keyFields.hidden;
    topicFields.hidden = where.value() !== "some";
  };
  fit();
  const go = h("button", { class: "main" }, "Search");
  api.view("topics").then((value) => set(names, value.topics.map((each) => h("option", { value: each.name }))), () => {});

  async function search(event) {
    event.preventDefault();
    set(trouble);
    const asked = {};
    if (by.value() === "keys") {
      asked.keys = [...lines(keys.value), ...fromFile];
      asked.key_format = format.value;
      if (asked.keys.length > KEYS_MAX) return fail(`These are ${count(asked.keys.length)} keys, and a search has at most ${count(KEYS_MAX)}.`);
    } else {
      asked.header = header.value;
    }
    const words = topics.value.split(",").map((each) => each.trim()).filter(Boolean);
    if (where.value() === "all") asked.all = true;
    else Object.assign(asked, { topics: words.filter((each) => !/[*?[]/.test(each)), patterns: words.filter((each) => /[*?[]/.test(each)) });
    if (JSON.stringify(asked).length > BODY_MAX) return fail("The keys are too large together: use lowtide records erase --keys-from for so many.");
    go.disabled = true;
    try {
      const { id } = await api.post("erase/search", asked);
      keys.value = "";
      header.value = "";
      fromFile = [];
      begun(id);
    } catch (error) {
      fail(error.message);
    } finally {
      go.disabled = false;
    }
    return null;
  }

  function fail(sentence) {
    set(trouble, notice("trouble", sentence));
    return null;
  }

  return panel("Whose records, and where", {}, h("form", { submit: search, autocomplete: "off" }, h("div", { class: "body" },
    h("fieldset", {}, h("legend", {}, "Whose"), by.elements, keyFields, headerFields),
    h("fieldset", {}, h("legend", {}, "Where"), where.elements, topicFields),
    h("div", {}, go)), names));
}

function radios(name, options, changed) {
  const inputs = options.map(([value], index) => h("input", { type: "radio", name, value, id: `${name}-${value}`, checked: index === 0, change: changed }));
  return {
    elements: h("div", { class: "fields" }, inputs.map((input, index) => h("div", { class: "choice" }, input, h("label", { for: input.id }, options[index][1])))),
    value: () => inputs.find((each) => each.checked).value,
  };
}

function lines(text) {
  return text.split("\n").map((each) => each.replace(/\r$/, "")).filter(Boolean);
}
