// Plots of one quantity over another: the model's curve, and the miss-ratio curve.

class Plot {
  // A spec: title, `x` and `y` with a format, and `x.log` for a logarithmic axis.
  constructor(spec) {
    this.spec = spec;
    this.svg = element("svg", { class: "chart", role: "img" });
    this.legend = element("ul", { class: "legend" });
    this.figure = element("figure", {},
      element("figcaption", {}, spec.title, element("small", {}, ` ${spec.note}`)),
      this.svg, this.legend);
    new ResizeObserver(() => this.draw()).observe(this.svg);
  }

  // Points of a line, and marked points with their names. Past `until` the line is dashed.
  show(line, marks, until = Infinity) {
    [this.line, this.marks, this.until] = [line, marks, until];
    this.draw();
  }

  draw() {
    const { svg, spec, line, marks } = this;
    const [width, height] = [svg.clientWidth, svg.clientHeight];
    if (!line?.length || !width) return;
    const rem = parseFloat(getComputedStyle(document.documentElement).fontSize);
    const [first, last] = [line[0][0], line[line.length - 1][0]];
    const most = spec.y.top ?? Math.max(...line.map((it) => it[1]), ...marks.map((it) => it.y));
    const rows = linearTicks(most, false);
    const labels = rows.map(spec.y.format);
    const left = Math.max(...labels.map((it) => it.length)) * 0.47 * rem + 0.6 * rem;
    const [right, top, bottom] = [width - 1.2 * rem, 0.8 * rem, height - 1.5 * rem];
    const share = (value) => (spec.x.log
      ? Math.log(value / first) / Math.log(last / first)
      : (value - first) / (last - first));
    const x = (value) => left + Math.min(Math.max(share(value), 0), 1) * (right - left);
    const y = (value) => bottom - Math.min(value / rows[rows.length - 1], 1) * (bottom - top);
    const drawn = rows.flatMap((tick, at) => {
      const rule = { class: at ? "rule" : "axis", x1: left, x2: right, y1: y(tick), y2: y(tick) };
      const place = { x: left - 0.4 * rem, y: y(tick) + 0.27 * rem, "text-anchor": "end" };
      return [element("line", rule), element("text", place, labels[at])];
    });
    const steps = right - left > 22 * rem ? (spec.x.log ? 5 : 4) : 2;
    for (let step = 0; step <= steps; step += 1) {
      const part = step / steps;
      const value = spec.x.log ? first * (last / first) ** part : first + (last - first) * part;
      const anchor = step === 0 ? "start" : step === steps ? "end" : "middle";
      const px = x(value);
      const tick = { class: "axis", x1: px, x2: px, y1: bottom, y2: bottom + 0.25 * rem };
      const place = { x: px, y: bottom + 1.1 * rem, "text-anchor": anchor };
      drawn.push(element("line", tick), element("text", place, spec.x.format(value)));
    }
    const at = ([px, py]) => `${x(px).toFixed(1)} ${y(py).toFixed(1)}`;
    const beyond = line.findIndex(([value]) => value > this.until);
    const sure = beyond < 0 ? line : line.slice(0, beyond);
    [[sure, ""], [beyond < 0 ? [] : line.slice(Math.max(beyond - 1, 0)), "2 4"]]
      .filter(([part]) => part.length > 0)
      .forEach(([part, dashes]) => {
        const path = element("path", { d: `M${part.map(at).join("L")}` });
        Object.assign(path.style, lineStyle(0), { strokeDasharray: dashes });
        drawn.push(path);
      });
    marks.forEach((mark, index) => {
      const [mx, my, r] = [x(mark.x), y(mark.y), 0.32 * rem];
      drawn.push(element("path", { d: SHAPES[index % 3](mx, my, r), class: `mark m${index % 3}` }));
    });
    svg.setAttribute("viewBox", `0 0 ${width} ${height}`);
    svg.replaceChildren(...drawn);
    const told = marks.map((it) => `${it.name}: ${spec.y.format(it.y)} at ${spec.x.format(it.x)}`);
    const items = told.map((text, index) => element("li", {}, symbol(index), text));
    this.legend.replaceChildren(...items);
    svg.setAttribute("aria-label", `${spec.title}. ${told.join("; ")}`);
  }
}

const SHAPES = [
  (x, y, r) => `M${x - r} ${y}a${r} ${r} 0 1 0 ${2 * r} 0a${r} ${r} 0 1 0 ${-2 * r} 0z`,
  (x, y, r) => {
    const d = 1.3 * r;
    return `M${x} ${y - d}l${d} ${d}l${-d} ${d}l${-d} ${-d}z`;
  },
  (x, y, r) => `M${x - r} ${y - r}h${2 * r}v${2 * r}h${-2 * r}z`,
];

const symbol = (index) => element("svg", { viewBox: "0 0 26 10", "aria-hidden": "true" },
  element("path", { d: SHAPES[index % 3](13, 5, 3.6), class: `mark m${index % 3}` }));
