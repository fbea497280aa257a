// Tables that sort, filter, and draw only the rows that are in sight.
import { freshId, h, set } from "./dom.js";
import { count } from "./units.js";

const ROW = 35;
const AHEAD = 12;
const WHOLE = 120; // Up to so many rows are all drawn.

/**
 * A table. Columns are { title, key, number, cell(row), sort(row), wrap, head }; `rowKey(row)` names a row, so that focus stays on it.
 * Returns { element, show(rows), mark(key) }.
 */
export function table({ caption, columns, rowKey, empty = "There is nothing.", filter = null, words: first = "", sorted = null, tall = true, label = caption }) {
  const body = h("tbody");
  const heads = columns.map((column, index) => {
    const cell = h("th", { scope: "col", class: column.number ? "number" : "", "aria-sort": column.sort ? "none" : null });
    set(cell, column.sort ? h("button", { type: "button", click: () => sortBy(index) }, column.title) : column.title);
    return cell;
  });
  const content = h("table", {}, h("caption", { class: "unseen" }, caption), h("thead", {}, h("tr", {}, heads)), body);
  const scroller = h("div", { class: `table${tall ? " tall" : ""}`, role: "region", "aria-label": label, tabindex: "0", scroll: () => draw() }, content);
  const nothing = h("p", { class: "empty", hidden: true }, empty);
  const counted = h("span", { class: "count", "aria-live": "polite" });
  const search = filter && h("input", { type: "search", placeholder: filter, "aria-label": filter, value: first, input: () => show() });
  const element = h("div", {}, search && h("div", { class: "filter" }, search, counted), scroller, nothing);
  element.id = freshId("table");

  let all = [];
  let rows = [];
  let order = sorted ? { index: columns.findIndex((column) => column.key === sorted.key), down: Boolean(sorted.down) } : null;
  let marked = null;
  let drawn = new Map();

  function sortBy(index) {
    order = { index, down: order?.index === index ? !order.down : Boolean(columns[index].number) };
    show();
  }

  function show(given = all) {
    all = given;
    const words = search?.value.trim().toLowerCase();
    rows = words ? all.filter((row) => columns.some((column) => column.text && String(column.text(row)).toLowerCase().includes(words))) : [...all];
    if (order && columns[order.index]?.sort) {
      const { sort } = columns[order.index];
      const turn = order.down ? -1 : 1;
      rows.sort((one, other) => turn * compare(sort(one), sort(other)));
    }
    heads.forEach((head, index) => {
      if (columns[index].sort) head.setAttribute("aria-sort", order?.index === index ? (order.down ? "descending" : "ascending") : "none");
    });
    content.setAttribute("aria-rowcount", String(rows.length + 1));
    nothing.hidden = rows.length > 0;
    scroller.hidden = rows.length === 0;
    if (search) counted.textContent = words ? `${count(rows.length)} of ${count(all.length)}` : count(all.length);
    drawn.clear();
    draw(true);
  }

  function draw(again = false) {
    let first = 0;
    let last = rows.length;
    if (rows.length > WHOLE) {
      first = Math.max(0, Math.floor(scroller.scrollTop / ROW) - AHEAD);
      last = Math.min(rows.length, first + Math.ceil((scroller.clientHeight || 640) / ROW) + 2 * AHEAD);
    }
    if (!again && body.dataset.first === String(first) && body.dataset.last === String(last)) return;
    body.dataset.first = first;
    body.dataset.last = last;
    const focused = focusedIn(body);
    const parts = [];
    if (first > 0) parts.push(gap(first));
    const next = new Map();
    for (let index = first; index < last; index += 1) {
      const key = String(rowKey(rows[index]));
      const row = drawn.get(key) ?? line(rows[index], key);
      row.setAttribute("aria-rowindex", String(index + 2));
      next.set(key, row);
      parts.push(row);
    }
    if (last < rows.length) parts.push(gap(rows.length - last));
    drawn = next;
    set(body, parts);
    if (focused) refocus(body, focused);
  }

  function gap(lines) {
    const cell = h("td", { colspan: columns.length });
    cell.style.height = `${lines * ROW}px`;
    return h("tr", { class: "gap", "aria-hidden": "true" }, cell);
  }

  function line(row, key) {
    const cells = columns.map((column, index) => {
      const kind = `${column.number ? "number" : ""}${column.wrap ? " wrap" : ""}`;
      return h(index === 0 ? "th" : "td", { scope: index === 0 ? "row" : null, class: kind }, column.cell(row));
    });
    return h("tr", { "data-key": key, class: key === marked ? "chosen" : "" }, cells);
  }

  function mark(key) {
    marked = key === null ? null : String(key);
    drawn.clear();
    draw(true);
  }

  return { element, show, mark };
}

/** Unknown values come last, numbers that are texts are numbers. */
function compare(one, other) {
  if (one === other) return 0;
  if (one === null || one === undefined) return -1;
  if (other === null || other === undefined) return 1;
  if (typeof one === "number" || typeof other === "number") return Number(one) - Number(other);
  return String(one).localeCompare(String(other), "en", { numeric: true });
}

/** Which control of which row has the focus. */
function focusedIn(body) {
  const element = document.activeElement;
  const row = body.contains(element) ? element.closest("tr") : null;
  if (!row) return null;
  return { key: row.dataset.key, index: [...row.querySelectorAll("a, button, input")].indexOf(element) };
}

function refocus(body, { key, index }) {
  const row = [...body.children].find((each) => each.dataset.key === key);
  row?.querySelectorAll("a, button, input")[index]?.focus({ preventScroll: true });
}
