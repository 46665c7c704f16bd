// The trees of the last answer: draws one, shows the newest until the user chooses a step, describes a node.

import { by } from "./dom.js";
import { drawTree } from "./tree.js";

let trees = [];
let following = true;

by("step").addEventListener("input", () => {
  following = Number(by("step").value) === trees.length;
  draw(Number(by("step").value));
});

export function forgetTrees() {
  trees = [];
  following = true;
  by("steps").hidden = true;
  by("node").textContent = "";
  const hint = document.createElement("p");
  hint.className = "faint";
  hint.textContent = "No step of this answer has drafted yet.";
  by("tree").replaceChildren(hint);
}

export function addTrees(more) {
  if (!more.length) return;
  trees.push(...more);
  by("steps").hidden = false;
  by("step").max = trees.length;
  if (following) by("step").value = trees.length;
  draw(Number(by("step").value));
}

function draw(step) {
  const tree = trees[step - 1];
  const counts = `${tree.accepted.length} of ${tree.parents.length - 1} accepted`;
  by("step-shown").value = `${step} of ${trees.length}: ${counts}`;
  by("node").textContent = "";
  by("tree").replaceChildren(drawTree(tree, (told) => (by("node").textContent = told)));
}
