// The settings that the eviction policy `auto` chooses from. A cache has an order in each shard.

// The setting in use by most shards, since when, and the number of changes.
function settingInUse({ adaptation, seconds_since_switch: seconds }) {
  const { settings, switches } = adaptation;
  const all = settings.reduce((sum, it) => sum + it.orders, 0);
  const used = settings.reduce((best, it) => (it.orders > best.orders ? it : best));
  const shards = used.orders === all ? "" : `, in ${used.orders} of ${counted(all, "shard")}`;
  const since = switches === 0 ? "It has not been changed since the start"
    : `Settings were changed ${switches === 1 ? "once" : `${switches} times`}` +
      (known(seconds) ? `, last ${ago(seconds)}` : "");
  return element("p", {}, "The setting in use is ", element("strong", {}, breakable(used.name)),
    `${shards}. ${since}.`);
}

function settingsTable({ adaptation }) {
  const { settings, sampled_requests: requests } = adaptation;
  if (requests === 0) return element("p", {}, "No estimates yet: too few requests.");
  const all = settings.reduce((sum, it) => sum + it.orders, 0);
  const rows = [...settings].sort((one, other) => one.miss_ratio - other.miss_ratio).map((it) =>
    [breakable(it.name), percent(it.miss_ratio), it.orders ? `${it.orders} of ${all}` : "–",
      bar(it.miss_ratio)]);
  return table("Settings", ["setting", "expected misses", "shards using it", ""], rows);
}

function showAdaptation({ tiers }) {
  const adapting = tiers.map((tier, at) => [tier, at]).filter(([tier]) => tier.adaptation);
  byId("adaptation").hidden = adapting.length === 0;
  const parts = adapting.flatMap(([tier, at]) => [
    tiers.length > 1 ? element("h3", {}, tierName(at)) : null,
    settingInUse(tier), settingsTable(tier)]);
  const start = adapting[0]?.[0].adaptation.settings[0].name;
  const how = "The policy auto estimates the misses of each setting from the recent requests for " +
    "a sample of the data. It changes the setting where another one does better by more than " +
    `chance explains. It starts with ${start}.`;
  byId("adaptation-parts").replaceChildren(
    ...parts.filter(known), element("p", { class: "hint" }, how));
}
