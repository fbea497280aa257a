// The last hour of a partition: log start and end, and its bytes. Brokers of Lowtide keep it; else it begins when the page is opened.
import * as api from "./api.js";
import { h, set } from "./dom.js";
import { bytes, count } from "./units.js";

const HOUR_S = 3600;
const POINTS_MAX = 2400;
const HEIGHT = 150;

export function historyPanel(topic, partition) {
  const offsets = h("div", { class: "plot" });
  const disk = h("div", { class: "plot" });
  const said = h("p", { class: "unseen" });
  const element = h("div", { class: "columns", role: "group", "aria-label": "The last hour" }, said,
    h("div", { class: "plot" }, h("h3", {}, "Log start and end"), offsets), h("div", { class: "plot" }, h("h3", {}, "Bytes on the leader's disk"), disk));
  const points = { at: [], start: [], end: [], bytes: [] };
  let charts = null;
  let over = false;
  let known = false;

  const push = (at, start, end, size) => {
    if (points.at.length && at <= points.at[points.at.length - 1]) return;
    points.at.push(at);
    points.start.push(start);
    points.end.push(end);
    points.bytes.push(size);
    const old = points.at.findIndex((each) => each >= at - HOUR_S);
    const drop = Math.max(old, points.at.length - POINTS_MAX);
    if (drop > 0) for (const list of Object.values(points)) list.splice(0, drop);
  };

  const redraw = async () => {
    if (points.at.length < 2 || over) return;
    if (!charts) {
      charts = "loading";
      const [{ default: UPlot }] = await Promise.all([import("../vendor/uplot.js"), sheet()]);
      if (over) return;
      charts = build(UPlot, offsets, disk);
    }
    if (charts === "loading") return;
    charts.forEach((chart, index) => chart.setData(index ? [points.at, points.bytes] : [points.at, points.start, points.end]));
    const last = points.at.length - 1;
    said.textContent = `Log start from ${count(points.start[0])} to ${count(points.start[last])}, end from ${count(points.end[0])} to ${count(points.end[last])}, ${bytes(points.bytes[last])} on the leader's disk.`;
  };
  const again = () => {
    if (Array.isArray(charts)) charts.forEach((chart) => chart.destroy());
    charts = null;
    set(offsets);
    set(disk);
    redraw();
  };
  const sizes = new ResizeObserver(() => {
    if (Array.isArray(charts)) charts.forEach((chart, index) => chart.setSize({ width: (index ? disk : offsets).clientWidth, height: HEIGHT }));
  });

  return {
    element,
    start() {
      sizes.observe(offsets);
      document.addEventListener("lowtide-theme", again);
      const stop = api.watch("history", { topic, partition }, (value) => {
        if (!value.known) return;
        known = true;
        for (const each of value.samples) push(each.at_ms / 1000, Number(each.log_start), Number(each.log_end), each.bytes);
        redraw();
      });
      return () => {
        over = true;
        sizes.disconnect();
        document.removeEventListener("lowtide-theme", again);
        if (Array.isArray(charts)) charts.forEach((chart) => chart.destroy());
        stop();
      };
    },
    /** What the page has just seen, where the brokers keep no history. */
    add(row) {
      if (known || row.log_start === null) return;
      push(Date.now() / 1000, Number(row.log_start), Number(row.log_end ?? row.high_watermark), row.replicas.find((each) => each.broker === row.leader)?.bytes ?? null);
      redraw();
    },
  };
}

function sheet() {
  if (document.getElementById("uplot")) return Promise.resolve();
  return new Promise((done) => {
    document.head.append(h("link", { id: "uplot", rel: "stylesheet", href: "vendor/uplot.css", load: done, error: done }));
  });
}

function build(UPlot, offsets, disk) {
  const style = getComputedStyle(document.documentElement);
  const probe = document.body.appendChild(h("span", { hidden: true }));
  const colour = (name) => {
    probe.style.color = `var(${name})`;
    return getComputedStyle(probe).color || style.color;
  };
  const [ink, line, start, end, size] = ["--quiet", "--line", "--warn", "--sea", "--fill-1"].map(colour);
  probe.remove();
  const axis = { stroke: ink, grid: { stroke: line, width: 1 }, ticks: { stroke: line, width: 1 }, font: "11px system-ui", labelFont: "11px system-ui" };
  const common = (place, series, values) => ({
    width: place.clientWidth || 400,
    height: HEIGHT,
    series: [{ label: "Time", value: (_, at) => (at === null ? "–" : new Date(at * 1000).toLocaleTimeString("en-GB")) }, ...series],
    axes: [{ ...axis, space: 90, values: (_, ticks) => ticks.map((at) => new Date(at * 1000).toLocaleTimeString("en-GB")) }, { ...axis, size: 70, values: (_, ticks) => ticks.map(values) }],
    legend: { live: true },
    cursor: { drag: { x: true, y: false } },
  });
  return [
    new UPlot(common(offsets, [
      { label: "Log start", stroke: start, width: 2, value: (_, value) => count(value) },
      { label: "End", stroke: end, width: 2, value: (_, value) => count(value) },
    ], (value) => count(value)), [[], [], []], offsets),
    new UPlot({ ...common(disk, [{ label: "Bytes", stroke: size, fill: size.replace(")", " / 0.18)").replace(/rgb\((\d+), (\d+), (\d+)/, "rgb($1 $2 $3"), width: 2, value: (_, value) => bytes(value) }], (value) => bytes(value)), scales: { y: { range: (_, low, high) => [0, Math.max(1, high * 1.1)] } } }, [[], []], disk),
  ];
}
