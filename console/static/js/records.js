// Records of a topic: the newest, the oldest, those from a time on, those that meet conditions, and new ones as they come.
import * as api from "./api.js";
import { address, field, h, head, notice, panel, say, select, set } from "./dom.js";
import { lines } from "./lines.js";
import { CHOICES, recordOf } from "./record.js";
import { bytes, count, plural } from "./units.js";

const ROWS_MAX = 1000;
const FOLLOWED_MAX = 500;
const SECONDS = 30;
const PLACES = [
  ["newest", "The newest"],
  ["oldest", "The oldest"],
  ["time", "From a time on"],
  ["until", "Before a time"],
  ["offset", "From an offset on"],
  ["before", "Before an offset"],
  ["follow", "New ones, as they are written"],
];
const BY_TIME = new Set(["time", "until"]);
const BY_OFFSET = new Set(["offset", "before"]);
const BACKWARDS = new Set(["newest", "until", "before"]);
const CONDITIONS = ["text", "key", "header", "where"];

export function recordsPage(main, given) {
  const asked = readAddress(given);
  const ends = new AbortController();
  const input = (name, properties = {}) => h("input", { name, value: asked[name] ?? "", autocomplete: "off", spellcheck: "false", maxlength: 4096, ...properties });
  const topic = input("topic", { required: true, maxlength: 249, list: "topic-names" });
  const names = h("datalist", { id: "topic-names" });
  const partitions = input("partitions", { placeholder: "all", pattern: "[0-9]+(-[0-9]+)?(,[0-9]+(-[0-9]+)?)*", title: "Numbers and ranges, as in 0,2-4" });
  const place = select(PLACES, asked.place, { name: "place", change: () => fit() });
  const value = input("value", { maxlength: 64 });
  const number = select([["10", "10"], ["50", "50"], ["100", "100"], ["200", "200"]], asked.count, { name: "count" });
  const form = select(CHOICES, asked.form, { name: "form" });
  const wanted = Object.fromEntries(CONDITIONS.map((name) => [name, input(name)]));
  const valueField = field("Offset", value);
  const element = h("form", { class: "find-records", submit: (event) => { event.preventDefault(); go(); } },
    h("div", { class: "fields start" }, field("Topic", topic), field("Partitions", partitions), field("Which", place), valueField, field("Up to", number), field("Show as", form)),
    h("fieldset", {}, h("legend", {}, "Only records with"), h("div", { class: "fields start conditions" },
      field("Text", wanted.text, "in the key or the value"),
      field("Key", wanted.key, "the whole key"),
      field("Header", wanted.header, "NAME=VALUE, or NAME"),
      field("Filter", wanted.where, "JMESPath on JSON, as in delay > `60`"))),
    h("div", { class: "fields" }, h("button", { class: "main" }, "Search")), names);
  const result = h("div");
  main.append(head("Records", { under: "Shown, not consumed: nothing is committed." }), panel("Find", {}, h("div", { class: "body" }, element)), result);

  function fit() {
    const byTime = BY_TIME.has(place.value);
    valueField.hidden = !byTime && !BY_OFFSET.has(place.value);
    value.required = !valueField.hidden;
    valueField.querySelector("label").textContent = byTime ? "Time" : "Offset";
    value.type = byTime ? "datetime-local" : "text";
    value.step = "0.001";
    value.inputMode = byTime ? "text" : "numeric";
    if (byTime && !/T/.test(value.value)) value.value = "";
    partitions.required = BY_OFFSET.has(place.value);
    number.disabled = place.value === "follow";
  }
  fit();

  function go() {
    const next = {
      topic: topic.value, partitions: partitions.value || null, place: place.value === "newest" ? null : place.value, value: valueField.hidden ? null : value.value,
      count: number.value === "50" ? null : number.value, form: form.value || null, ...Object.fromEntries(CONDITIONS.map((name) => [name, wanted[name].value || null])),
    };
    const where = address("records", next);
    if (location.hash === where) begin(readAddress(next));
    else location.hash = where;
  }

  let running = null;
  function begin(what) {
    running?.abort();
    running = new AbortController();
    ends.signal.addEventListener("abort", () => running.abort());
    set(result);
    try {
      const request = requestOf(what);
      if (what.place === "follow") new Followed(result, what, running.signal).follow(request);
      else new Found(result, what, running.signal).search(request);
    } catch (trouble) {
      set(result, notice("trouble", trouble.message));
    }
  }

  api.view("topics", { internal: 1 }).then((found) => set(names, found.topics.map((each) => h("option", { value: each.name }))), () => {});
  if (asked.topic) begin(asked);
  return () => ends.abort();
}

/** What an address asks for. `partition` with `offset` is one record. */
function readAddress(given) {
  const isOne = given.partition !== undefined && given.offset !== undefined;
  const old = { end: "newest", start: "oldest" };
  const place = isOne ? "offset" : old[given.place] ?? given.place ?? "newest";
  return {
    ...given,
    isOne,
    partitions: given.partitions ?? given.partition ?? "",
    place: PLACES.some(([name]) => name === place) ? place : "newest",
    value: isOne ? given.offset : given.value ?? "",
    count: isOne ? "10" : given.count ?? "50",
    form: given.form ?? "",
  };
}

/** The request for an address. Errors: an Error with a sentence. */
function requestOf(what) {
  const numbers = numbersOf(what.partitions);
  const request = { topic: what.topic, order: BACKWARDS.has(what.place) ? "newest" : "oldest", count: what.isOne ? 1 : Number(what.count), seconds: SECONDS };
  if (numbers) request.partitions = numbers;
  if (BY_TIME.has(what.place)) request.time = /^\d+$/.test(what.value) ? what.value : new Date(what.value).toISOString();
  if (BY_OFFSET.has(what.place)) {
    if (!numbers) throw new Error("Name the partitions to which the offset belongs.");
    request.offsets = Object.fromEntries(numbers.map((each) => [each, what.value]));
  }
  if (what.form === "msgpack") request.values = "msgpack";
  for (const name of CONDITIONS) if (what[name]) request[name] = what[name];
  return request;
}

/** Numbers and ranges as in 0,2-4; null for all. Errors: an Error with a sentence. */
function numbersOf(text) {
  if (!text) return null;
  const found = new Set();
  for (const part of text.split(",")) {
    const range = part.trim().match(/^(\d{1,5})(?:-(\d{1,5}))?$/);
    if (!range) throw new Error("Partitions must be numbers and ranges, as in 0,2-4.");
    for (let each = Number(range[1]); each <= Number(range[2] ?? range[1]); each += 1) found.add(each);
  }
  return [...found];
}

/** Rows in the order of the list, at most `room` of them. */
class Rows {
  constructor(what, isBackwards, room) {
    this.what = what;
    this.isBackwards = isBackwards;
    this.room = room;
    this.rows = [];
    this.head = h("div", { class: "records-head", "aria-hidden": "true", hidden: true }, ["Partition", "Offset", "Time", "Key", "Value"].map((text) => h("span", {}, text)));
    this.list = h("div", { class: "records" });
  }

  get size() {
    return this.rows.length;
  }

  /** Put a row where it belongs, and drop the last one if there are too many. */
  insert(row) {
    let [low, high] = [0, this.rows.length];
    while (low < high) {
      const middle = (low + high) >> 1;
      if (this.compare(this.rows[middle].row, row) <= 0) low = middle + 1;
      else high = middle;
    }
    const same = this.rows[low - 1]?.row;
    if (same && same.partition === row.partition && same.offset === row.offset) return;
    const element = recordOf(row, this.what.topic, this.what.form, this.what.isOne);
    this.list.insertBefore(element, this.rows[low]?.element ?? null);
    this.rows.splice(low, 0, { row, element });
    this.head.hidden = false;
    while (this.rows.length > this.room) this.rows.pop().element.remove();
  }

  compare(one, other) {
    const sign = this.isBackwards ? -1 : 1;
    return sign * (Number(one.timestamp) - Number(other.timestamp)) || one.partition - other.partition || sign * Number(BigInt(one.offset) - BigInt(other.offset));
  }
}

/** New records, the newest first. A hidden tab follows nothing, and goes on where it was when it is shown again. */
class Followed {
  constructor(place, what, signal) {
    this.signal = signal;
    this.rows = new Rows(what, true, FOLLOWED_MAX);
    this.next = null;
    this.seen = this.skipped = this.seenBefore = this.skippedBefore = 0;
    this.state = h("p", { class: "state" });
    this.button = h("button", { type: "button" }, "Pause");
    this.notes = h("div", { class: "notices" });
    this.live = h("span", { class: "live still" }, "Waiting");
    set(place, panel("New records", {}, h("div", { class: "body searching" }, h("div", { class: "choice" }, this.button, this.live), this.state), this.notes, this.rows.head, this.rows.list));
  }

  follow(request) {
    this.request = request;
    this.isPaused = false;
    this.button.onclick = () => { this.isPaused = !this.isPaused; this.turn(); };
    document.addEventListener("visibilitychange", () => this.turn(), { signal: this.signal });
    this.signal.addEventListener("abort", () => this.ask?.abort());
    this.turn();
  }

  /** Begin or end to ask, as the tab is shown and is not paused. */
  turn() {
    const wanted = !this.isPaused && !document.hidden && !this.signal.aborted;
    this.button.textContent = this.isPaused ? "Continue" : "Pause";
    if (!wanted) {
      this.ask?.abort();
      this.ask = null;
      this.live.className = "live still";
      this.live.textContent = "Paused";
    } else if (!this.ask) {
      this.run(this.ask = new AbortController());
    }
  }

  async run(ask) {
    this.seenBefore += this.seen;
    this.skippedBefore += this.skipped;
    this.seen = this.skipped = 0;
    let trouble = null;
    try {
      await lines("follow", this.next ? { ...this.request, offsets: this.next } : this.request, ask.signal, (line) => {
        if (line.hits) for (const row of line.hits) this.rows.insert(row);
        if (line.followed) this.say(line.followed);
        if (line.trouble) trouble = line.trouble;
      });
    } catch (error) {
      trouble = error.message;
    }
    if (this.ask !== ask) return;
    this.ask = null;
    if (trouble === null) return void this.turn();
    set(this.notes, notice("trouble", trouble));
    this.isPaused = true;
    this.turn();
  }

  say(done) {
    this.next = done.next;
    this.seen = done.records;
    this.skipped = done.skipped;
    this.live.className = "live";
    this.live.textContent = "Live";
    const skipped = this.skippedBefore + this.skipped;
    const lost = skipped ? ` ${plural(skipped, "record")} left out, because they came faster than a page can show them.` : "";
    this.state.textContent = `${plural(this.seenBefore + this.seen, "record")} read from ${plural(Object.keys(done.next).length, "partition")}.${lost}`;
    set(this.notes, done.troubles.map((sentence) => notice("warning", sentence)));
  }
}

/** The list of what is found, with its progress. */
class Found {
  constructor(place, what, signal) {
    this.what = what;
    this.signal = signal;
    this.progress = h("progress", { max: 1, value: 0, "aria-label": "Searched" });
    this.state = h("p", { class: "state" });
    this.stop = h("button", { type: "button" }, "Stop");
    this.more = h("button", { type: "button", hidden: true }, "More");
    this.notes = h("div", { class: "notices" });
    this.line = h("div", { class: "body searching" }, h("div", { class: "choice" }, this.progress, this.stop, this.more), this.state);
    this.title = h("span", {}, "Searching");
    this.rows = new Rows(what, BACKWARDS.has(what.place), 0);
    set(place, panel(this.title, {}, this.line, this.notes, this.rows.head, this.rows.list));
  }

  async search(request) {
    this.before = this.rows.size;
    this.rows.room = Math.min(ROWS_MAX, this.before + request.count);
    const stopping = new AbortController();
    const stop = () => stopping.abort();
    this.signal.addEventListener("abort", stop);
    this.stop.onclick = stop;
    this.stop.hidden = this.progress.hidden = false;
    this.more.hidden = true;
    this.end = null;
    this.trouble = null;
    try {
      await lines("search", request, stopping.signal, (line) => this.take(line));
    } catch (error) {
      this.trouble = error.message;
    }
    this.signal.removeEventListener("abort", stop);
    if (this.signal.aborted) return;
    this.stop.hidden = this.progress.hidden = true;
    this.finish(request);
  }

  take(line) {
    if (line.hits) for (const row of line.hits) this.rows.insert(row);
    if (line.progress) this.say(line.progress);
    if (line.end) this.end = line.end;
    if (line.trouble) this.trouble = line.trouble;
  }

  say(done) {
    this.progress.value = done.share;
    this.title.textContent = `${plural(this.rows.size, "record")} so far`;
    this.state.textContent = `${searched(done)}.`;
  }

  finish(request) {
    const found = this.rows.size - this.before;
    this.title.textContent = this.rows.size ? plural(this.rows.size, "record") : "No record";
    say(this.title.textContent);
    if (this.trouble !== null) {
      set(this.notes, notice("trouble", this.trouble));
      this.state.textContent = "";
      this.line.hidden = true;
      return;
    }
    const { end } = this;
    if (end === null) {
      this.state.textContent = `Stopped. ${this.state.textContent}`;
      return;
    }
    this.state.textContent = `${WHY[end.why]} ${searched(end)}.`;
    set(this.notes, notesOf(end, this.what, this.rows.rows));
    const next = Object.fromEntries(Object.entries(end.next));
    this.more.hidden = end.why === "complete" || this.what.isOne || this.rows.size >= ROWS_MAX;
    this.more.textContent = found < request.count ? "Search further" : this.rows.isBackwards ? "Older records" : "Newer records";
    this.more.onclick = () => this.search({ ...request, time: undefined, offsets: next });
  }
}

const WHY = {
  complete: "That is everything.",
  hits: "There may be more.",
  bytes: "The search ended at its limit of bytes.",
  time: "The search ended at its limit of time.",
};

function searched(done) {
  const whole = done.partitions === 1 ? "1 partition" : `${count(done.partitions_done)} of ${count(done.partitions)} partitions to the end`;
  return `${bytes(done.bytes)} with ${plural(done.records, "record")} searched, ${whole}, ${Math.floor(done.share * 100)} % of all offsets`;
}

function notesOf(end, what, rows) {
  const notes = end.troubles.map((sentence) => notice("warning", sentence));
  const more = end.troubles_total - end.troubles.length;
  if (more > 0) notes.push(notice("warning", `${plural(more, "more trouble")} of this kind.`));
  if (end.other_format > 0) notes.push(notice("note", `The filter did not see ${plural(end.other_format, "value")} of another format. Of the first of them: ${end.other_format_reason}.`));
  if (end.too_large > 0) notes.push(notice("note", `The filter did not see ${plural(end.too_large, "value")} that are too large for it.`));
  if (what.isOne && rows.length && String(rows[0].row.offset) !== String(what.value)) {
    notes.push(notice("warning", `${what.topic}-${what.partitions} has no record at offset ${what.value}: it was deleted, or there was none. This is the next one.`));
  }
  return notes;
}
