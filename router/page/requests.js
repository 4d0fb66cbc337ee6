// The last requests, and where the time of each has gone.

import { ceiling, count, html, plural, quantile, say, seconds, STAGE_NAMES, STAGES, svg } from "./draw.js";

const MOST_ROWS = 12;

export function showLegend(list) {
  list.replaceChildren(
    ...STAGES.map(([name, words]) => {
      const key = svg("svg", { class: "key", viewBox: "0 0 10 10", "aria-hidden": "true" });
      key.append(svg("rect", { class: `span of-${name}`, width: 10, height: 10, rx: 2.5 }));
      return html("li", {}, key, words);
    }),
  );
}

/** One request's stages side by side; whole: seconds that are as wide as the bar. */
export function stageBar(request, whole) {
  const bar = svg("svg", { class: "bar", viewBox: "0 0 1000 14", preserveAspectRatio: "none", role: "img" });
  let at = 0;
  for (const [name, span] of request.stages) {
    const x = (at / whole) * 1000;
    const width = (span / whole) * 1000;
    at += span;
    bar.append(svg("rect", { class: `span of-${name}`, x, width: Math.max(0, width), height: 14 }));
  }
  if (at > whole * 1.001) bar.append(svg("path", { class: "goes-on", d: "M986 0H1000V14H986L994 7Z" }));
  if (request.first_token !== null) {
    bar.append(svg("rect", { class: "first-token", x: (request.first_token / whole) * 1000 - 1.5, width: 3, height: 14 }));
  }
  const words = request.stages.map(([name, span]) => `${(STAGE_NAMES.get(name) ?? name).toLowerCase()} ${seconds(span)}`);
  const text = `${words.join(", ")}; ${seconds(request.seconds)} in all`;
  bar.setAttribute("aria-label", text);
  bar.append(svg("title", {}, text));
  return bar;
}

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
