// Elements and numbers. Text goes into the page as text, never as markup.

const byId = (id) => document.getElementById(id);

function element(name, attributes, ...children) {
  const svg = ["svg", "path", "line", "text", "g", "circle", "rect", "title"].includes(name);
  const made = svg
    ? document.createElementNS("http://www.w3.org/2000/svg", name)
    : document.createElement(name);
  for (const [key, value] of Object.entries(attributes ?? {})) made.setAttribute(key, value);
  made.append(...children.filter((child) => child !== null && child !== undefined));
  return made;
}

function digits(value) {
  if (value === 0) return "0";
  const size = Math.abs(value);
  if (size >= 100) return value.toFixed(0);
  return size >= 10 ? value.toFixed(1) : value.toFixed(2);
}

function scaled(value, step, units) {
  let at = 0;
  while (Math.abs(value) >= step * 0.9995 && at < units.length - 1) {
    value /= step;
    at += 1;
  }
  return `${at === 0 && Number.isInteger(value) ? value : digits(value)}${units[at]}`;
}

const count = (value) => scaled(value, 1000, ["", " k", " M", " G"]);
const perSecond = (value) => `${count(value)}/s`;
const bytes = (value) => scaled(value, 1024, [" B", " KiB", " MiB", " GiB", " TiB", " PiB"]);
const bytesPerSecond = (value) => `${bytes(value)}/s`;
const percent = (value) => `${(100 * value).toFixed(1)} %`;
const micros = (value) => scaled(value, 1000, [" µs", " ms", " s"]);

function duration(seconds) {
  if (seconds < 1) return "below 1 s";
  if (seconds < 120) return `${Math.round(seconds)} s`;
  if (seconds < 7200) return `${Math.round(seconds / 60)} min`;
  return seconds < 172800 ? `${Math.round(seconds / 3600)} h` : `${Math.round(seconds / 86400)} d`;
}

const clock = (at) => new Date(1000 * at).toLocaleTimeString([], { hour12: false });
const known = (value) => value !== null && value !== undefined;
const orDash = (value, format) => (known(value) ? format(value) : "–");

const counted = (number, one, many = `${one}s`) => `${number} ${number === 1 ? one : many}`;

// A table. A cell is text or an element; the first of a row names it. On a narrow screen a row is a
// list of its cells, each after its head; the roles keep it a table for screen readers.
function table(name, head, rows) {
  const cell = (tag, role, attributes) => (content, at) => {
    const made = element(tag, { role, ...attributes(at) });
    made.append(content);
    if (content.className === "bar") made.className = "bars";
    return made;
  };
  const row = (...cells) => element("tr", { role: "row" }, ...cells);
  const named = cell("th", "rowheader", () => ({ scope: "row" }));
  const plain = cell("td", "cell", (at) => ({ "data-head": head[at + 1] }));
  const body = rows.map(([first, ...rest]) => row(named(first), ...rest.map(plain)));
  const heads = head.map(cell("th", "columnheader", () => ({ scope: "col" })));
  return element("table", { role: "table", "aria-label": name },
    element("thead", { role: "rowgroup" }, row(...heads)),
    element("tbody", { role: "rowgroup" }, ...body));
}

// A text, such as of a device or a policy, which may be broken after its commas and colons.
const breakable = (text) => element("span", {},
  ...text.split(/(?<=[,:])/).flatMap((part) => [part, element("wbr")]));

function bar(share, colour) {
  const made = element("div", { class: "bar" });
  made.style.width = `${(100 * share).toFixed(2)}%`;
  if (colour !== undefined) made.style.background = `var(--c${colour % 6})`;
  return made;
}
