// Numbers and times for people.

const DIGITS = new Intl.NumberFormat("en");
const MOMENT = new Intl.DateTimeFormat("en-CA", { dateStyle: "short", timeStyle: "medium", hourCycle: "h23" });
const UNITS = ["B", "kB", "MB", "GB", "TB", "PB", "EB"];

/** 1234567 as 1,234,567; a text is a number that is too large to be exact here. */
export function count(value) {
  if (value === null || value === undefined) return "–";
  return DIGITS.format(typeof value === "string" ? BigInt(value) : value);
}

/** 1 record, 2 records. */
export function plural(value, noun) {
  return `${count(value)} ${noun}${Number(value) === 1 ? "" : "s"}`;
}

/** A number of bytes with three digits. */
export function bytes(value) {
  if (value === null || value === undefined) return "–";
  let number = Number(value);
  for (const unit of UNITS) {
    if (number < 1000 || unit === "EB") {
      if (unit === "B") return `${number} B`;
      return `${number >= 100 ? number.toFixed(0) : number >= 10 ? number.toFixed(1) : number.toFixed(2)} ${unit}`;
    }
    number /= 1000;
  }
  return "–";
}

/** Milliseconds in their two largest units. */
export function duration(ms) {
  if (ms === null || ms === undefined) return "–";
  if (ms < 1000) return `${Math.round(ms)} ms`;
  if (ms < 10_000) return `${(ms / 1000).toFixed(1)} s`;
  const parts = [[Math.floor(ms / 86_400_000), "d"], [Math.floor(ms / 3_600_000) % 24, "h"], [Math.floor(ms / 60_000) % 60, "min"], [Math.floor(ms / 1000) % 60, "s"]];
  const first = parts.findIndex(([value]) => value > 0);
  return parts.slice(first, first + 2).filter(([value]) => value > 0).map(([value, unit]) => `${value} ${unit}`).join(" ");
}

/** A moment in the visitor's time zone. */
export function moment(ms) {
  if (ms === null || ms === undefined || Number(ms) < 0) return "–";
  const at = new Date(Number(ms));
  if (Number.isNaN(at.getTime())) return String(ms);
  return `${MOMENT.format(at).replace(",", "")}.${String(at.getMilliseconds()).padStart(3, "0")}`;
}

/** A moment without the milliseconds, on another day than today with the date. */
export function clock(ms) {
  if (ms === null || ms === undefined || Number(ms) < 0) return "–";
  const at = new Date(Number(ms));
  if (Number.isNaN(at.getTime())) return String(ms);
  const [date, time] = MOMENT.format(at).split(/,? /);
  return at.toDateString() === new Date().toDateString() ? time : `${date} ${time}`;
}

/** How long ago, by the browser's clock. */
export function ago(ms) {
  return `${duration(Math.max(0, Date.now() - Number(ms)))} ago`;
}

/** A setting of a topic as a person reads it. */
export function setting(key, value) {
  if (value === null || value === undefined) return "–";
  if (value === "-1") return "no limit";
  if (key.endsWith(".ms")) return Number(value) > 3e15 ? "never" : duration(Number(value));
  return key.endsWith("bytes") ? bytes(value) : value;
}
