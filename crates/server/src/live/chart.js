// Charts of the last hour. Linear axes begin at zero; logarithmic ones say that they are.

const HOUR = 3600;
// A young server's charts begin with fewer minutes.
const SPANS = [300, 900, HOUR];
const DASHES = ["", "6 3", "2 3", "9 3 2 3", "12 4", "1 4"];

const spanOf = (points, now) => SPANS.find((it) => points.length && now - points[0].at <= it) ?? HOUR;

function swatch(at) {
  const path = element("path", { d: "M0 5H26" });
  Object.assign(path.style, lineStyle(at));
  return element("svg", { viewBox: "0 0 26 10", "aria-hidden": "true" }, path);
}

const lineStyle = (at) => ({
  stroke: `var(--c${at % 6})`,
  strokeWidth: "2",
  strokeDasharray: DASHES[Math.floor(at / 6) % 6] || DASHES[at % 6],
});

// Round steps from zero to a top that holds `most`.
function linearTicks(most, step1024) {
  if (!(most > 0)) return [0, 1];
  const base = step1024 ? 1024 ** Math.floor(Math.log(most) / Math.log(1024)) : 1;
  const power = 10 ** Math.floor(Math.log10(most / base / 4));
  const fits = (it) => it * power * base * 4 >= most * 0.999;
  const step = base * power * [1, 2, 2.5, 5, 10].find(fits);
  return Array.from({ length: 5 }, (_, at) => at * step).filter((it) => it < most + step);
}

function logTicks(least, most) {
  const [low, high] = [Math.floor(Math.log10(least)), Math.ceil(Math.log10(most))];
  return Array.from({ length: Math.max(high - low, 1) + 1 }, (_, at) => 10 ** (low + at));
}

// A point covers the `seconds` before it. Its time is in whole seconds, so that less than 1.5 s
// between two points is no gap. After a restart there is one, however short.
const SLACK = 1.5;
const GAP_PIXELS = 5;
const begin = (point) => point.at - point.seconds;
const isApart = (before, point) => point.begins || begin(point) - before.at > SLACK;

// The times without data: from and to, in seconds since 1970.
function gapsOf(points, now) {
  const gaps = points.flatMap((point, at) => {
    const before = points[at - 1];
    return before && isApart(before, point) ? [[before.at, begin(point)]] : [];
  });
  const { at } = points[points.length - 1];
  return now - at > SLACK ? [...gaps, [at, now]] : gaps;
}

const noData = ([from, to]) => `no data from ${clock(from)} to ${clock(to)}`;

class Chart {
  // A spec: title, format, `log`, `top` (the fixed end of the axis), `bytes`, and `series`, which
  // makes of the points a list of names with the value at each point.
  constructor(spec) {
    this.spec = spec;
    this.cursor = null;
    this.svg = element("svg", { class: "chart", role: "img", tabindex: "0" });
    this.legend = element("ul", { class: "legend" });
    const note = spec.log ? " logarithmic" : spec.note ? ` ${spec.note}` : "";
    this.figure = element("figure", {},
      element("figcaption", {}, spec.title, element("small", {}, note)), this.svg, this.legend);
    this.svg.addEventListener("keydown", (event) => this.key(event));
    this.svg.addEventListener("pointermove", (event) => this.point(event));
    this.svg.addEventListener("pointerleave", () => this.select(null));
    this.svg.addEventListener("blur", () => this.select(null));
    new ResizeObserver(() => this.draw()).observe(this.svg);
  }

  // Points, and the time at the right end: that of the last point, or later if no more came.
  show(points, now) {
    [this.points, this.now] = [points, now];
    this.draw();
  }

  select(cursor, aloud) {
    this.cursor = cursor;
    this.legend.setAttribute("aria-live", aloud ? "polite" : "off");
    this.draw();
  }

  key(event) {
    const last = this.points.length - 1;
    const at = this.cursor ?? last;
    const moved = { ArrowLeft: at - 1, ArrowRight: at + 1, PageUp: at - 60, PageDown: at + 60,
      Home: 0, End: last }[event.key];
    if (event.key === "Escape") this.select(null);
    if (moved === undefined || last < 0) return;
    event.preventDefault();
    this.select(Math.min(Math.max(moved, 0), last), true);
  }

  point(event) {
    if (!this.points?.length || !this.plot) return;
    const { left, width, now, span } = this.plot;
    const x = event.clientX - this.svg.getBoundingClientRect().left;
    const at = now - span * (1 - (x - left) / width);
    const far = (point) => Math.abs(point.at - at);
    let best = 0;
    this.points.forEach((point, it) => { if (far(point) < far(this.points[best])) best = it; });
    this.select(best);
  }

  // A chart without any value is a line of text.
  draw() {
    const { svg, spec, points } = this;
    const series = points?.length ? spec.series(points) : [];
    const isEmpty = !series.some((it) => it.values.some(known));
    this.figure.classList.toggle("empty", isEmpty);
    const [width, height] = [svg.clientWidth, svg.clientHeight];
    if (isEmpty || !width) {
      svg.replaceChildren();
      this.legend.replaceChildren(element("li", { class: "when" }, "nothing in this time"));
      return;
    }
    const rem = parseFloat(getComputedStyle(document.documentElement).fontSize);
    const values = series.flatMap((it) => it.values).filter((it) => known(it) && it > 0);
    const most = spec.top ?? Math.max(...values, 0);
    const ticks = spec.log
      ? logTicks(values.length ? Math.min(...values) : 1, values.length ? most : 10)
      : linearTicks(most, spec.bytes);
    const [low, high] = [ticks[0], ticks[ticks.length - 1]];
    const [top, bottom] = [0.6 * rem, height - 1.5 * rem];
    const labels = ticks.map(spec.format);
    const left = Math.max(...labels.map((it) => it.length)) * 0.47 * rem + 0.6 * rem;
    const right = width - 0.9 * rem;
    const { now } = this;
    const span = spanOf(points, now);
    this.plot = { left, width: right - left, now, span };
    const x = (at) => right - ((now - at) / span) * (right - left);
    const share = (value) => (spec.log
      ? Math.log10(Math.max(value, low) / low) / Math.log10(high / low)
      : value / high);
    const y = (value) => bottom - Math.min(share(value), 1) * (bottom - top);
    const drawn = ticks.flatMap((tick, at) => {
      const rule = { class: at ? "rule" : "axis", x1: left, x2: right, y1: y(tick), y2: y(tick) };
      const place = { x: left - 0.4 * rem, y: y(tick) + 0.27 * rem, "text-anchor": "end" };
      return [element("line", rule), element("text", place, labels[at])];
    });
    // Half minutes or multiples of them, as many as have room.
    const steps = [5, 4, 3, 2].find((it) =>
      span % (30 * it) === 0 && right - left >= 5.4 * rem * it) ?? 1;
    for (let step = 0; step <= steps; step += 1) {
      const ago = (span * step) / steps;
      const at = x(now - ago);
      const anchor = step === 0 ? "end" : step === steps ? "start" : "middle";
      const label = step === 0 ? "now" : `−${ago / 60} min`;
      const tick = { class: "axis", x1: at, x2: at, y1: bottom, y2: bottom + 0.25 * rem };
      const place = { x: at, y: bottom + 1.1 * rem, "text-anchor": anchor };
      drawn.push(element("line", tick), element("text", place, label));
    }
    const gaps = gapsOf(points, now);
    series.forEach((it, at) => {
      const path = element("path", { d: this.path(it.values, x, y) });
      Object.assign(path.style, lineStyle(at));
      drawn.push(path);
    });
    // Over the lines, and wide enough to be seen where an hour makes a minute a few pixels.
    gaps.forEach(([from, to]) => {
      const [begin, end] = [x(from), x(to)];
      const more = Math.max(GAP_PIXELS - (end - begin), 0) / 2;
      const across = { x: begin - more, width: end - begin + 2 * more };
      const title = element("title", {}, noData([from, to]));
      drawn.push(element("rect", { class: "gap", ...across, y: top, height: bottom - top }, title));
    });
    if (this.cursor !== null && points[this.cursor]) {
      const at = x(points[this.cursor].at);
      drawn.push(element("line", { class: "cursor", x1: at, x2: at, y1: top, y2: bottom }));
    }
    svg.setAttribute("viewBox", `0 0 ${width} ${height}`);
    svg.replaceChildren(...drawn);
    this.tell(series, gaps);
  }

  // A line, broken where there is no value, and at each gap. Logarithms have no zero.
  path(values, x, y) {
    let [path, before] = ["", null];
    this.points.forEach((point, at) => {
      const value = values[at];
      if (!known(value) || (this.spec.log && value <= 0)) {
        before = null;
        return;
      }
      const joined = before !== null && !isApart(before, point);
      const [px, py] = [x(point.at).toFixed(1), y(value).toFixed(1)];
      path += joined ? `L${px} ${py}` : `M${px} ${py}h.1`;
      before = point;
    });
    return path;
  }

  // The legend has the values of the chosen moment, or the last.
  tell(series, gaps) {
    const last = this.points.length - 1;
    const at = Math.min(this.cursor ?? last, last);
    const { at: moment } = this.points[at];
    const when = at === last && moment === this.now ? "now" : clock(moment);
    const value = (it) => orDash(it.values[at], this.spec.format);
    const items = series.map((it, index) =>
      element("li", {}, swatch(index), `${it.name} ${value(it)}`));
    this.legend.replaceChildren(element("li", { class: "when" }, when), ...items);
    const told = series.map((it) => `${it.name} ${value(it)}`).join(", ");
    const without = gaps.map((gap) => `; ${noData(gap)}`).join("");
    this.svg.setAttribute("aria-label", `${this.spec.title}, ${when}: ${told}${without}`);
  }
}
