// Draws a draft tree: depth runs to the right, siblings are below each other, the accepted path is marked.
// Each depth is as wide as its longest token, so that most trees fit on a phone.
// One node at a time has the focus; arrow keys move it to the parent, the first child and the lines above and below.

const SVG = "http://www.w3.org/2000/svg";
const LETTER = 7.4, MARGIN = 20, NARROWEST = 40, HIGH = 28, GAP_X = 22, GAP_Y = 8, EDGE = 3, LONGEST = 11;

// Calls `tell` with a sentence about the node under the pointer or the focus.
export function drawTree(tree, tell) {
  const places = layOut(tree.parents, tree.texts);
  const accepted = new Set(tree.accepted);
  const width = Math.max(...places.map((p) => p.x + p.wide)) + 2 * EDGE;
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
  const { x, y, wide } = place;
  const [token, text] = [tree.token_ids[node], tree.texts[node]];
  const said = { root: "committed before this step", accepted: "drafted and accepted", passed: "drafted, not accepted" };
  const group = make("g", {
    class: kind,
    role: "treeitem",
    tabindex: -1,
    "aria-level": place.depth + 1,
    "aria-label": `${JSON.stringify(text)}, token ${token}, depth ${place.depth}: ${said[kind]}`,
  });
  const label = make("text", { x: x + wide / 2, y: y + HIGH / 2 + 4, "text-anchor": "middle" });
  label.textContent = shown(text);
  group.append(make("rect", { x, y, width: wide, height: HIGH, rx: 7 }), label);
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

// Every leaf gets its own line; a node is on the line of its first child.
function layOut(parents, texts) {
  const children = parents.map(() => []);
  for (let node = 1; node < parents.length; node++) children[parents[node]].push(node);
  const places = new Array(parents.length);
  let lines = 0;
  const place = (node, depth) => {
    places[node] = { depth, line: lines, y: lines * (HIGH + GAP_Y) };
    children[node].forEach((child, index) => {
      if (index) lines++;
      place(child, depth + 1);
    });
  };
  place(0, 0);
  const wide = [];
  places.forEach(({ depth }, node) => {
    wide[depth] = Math.max(wide[depth] ?? NARROWEST, Math.ceil(shown(texts[node]).length * LETTER + MARGIN));
  });
  const left = wide.map((_, depth) => wide.slice(0, depth).reduce((sum, one) => sum + one + GAP_X, 0));
  return places.map((at) => ({ ...at, x: left[at.depth], wide: wide[at.depth] }));
}

function curve(from, to) {
  const [x1, y1, x2, y2] = [from.x + from.wide, from.y + HIGH / 2, to.x, to.y + HIGH / 2];
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
