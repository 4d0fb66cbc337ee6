// The router's snapshots, from its server-sent events. By fetch, since EventSource cannot present a key.

const KEY = "triptych-key"; // in sessionStorage, and nowhere else
const SILENCE_MS = 6000; // a snapshot comes each second
const LONGEST_PAUSE_MS = 5000;

export function key() {
  return sessionStorage.getItem(KEY) ?? "";
}

export function keepKey(value) {
  if (value) sessionStorage.setItem(KEY, value);
  else sessionStorage.removeItem(KEY);
}

export function authorization() {
  return key() ? { authorization: `Bearer ${key()}` } : {};
}

/** What the API says of a failure; the status where it says nothing. */
export async function told(response) {
  try {
    const { error } = await response.json();
    return error.code ? `${error.message} (${error.code})` : error.message;
  } catch {
    return `the server answered ${response.status}`;
  }
}

/**
 * Listens for ever.
 *
 * heard(snapshot): for each; refused(why): a key is wanted, listening goes on after `retry`;
 * lost(why): the connection is gone, and is tried again by itself.
 */
export class Feed {
  constructor({ heard, refused, lost }) {
    this.heard = heard;
    this.refused = refused;
    this.lost = lost;
    this.abort = new AbortController();
    this.wake = () => {};
    this.run();
  }

  /** At once, with whatever key there is now. */
  retry() {
    this.abort.abort();
    this.wake();
  }

  async run() {
    let pause = 250;
    for (;;) {
      this.abort = new AbortController();
      try {
        if (await this.listen(() => (pause = 250))) pause = 250;
      } catch (error) {
        if (error.name !== "AbortError") this.lost(error instanceof TypeError ? "the server is out of reach" : error.message);
      }
      await this.sleep(pause);
      pause = Math.min(pause * 2, LONGEST_PAUSE_MS);
    }
  }

  async listen(began) {
    const response = await fetch("v1/cluster/live", { headers: authorization(), cache: "no-store", signal: this.abort.signal });
    if (response.status === 401 || response.status === 403) {
      this.refused(await told(response));
      await this.sleep(Infinity);
      return true;
    }
    if (!response.ok) throw new Error(await told(response));
    for await (const data of events(response, this.abort)) {
      began();
      this.heard(JSON.parse(data));
    }
    return true; // it ended in peace: ask again
  }

  sleep(milliseconds) {
    return new Promise((resolve) => {
      const timer = Number.isFinite(milliseconds) ? setTimeout(resolve, milliseconds) : 0;
      this.wake = () => {
        clearTimeout(timer);
        resolve();
      };
    });
  }
}

/** The data of each event of a response, errors included. Aborts one that has fallen silent. */
export async function* events(response, abort = null) {
  const reader = response.body.pipeThrough(new TextDecoderStream()).getReader();
  let text = "";
  for (;;) {
    const timer = abort ? setTimeout(() => abort.abort(new Error("the server has fallen silent")), SILENCE_MS) : 0;
    const { done, value } = await reader.read().finally(() => clearTimeout(timer));
    if (done) return;
    text += value;
    const frames = text.split("\n\n");
    text = frames.pop();
    for (const frame of frames) {
      const data = frame.split("\n").filter((line) => line.startsWith("data: "));
      if (data.length) yield data.map((line) => line.slice(6)).join("\n");
    }
  }
}
