// The picture of a partition: its segments over offsets and time, and every boundary of retention.
import * as api from "./api.js";
import { freshId, h, set, svg } from "./dom.js";
import { table } from "./table.js";
import { bytes, clock, count, duration, plural } from "./units.js";

const HEIGHT = 190;
const STRIP = 20;
const LEFT = 78;
const RIGHT = 16;
const LABEL = 17;
const LEAST = 2;

const RULES = {
  time: "by time (retention.ms)",
  size: "by size (retention.bytes)",
  "min-timestamp": "by KIP-47 (log.retention.min.timestamp)",
  consumed: "by KIP-68 (what groups have consumed)",
};

export function segmentsPanel(topic, partition) {
  const figure = h("figure", { hidden: true });
  const note = h("p", { class: "under" });
  const marks = table({
    caption: `Boundaries of partition ${partition}`,
    tall: false,
    rowKey: (row) => row.name,
    columns: [
      { title: "Boundary", cell: (row) => row.name },
      { title: "Offset", number: true, cell: (row) => count(row.offset) },
      { title: "What it goes by", cell: (row) => row.limit ?? "–" },
    ],
  });
  const more = h("details", { hidden: true }, h("summary", {}, "The same as a table"), marks.element);
  const element = h("div", { class: "picture" }, figure, more, note);
  let last = null;
  const redraw = () => { if (last) draw(figure, last, topic, partition); };
  const watcher = new ResizeObserver(redraw);

  return {
    element,
    start() {
      watcher.observe(element);
      const stop = api.watch("segments", { topic, partition }, (value) => {
        note.textContent = "";
        if (!value.known) return;
        last = value;
        figure.hidden = more.hidden = false;
        redraw();
        marks.show(boundaries(value));
      });
      return () => {
        watcher.disconnect();
        stop();
      };
    },
  };
}

/** Every boundary with its kind and label, in the order of offsets. */
function boundaries(value) {
  const rows = [
    { name: "Log start", offset: value.log_start, kind: "", limit: "records below it are deleted" },
    { name: "High watermark", offset: value.high_watermark, kind: "end", limit: "all replicas in sync have what is below it" },
    { name: "End", offset: value.log_end, kind: "end", limit: "the next record gets this offset" },
  ];
  if (value.last_stable !== null && value.last_stable !== value.high_watermark) rows.push({ name: "Last stable", offset: value.last_stable, kind: "end", limit: "an open transaction begins here" });
  for (const rule of value.boundaries) rows.push({ name: `Deletes ${RULES[rule.reason] ?? `by ${rule.reason}`}${rule.group ? `: ${rule.group}` : ""}`, offset: rule.offset, kind: rule.reason === "consumed" ? "group" : "rule", limit: limitOf(rule) });
  for (const group of value.groups ?? []) rows.push({ name: `Group ${group.group}`, offset: group.offset, kind: "group", limit: "has committed" });
  return rows.filter((row) => row.offset !== null && Number(row.offset) >= 0).sort((one, other) => Number(one.offset) - Number(other.offset));
}

function limitOf(rule) {
  if (rule.limit === null || Number(rule.limit) < 0) return "not known";
  if (rule.reason === "size") return `${bytes(rule.limit)} stay`;
  if (rule.reason === "time" || rule.reason === "min-timestamp") return `older than ${clock(rule.limit)}`;
  return `consumed up to ${count(rule.limit)}`;
}

function draw(figure, value, topic, partition) {
  const width = Math.max(320, Math.round(figure.clientWidth || figure.parentElement.clientWidth || 900));
  const segments = value.segments;
  const marks = boundaries(value);
  const low = Math.min(...segments.map((each) => Number(each.base)), ...marks.map((each) => Number(each.offset)));
  const high = Math.max(...segments.map((each) => Number(each.end)), ...marks.map((each) => Number(each.offset)), low + 1);
  const x = (offset) => LEFT + ((width - LEFT - RIGHT) * (Number(offset) - low)) / (high - low);
  const times = segments.flatMap((each) => [each.first_ms, each.last_ms]).filter((each) => each !== null && each >= 0);
  const limits = value.boundaries.filter((each) => each.reason === "time" && each.limit !== null).map((each) => Number(each.limit));
  const known = times.length > 0;
  const oldest = known ? Math.min(...times) : 0;
  const newest = known ? Math.max(...times, value.now_ms) : 1;
  const labels = staggered(marks, x, width);
  const top = 10 + labels.rows * LABEL;
  const y = (ms) => top + HEIGHT - (HEIGHT * (ms - oldest)) / Math.max(1, newest - oldest);
  const strip = top + HEIGHT + 12;
  const whole = strip + STRIP + 30;
  const hatched = freshId("hatched");
  const picture = svg("svg", { viewBox: `0 0 ${width} ${whole}`, height: whole, "aria-hidden": "true" },
    svg("defs", {}, svg("pattern", { id: hatched, width: 6, height: 6, patternUnits: "userSpaceOnUse", patternTransform: "rotate(45)" }, svg("line", { class: "hatch", x1: 0, y1: 0, x2: 0, y2: 6 }))));
  const rest = [];
  axis(rest, { known, oldest, newest, y, x, low, high, top, strip, width });
  for (const limit of limits) {
    if (known && limit >= oldest && limit <= newest) {
      rest.push(svg("line", { class: "mark rule", x1: LEFT, x2: width - RIGHT, y1: y(limit), y2: y(limit) }));
      rest.push(svg("text", { x: width - RIGHT, y: y(limit) - 4, "text-anchor": "end" }, `older goes by time: ${clock(limit)}`));
    }
  }
  for (const each of segments) boxes(rest, each, { x, y, strip, known, hatched, start: value.log_start });
  for (const { mark, at, row, anchor } of labels.placed) {
    const place = x(mark.offset);
    rest.push(svg("line", { class: `mark ${mark.kind}`, x1: place, x2: place, y1: 6 + (row + 1) * LABEL - 4, y2: strip + STRIP }));
    rest.push(svg("text", { class: "strong", x: at, y: (row + 1) * LABEL - 2, "text-anchor": anchor }, short(mark)));
  }
  for (const each of rest) picture.append(each);
  set(figure, h("figcaption", { class: "unseen" }, described(value, topic, partition)), picture);
}

function short(mark) {
  return `${mark.name.replace(/ \(.*\)/, "")} ${count(mark.offset)}`;
}

/** Labels in as many rows as they need not to lie upon each other. */
function staggered(marks, x, width) {
  const ends = [];
  const placed = marks.map((mark) => {
    const wide = short(mark).length * 6.6 + 14;
    const place = x(mark.offset);
    const right = place + wide > width;
    const from = right ? place - wide : place;
    let row = ends.findIndex((taken) => taken.every(([begin, end]) => from >= end || from + wide <= begin));
    if (row < 0) row = ends.push([]) - 1;
    ends[row].push([from, from + wide]);
    return { mark, row, at: right ? place - 4 : place + 4, anchor: right ? "end" : "start" };
  });
  return { placed, rows: Math.max(1, ends.length) };
}

function axis(rest, { known, oldest, newest, y, x, low, high, top, strip, width }) {
  rest.push(svg("line", { class: "axis", x1: LEFT, x2: width - RIGHT, y1: top + HEIGHT, y2: top + HEIGHT }));
  const steps = width > 700 ? 6 : 3;
  for (let step = 0; step <= steps; step += 1) {
    const offset = Math.round(low + ((high - low) * step) / steps);
    rest.push(svg("text", { x: x(offset), y: strip + STRIP + 18, "text-anchor": step === 0 ? "start" : step === steps ? "end" : "middle" }, count(offset)));
  }
  if (!known) return;
  for (let step = 0; step <= 4; step += 1) {
    const ms = oldest + ((newest - oldest) * step) / 4;
    rest.push(svg("line", { class: "axis", x1: LEFT, x2: width - RIGHT, y1: y(ms), y2: y(ms) }));
    rest.push(svg("text", { x: LEFT - 8, y: y(ms) + 4, "text-anchor": "end" }, clock(ms).slice(-8)));
  }
}

/** A segment over offsets and time, and in the strip below by its bytes that are still in use. */
function boxes(rest, each, { x, y, strip, known, hatched, start }) {
  const from = x(each.base);
  const wide = Math.max(LEAST, x(each.end) - from - 1.5);
  const dead = Number(each.end) <= Number(start);
  const title = () => svg("title", {}, `Offsets ${count(each.base)} to ${count(each.end)}, ${bytes(each.bytes)}`);
  if (known && each.first_ms !== null && each.last_ms !== null) {
    const above = y(Math.max(each.first_ms, each.last_ms));
    const tall = Math.max(5, y(each.first_ms) - above);
    rest.push(svg("rect", { class: `segment${each.active ? " active" : ""}${dead ? " dead" : ""}`, x: from, y: above, width: wide, height: tall, rx: 2 }, title()));
  }
  rest.push(svg("rect", { class: `segment${each.active ? " active" : ""}${dead ? " dead" : ""}`, x: from, y: strip, width: wide, height: STRIP, rx: 3 }, title()));
  if (Number(each.base) < Number(start)) {
    const below = svg("rect", { x: from, y: strip, width: Math.max(LEAST, Math.min(wide, x(start) - from)), height: STRIP });
    below.style.fill = `url("#${hatched}")`;
    rest.push(below);
  }
}

function described(value, topic, partition) {
  const whole = value.segments.reduce((sum, each) => sum + Number(each.bytes), 0);
  const dead = value.segments.reduce((sum, each) => sum + Number(each.bytes_below ?? 0), 0);
  const span = value.segments.length && value.segments[0].first_ms !== null ? `, since ${duration(Math.max(0, value.now_ms - value.segments[0].first_ms))}` : "";
  return `Partition ${partition} of ${topic}: ${plural(value.segments.length, "segment")}, ${bytes(whole)}${span}, of which ${bytes(dead)} are below the log start. The table has every boundary.`;
}
