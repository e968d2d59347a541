// The page: takes events in and shows them.

// `heard` is the time at which the last point came, in milliseconds. `isCut` means that its stream
// has ended; `begins`, that the next point is the first after a restart.
const latest = {
  points: [], status: null, whatIf: null, model: null,
  heard: null, isCut: false, begins: false,
};

const lastPoint = () => latest.points[latest.points.length - 1];
// Seconds since the last point came.
const age = () => (latest.heard === null ? 0 : Math.max(Date.now() - latest.heard, 0) / 1000);
// Seconds after which a stream that brings nothing, as of a stopped server, is stale.
const patience = () => 3 * lastPoint().seconds + 5;
const isStale = () => latest.heard !== null && (latest.isCut || age() > patience());

const each = (of) => (points) => points.map(of);
const lines = (...named) => (points) =>
  named.map(([name, of]) => ({ name, values: each(of)(points) }));
const tierName = (at) => (latest.status?.tiers.length > 1 ? `tier ${at}` : "cache");

// Of a list in each point: by place for tiers, by name for volumes.
function byTier(of, word) {
  return (points) => {
    const tiers = points[points.length - 1].tiers;
    return tiers.map((_, at) => ({
      name: `${tierName(at)}${word}`,
      values: points.map((point) => (point.tiers[at] ? of(point.tiers[at]) : null)),
    }));
  };
}

const volumeOf = (point, name) => point.volumes.find((it) => it.name === name);

// The names of the volumes that requests reached in this time; of all if there were none.
function busyVolumes(points) {
  const names = points[points.length - 1].volumes.map((it) => it.name);
  const busy = names.filter((name) => points.some((point) => {
    const volume = volumeOf(point, name);
    return volume && volume.reads + volume.writes > 0;
  }));
  return busy.length ? busy : names;
}

function byVolume(of) {
  return (points) => busyVolumes(points).map((name) => ({
    name,
    values: points.map((point) => {
      const volume = volumeOf(point, name);
      return volume ? of(volume) : null;
    }),
  }));
}

function deviceTraffic(points) {
  return [...byTier((tier) => tier.read_bytes, " read")(points),
    ...byTier((tier) => tier.written_bytes, " written")(points)];
}

const present = (value) => (value > 0 ? value : null);
const latencies = (of) => lines(
  ["p99.9", (point) => present(of(point).p999_us)], ["p99", (point) => present(of(point).p99_us)],
  ["median", (point) => present(of(point).p50_us)],
  ["mean", (point) => present(of(point).mean_us)]);

// Latencies of reads by the place that answered them: memory, the first tier, and below it.
function byPlace(points) {
  const below = latest.status?.tiers.length > 1 ? `below ${tierName(0)}` : "backing devices";
  const names = [latest.status?.memory ? "memory" : null, tierName(0), below];
  const values = (at, of) => points.map((point) => present(of(point.by[at])));
  return names.flatMap((name, at) => (name === null ? [] : [
    { name: `${name}, p99`, values: values(at, (it) => it.p99_us) },
    { name: `${name}, median`, values: values(at, (it) => it.p50_us) }]));
}

const ofMemory = (name, of) => (points) => (latest.status?.memory ? lines([name, of])(points) : []);

function hitRatios(points) {
  const memory = ofMemory("reads, memory alone", (it) => it.memory_hit_ratio)(points);
  // A read that hits in memory is a hit of the first tier, too.
  const top = latest.status?.memory ? `memory or ${tierName(0)}` : tierName(0);
  const name = (word, at) => (at === 0 ? `${word}, ${top}` : `${word} of ${tierName(at)}`);
  const ratios = (word, of) => byTier(of, "")(points).map((it, at) =>
    ({ ...it, name: name(word, at) }));
  return [...memory, ...ratios("reads", (tier) => tier.read_hit_ratio),
    ...ratios("writes", (tier) => tier.write_hit_ratio)];
}

function dirtyBytes(points) {
  const memory = ofMemory("memory", (it) => it.memory_dirty_bytes)(points);
  return [...memory, ...byTier((tier) => tier.dirty_bytes, "")(points)];
}

// Charts by the element that shows them.
const CHARTS = Object.entries({
  "traffic-charts": [
    { title: "Requests", format: perSecond,
      series: lines(["reads", (it) => it.read.rate], ["writes", (it) => it.write.rate]) },
    { title: "Throughput", format: bytesPerSecond, bytes: true,
      series: lines(["reads", (it) => it.read.bytes], ["writes", (it) => it.write.bytes]) },
  ],
  "latency-charts": [
    { title: "Read latency", format: micros, log: true, series: latencies((it) => it.read) },
    { title: "Write latency", format: micros, log: true, series: latencies((it) => it.write) },
    { title: "Read latency by tier", format: micros, log: true, series: byPlace },
  ],
  "device-charts": [
    { title: "Hit ratio", note: "of the requests in each interval", format: percent, top: 1,
      series: hitRatios },
    { title: "Cache devices", format: bytesPerSecond, bytes: true, series: deviceTraffic },
    { title: "Backing devices", format: bytesPerSecond, bytes: true,
      series: lines(["read", (it) => it.backing.read_bytes],
        ["written", (it) => it.backing.written_bytes]) },
  ],
  "volume-charts": [
    { title: "Requests by volume", format: perSecond,
      series: byVolume((it) => it.reads + it.writes) },
    { title: "Read hits by volume", format: percent, top: 1,
      series: byVolume((it) => it.read_hit_ratio) },
    { title: "Throughput by volume", format: bytesPerSecond, bytes: true,
      series: byVolume((it) => it.read_bytes + it.write_bytes) },
    { title: "Read latency by volume, p99", format: micros, log: true,
      series: byVolume((it) => present(it.read.p99_us)) },
    { title: "Read latency by volume, median", format: micros, log: true,
      series: byVolume((it) => present(it.read.p50_us)) },
    { title: "Write latency by volume, p99", format: micros, log: true,
      series: byVolume((it) => present(it.write.p99_us)) },
  ],
  "dirty-charts": [
    { title: "Dirty data over time", format: bytes, bytes: true, series: dirtyBytes },
  ],
}).flatMap(([place, specs]) => specs.map((spec) => {
  const chart = new Chart(spec);
  byId(place).append(chart.figure);
  return chart;
}));

function showTiles(point, status) {
  const tile = (name, value, more) => [
    element("dt", {}, name), element("dd", {}, value, element("small", {}, more))];
  const dirty = status.dirty_bytes + (status.memory?.dirty_bytes ?? 0);
  const tiles = [
    tile("Reads", perSecond(point.read.rate), bytesPerSecond(point.read.bytes)),
    tile("Writes", perSecond(point.write.rate), bytesPerSecond(point.write.bytes)),
    tile(status.memory ? `Read hits, memory or ${tierName(0)}` : "Read hits",
      orDash(point.tiers[0]?.read_hit_ratio, percent),
      `${percent(status.read_hit_ratio)} since the start ${ago(status.uptime_seconds)}`),
    tile("Read latency", orDash(present(point.read.mean_us), micros),
      `p99 ${orDash(present(point.read.p99_us), micros)}`),
    tile("Write latency", orDash(present(point.write.mean_us), micros),
      `p99 ${orDash(present(point.write.p99_us), micros)}`),
    tile("Dirty", bytes(dirty), cleanTime(status)),
  ].map((parts) => element("div", {}, ...parts));
  byId("tiles").replaceChildren(...tiles);
}

// Marks what is shown as stale, with its age, or as current.
function showAge() {
  const stale = isStale();
  document.body.classList.toggle("stale", stale);
  const point = lastPoint();
  if (point) {
    byId("now-title").firstChild.data = stale ? "Last seen" : "Now";
    byId("now-age").textContent = stale
      ? ` ${ago(age())}, at ${clock(point.at)}` : ` the last ${duration(point.seconds)}`;
  }
  AGES.forEach((it) => { it.textContent = stale ? ` as of ${ago(age())}` : ""; });
  if (stale && !latest.isCut) sayState("The server has sent nothing new; waiting", true);
}

const ago = (seconds) => (seconds < 1 ? "just now" : `${duration(seconds)} ago`);

// The ends of the headings of all parts that show the present, but for the first.
const AGES = [...document.querySelectorAll(".live h2")].map((heading) => {
  const made = element("small", { class: "age" });
  heading.append(made);
  if (heading.id === "now-title") made.id = "now-age";
  return made;
}).filter((it) => it.id === "");

// Draws the charts with the next frame: once, however many events come before it, and not at all as
// long as nobody sees the page.
let frame = null;
function showCharts() {
  frame ??= requestAnimationFrame(() => {
    frame = null;
    drawCharts();
  });
}

function drawCharts() {
  if (latest.points.length === 0) return;
  const now = lastPoint().at + (isStale() ? age() : 0);
  const points = latest.points.filter((point) => now - point.at <= HOUR);
  const time = { 300: "The last 5 minutes", 900: "The last 15 minutes" }[spanOf(points, now)];
  byId("hour-title").textContent = time ?? "The last hour";
  // A single volume has the charts above.
  byId("by-volume").hidden = lastPoint().volumes.length < 2;
  CHARTS.forEach((chart) => chart.show(points, now));
}

function cleanTime(status) {
  if (status.dirty_bytes === 0) return "all is clean";
  const seconds = status.seconds_to_clean;
  if (!known(seconds)) return "nothing written back recently";
  return `${seconds < 1 ? "" : "about "}${duration(seconds)} at the current rate`;
}

// Reads go from the top down: a tier gets what those above it missed.
function showAnswered(status) {
  const memory = status.memory?.read_hits ?? 0;
  const rows = status.memory ? [["memory", memory]] : [];
  status.tiers.forEach((tier, at) => {
    rows.push([tierName(at), Math.max(tier.read_hits - (at === 0 ? memory : 0), 0)]);
  });
  const last = status.tiers[status.tiers.length - 1];
  rows.push(["backing devices", Math.max(last.read_requests - last.read_hits, 0)]);
  const all = rows.reduce((sum, [, reads]) => sum + reads, 0);
  const shown = rows.map(([name, reads], at) =>
    [name, count(reads), all ? percent(reads / all) : "–", bar(all ? reads / all : 0, at)]);
  const below = status.tiers.length > 1
    ? " Tiers below the first count blocks, not whole reads." : "";
  const note = element("p", { class: "hint" }, `Since the start.${below}`);
  const head = ["by", "reads", "share", ""];
  byId("answered").replaceChildren(table("Reads by place", head, shown), note);
}

function showBlocks(status) {
  const all = status.blocks.reduce((sum, it) => sum + it.blocks * it.block_bytes, 0);
  if (all === 0) {
    byId("blocks").replaceChildren(element("p", {}, "Nothing is cached yet."));
    return;
  }
  const rows = status.blocks.filter((it) => it.blocks > 0).map(({ block_bytes, blocks }) => {
    const share = all ? (blocks * block_bytes) / all : 0;
    return [bytes(block_bytes), count(blocks), percent(share), bar(share)];
  });
  byId("blocks").replaceChildren(
    table("Blocks by size", ["size", "blocks", "of the bytes", ""], rows));
}

function showDirty(status) {
  const row = (name, { dirty_bytes, size_bytes }) =>
    [name, bytes(dirty_bytes), bar(size_bytes ? dirty_bytes / size_bytes : 0)];
  const rows = status.tiers.map((tier, at) => row(tierName(at), tier));
  if (status.memory) rows.unshift(row("memory", status.memory));
  const time = element("p", {}, `Time to clean: ${cleanTime(status)}.`);
  const head = ["in", "dirty", "of its size"];
  byId("dirty").replaceChildren(table("Dirty data", head, rows), time);
}

function standing(tier) {
  if (tier.refused_bytes > 0) return ["refuses requests", "bad"];
  if (tier.journal_lost) return ["journal lost", "bad"];
  if (tier.degraded) return ["failed", "bad"];
  if (tier.mirror?.degraded) return ["mirror half missing", "bad"];
  return ["healthy", "good"];
}

function showDevices(status) {
  const rows = status.tiers.map((tier, at) => {
    const [word, tone] = standing(tier);
    const name = tier.name || tierName(at);
    return [breakable(name), element("span", { class: tone }, word), count(tier.cache_errors),
      bytes(tier.size_bytes), bytes(tier.valid_bytes), bytes(tier.cache_read_bytes),
      bytes(tier.cache_write_bytes), `${tier.write_mode}, ${tier.evict}`];
  });
  const last = status.tiers[status.tiers.length - 1];
  const errors = status.backing_errors;
  const [word, tone] = errors ? ["has failed", "bad"] : ["healthy", "good"];
  const size = status.volumes.reduce((sum, it) => sum + it.bytes, 0);
  rows.push(["backing devices", element("span", { class: tone }, word), count(errors), bytes(size),
    "–", bytes(last.below_read_bytes), bytes(last.below_write_bytes), "–"]);
  byId("devices").replaceChildren(table("Devices",
    ["device", "state", "errors", "size", "in use", "read", "written", "mode, policy"], rows));
}

// Rates in words; empty without any.
function rates(requests, size, of) {
  return [
    ...(known(requests) ? [`${count(requests)} requests/s${of}`] : []),
    ...(known(size) ? [bytesPerSecond(size) + of] : [])];
}

// The limits and the weight of a client that a volume names, in words.
function ofClient([name, limit]) {
  const own = rates(limit.requests_per_second, limit.bytes_per_second, ` of ${name}`);
  const weight = limit.weight === 100 ? [] : [`weight ${count(limit.weight)} of ${name}`];
  return own.length + weight.length > 0 ? [...own, ...weight] : [`no limit of ${name}`];
}

// The limits of a volume in words; empty without any.
function limitsOf({ limit }) {
  const { connections } = limit;
  return [
    ...rates(limit.requests_per_second, limit.bytes_per_second, ""),
    ...rates(limit.client_requests_per_second, limit.client_bytes_per_second, " of each client"),
    ...Object.entries(limit.clients).flatMap(ofClient),
    ...(known(connections) ? [counted(connections, "connection")] : []),
    ...(limit.weight === 100 ? [] : [`weight ${count(limit.weight)}`])].join(", ");
}

// The limits of all volumes together, behind the name of their table; empty without any.
function togetherOf({ total_limit: limit }) {
  const all = rates(limit.total_requests_per_second, limit.total_bytes_per_second, "");
  return all.length > 0 ? `, together at most ${all.join(", ")}` : "";
}

function showVolumes(point, status) {
  // Most servers have no limits.
  const areLimited = status.volumes.some((it) =>
    limitsOf(it) !== "" || it.delayed_requests + it.refused_connections > 0);
  const limits = (volume) => [limitsOf(volume) || "–", count(volume.delayed_requests),
    count(volume.refused_connections)];
  const row = (volume) => {
    const now = point.volumes.find((it) => it.name === volume.name);
    return [volume.name, bytes(volume.bytes), volume.read_only ? "read-only" : "read-write",
      count(volume.connections), count(volume.requests), orDash(now && now.reads, perSecond),
      orDash(now && now.writes, perSecond), ...(areLimited ? limits(volume) : [])];
  };
  const head = ["volume", "size", "access", "clients", "requests", "reads", "writes",
    ...(areLimited ? ["limits", "delayed", "refused"] : [])];
  // Several volumes that nobody uses are a line, until that is opened.
  const isIdle = (volume) => volume.connections === 0 && volume.requests === 0;
  const idle = status.volumes.filter(isIdle);
  const folds = idle.length > 3;
  const shown = folds ? status.volumes.filter((it) => !isIdle(it)) : status.volumes;
  byId("volumes").hidden = shown.length === 0;
  const name = `Volumes${togetherOf(status)}`;
  byId("volumes").replaceChildren(table(name, head, shown.map(row)));
  byId("idle").hidden = !folds;
  byId("idle-title").textContent = `${idle.length} volumes without clients or requests`;
  byId("idle-volumes").replaceChildren(
    ...(folds ? [table("Volumes without clients or requests", head, idle.map(row))] : []));
}

function showAdvice({ advice, size_advice: size }) {
  const texts = [size, advice].filter(known).map((it) => element("p", {}, it.text));
  const none = element("p", {}, "No advice: there were no reads recently.");
  byId("advice").replaceChildren(...(texts.length ? texts : [none]));
}

function sayState(text, bad) {
  const state = byId("state");
  if (state.textContent !== text) state.textContent = text; // announced once
  state.className = bad ? "bad" : "good";
  document.title = `${bad ? "⚠ " : ""}Floe on ${location.host}`;
}

// For a day: by then an unclean end is no news.
function showRecovery(status) {
  const { opened } = status;
  const text = opened?.ended === "unclean" && status.uptime_seconds < 86400
    ? `Started ${ago(status.uptime_seconds)}, after an unclean end: ` +
      `${bytes(opened.dirty_bytes)} of dirty data recovered, ` +
      `${bytes(opened.valid_bytes)} of cached data in all.`
    : "";
  if (byId("recovery").textContent !== text) byId("recovery").textContent = text;
}

function showState(status) {
  const pair = status.pair ? `, ${status.pair.role} server of a pair` : "";
  byId("about").textContent =
    `write ${status.write_mode}, evict ${status.evict}, up ${duration(status.uptime_seconds)}, ` +
    `${counted(status.connections, "client")}, ` +
    `${counted(status.threads.length, "thread")}${pair}`;
  const bad = status.degraded || status.journal_lost || status.refused_bytes > 0;
  sayState(bad ? "A device needs attention" : "Healthy", bad);
}

function show() {
  const { status, points } = latest;
  if (status === null) return;
  showState(status);
  showRecovery(status);
  showAnswered(status);
  showBlocks(status);
  showDirty(status);
  showDevices(status);
  showAdvice(status);
  showAdminister(status);
  showAdaptation(status);
  showWhatIf(latest.whatIf);
  showModel(status, latest.model);
  if (points.length === 0) return;
  showTiles(lastPoint(), status);
  showVolumes(lastPoint(), status);
  showCharts();
  showAge();
}

function withinAnHour(points) {
  const last = points[points.length - 1];
  return points.filter((point) => last.at - point.at <= HOUR);
}

// A new stream begins with all that the server knows. After a restart that is less than this page
// has seen, which stays.
function takeHistory(points) {
  const first = points.length ? points[0].at : Infinity;
  const kept = latest.points.filter((point) => point.at < first);
  // The points before are of another run, or an hour ago.
  if (kept.length && points.length) points[0].begins = true;
  latest.begins = kept.length > 0 && points.length === 0;
  latest.points = [...kept, ...points];
  if (latest.points.length) latest.points = withinAnHour(latest.points);
  if (points.length) heard();
}

function heard() {
  Object.assign(latest, { heard: Date.now(), isCut: false });
}

function connect() {
  const events = new EventSource("events");
  const on = (name, take) => events.addEventListener(name, (event) => {
    take(JSON.parse(event.data));
    show();
  });
  on("history", takeHistory);
  on("status", (status) => { latest.status = status; });
  on("update", ({ point, status, what_if, model }) => {
    Object.assign(latest, { status, whatIf: what_if, model });
    const begins = latest.begins || undefined;
    latest.points = withinAnHour([...latest.points, { ...point, begins }]);
    latest.begins = false;
    heard();
  });
  events.addEventListener("error", () => {
    latest.isCut = true;
    sayState("No connection to the server; trying again", true);
    showAge();
    showCharts();
    if (events.readyState !== EventSource.CLOSED) return; // it tries again by itself
    setTimeout(connect, 3000);
  });
}

buildAdminister();
document.querySelector("h1").textContent = `Floe on ${location.host}`;
connect();
setInterval(showAge, 1000);
// So that an outage grows at the right end.
setInterval(() => isStale() && showCharts(), 5000);
