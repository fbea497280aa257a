// Answers that come line by line: records that are found, records that are written.
import { Trouble } from "./api.js";

const OWN = { "X-Lowtide-Console": "1", "Content-Type": "application/json" };

/** Ask, and give each line to `onLine` as it comes. `signal` ends it. Errors: Trouble. */
export async function lines(path, body, signal, onLine) {
  let response;
  try {
    response = await fetch(`api/${path}`, { method: "POST", headers: OWN, body: JSON.stringify(body), credentials: "same-origin", signal });
  } catch (error) {
    if (signal.aborted) return;
    throw new Trouble("The console does not answer: is it still running?", 0);
  }
  if (!response.ok) throw await refusal(response);
  const reader = response.body.pipeThrough(new TextDecoderStream()).getReader();
  let rest = "";
  try {
    for (;;) {
      const { value, done } = await reader.read();
      if (done) return;
      const parts = (rest + value).split("\n");
      rest = parts.pop();
      for (const line of parts) if (!signal.aborted) onLine(JSON.parse(line));
    }
  } catch (error) {
    if (!signal.aborted) throw new Trouble("The console ended the answer too early: is it still running?", 0);
  }
}

async function refusal(response) {
  if (response.status === 401) document.dispatchEvent(new Event("lowtide-login"));
  let value = null;
  try {
    value = await response.json();
  } catch { /* no JSON: the status says enough */ }
  return new Trouble(value?.error ?? (response.status === 429 ? "Too many requests: wait a moment." : `The console answers ${response.status}.`), response.status);
}
