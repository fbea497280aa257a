// Live views: one stream of events for all visible tabs of a browser. As a shared worker it serves the tabs; where there
// are no shared workers, each tab has a stream of its own.

const SETTLE_MS = 50;
const RETRY_MS = 3000;
const SILENT_MS = 45_000;

/** The key of a view: equal views are asked for once. */
export function keyOf([name, given]) {
  return JSON.stringify([name, Object.fromEntries(Object.entries(given).sort())]);
}

/** A stream of views. `onEvent` gets the key of a view, and a value, a trouble (a sentence), or `closed`. */
export class LiveStream {
  constructor(onEvent) {
    this.onEvent = onEvent;
    this.views = new Map();
    this.last = new Map();
    this.source = null;
    this.timer = 0;
  }

  /** Sets what is watched, by key. The stream is opened again if that is something else. */
  set(views) {
    const same = views.size === this.views.size && [...views.keys()].every((key) => this.views.has(key));
    this.views = views;
    if (!same) this.later(SETTLE_MS);
  }

  later(ms) {
    clearTimeout(this.timer);
    this.timer = setTimeout(() => this.open(), ms);
  }

  open() {
    this.source?.close();
    this.source = null;
    const keys = [...this.views.keys()];
    for (const key of this.last.keys()) if (!this.views.has(key)) this.last.delete(key);
    if (!keys.length) return;
    const source = new EventSource(new URL(`../api/events?views=${encodeURIComponent(JSON.stringify([...this.views.values()]))}`, import.meta.url));
    this.source = source;
    source.addEventListener("value", (event) => this.take(keys, JSON.parse(event.data)));
    source.addEventListener("trouble", (event) => this.take(keys, JSON.parse(event.data)));
    source.addEventListener("error", () => {
      if (this.source !== source || source.readyState !== EventSource.CLOSED) return;
      // Refused, which an event source does not explain: the same question without events does.
      for (const key of keys) this.onEvent(key, { closed: true });
      this.later(RETRY_MS);
    });
  }

  take(keys, { view, ...event }) {
    this.last.set(keys[view], event);
    this.onEvent(keys[view], event);
  }
}

if (typeof SharedWorkerGlobalScope !== "undefined" && self instanceof SharedWorkerGlobalScope) {
  const tabs = new Map();
  const stream = new LiveStream((key, event) => {
    for (const [port, tab] of tabs) if (tab.views.has(key)) port.postMessage({ key, event });
  });
  const gather = () => stream.set(new Map([...tabs.values()].flatMap((tab) => [...tab.views])));
  self.addEventListener("connect", ({ ports: [port] }) => {
    port.onmessage = ({ data }) => {
      const before = tabs.get(port)?.views;
      const views = new Map(data.map((view) => [keyOf(view), view]));
      tabs.set(port, { views, heard: Date.now() });
      for (const key of views.keys()) if (!before?.has(key) && stream.last.has(key)) port.postMessage({ key, event: stream.last.get(key) });
      gather();
    };
  });
  // A tab that vanished says nothing more.
  setInterval(() => {
    for (const [port, tab] of tabs) if (tab.heard < Date.now() - SILENT_MS) tabs.delete(port);
    gather();
  }, SILENT_MS / 3);
}
