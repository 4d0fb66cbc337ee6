// Every text that is shown, with the contrast of its colour to what lies behind it, and what it needs.
(() => {
  const parse = (text) => {
    const [red, green, blue, alpha = 1] = text.match(/[\d.]+/g).map(Number);
    const whole = text.startsWith("color(") ? 255 : 1; // color(srgb 0 0.5 1), or rgb(0, 128, 255)
    return [red * whole, green * whole, blue * whole, alpha];
  };
  const over = (front, back) => [0, 1, 2].map((part) => front[part] * front[3] + back[part] * (1 - front[3])).concat(1);
  const linear = (part) => (part <= 0.04045 ? part / 12.92 : ((part + 0.055) / 1.055) ** 2.4);
  const light = (colour) => {
    const [red, green, blue] = colour.map((part) => linear(part / 255));
    return 0.2126 * red + 0.7152 * green + 0.0722 * blue;
  };
  const behind = (element) => {
    const layers = [];
    for (let each = element; each; each = each.parentElement) {
      layers.push(parse(getComputedStyle(each).backgroundColor));
      if (layers[layers.length - 1][3] === 1) break;
    }
    return layers.reduceRight((back, front) => over(front, back), [255, 255, 255, 1]);
  };
  const found = [];
  const walker = document.createTreeWalker(document.body, NodeFilter.SHOW_TEXT);
  while (walker.nextNode()) {
    const element = walker.currentNode.parentElement;
    const text = walker.currentNode.data.trim();
    const isShown = element.checkVisibility({ opacityProperty: true, visibilityProperty: true });
    if (!text || !isShown || element.closest(".hidden, svg")) continue;
    const style = getComputedStyle(element);
    const back = behind(element);
    const [one, other] = [light(over(parse(style.color), back)), light(back)].sort((a, b) => b - a);
    const size = parseFloat(style.fontSize);
    const isLarge = size >= 24 || (size >= 18.66 && Number(style.fontWeight) >= 700);
    found.push({ text: text.slice(0, 40), contrast: (one + 0.05) / (other + 0.05), least: isLarge ? 3 : 4.5 });
  }
  return found;
})();
