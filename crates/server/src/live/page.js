// The page: takes events in and shows them.

const latest = { points: [], status: null, whatIf: null, model: null };

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

function byVolume(of) {
  return (points) => points[points.length - 1].volumes.map(({ name }) => ({
    name,
    values: points.map((point) => {
      const volume = point.volumes.find((it) => it.name === name);
      return volume ? of(volume) : null;
    }),
  }));
}

const present = (value) => (value > 0 ? value : null);
const latencies = (of) => lines(
  ["p99.9", (point) => present(of(point).p999_us)], ["p99", (point) => present(of(point).p99_us)],
  ["median", (point) => present(of(point).p50_us)],
  ["mean", (point) => present(of(point).mean_us)]);

// Latencies of reads by the place that answered them: memory, the first tier, and below it.
function byPlace(points) {
  const below = latest.status?.tiers.length > 1 ? "below it" : "backing devices";
  const names = [latest.status?.memory ? "memory" : null, tierName(0), below];
  const values = (at, of) => points.map((point) => present(of(point.by[at])));
  return names.flatMap((name, at) => (name === null ? [] : [
    { name: `${name}, p99`, values: values(at, (it) => it.p99_us) },
    { name: `${name}, median`, values: values(at, (it) => it.p50_us) }]));
}

const ofMemory = (name, of) => (points) => (latest.status?.memory ? lines([name, of])(points) : []);

function hitRatios(points) {
  const memory = ofMemory("memory, reads", (it) => it.memory_hit_ratio)(points);
  return [...memory, ...byTier((tier) => tier.read_hit_ratio, ", reads")(points),
    ...byTier((tier) => tier.write_hit_ratio, ", writes")(points)];
}

function dirtyBytes(points) {
  const memory = ofMemory("memory", (it) => it.memory_dirty_bytes)(points);
  return [...memory, ...byTier((tier) => tier.dirty_bytes, "")(points)];
}

const CHARTS = [
  { title: "Requests", format: perSecond,
    series: lines(["reads", (it) => it.read.rate], ["writes", (it) => it.write.rate]) },
  { title: "Throughput", format: bytesPerSecond, bytes: true,
    series: lines(["reads", (it) => it.read.bytes], ["writes", (it) => it.write.bytes]) },
  { title: "Hit ratio", format: percent, top: 1, series: hitRatios },
  { title: "Read latency", format: micros, log: true, series: latencies((it) => it.read) },
  { title: "Write latency", format: micros, log: true, series: latencies((it) => it.write) },
  { title: "Read latency by tier", format: micros, log: true, series: byPlace },
  { title: "Dirty data", format: bytes, bytes: true, series: dirtyBytes },
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
].map((spec) => new Chart(spec));

function showTiles(point, status) {
  const tile = (name, value, more) => [
    element("dt", {}, name), element("dd", {}, value, element("small", {}, more))];
  const dirty = status.dirty_bytes + (status.memory?.dirty_bytes ?? 0);
  const tiles = [
    tile("Reads", perSecond(point.read.rate), bytesPerSecond(point.read.bytes)),
    tile("Writes", perSecond(point.write.rate), bytesPerSecond(point.write.bytes)),
    tile("Read hits", orDash(point.tiers[0]?.read_hit_ratio, percent),
      `since the start ${percent(status.read_hit_ratio)}`),
    tile("Read latency", orDash(present(point.read.mean_us), micros),
      `p99 ${orDash(present(point.read.p99_us), micros)}`),
    tile("Write latency", orDash(present(point.write.mean_us), micros),
      `p99 ${orDash(present(point.write.p99_us), micros)}`),
    tile("Dirty", bytes(dirty), cleanTime(status)),
  ].map((parts) => element("div", {}, ...parts));
  byId("tiles").replaceChildren(...tiles);
}

function cleanTime(status) {
  if (status.dirty_bytes === 0) return "all is clean";
  const seconds = status.seconds_to_clean;
  return known(seconds) ? `${duration(seconds)}, as fast as lately` : "nothing cleaned lately";
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
    ? " A tier below the first is asked in blocks, so that shares are of parts of reads." : "";
  const note = element("p", { class: "hint" }, `Since the start.${below}`);
  const head = ["by", "reads", "share", ""];
  byId("answered").replaceChildren(table("Reads by place", head, shown), note);
}

function showBlocks(status) {
  const all = status.blocks.reduce((sum, it) => sum + it.blocks * it.block_bytes, 0);
  const rows = status.blocks.map(({ block_bytes, blocks }) => {
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
  if (tier.degraded) return ["given up", "bad"];
  if (tier.mirror?.degraded) return ["a half is out", "bad"];
  return ["healthy", "good"];
}

function showDevices(status) {
  const rows = status.tiers.map((tier, at) => {
    const [word, tone] = standing(tier);
    const name = tier.name || tierName(at);
    return [name, element("span", { class: tone }, word), count(tier.cache_errors),
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

function showVolumes(point, status) {
  const rows = status.volumes.map((volume) => {
    const now = point.volumes.find((it) => it.name === volume.name);
    return [volume.name, bytes(volume.bytes), volume.read_only ? "read-only" : "read-write",
      count(volume.connections), count(volume.requests), orDash(now && now.reads, perSecond),
      orDash(now && now.writes, perSecond)];
  });
  byId("volumes").replaceChildren(
    table("Volumes", ["volume", "size", "access", "clients", "requests", "reads", "writes"], rows));
}

function showAdvice(status) {
  const text = status.advice?.text ?? "No reads lately, so there is none.";
  byId("advice").replaceChildren(element("p", {}, text));
}

function showState(status) {
  const pair = status.pair ? `, ${status.pair.role} server of a pair` : "";
  byId("about").textContent =
    `write ${status.write_mode}, evict ${status.evict}, up ${duration(status.uptime_seconds)}, ` +
    `${counted(status.connections, "client")}, ` +
    `${counted(status.threads.length, "thread")}${pair}`;
  const bad = status.degraded || status.journal_lost || status.refused_bytes > 0;
  const state = byId("state");
  const text = bad ? "A device needs attention" : "Healthy";
  if (state.textContent !== text) state.textContent = text; // announced once
  state.className = bad ? "bad" : "good";
  document.title = bad ? "⚠ Floe" : "Floe";
}

function show() {
  const { status, points } = latest;
  if (status === null) return;
  showState(status);
  showAnswered(status);
  showBlocks(status);
  showDirty(status);
  showDevices(status);
  showAdvice(status);
  showAdminister(status);
  showWhatIf(latest.whatIf);
  showModel(status, latest.model);
  if (points.length === 0) return;
  const point = points[points.length - 1];
  showTiles(point, status);
  showVolumes(point, status);
  CHARTS.forEach((chart) => chart.show(points));
}

function withinAnHour(points) {
  const last = points[points.length - 1];
  return points.filter((point) => last.at - point.at <= HOUR);
}

// A new stream begins with all that the server knows. After a restart that is less than this page
// has seen, which stays.
function takeHistory(points) {
  const first = points.length ? points[0].at : Infinity;
  latest.points = [...latest.points.filter((point) => point.at < first), ...points];
  if (latest.points.length) latest.points = withinAnHour(latest.points);
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
    latest.points = withinAnHour([...latest.points, point]);
  });
  events.addEventListener("error", () => {
    byId("state").textContent = "No connection to the server; trying again";
    byId("state").className = "bad";
    if (events.readyState !== EventSource.CLOSED) return; // it tries again by itself
    setTimeout(connect, 3000);
  });
}

buildAdminister();
byId("charts").append(...CHARTS.map((chart) => chart.figure));
connect();
