// The panel beside the graph: all that is known of the chosen node.
const panel = document.getElementById("details");

function showNothing() {
  replace(panel,
    element("h2", {}, "Click a node"),
    element("p", { class: "quiet" }, "Its line in your model, who runs it and why, the kernel it became part of, and that kernel's code. Drag to pan, roll to zoom, / to search; arrow keys go from node to node."),
  );
}

function rows(...entries) {
  const given = entries.filter(([, value]) => value !== null && value !== "");
  return element("dl", {}, given.flatMap(([name, value]) => [element("dt", {}, name), element("dd", {}, value)]));
}

function nodeLink(node) {
  return element("button", { class: "link", onclick: () => select(node, true) }, node.name);
}

function linked(nodes) {
  return nodes.flatMap((node, n) => [n ? ", " : "", nodeLink(node)]);
}

function folded(title, text, open) {
  const made = element("details", {}, element("summary", {}, title));
  const fill = () => { if (made.children.length === 1) made.append(element("pre", {}, text)); };
  made.addEventListener("toggle", fill); // long texts are laid out when somebody looks
  if (open) { made.open = true; fill(); }
  return made;
}

const lines = (text) => text.trimEnd().split("\n").length;

function kernelTexts(kernel, open) {
  const texts = [["Kernel IR", kernel.ir], ["Schedule", kernel.schedule], ["LLVM", kernel.llvm], ["Assembly", kernel.assembly]];
  const code = isFile && kernel.target ? [element("p", { class: "quiet" }, `native code for ${kernel.target}`)] : [];
  return [...code, ...texts.filter(([, text]) => text).map(([title, text], n) =>
    folded(`${title}, ${count(lines(text), "line")}${title === "Kernel IR" || !kernel.target ? "" : ` for ${kernel.target}`}`, text, open && n === 0))];
}

function showNode(node) {
  const g = view.shown;
  if (!node.call) {
    const about = node.type === "input" ? rows(["tensor", node.desc], ["read by", linked(node.readers)]) : rows(["returns", linked(node.sources)]);
    replace(panel, element("h2", {}, `${node.type} ${node.type === "input" ? node.name : ""}`), about);
    return;
  }
  const call = node.call;
  replace(panel,
    element("h2", {}, call.op),
    sourceBlock(call.source),
    rows(
      ["name", call.name], ["result", node.desc], ["module", call.module],
      ["backend", call.backend], ["segment", call.segment || ""],
      ["work", KINDS[node.kind]],
      ["time", timeText(node)],
      ["segment's", node.segment && node.segment.measured ? `${seconds(node.segment.measured.least_seconds)} measured for all of it` : ""],
      ["reads", node.sources.length ? linked(node.sources) : ""],
      ["read by", node.readers.length ? linked(node.readers) : ""],
    ),
    selection(call),
    answers(call),
    node.steps.flatMap((step) => stepBlock(g, node, step)),
    call.expression ? [element("h3", {}, "expression: what an element is"), element("pre", { class: "wrap" }, call.expression)] : null,
    element("h3", {}, "call"), element("pre", { class: "wrap" }, call.text),
  );
}

function timeText(node) {
  if (isFile) return "";
  const time = measuredOf(node), estimate = `${seconds(node.call.estimated_seconds)} estimated`;
  if (time === null) return estimate;
  const alone = node.steps.every((step) => step.calls.length < 2);
  return `${seconds(time)} measured${alone ? "" : ", for all calls of its kernel"}; ${estimate}`;
}

function sourceBlock(source) {
  if (!source && isFile) return null;
  if (!source) return element("p", { class: "quiet" }, "No line of the model is known for this call.");
  return element("div", { class: "source" },
    element("code", { class: "quiet" }, `${source.file}:${source.line} in ${source.function}`),
    element("pre", { class: "wrap" }, source.code));
}

function answers(call) {
  const given = call.answers.filter((answer) => !answer.takes || answer.backend !== call.backend);
  if (!given.length) return null;
  return element("div", {}, element("h3", {}, "why not elsewhere"), element("ul", {}, given.map((answer) =>
    element("li", {}, element("span", { class: "refused" }, answer.backend), `: ${answer.takes ? "takes it, at a higher cost" : answer.reason}`))));
}

function selection(call) {
  const found = call.selection;
  if (!found) return null;
  const measured = Object.entries(found.measured_seconds), modelled = Object.entries(found.modelled_seconds);
  const times = (measured.length ? measured : modelled).sort((a, b) => a[1] - b[1]);
  return element("div", {}, element("h3", {}, "why so"),
    element("p", {}, `${found.chosen}: ${found.reason}`),
    element("ul", {}, times.map(([name, each]) => element("li", {}, `${name}: ${seconds(each)} ${measured.length ? "measured" : "modelled"}`))));
}

function stepBlock(g, node, step) {
  const mates = step.calls.filter((name) => name !== node.name).map((name) => g.byName.get(name)).filter(Boolean);
  const kernel = g.kernels.get(step.name);
  const made = [element("h3", {}, KINDS[step.kind]), element("code", {}, step.name)];
  const [took, moved, done, share] = costCells([step]);
  if (took) made.push(rows(["took", took], ["moves", `${bytes(step.bytes)}, ${moved} GB/s`], ["does", done ? `${step.operations.toLocaleString("en")} operations, ${done} Gop/s` : ""], ["of the limit", share]));
  if (mates.length) made.push(element("p", {}, "together with ", linked(mates)));
  if (kernel) made.push(...kernelTexts(kernel, true));
  else made.push(element("pre", { class: "wrap" }, step.text));
  return made;
}
