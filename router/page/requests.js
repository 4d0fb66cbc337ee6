// The last requests, and where the time of each has gone.

import { ceiling, count, html, plural, quantile, say, seconds } from "./draw.js";
import { stageBar } from "./stages.js";

const MOST_ROWS = 12;

export class Requests {
  constructor(body, empty, scale) {
    this.body = body;
    this.empty = empty;
    this.scale = scale;
    this.clear();
  }

  add(requests) {
    if (!requests.length) return;
    this.shown = [...requests.toReversed(), ...this.shown].slice(0, MOST_ROWS);
    // As wide as nearly all: one that took ten times as long would leave nothing to see of the others.
    const whole = ceiling(quantile(this.shown.map((request) => request.seconds), 0.8));
    // Rows stay as they are while their bars do: somebody may be reading one, or have marked an id.
    const isSame = whole === this.whole;
    if (!isSame) this.body.replaceChildren();
    this.body.prepend(...this.shown.slice(0, isSame ? requests.length : MOST_ROWS).map((request) => row(request, whole)));
    while (this.body.children.length > MOST_ROWS) this.body.lastElementChild.remove();
    this.whole = whole;
    this.empty.hidden = true;
    say(this.scale, `Bars are ${seconds(whole)} wide; the notch is the first token.`);
  }

  clear() {
    this.shown = [];
    this.whole = null; // seconds that a bar is wide
    this.body.replaceChildren();
    this.empty.hidden = false;
    say(this.scale, "");
  }
}

function row(request, whole) {
  const isWell = request.outcome === "finished";
  const id = html("td", { class: "id", title: `x-request-id: ${request.request_id}` }, request.id.slice(0, 8));
  if (!isWell) id.append(" ", html("span", { class: "outcome" }, request.error ?? request.outcome));
  return html(
    "tr",
    { class: isWell ? "" : "unwell" },
    html("td", {}, new Date(request.at * 1000).toLocaleTimeString("en-GB")),
    id,
    cell(request.images || "–"),
    cell(count(request.prompt_tokens)),
    cell(count(request.tokens)),
    cell(seconds(request.first_token)),
    cell(seconds(request.seconds)),
    html("td", { class: "of-bar" }, stageBar(request, whole)),
  );
}

function cell(text) {
  return html("td", { class: "of-number" }, String(text));
}

/** What a request was, in a line. */
export function summary(request) {
  const parts = [
    `first token after ${seconds(request.first_token)}`,
    `${plural(request.tokens, "token")} in ${seconds(request.seconds)}`,
  ];
  if (request.cached_tokens) parts.push(`${plural(request.cached_tokens, "prompt token")} from cache`);
  return `${parts.join(", ")}.`;
}
