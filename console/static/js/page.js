// What every live page has: whether it is live, and the sentence about a trouble.
import { badge, h, notice, set } from "./dom.js";

/** The mark of a live page beside its heading, and the place of its trouble. `mood` is for `watch`. */
export function liveMark() {
  const mark = h("span", { class: "live still" }, "Connecting");
  const trouble = h("div", { role: "alert" });
  let away = false;
  return {
    mark,
    trouble,
    mood(sentence) {
      mark.className = sentence ? "live away" : "live";
      mark.textContent = sentence ? "Not live" : "Live";
      if (sentence || away) set(trouble, sentence && notice("trouble", sentence));
      away = Boolean(sentence);
    },
    warn(sentences) {
      if (!away) set(trouble, sentences.filter(Boolean).map((each) => notice("warning", each)));
    },
  };
}

/** Tabs of a page, as links, so that each has an address. */
export function tabs(label, choices, chosen) {
  return h("nav", { class: "tabs", "aria-label": label }, h("ul", {}, choices.map(([name, title, href]) =>
    h("li", {}, h("a", { href, "aria-current": name === chosen ? "page" : null }, title)))));
}

const READING = new Set(["stable"]);

/** The state of a group, coloured by whether it reads. */
export function stateOf(state) {
  const known = state.toLowerCase();
  return badge(state || "unknown", READING.has(known) ? "good" : known.includes("rebalanc") || known === "assigning" || known === "reconciling" ? "warn" : "");
}
