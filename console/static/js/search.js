// The search box of the frame: topics, partitions, groups, users, brokers, settings and pages. "/" goes to it.
import * as api from "./api.js";
import { address, h, put, say, set } from "./dom.js";
import { count } from "./units.js";

const HITS = 20;
const FRESH_MS = 30_000;
const PLACE = /^([^/:]+)[/:](\d{1,10})(?:[/:@](\d{1,19}))?$/;

/** What there is to find: how it is called, and the page that shows it. */
const KINDS = [
  ["topics", "Topics", (name) => address("topic", { topic: name })],
  ["groups", "Groups", (name) => address("group", { group: name })],
  ["users", "Users", (name) => address("access", { show: "users", user: name })],
  ["brokers", "Brokers", (name) => address("broker", { broker: name })],
  ["settings", "Settings", (name) => address("setting", { key: name })],
];

/** How well a name fits: 0 is the name itself, 3 somewhere within it; null is no fit. Every word must occur. */
export function fit(name, words) {
  const lower = name.toLowerCase();
  let worst = 0;
  for (const word of words) {
    const at = lower.indexOf(word);
    if (at < 0) return null;
    const rank = lower === word ? 0 : at === 0 ? 1 : /[a-z0-9]/.test(lower[at - 1]) ? 3 : 2;
    worst = Math.max(worst, rank);
  }
  return worst;
}

/** The best hits among names, with how many there are. */
export function hits(names, words) {
  const ranks = [[], [], [], []];
  for (const name of names) {
    const rank = fit(name, words);
    if (rank !== null) ranks[rank].push(name);
  }
  const all = ranks.flat();
  return { shown: all.slice(0, HITS), all: all.length };
}

/** The search box. `pages` are pairs of a page's name and title. */
export function searchBox(pages) {
  let known = null;
  let asked = 0;
  let waiting = null;
  let options = [];
  let active = -1;

  const list = h("div", { class: "hits", id: "search-hits", role: "listbox", "aria-label": "What was found", hidden: true, mousedown: (event) => event.preventDefault() });
  const input = h("input", {
    type: "search",
    id: "search",
    role: "combobox",
    autocomplete: "off",
    spellcheck: "false",
    maxlength: 300,
    placeholder: "Search",
    "aria-label": "Search for topics, groups, users, brokers, settings and pages",
    "aria-keyshortcuts": "/",
    "aria-autocomplete": "list",
    "aria-controls": "search-hits",
    "aria-expanded": "false",
    input: () => draw(),
    focus: () => { learn(); draw(); },
    blur: () => close(),
    keydown,
  });
  const element = h("search", { class: "finder" }, input, h("kbd", { "aria-hidden": "true" }, "/"), list);

  async function learn() {
    if (waiting || Date.now() - asked < FRESH_MS) return;
    waiting = api.view("names");
    try {
      known = await waiting;
      asked = Date.now();
    } catch (error) {
      known = { trouble: error.message };
    } finally {
      waiting = null;
    }
    if (document.activeElement === input) draw();
  }

  function close() {
    list.hidden = true;
    active = -1;
    input.setAttribute("aria-expanded", "false");
    input.removeAttribute("aria-activedescendant");
  }

  function draw() {
    const text = input.value.trim();
    const words = text.toLowerCase().split(/\s+/).filter(Boolean);
    set(list);
    options = [];
    if (!words.length) return close();
    const titles = new Map(pages.map(([name, title]) => [title, name]));
    section("Pages", hits([...titles.keys()], words), (title) => `#/${titles.get(title)}`);
    const place = PLACE.exec(text);
    if (place && known?.topics?.names.includes(place[1])) {
      const [, topic, partition, offset] = place;
      const title = offset === undefined ? `Partition ${partition} of ${topic}` : `Offset ${offset} in partition ${partition} of ${topic}`;
      const to = offset === undefined ? address("topic", { topic, partition }) : address("records", { topic, partition, place: "offset", value: offset });
      section("Places", { shown: [title], all: 1 }, () => to);
    }
    for (const [kind, title, to] of KINDS) if (known?.[kind]) section(title, hits(known[kind].names, words), to);
    if (!options.length) put(list, h("p", { class: "none" }, known ? "Nothing has such a name." : "Looking for names."));
    for (const note of notes()) put(list, h("p", { class: "none" }, note));
    list.hidden = false;
    input.setAttribute("aria-expanded", "true");
    choose(options.length ? 0 : -1);
    say(options.length === 1 ? "1 hit" : `${count(options.length)} hits`);
  }

  /** What the cluster did not tell, so that no hit does not seem to mean that there is nothing. */
  function notes() {
    if (known?.trouble) return [known.trouble];
    return KINDS.filter(([kind]) => known?.[kind]).flatMap(([kind, title]) => [
      known[kind].error && `${title} were not searched: ${known[kind].error}`,
      known[kind].left_out > 0 && `${title} are too many: ${count(known[kind].left_out)} were not searched.`,
    ]).filter(Boolean);
  }

  function section(title, { shown, all }, to) {
    if (!shown.length) return;
    const id = `search-${title.toLowerCase()}`;
    const rows = shown.map((name) => {
      const option = h("a", { role: "option", id: `search-hit-${options.length}`, href: to(name), tabindex: "-1", "aria-selected": "false", click: () => leave() }, name);
      options.push(option);
      return option;
    });
    const more = all > shown.length ? h("span", {}, `${count(shown.length)} of ${count(all)}`) : null;
    put(list, h("div", { role: "group", "aria-labelledby": id }, h("div", { class: "kind", id, role: "presentation" }, title, more), rows));
  }

  function choose(index) {
    options[active]?.setAttribute("aria-selected", "false");
    active = index;
    const option = options[active];
    if (!option) return input.removeAttribute("aria-activedescendant");
    option.setAttribute("aria-selected", "true");
    input.setAttribute("aria-activedescendant", option.id);
    option.scrollIntoView({ block: "nearest" });
  }

  function leave() {
    input.value = "";
    close();
    input.blur();
  }

  function keydown(event) {
    const last = options.length - 1;
    const moves = { ArrowDown: active >= last ? 0 : active + 1, ArrowUp: active <= 0 ? last : active - 1, PageDown: Math.min(last, active + 10), PageUp: Math.max(0, active - 10) };
    if (event.key === "Escape") {
      event.preventDefault();
      if (list.hidden) leave();
      else { input.value = ""; close(); }
    } else if (event.key === "Enter") {
      const option = options[active];
      if (!list.hidden && option) {
        event.preventDefault();
        option.click();
      }
    } else if (Object.hasOwn(moves, event.key)) {
      event.preventDefault();
      if (list.hidden) draw();
      else if (options.length) choose(moves[event.key]);
    }
  }

  document.addEventListener("keydown", (event) => {
    const typing = event.target.closest?.("input, textarea, select, [contenteditable]");
    if (event.key !== "/" || event.ctrlKey || event.metaKey || event.altKey || typing || document.querySelector("dialog[open]") || !element.isConnected) return;
    event.preventDefault();
    input.focus();
    input.select();
  });
  return element;
}
