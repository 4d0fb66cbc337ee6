// Stages: the few that a request is known to be in while it runs, and those that its time turns out to have gone to.

import { html, seconds, svg } from "./draw.js";

/** What the dots show, in the order of a request, each with the words of the legend. Colours are page.css's, by class. */
const RUNNING = [
  ["prepare", "Prepare"],
  ["wait", "Wait for room"],
  ["encode", "Encode"],
  ["prefill", "Prefill"],
  ["handover", "Hand over"],
  ["decode", "Decode"],
];

const TIERS = [
  ["router", "Router"],
  ["encode", "Encode"],
  ["prefill", "Prefill"],
  ["decode", "Decode"],
];

/** What a piece of a bar shows by its height, so that nobody has to tell shades of a colour apart: [top, height]. */
const HEIGHT = 14;
const KINDS = {
  work: { place: [0, HEIGHT], words: "high: computing" },
  way: { place: [6, 8], words: "half: on the way" },
  line: { place: [11, 3], words: "low: waiting" },
};

/** As triptych/stages.py has them, each with whose colour it has, what it is, and what it is called. */
export const TIMED = new Map(
  [
    ["receive", "router", "way", "body arrives"],
    ["turn", "router", "line", "wait for a turn"],
    ["parse", "router", "work", "parse"],
    ["grammar", "router", "work", "grammar"],
    ["tokenize", "router", "work", "tokenize"],
    ["fetch", "router", "way", "fetch"],
    ["hash", "router", "work", "hash"],
    ["sniff", "router", "work", "read file headers"],
    ["layout", "router", "work", "lay out"],
    ["place", "router", "work", "choose workers"],
    ["reserve", "decode", "line", "wait for KV blocks"],
    ["prefill_queue", "prefill", "line", "prefill queue"],
    ["encode_queue", "encode", "line", "encode queue"],
    ["preprocess", "encode", "work", "preprocess"],
    ["encode", "encode", "work", "encode"],
    ["rows_transfer", "prefill", "way", "embeddings to prefill"],
    ["prefill_wait", "prefill", "line", "prefill wait"],
    ["prefill", "prefill", "work", "prefill"],
    ["respond", "router", "way", "respond"],
    ["handover", "decode", "way", "KV to decode"],
    ["first_decode", "decode", "work", "first decode"],
    ["decode", "decode", "work", "decode"],
    ["wire", "router", "way", "on the wire"],
    ["router", "router", "work", "in the router"],
  ].map(([name, tier, kind, words]) => [name, { tier, kind, words }]),
);

const UNKNOWN = { tier: "router", kind: "work", words: "something else" }; // of a router that is newer than the page

/** Of seconds that are less than this share of a request's, a bar's text only tells the sum. */
const LEAST_SHARE = 0.01;

export function showLegends(dots, bars) {
  dots.replaceChildren(...RUNNING.map(([name, words]) => entry(words, `of-${name}`, [0, HEIGHT])));
  bars.replaceChildren(
    ...TIERS.map(([tier, words]) => entry(words, `of-${tier}`, [0, HEIGHT])),
    ...Object.values(KINDS).map(({ place, words }) => entry(words, "of-any", place)),
  );
}

function entry(words, tone, [y, height]) {
  const key = svg("svg", { class: "key", viewBox: `0 0 ${HEIGHT} ${HEIGHT}`, "aria-hidden": "true" });
  key.append(svg("rect", { class: `span ${tone}`, y, width: HEIGHT, height, rx: height === HEIGHT ? 3 : 0 }));
  return html("li", {}, key, words);
}

/** One request's stages side by side; whole: seconds that are as wide as the bar. */
export function stageBar(request, whole) {
  const bar = svg("svg", { class: "bar", viewBox: `0 0 1000 ${HEIGHT}`, preserveAspectRatio: "none", role: "img" });
  let at = 0;
  for (const [name, span] of request.stages) {
    const { tier, kind, words } = TIMED.get(name) ?? UNKNOWN;
    const [y, height] = KINDS[kind].place;
    const piece = svg("rect", { class: `span of-${tier}`, x: (at / whole) * 1000, width: Math.max(0, (span / whole) * 1000), y, height });
    piece.append(svg("title", {}, `${words} ${seconds(span)}`));
    bar.append(piece);
    at += span;
  }
  if (at > whole * 1.001) bar.append(svg("path", { class: "goes-on", d: `M986 0H1000V${HEIGHT}H986L994 7Z` }));
  if (request.first_token !== null) {
    const x = (request.first_token / whole) * 1000 - 1.5;
    bar.append(svg("rect", { class: "first-token", x, width: 3, height: HEIGHT }));
  }
  bar.setAttribute("aria-label", told(request));
  return bar;
}

/** A bar in words. */
function told({ stages, seconds: all }) {
  const long = stages.filter(([, span]) => span >= all * LEAST_SHARE);
  const words = long.map(([name, span]) => `${(TIMED.get(name) ?? UNKNOWN).words} ${seconds(span)}`);
  const rest = stages.reduce((sum, [, span]) => sum + span, 0) - long.reduce((sum, [, span]) => sum + span, 0);
  if (long.length < stages.length) words.push(`others ${seconds(rest)}`);
  return `${words.join(", ")}; ${seconds(all)} in all`;
}
