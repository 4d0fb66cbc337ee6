// The router's snapshots, from its server-sent events. By fetch, since EventSource cannot present a key.

const KEY = "triptych-key"; // in sessionStorage, and nowhere else
const SILENCE_MS = 6000; // a snapshot comes each second
const LONGEST_PAUSE_MS = 5000;

let unkept = ""; // the key, in a browser that keeps nothing

export function key() {
  try {
    return sessionStorage.getItem(KEY) ?? "";
  } catch {
    return unkept;
  }
}

export function keepKey(value) {
  try {
    if (value) sessionStorage.setItem(KEY, value);
    else sessionStorage.removeItem(KEY);
  } catch {
    unkept = value;
  }
}

/** In bytes of UTF-8, of which the server has the digest; of other signs than bytes fetch makes no header. */
export function authorization() {
  return key() ? { authorization: `Bearer ${String.fromCharCode(...new TextEncoder().encode(key()))}` } : {};
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
 * Listens for ever, as long as somebody sees the tab: a browser has six connections to a server for all its tabs, and
 * whoever asks something needs one.
 *
 * heard(snapshot): for each; its `first` says whether it is the first of a connection, which tells what was before.
 * refused(why): a key is wanted, listening goes on after `retry`;
 * lost(why): the connection is gone, and is tried again by itself.
 */
export class Feed {
  constructor({ heard, refused, lost }) {
    this.heard = heard;
    this.refused = refused;
    this.lost = lost;
    this.abort = new AbortController();
    this.wake = () => {};
    document.addEventListener("visibilitychange", () => {
      if (document.hidden) this.abort.abort();
    });
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
      await inSight();
      this.abort = new AbortController();
      try {
        if (await this.listen(() => (pause = 250))) pause = 250;
      } catch (error) {
        if (error.name !== "AbortError") this.lost(error instanceof TypeError ? "the server is out of reach" : error.message);
      }
      if (document.hidden) continue; // back in sight, it is told at once
      await this.sleep(pause);
      pause = Math.min(pause * 2, LONGEST_PAUSE_MS);
    }
  }

  async listen(began) {
    const options = { headers: authorization(), cache: "no-store", signal: this.abort.signal };
    const patience = silence(this.abort);
    const response = await fetch("v1/cluster/live", options).finally(() => clearTimeout(patience));
    if (response.status === 401 || response.status === 403) {
      this.refused(await told(response));
      await this.sleep(Infinity);
      return true;
    }
    if (!response.ok) throw new Error(await told(response));
    let first = true;
    for await (const data of events(response, this.abort)) {
      this.heard({ ...JSON.parse(data), first });
      first = false;
      began(); // behind it: what cannot be read is asked for less and less often
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

/** Resolves once the tab is shown. */
function inSight() {
  return new Promise((resolve) => {
    const look = () => {
      if (document.hidden) return;
      document.removeEventListener("visibilitychange", look);
      resolve();
    };
    document.addEventListener("visibilitychange", look);
    look();
  });
}

/** Ends what waits for a server that says nothing, unless the timer is cleared before. */
function silence(abort) {
  return setTimeout(() => abort.abort(new Error("the server has fallen silent")), SILENCE_MS);
}

/** The data of each event of a response, errors included. Aborts one that has fallen silent. */
export async function* events(response, abort = null) {
  const reader = response.body.pipeThrough(new TextDecoderStream()).getReader();
  let text = "";
  try {
    for (;;) {
      const timer = abort ? silence(abort) : 0;
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
  } finally {
    reader.cancel().catch(() => {}); // whoever reads no further leaves no connection behind
  }
}
