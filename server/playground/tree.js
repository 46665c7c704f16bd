// A draft as a drawing: depth runs to the right, siblings stand below each other, the accepted path is marked.
// One node at a time takes the focus; arrow keys lead to its parent, its first child and the lines above and below.

const SVG = "http://www.w3.org/2000/svg";
const WIDE = 96, HIGH = 28, GAP_X = 28, GAP_Y = 8, EDGE = 3, LONGEST = 11;

// `tell` is called with a sentence about the node that the pointer or the focus is on.
export function drawTree(tree, tell) {
  const places = layOut(tree.parents);
  const accepted = new Set(tree.accepted);
  const width = (Math.max(...places.map((p) => p.depth)) + 1) * (WIDE + GAP_X) - GAP_X + 2 * EDGE;
  const height = (Math.max(...places.map((p) => p.line)) + 1) * (HIGH + GAP_Y) - GAP_Y + 2 * EDGE;
  const svg = make("svg", { width, height, viewBox: `${-EDGE} ${-EDGE} ${width} ${height}`, role: "tree" });
  const drafted = tree.parents.length - 1;
  svg.setAttribute("aria-label", `Draft of ${drafted} tokens, ${tree.accepted.length} accepted`);
  const kind = (node) => (node === 0 ? "root" : accepted.has(node) ? "accepted" : "passed");
  for (let node = 1; node < places.length; node++) {
    svg.append(make("path", { d: curve(places[tree.parents[node]], places[node]), class: kind(node) }));
  }
  const groups = places.map((place, node) => drawNode(tree, node, place, kind(node)));
  groups.forEach((group, node) => {
    const told = group.getAttribute("aria-label");
    group.addEventListener("pointerenter", () => tell(told));
    group.addEventListener("focus", () => tell(told));
    group.addEventListener("keydown", (event) => {
      const next = neighbor(tree.parents, places, node, event.key);
      if (next === undefined) return;
      event.preventDefault();
      group.tabIndex = -1;
      groups[next].tabIndex = 0;
      groups[next].focus();
    });
  });
  groups[0].setAttribute("tabindex", 0);
  svg.append(...groups);
  return svg;
}

function drawNode(tree, node, place, kind) {
  const { x, y } = corner(place);
  const [token, text] = [tree.token_ids[node], tree.texts[node]];
  const said = { root: "committed before this step", accepted: "drafted and accepted", passed: "drafted, not accepted" };
  const group = make("g", {
    class: kind,
    role: "treeitem",
    tabindex: -1,
    "aria-level": place.depth + 1,
    "aria-label": `${JSON.stringify(text)}, token ${token}, depth ${place.depth}: ${said[kind]}`,
  });
  const label = make("text", { x: x + WIDE / 2, y: y + HIGH / 2 + 4, "text-anchor": "middle" });
  label.textContent = shown(text);
  group.append(make("rect", { x, y, width: WIDE, height: HIGH, rx: 7 }), label);
  return group;
}

function neighbor(parents, places, node, key) {
  const inLine = (lines) => {
    const below = places.map((place, other) => ({ ...place, other })).filter((place) => lines(place.line));
    const column = below.filter((place) => place.depth === places[node].depth);
    column.sort((a, b) => Math.abs(a.line - places[node].line) - Math.abs(b.line - places[node].line));
    return column[0]?.other;
  };
  if (key === "ArrowLeft") return node === 0 ? undefined : parents[node];
  if (key === "ArrowRight") return parents.indexOf(node, node + 1) > 0 ? parents.indexOf(node, node + 1) : undefined;
  if (key === "ArrowUp") return inLine((line) => line < places[node].line);
  if (key === "ArrowDown") return inLine((line) => line > places[node].line);
  return undefined;
}

// Every leaf has a line of its own; a node stands on its first child's.
function layOut(parents) {
  const children = parents.map(() => []);
  for (let node = 1; node < parents.length; node++) children[parents[node]].push(node);
  const places = new Array(parents.length);
  let lines = 0;
  const place = (node, depth) => {
    places[node] = { depth, line: lines };
    children[node].forEach((child, index) => {
      if (index) lines++;
      place(child, depth + 1);
    });
  };
  place(0, 0);
  return places;
}

function corner(place) {
  return { x: place.depth * (WIDE + GAP_X), y: place.line * (HIGH + GAP_Y) };
}

function curve(from, to) {
  const start = corner(from), end = corner(to);
  const [x1, y1, x2, y2] = [start.x + WIDE, start.y + HIGH / 2, end.x, end.y + HIGH / 2];
  const middle = (x1 + x2) / 2;
  return `M${x1} ${y1}C${middle} ${y1} ${middle} ${y2} ${x2} ${y2}`;
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
