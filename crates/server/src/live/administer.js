// Changes of a server with --admin-write: tiers, volumes and flushes, each after a confirmation.

const writing = document.body.dataset.write;

// A request to change something, with what tells this page from others; the reply's text.
async function change(method, path, body) {
  const headers = { "Floe-Page": document.body.dataset.key };
  if (writing === "token") headers.Authorization = `Bearer ${byId("token").value.trim()}`;
  const text = body && JSON.stringify(body);
  const response = await fetch(path, { method, headers, body: text });
  const reply = (await response.text()).trim();
  if (!response.ok) throw new Error(reply || `the server answers ${response.status}`);
}

// Takes the answer to the question that is open.
let answer = () => {};

// Asks the user; Escape is no.
function confirmed(title, text, verb) {
  const dialog = byId("confirm");
  byId("confirm-title").textContent = title;
  byId("confirm-text").textContent = text;
  byId("confirm-yes").textContent = verb;
  dialog.showModal();
  return new Promise((tell) => { answer = tell; });
}

async function perform({ title, text, verb, method, path, body, done }) {
  if (!await confirmed(title, text, verb)) return;
  const result = byId("result");
  result.className = "";
  result.textContent = `${title}: under way …`;
  try {
    await change(method, path, body);
    [result.textContent, result.className] = [done, "good"];
  } catch (error) {
    [result.textContent, result.className] = [`${title}: ${error.message}`, "bad"];
  }
}

function button(text, label, action) {
  const made = element("button", { type: "button", "aria-label": label }, text);
  made.addEventListener("click", () => perform(action()));
  return made;
}

const volumePath = (name) => `volumes/${encodeURIComponent(name)}`;

const volumeActions = (name) => [
  button("Resize", `Resize volume ${name}`, () => ({
    title: `Resize volume ${name}`, verb: "Resize", method: "POST",
    text: "The volume takes the present size of its backing device.",
    path: `${volumePath(name)}/resize`, done: `Volume ${name} has its device's size.` })),
  button("Remove", `Remove volume ${name}`, () => ({
    title: `Remove volume ${name}`, verb: "Remove", method: "DELETE",
    text: "Its dirty data is written back first. A volume that clients use is not removed.",
    path: volumePath(name), done: `Volume ${name} is removed.` })),
];

const tierActions = (at) => [
  button("Remove", `Remove tier ${at}`, () => ({
    title: `Remove tier ${at}`, verb: "Remove", method: "DELETE", path: `tiers/${at}`,
    text: "Its dirty data is written to the tiers below it, or to the volumes, first.",
    done: `Tier ${at} is removed.` })),
];

function field(id, label, hint) {
  const input = element("input", { id, type: "text", autocomplete: "off", spellcheck: "false",
    placeholder: hint });
  return [element("label", { for: id }, label), input];
}

const given = (id) => byId(id).value.trim();

function volumeForm() {
  const add = button("Add volume", "Add volume", () => ({
    title: `Add volume ${given("new-volume")}`, verb: "Add", method: "POST", path: "volumes",
    text: `Clients can use ${given("new-backing")} as ${given("new-volume")} then.`,
    body: { name: given("new-volume"), backing: given("new-backing"),
      read_only: byId("new-read-only").checked },
    done: `Volume ${given("new-volume")} is added.` }));
  const readOnly = element("label", {},
    element("input", { id: "new-read-only", type: "checkbox" }), " read-only");
  return element("div", { class: "form", role: "group", "aria-label": "New volume" },
    ...field("new-volume", "Name", "pictures"),
    ...field("new-backing", "Backing device", "file:/dev/vdb"), readOnly, add);
}

function tierForm() {
  const add = button("Add tier", "Add tier", () => ({
    title: "Add a tier", verb: "Add", method: "POST", path: "tiers",
    text: `${given("new-tier")} becomes the tier below all others.`,
    body: { tier: given("new-tier") }, done: "The tier is added." }));
  return element("div", { class: "form", role: "group", "aria-label": "New tier" },
    ...field("new-tier", "Device and settings", "file:/srv/tier,size=10GiB,write=back"), add);
}

// Browsers want a password in a form. Nothing is sent by it: each request has the token with it.
function tokenForm() {
  const token = element("input", { id: "token", type: "password", autocomplete: "off" });
  const form = element("form", { class: "form" },
    element("label", { for: "token" }, "Admin token"), token);
  form.addEventListener("submit", (event) => event.preventDefault());
  return form;
}

function buildAdminister() {
  if (writing === "off") return;
  byId("administer").hidden = false;
  if (writing === "no-token") {
    byId("administer-note").textContent =
      "Over TCP changes need an admin token: start the server with admin-token-file, or forward " +
      "its Unix socket.";
    return;
  }
  byId("administer-note").textContent = "Each change asks for a confirmation first.";
  const parts = writing === "token" ? [tokenForm()] : [];
  const flush = button("Flush", "Flush all volumes", () => ({
    title: "Flush", verb: "Flush", method: "POST", path: "flush",
    text: "All dirty data is written to the volumes, durably.",
    done: "All volumes are flushed." }));
  byId("administer-parts").append(...parts, element("p", {}, flush),
    element("div", { id: "volume-actions", class: "wide" }), volumeForm(),
    element("div", { id: "tier-actions", class: "wide" }), tierForm());
  const dialog = byId("confirm");
  const close = (yes) => () => {
    dialog.close();
    answer(yes);
  };
  byId("confirm-yes").addEventListener("click", close(true));
  byId("confirm-no").addEventListener("click", close(false));
  // It comes some time after the end of a question, when the next one may be open already.
  dialog.addEventListener("close", () => dialog.open || answer(false));
}

// Made anew only when there are others, so that the focus stays where it is.
function listActions(id, head, names, actions) {
  const list = byId(id);
  const text = JSON.stringify(names);
  if (!list || list.dataset.names === text) return;
  list.dataset.names = text;
  list.replaceChildren(table(`Changes by ${head}`, [head, ""], names.map((name, at) =>
    [name, element("span", { class: "actions" }, ...actions(name, at))])));
}

function showAdminister(status) {
  if (writing !== "on" && writing !== "token") return;
  listActions("volume-actions", "volume", status.volumes.map((it) => it.name), volumeActions);
  listActions("tier-actions", "tier", status.tiers.map((it, at) => it.name || tierName(at)),
    (_, at) => tierActions(at));
}
