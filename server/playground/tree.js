// A draft as a drawing: depth runs to the right, siblings stand below each other, the accepted path is marked.

const SVG = "http://www.w3.org/2000/svg";
const WIDE = 96, HIGH = 26, GAP_X = 24, GAP_Y = 8, LONGEST = 11;

export function drawTree(tree) {
  const places = layOut(tree.parents);
  const accepted = new Set([0, ...tree.accepted]);
  const width = (Math.max(...places.map((p) => p.depth)) + 1) * (WIDE + GAP_X);
  const height = (Math.max(...places.map((p) => p.line)) + 1) * (HIGH + GAP_Y);
  const svg = make("svg", { width, height, viewBox: `0 0 ${width} ${height}`, role: "img" });
  const drafted = tree.parents.length - 1;
  svg.setAttribute("aria-label", `Draft tree of ${drafted} tokens, ${tree.accepted.length} accepted`);
  const at = (p) => ({ x: p.depth * (WIDE + GAP_X), y: p.line * (HIGH + GAP_Y) + HIGH / 2 });
  for (let node = 1; node < places.length; node++) {
    const from = at(places[tree.parents[node]]), to = at(places[node]);
    const line = make("line", { x1: from.x + WIDE, y1: from.y, x2: to.x, y2: to.y });
    if (accepted.has(node)) line.classList.add("accepted");
    svg.append(line);
  }
  places.forEach((place, node) => {
    const { x, y } = at(place);
    const group = make("g", {});
    if (accepted.has(node)) group.classList.add("accepted");
    const text = make("text", { x: x + WIDE / 2, y: y + 4, "text-anchor": "middle" });
    text.textContent = shown(tree.texts[node]);
    const title = make("title", {});
    title.textContent = `${JSON.stringify(tree.texts[node])}, token ${tree.token_ids[node]}`;
    group.append(make("rect", { x, y: y - HIGH / 2, width: WIDE, height: HIGH, rx: 6 }), text, title);
    svg.append(group);
  });
  return svg;
}

// Every leaf has a line of its own; a node stands on its first child's.
function layOut(parents) {
  const children = parents.map(() => []);
  for (let node = 1; node < parents.length; node++) children[parents[node]].push(node);
  const places = new Array(parents.length);
  let lines = 0;
  const place = (node, depth) => {
    const line = lines;
    places[node] = { depth, line };
    children[node].forEach((child, index) => {
      if (index) lines++;
      place(child, depth + 1);
    });
  };
  place(0, 0);
  return places;
}

function shown(text) {
  const visible = text.replaceAll("\n", "⏎").replaceAll(" ", "·");
  return visible.length > LONGEST ? `${visible.slice(0, LONGEST - 1)}…` : visible;
}

function make(name, attributes) {
  const element = document.createElementNS(SVG, name);
  for (const [key, value] of Object.entries(attributes)) element.setAttribute(key, value);
  return element;
}
