// Elements, numbers and colours that every part of the page shares.

const SVG = "http://www.w3.org/2000/svg";

/** An HTML element. Properties go to the element, `class` and what has a dash are attributes. */
export function html(tag, properties = {}, ...children) {
  return fill(document.createElement(tag), properties, children);
}

/** An SVG element; all properties are attributes. */
export function svg(tag, attributes = {}, ...children) {
  const element = document.createElementNS(SVG, tag);
  for (const [name, value] of Object.entries(attributes)) element.setAttribute(name, value);
  element.append(...children);
  return element;
}

function fill(element, properties, children) {
  for (const [name, value] of Object.entries(properties)) {
    if (name in element && name !== "class") element[name] = value;
    else element.setAttribute(name, value);
  }
  element.append(...children);
  return element;
}

/** Writes text only where it is another one: screen readers and layout are left alone. */
export function say(element, text) {
  if (element.textContent !== text) element.textContent = text;
}

/** 0.0123 -> "12 ms", 3.21 -> "3.2 s", neither of which is broken over lines. */
export function seconds(value) {
  if (value === null || value === undefined || !Number.isFinite(value)) return "–";
  if (value < 0.00995) return `${(value * 1000).toFixed(1)}\u00a0ms`;
  if (value < 0.9995) return `${Math.round(value * 1000)}\u00a0ms`;
  return value < 9.95 ? `${value.toFixed(1)}\u00a0s` : `${Math.round(value)}\u00a0s`;
}

export function count(value) {
  if (value < 10000) return String(Math.round(value));
  return value < 1e6 ? `${(value / 1e3).toFixed(value < 1e5 ? 1 : 0)}k` : `${(value / 1e6).toFixed(1)}M`;
}

export function percent(share) {
  return `${Math.round(share * 100)}\u00a0%`;
}

export function plural(number, one, many = `${one}s`) {
  return `${number} ${number === 1 ? one : many}`;
}

/** The share-th quantile of some numbers, by linear interpolation; null of none. */
export function quantile(numbers, share) {
  if (!numbers.length) return null;
  const sorted = [...numbers].sort((a, b) => a - b);
  const at = (sorted.length - 1) * share;
  const below = Math.floor(at);
  const above = Math.min(below + 1, sorted.length - 1);
  return sorted[below] + (sorted[above] - sorted[below]) * (at - below);
}

/** The least of 1, 2, 5 times a power of ten that is no less. */
export function ceiling(value) {
  if (!(value > 0)) return 1;
  const power = 10 ** Math.floor(Math.log10(value));
  return [1, 2, 5, 10].map((step) => step * power).find((step) => step >= value * 0.999999);
}
