// "What if?" and "Would more hits slow reads down?"

const sizesPlot = new Plot({
  title: "Reads that hit, by size of the cache", note: "logarithmic sizes",
  x: { format: bytes, log: true }, y: { format: percent, top: 1 } });
const modelPlot = new Plot({
  title: "Reads a second, by memory's hit ratio", note: "model and server",
  x: { format: percent }, y: { format: perSecond } });

function apart(difference) {
  const points = Math.abs(100 * difference).toFixed(1);
  return points === "0.0" ? "the same" : `${points} points ${difference < 0 ? "lower" : "higher"}`;
}

// Blocks hit or miss one by one; a request hits if all of its blocks do.
function showWhatIf(outlook) {
  if (!outlook) {
    const text = "An answer needs 1000 reads, and a few seconds.";
    byId("what-if").replaceChildren(element("p", {}, text));
    return;
  }
  const now = outlook.sizes.find((it) => it.factor === 1);
  const word = { 0.5: "half", 1: "as it is", 2: "twice", 4: "four times" };
  // Of a size that is still filling the least hits are known, and the longest mean.
  const rows = outlook.sizes.map((it) => {
    const error = it.hit_ratio_ci95 ? ` ± ${(100 * it.hit_ratio_ci95).toFixed(1)}` : "";
    const hits = `${percent(it.hit_ratio)}${error}`;
    const [least, most] = it.is_filling ? ["≥ ", "≤ "] : ["", ""];
    const note = it.is_filling ? ", still filling" : "";
    return [word[it.factor], bytes(it.size_bytes), `${least}${hits}${note}`,
      known(it.mean_us) ? `${most}${micros(it.mean_us)}` : "–"];
  });
  const filling = outlook.sizes.some((it) => it.is_filling)
    ? [element("p", {}, `Still filling: reads and writes touched ${bytes(outlook.seen_bytes)} of ` +
      `blocks so far, and ${percent(outlook.first_read_ratio)} of the reads were the first of ` +
      "their block. Larger sizes get at least the hits shown, perhaps more.")]
    : [];
  const share = outlook.sampled_share;
  const sample = share < 1
    ? `one block in ${count(Math.round(1 / share))} is sampled`
    : "all blocks are sampled";
  const measured = `Measured over the same time: ${percent(outlook.measured_hit_ratio)} of reads ` +
    `hit, mean ${micros(outlook.measured_mean_us)}. The estimate for this size is ` +
    `${apart(now.hit_ratio - outlook.measured_hit_ratio)}, because it counts blocks of one LRU ` +
    "list, not requests to this cache. Compare estimates with each other only.";
  const how = "Estimate and measurement cover the time since the start; reads of 10 minutes ago " +
    "count half. “Now” covers the last seconds only. " +
    `Blocks have ${bytes(outlook.block_bytes)}; ${sample}; ` +
    `the estimate takes ${bytes(outlook.memory_bytes)} of memory.`;
  byId("what-if").replaceChildren(
    table("Other sizes", ["cache", "size", "hits, estimated", "mean read, estimated"], rows),
    ...filling, element("p", {}, measured), sizesPlot.figure, element("p", { class: "hint" }, how));
  sizesPlot.show(outlook.curve, [
    { name: "as it is, estimated", x: now.size_bytes, y: now.hit_ratio },
    { name: "as it is, measured over the same time", x: now.size_bytes,
      y: outlook.measured_hit_ratio }],
    filling.length ? outlook.seen_bytes : Infinity);
}

function showModel(status, curve) {
  const advice = status.advice;
  if (!advice || !curve) {
    const why = status.memory
      ? "No reads recently."
      : "No: without a tier in memory each thread has its own lists, which more hits do not slow.";
    byId("p-star").replaceChildren(element("p", {}, why));
    return;
  }
  const verdict = advice.past_p_star
    ? `Yes: past a hit ratio of ${percent(advice.p_star)} (p*) more hits cost throughput.`
    : advice.p_star < 1
      ? `No: throughput falls only past a hit ratio of ${percent(advice.p_star)} (p*).`
      : "No: with this policy and load throughput never falls as hits become more.";
  const peak = curve.reduce((best, it) => (it[1] > best[1] ? it : best));
  const inFlight = Math.max(1, Math.round(advice.in_flight));
  const note = `The curve is computed by a model for ${counted(inFlight, "read")} in flight, as ` +
    "in the last seconds. A server that waits for its clients serves less.";
  byId("p-star").replaceChildren(
    element("p", { class: advice.past_p_star ? "bad" : "" }, verdict), modelPlot.figure,
    element("p", { class: "hint" }, note));
  modelPlot.show(curve, [
    { name: `measured, last ${duration(advice.seconds)}`, x: advice.hit_ratio,
      y: advice.reads_per_second },
    { name: "model, same time", x: advice.hit_ratio, y: advice.model_reads_per_second },
    { name: "peak (p*)", x: advice.p_star < 1 ? advice.p_star : peak[0], y: peak[1] }]);
}
