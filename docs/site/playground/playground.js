// The page of the playground: an editor, and what the compiler (worker.js) says of its text.
import { coloured, compiled } from "./colours.js";

const $ = (id) => document.getElementById(id);
const begun = performance.now();
const worker = new Worker(new URL("./worker.js", import.meta.url), { type: "module" });
const waiting = new Map();
const latest = new Map(); // kind of request -> the one to send when the compiler is free
let number = 0;
let examples = {};
let chosen = ""; // name of the shown loss
let sliders = []; // of the shown loss
let graph = null;

function element(tag, attributes = {}, ...children) {
  const made = tag === "svg" || element.svg.has(tag)
    ? document.createElementNS("http://www.w3.org/2000/svg", tag)
    : document.createElement(tag);
  for (const [key, value] of Object.entries(attributes)) {
    if (key.startsWith("on")) made.addEventListener(key.slice(2), value);
    else if (value !== undefined && value !== false) made.setAttribute(key, value);
  }
  made.append(...children);
  return made;
}
element.svg = new Set(["path", "line", "circle", "text", "g"]);

function send(request) {
  return new Promise((resolve, reject) => {
    waiting.set(++number, { resolve, reject });
    worker.postMessage({ id: number, request });
  });
}

// Of requests of a kind only the newest is sent once the compiler is free.
async function ask(kind, make, show) {
  const busy = latest.has(kind);
  latest.set(kind, { make, show });
  if (busy) return;
  while (latest.get(kind)) {
    const next = latest.get(kind);
    latest.set(kind, null);
    try {
      next.show(await send(next.make()));
    } catch (error) {
      state(error.message.trim().split("\n").pop(), true);
    }
  }
  latest.delete(kind);
}

function state(text, bad = false) {
  $("pg-state").textContent = text;
  $("pg-state").classList.toggle("pg-bad", bad);
}

worker.onmessage = ({ data }) => {
  if (data.progress !== undefined) {
    $("pg-progress").value = data.progress;
    state(data.state);
  } else if (data.failed) {
    state(`the compiler could not be loaded: ${data.failed}`, true);
  } else if (data.ready) {
    begin().catch((error) => state(error.message, true));
  } else {
    const { resolve, reject } = waiting.get(data.id);
    waiting.delete(data.id);
    if (data.error) reject(new Error(data.error));
    else resolve(data.answer);
  }
};
worker.onerror = (event) => state(`the compiler could not be loaded: ${event.message || "see the console"}`, true);

async function begin() {
  examples = await send({ ask: "examples" });
  const choice = $("pg-example");
  for (const name of Object.keys(examples)) choice.append(element("option", {}, name));
  choice.value = "grpo_math";
  choice.disabled = false;
  choice.addEventListener("change", () => open(choice.value));
  if (!$("pg-text").value) $("pg-text").value = examples[choice.value];
  colour();
  $("pg-progress").value = 1;
  check(() => {
    document.querySelector(".pg-start").classList.add("pg-ready");
    state(`the compiler is ready after ${((performance.now() - begun) / 1000).toFixed(1)} s`);
    $("playground").dataset.ready = "true";
  });
}

function open(name) {
  $("pg-text").value = examples[name];
  $("pg-text").scrollTo(0, 0);
  colour();
  check();
}

// ---- the editor

function lines(marks = new Map()) {
  const count = $("pg-text").value.split("\n").length;
  const shown = [];
  for (let line = 1; line <= count; line++) {
    shown.push(element("span", { class: marks.get(line) && `pg-${marks.get(line)}` }, `${line}\n`));
  }
  $("pg-lines").replaceChildren(...shown);
  $("pg-lines").scrollTop = $("pg-text").scrollTop;
}

let timer = 0;
$("pg-text").addEventListener("input", (event) => {
  lines();
  colour();
  clearTimeout(timer);
  timer = setTimeout(check, 250);
  const typed = event.data || "";
  if (!$("pg-offers").hidden || /[\w."]$/.test(typed)) offer(/[."]$/.test(typed));
});
$("pg-text").addEventListener("scroll", () => {
  $("pg-lines").scrollTop = $("pg-text").scrollTop;
  shift();
  close();
});

// The text of the textarea is transparent, and lies on a coloured copy. Without the patterns it is
// shown as it is.
let rules = null;
fetch(new URL("./colours.json", import.meta.url))
  .then((response) => (response.ok ? response.json() : Promise.reject(new Error(`${response.status}`))))
  .then((patterns) => {
    rules = compiled(patterns);
    $("pg-code").classList.add("pg-coloured");
    colour();
  })
  .catch((error) => console.error(`colours.json: ${error.message}`));

function colour() {
  if (!rules) return;
  const shown = coloured(rules, $("pg-text").value).map(
    ([name, text]) => (name ? element("span", { class: name }, text) : text));
  $("pg-colours").replaceChildren(...shown, "\n");
  shift();
}

function shift() {
  const { scrollLeft, scrollTop } = $("pg-text");
  $("pg-colours").style.transform = `translate(${-scrollLeft}px, ${-scrollTop}px)`;
}

// ---- completion

const MOST = 60;
let offers = []; // those that fit what is typed
let taken = -1; // the chosen one
let typedAt = 0; // where the part begins that is typed already

// Ask what may stand at the cursor. Without a typed part the list opens only if it is wanted.
function offer(wanted) {
  const text = $("pg-text").value;
  const cursor = $("pg-text").selectionStart;
  ask("complete", () => ({ ask: "complete", text, offset: [...text.slice(0, cursor)].length }), (found) => {
    if ($("pg-text").value !== text || $("pg-text").selectionStart !== cursor) return;
    typedAt = units(text, found.start);
    const typed = text.slice(typedAt, cursor).toLowerCase();
    const starts = (each) => each.insert.toLowerCase().startsWith(typed);
    const fits = found.offers.filter((each) => starts(each) && each.insert.toLowerCase() !== typed);
    offers = typed || wanted ? fits.slice(0, MOST) : [];
    list();
  });
}

function list() {
  taken = -1;
  if (!offers.length) return close();
  $("pg-offers").replaceChildren(...offers.map((each, i) => element("li",
    { role: "option", id: `pg-offer-${i}`, title: each.doc || undefined, onpointerdown: (event) => {
      event.preventDefault(); // the textarea keeps the focus
      take(i);
    } },
    element("span", {}, each.insert), element("small", {}, each.detail || each.kind))));
  $("pg-offers").hidden = false;
  place();
}

// Below the cursor, or above it where there is no room.
function place() {
  const text = $("pg-text").value;
  const before = text.slice(0, typedAt).split("\n");
  const line = parseFloat(getComputedStyle($("pg-text")).lineHeight);
  const edge = parseFloat(getComputedStyle($("pg-text")).paddingTop);
  const ruler = element("span", { class: "pg-ruler" }, before[before.length - 1] || "\u200b");
  $("pg-code").append(ruler);
  const left = edge + ruler.getBoundingClientRect().width - $("pg-text").scrollLeft;
  ruler.remove();
  const top = edge + before.length * line - $("pg-text").scrollTop;
  const [box, room] = [$("pg-offers"), $("pg-code")];
  box.style.left = `${Math.max(0, Math.min(left, room.clientWidth - box.offsetWidth))}px`;
  const above = top + box.offsetHeight > room.clientHeight && top - line > box.offsetHeight;
  box.style.top = `${above ? top - line - box.offsetHeight : top}px`;
}

function close() {
  offers = [];
  taken = -1;
  $("pg-offers").hidden = true;
  $("pg-text").removeAttribute("aria-activedescendant");
}

function move(step) {
  taken = (taken + step + offers.length + (taken < 0 && step < 0 ? 1 : 0)) % offers.length;
  for (const [i, each] of [...$("pg-offers").children].entries()) each.setAttribute("aria-selected", i === taken);
  const chosen = $(`pg-offer-${taken}`);
  chosen.scrollIntoView({ block: "nearest" });
  $("pg-text").setAttribute("aria-activedescendant", chosen.id);
}

function take(i) {
  const area = $("pg-text");
  const { insert } = offers[i];
  close();
  area.focus();
  area.setRangeText(insert, typedAt, area.selectionStart, "end");
  area.dispatchEvent(new Event("input"));
}

// Tab takes the first offer, Enter only a chosen one. While the list is closed, Tab leaves the editor.
$("pg-text").addEventListener("keydown", (event) => {
  const open = !$("pg-offers").hidden;
  if (event.key === " " && event.ctrlKey) offer(true);
  else if (!open) return;
  else if (event.key === "ArrowDown") move(1);
  else if (event.key === "ArrowUp") move(-1);
  else if (event.key === "Escape") close();
  else if (event.key === "Tab" && !event.shiftKey) take(Math.max(taken, 0));
  else if (event.key === "Enter" && taken >= 0) take(taken);
  else {
    if (["ArrowLeft", "ArrowRight", "Home", "End", "Enter"].includes(event.key)) close();
    return;
  }
  event.preventDefault();
});
$("pg-text").addEventListener("blur", close);
$("pg-text").addEventListener("pointerdown", close);

// ---- what the compiler says

function check(then) {
  if (!$("pg-text").value && !Object.keys(examples).length) return;
  ask("check", () => ({ ask: "check", text: $("pg-text").value }), (found) => {
    findings(found.findings);
    graph = found.graph;
    picture();
    $("pg-plan").replaceChildren(found.plan ? element("pre", { tabindex: 0 }, found.plan) : none("plan"));
    losses(found.losses);
    if (typeof then === "function") then();
    else state("");
  });
}

const none = (what) => element("p", { class: "pg-none" }, `The file has errors, so it has no ${what}.`);

// Offsets of the compiler count code points, those of a textarea UTF-16 units.
const units = (text, offset) => [...text].slice(0, offset).join("").length;

function findings(found) {
  const text = $("pg-text").value;
  const marks = new Map();
  const shown = found.map((finding) => {
    const from = finding.start === null ? null : units(text, finding.start);
    if (from !== null) {
      const line = text.slice(0, from).split("\n").length;
      if (marks.get(line) !== "error") marks.set(line, finding.severity);
    }
    const select = () => {
      $("pg-text").focus();
      $("pg-text").setSelectionRange(from, units(text, finding.end));
      const line = text.slice(0, from).split("\n").length;
      const high = $("pg-text").scrollHeight / text.split("\n").length;
      $("pg-text").scrollTop = Math.max(0, (line - 5) * high);
    };
    return element("article", { class: `pg-finding pg-${finding.severity}` },
      element("pre", { tabindex: 0 }, finding.text),
      element("p", {},
        element("a", { href: `reference/rules/${finding.code}.html` }, `about ${finding.code}`),
        ...(from === null ? [] : [" ", element("button", { onclick: select }, "show the place")])));
  });
  const count = element("p", { class: "pg-none" }, "No findings.");
  $("pg-findings").replaceChildren(...(shown.length ? shown : [count]));
  $("pg-tab-findings").textContent = found.length ? `Findings (${found.length})` : "Findings";
  lines(marks);
}

const dark = () => document.body.dataset.mdColorScheme === "slate";

function picture() {
  if (!graph) {
    $("pg-graph").replaceChildren(none("graph"));
    return;
  }
  const source = graph[dark() ? "dark" : "light"];
  const link = `data:image/svg+xml;charset=utf-8,${encodeURIComponent(source)}`;
  $("pg-graph").replaceChildren(element("div", { class: "pg-scroll", tabindex: 0 },
    element("img", { src: link, alt: "dataflow of the program" })));
}
new MutationObserver(picture).observe(document.body, { attributeFilter: ["data-md-color-scheme"] });

// ---- losses

function losses(known) {
  const names = known.map((loss) => loss.name);
  if (!names.includes(chosen)) {
    chosen = names[0] || "";
    sliders = [];
  }
  if (!chosen) {
    $("pg-loss").replaceChildren(none("loss"));
    return;
  }
  const choice = element("select", { id: "pg-loss-name", onchange: () => { chosen = choice.value; sliders = []; loss(); } });
  for (const [title, of] of [["of the file", known.filter((l) => !l.module)],
    ["of the standard library", known.filter((l) => l.module)]]) {
    if (of.length) {
      choice.append(element("optgroup", { label: title }, ...of.map((l) => element("option", {}, l.name))));
    }
  }
  choice.value = chosen;
  if (!$("pg-loss-name")) {
    $("pg-loss").replaceChildren(
      element("p", {}, element("label", {}, "Loss ", choice)),
      element("div", { id: "pg-value", "aria-live": "polite" }),
      element("div", { id: "pg-charts" }),
      element("div", { id: "pg-sliders" }),
      element("pre", { id: "pg-formula", tabindex: 0 }));
  } else {
    $("pg-loss-name").replaceWith(choice);
  }
  loss();
}

function loss() {
  ask("loss", () => ({ ask: "loss", text: $("pg-text").value, name: chosen }), (found) => {
    if (found.error) {
      sliders = [];
      for (const id of ["pg-value", "pg-charts", "pg-sliders"]) $(id).replaceChildren();
      $("pg-formula").textContent = found.error;
      return;
    }
    const kept = new Map(sliders.map((slider) => [slider.name, slider]));
    const fresh = (slider, kind) => {
      const old = kept.get(slider.name);
      const moved = old && old.start === slider.value;
      return { ...slider, kind, start: slider.value, value: moved ? old.value : slider.value };
    };
    sliders = [...found.inputs.map((s) => fresh(s, "at")), ...found.settings.map((s) => fresh(s, "settings"))];
    $("pg-formula").textContent = found.text;
    const group = (kind, title) => {
      const mine = sliders.filter((slider) => slider.kind === kind);
      return mine.length ? [element("fieldset", {}, element("legend", {}, title), ...mine.map(row))] : [];
    };
    $("pg-sliders").replaceChildren(...group("at", "The token"), ...group("settings", "Parameters"));
    curves();
  });
}

const short = (value) => (value === null ? "not finite" : String(Number(value.toPrecision(4))));

function row(slider) {
  const shown = element("output", {}, short(slider.value));
  const input = element("input", {
    type: "range", min: slider.low, max: slider.high, step: slider.step, value: slider.value,
    "data-name": slider.name, "aria-label": slider.name,
    oninput: () => {
      slider.value = Number(input.value);
      shown.textContent = short(slider.value);
      curves();
    },
  });
  return element("label", { class: "pg-slider" }, element("span", {}, slider.name), input, shown);
}

function curves() {
  const values = (kind) => Object.fromEntries(
    sliders.filter((slider) => slider.kind === kind).map((slider) => [slider.name, slider.value]));
  ask("curves", () => ({
    ask: "curves", text: $("pg-text").value, name: chosen, settings: values("settings"), at: values("at"),
    file: sliders.filter((slider) => slider.file).map((slider) => slider.name),
  }), (found) => {
    if (found.error) return;
    $("pg-value").replaceChildren(
      element("span", { class: "pg-key pg-of-value" }, `loss ${short(found.value)}`), " ",
      element("span", { class: "pg-key pg-of-slope" }, `d loss / d ${found.wrt} ${short(found.slope)}`));
    $("pg-charts").replaceChildren(...found.charts.map(chart));
    state("");
  });
}

// ---- charts

function ticks(low, high) {
  const step = 10 ** Math.floor(Math.log10((high - low) / 3));
  const wide = [1, 2, 5, 10].map((m) => m * step).find((s) => (high - low) / s <= 5);
  const found = [];
  for (let x = Math.ceil(low / wide) * wide; x <= high + wide / 1e6; x += wide) {
    found.push(Number(x.toPrecision(6)));
  }
  return found;
}

function chart({ over, at, x, value, slope }) {
  const [width, height, left, right, top, bottom] = [360, 210, 44, 10, 10, 34];
  const known = [...value, ...slope].filter((y) => y !== null);
  let low = Math.max(Math.min(0, ...known), -20);
  let high = Math.min(Math.max(0, ...known), 20);
  const room = (high - low || 1) * 0.05;
  low -= room;
  high += room;
  const fx = (v) => left + ((v - x[0]) / (x[x.length - 1] - x[0])) * (width - left - right);
  const fy = (v) => top + ((high - v) / (high - low)) * (height - top - bottom);
  const path = (ys) => {
    let pen = "M";
    let text = "";
    ys.forEach((y, i) => {
      if (y === null) pen = "M";
      else {
        text += `${pen}${fx(x[i]).toFixed(2)} ${fy(Math.min(Math.max(y, low), high)).toFixed(2)}`;
        pen = "L";
      }
    });
    return text;
  };
  const made = element("svg", { viewBox: `0 0 ${width} ${height}`, class: "pg-chart", "data-over": over,
    role: "img", "aria-label": `loss and gradient over ${over}` });
  for (const y of ticks(low, high)) {
    made.append(element("line", { class: y ? "pg-grid" : "pg-zero", x1: left, x2: width - right, y1: fy(y), y2: fy(y) }),
      element("text", { x: left - 6, y: fy(y) + 4, "text-anchor": "end" }, String(y)));
  }
  for (const v of ticks(x[0], x[x.length - 1])) {
    made.append(element("text", { x: fx(v), y: height - bottom + 14, "text-anchor": "middle" }, String(v)));
  }
  made.append(element("text", { class: "pg-name", x: (left + width - right) / 2, y: height - 4, "text-anchor": "middle" }, over),
    element("line", { class: "pg-at", x1: fx(at), x2: fx(at), y1: top, y2: height - bottom }),
    element("path", { class: "pg-line", d: path(value) }),
    element("path", { class: "pg-slope", d: path(slope) }));
  return made;
}

// ---- tabs

const tabs = [...document.querySelectorAll(".pg-tabs button")];
function show(tab) {
  for (const each of tabs) {
    each.setAttribute("aria-selected", each === tab);
    $(each.getAttribute("aria-controls")).hidden = each !== tab;
  }
}
for (const tab of tabs) tab.addEventListener("click", () => show(tab));
lines();
