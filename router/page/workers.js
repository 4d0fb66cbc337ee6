// The tiers' workers as cards: what each is, and how full and how busy.

import { count, html, percent, say, svg } from "./draw.js";

const GONE_MS = 12000; // for which a worker that is not there any more is still shown
const MANY = 4; // in one tier: beyond that, cards are small
const MOST = 24; // cards of one tier; of more, those that are ready are only counted

const WORDS = {
  ready: "ready",
  unknown: "not answering",
  testing: "in self-test",
  faulty: "faulty",
  draining: "draining",
  unfit: "unfit",
  lost: "lost",
  gone: "gone",
};

const share = (part, whole) => (whole > 0 ? Math.min(1, Math.max(0, part / whole)) : 0);

/** What a card shows of a worker's gauges: a meter of memory, and two figures. Null where they are not told. */
const READINGS = {
  encode(gauges) {
    if (!("encoder_arena_bytes" in gauges)) return null;
    const found = gauges.encoder_cache_hits_total + gauges.encoder_cache_joins_total;
    return {
      meter: ["Arena", share(gauges.encoder_arena_bytes - gauges.encoder_arena_free_bytes, gauges.encoder_arena_bytes), 0],
      figures: [
        [count(gauges.encoder_queued_items), "queued"],
        [percent(share(found, found + gauges.encoder_items_encoded_total)), "from cache"],
      ],
    };
  },
  prefill(gauges) {
    if (!("prefill_requests" in gauges)) return null;
    return {
      meter: memory(gauges),
      figures: [
        [count(gauges.prefill_requests), "queued"],
        [percent(share(gauges.prefix_hit_tokens_total, gauges.prefix_lookup_tokens_total)), "from cache"],
      ],
    };
  },
  decode(gauges) {
    if (!("decode_sequences" in gauges)) return null;
    return {
      meter: memory(gauges),
      figures: [
        [count(gauges.decode_sequences), "decoding"],
        [count(gauges.decode_reservations_queued + gauges.preempted_sequences), "waiting"],
      ],
    };
  },
};

/** KV blocks held, and beside them those that are free with content that may be used again. */
function memory(gauges) {
  const held = gauges.kv_blocks - gauges.kv_free_blocks;
  return ["KV", share(held, gauges.kv_blocks), share(gauges.kv_cached_blocks, gauges.kv_blocks)];
}

class Card {
  constructor(role) {
    this.role = role;
    this.name = html("span", { class: "name" });
    this.state = html("span", { class: "state" });
    this.kept = svg("rect", { class: "kept", height: 6, rx: 3 });
    this.held = svg("rect", { class: "held", height: 6, rx: 3 });
    this.meterName = html("span", { class: "label", "aria-hidden": "true" });
    this.meterShare = html("span", { class: "share", "aria-hidden": "true" });
    const bar = svg("svg", { class: "meter-bar", "aria-hidden": "true", preserveAspectRatio: "none", viewBox: "0 0 100 6" });
    bar.append(svg("rect", { class: "track", width: 100, height: 6, rx: 3 }), this.kept, this.held);
    this.meter = html("div", { class: "meter", role: "meter", "aria-valuemin": "0", "aria-valuemax": "100" });
    this.meter.append(this.meterName, bar, this.meterShare);
    this.figures = html("p", { class: "figures" });
    this.why = html("p", { class: "why" });
    this.berth = html("div", { class: "berth", "aria-hidden": "true" });
    this.element = html("li", { class: `worker of-${role}` });
    this.element.append(html("p", { class: "worker-head" }, this.name, this.state), this.meter, this.figures, this.why, this.berth);
  }

  show(worker) {
    const state = worker.listed === false && worker.state === "ready" ? "draining" : worker.state;
    this.element.dataset.state = state;
    this.isReady = state === "ready";
    this.element.title = [worker.device, worker.roles.length > 1 ? `one process for ${worker.roles.join(", ")}` : ""]
      .filter(Boolean)
      .join(" · ");
    say(this.name, worker.worker_id);
    say(this.state, WORDS[state] ?? state);
    const others = worker.roles.filter((role) => role !== this.role);
    const together = others.length ? `Same process as ${others.join(" and ")}` : "";
    say(this.why, state === "ready" ? together : worker.reason || "");
    this.why.hidden = !this.why.textContent;
    this.read(worker.gauges ? READINGS[this.role](worker.gauges) : null);
  }

  read(reading) {
    this.meter.hidden = this.figures.hidden = !reading;
    if (!reading) return;
    const [name, held, kept] = reading.meter;
    say(this.meterName, name);
    say(this.meterShare, percent(held));
    this.held.setAttribute("width", held * 100);
    this.kept.setAttribute("width", Math.min(1, held + kept) * 100);
    this.meter.setAttribute("aria-label", `${name} in use`);
    this.meter.setAttribute("aria-valuenow", Math.round(held * 100));
    const told = JSON.stringify(reading.figures);
    if (this.told === told) return;
    this.told = told;
    this.figures.replaceChildren(
      ...reading.figures.map(([number, label]) => html("span", {}, html("b", {}, number), ` ${label}`)),
    );
  }
}

/** All cards of all tiers. */
export class Workers {
  /** announce(text): for those who do not see the page */
  constructor(announce) {
    this.announce = announce;
    this.cards = new Map(); // by role and worker
    this.seen = new Map(); // worker id -> what it was last, and when
    this.lists = new Map(["encode", "prefill", "decode"].map((role) => [role, document.getElementById(`${role}-workers`)]));
  }

  /** The place on a card where the dots of its requests lie; undefined where there is no such card. */
  berth(role, workerId) {
    return this.cards.get(`${role} ${workerId}`)?.berth;
  }

  /** All those of a tier. */
  *berths(role) {
    for (const card of this.cards.values()) if (card.role === role) yield card.berth;
  }

  /** True where cards have come or gone, so that everything lies elsewhere now. */
  show(workers) {
    const all = this.withGone(workers);
    let moved = false;
    const wanted = new Set();
    for (const worker of all) {
      for (const role of worker.roles) {
        const list = this.lists.get(role);
        if (!list) continue;
        const name = `${role} ${worker.worker_id}`;
        wanted.add(name);
        if (!this.cards.has(name)) {
          const card = new Card(role);
          this.cards.set(name, card);
          list.append(card.element);
          moved = true;
        }
        this.cards.get(name).show(worker);
      }
    }
    for (const [name, card] of this.cards) {
      if (wanted.has(name)) continue;
      card.element.remove();
      this.cards.delete(name);
      moved = true;
    }
    for (const [role, list] of this.lists) {
      const cards = [...this.cards.values()].filter((card) => card.role === role);
      list.classList.toggle("many", cards.length > MANY);
      list.classList.toggle("none", !cards.length);
      moved = this.limit(list, cards) || moved;
    }
    return moved;
  }

  /** Shows MOST of a tier's cards, and all that are not ready. True where it shows others than before. */
  limit(list, cards) {
    let room = MOST - cards.filter((card) => !card.isReady).length;
    let changed = false;
    let left = 0;
    for (const card of cards) {
      const hidden = card.isReady && room-- <= 0;
      left += hidden;
      changed ||= card.element.hidden !== hidden;
      card.element.hidden = hidden;
    }
    list.querySelector(".left")?.remove();
    if (left) list.append(html("li", { class: "left note" }, `and ${left} more, ready`));
    return changed;
  }

  /** The workers, with those that have just vanished as they were, and what has changed said aloud. */
  withGone(workers) {
    const now = performance.now();
    for (const worker of workers) {
      const before = this.seen.get(worker.worker_id);
      // Who has not answered yet does not say what it is for; the one before it at its place did.
      if (!worker.roles.length && before) worker.roles = before.worker.roles;
      if (before && before.worker.state !== worker.state) {
        this.announce(`${worker.worker_id} is ${WORDS[worker.state] ?? worker.state}`);
      }
      this.seen.set(worker.worker_id, { worker, at: now });
    }
    const present = new Set(workers.map((worker) => worker.worker_id));
    const gone = [];
    for (const [id, seen] of this.seen) {
      if (present.has(id)) continue;
      if (seen.worker.state !== "gone") {
        seen.worker = { ...seen.worker, state: "gone", reason: "", gauges: null };
        this.announce(`${id} is gone`);
      }
      if (now - seen.at > GONE_MS) this.seen.delete(id);
      else gone.push(seen.worker);
    }
    return [...workers, ...gone];
  }
}

/** By which ways each pair of tiers hands over, on the channel between them. */
export function showChannels(workers) {
  for (const channel of document.querySelectorAll("[data-channel]")) {
    const [owner, consumer] = channel.dataset.channel.split(" ");
    const ways = new Set();
    for (const worker of workers) {
      for (const [from, to, way] of worker.paths ?? []) if (from === owner && to === consumer) ways.add(way);
    }
    say(channel.querySelector(".way"), [...ways].sort().join(", ").replaceAll("_", " "));
  }
}
