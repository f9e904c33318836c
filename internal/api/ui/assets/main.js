// The page: the list of VMs, and a view of one of them. Views are functions (element, vm name, signal) that fill an element until the signal.

import { begin, call, vm } from "./api.js";
import { ask, attempt, h, message, since } from "./dom.js";
import { overview } from "./overview.js";
import { log } from "./log.js";
import { network } from "./network.js";
import { files } from "./files.js";
import { previews } from "./previews.js";
import { snapshots, fork, saveVM } from "./snapshots.js";
import { terminal, closeTerminal } from "./terminal.js";

const tabs = { overview, terminal, files, network, previews, log };
const titles = { overview: "Overview", terminal: "Terminal", files: "Files", network: "Network", previews: "Previews", log: "Log" };
const always = ["overview", "network", "log"]; // of VMs that do not run, too
const $ = id => document.getElementById(id);

let vms = [];
let leave = new AbortController(); // of the view that is shown
let at = "";

const place = () => {
	const [name = "", tab = "overview"] = location.hash.replace(/^#\//, "").split("/").map(decodeURIComponent);
	return { name, tab: tab in tabs ? tab : "overview" };
};

function list() {
	const { name } = place();
	const focused = document.activeElement?.dataset?.vm;
	$("vms").replaceChildren(...vms.map(v => h("li", {}, h("a", { href: `#/${v.name}/${tabOf(v)}`, "data-vm": v.name, "aria-current": v.name === name ? "page" : undefined },
		h("span", { class: `dot ${v.state}` }), v.name, h("small", {}, v.state === "running" ? since(v.started) : v.state)))));
	if (focused) $("vms").querySelector(`[data-vm="${CSS.escape(focused)}"]`)?.focus();
	if (name === "snapshots") $("all-snapshots").setAttribute("aria-current", "page");
	else $("all-snapshots").removeAttribute("aria-current");
}

const tabOf = v => v.state === "running" || always.includes(place().tab) ? place().tab : "overview";
const known = name => vms.find(v => v.name === name);

/** show draws the view of the place in the address, unless it is shown already. */
function show() {
	const { name, tab } = place();
	const v = known(name);
	const policy = tab === "network" || tab === "overview" ? v?.policy : ""; // another tab, with a file in its editor, stays as it is
	const now = JSON.stringify([name, tab, v?.state, policy, v?.parent]);
	if (now === at) return;
	const stays = document.activeElement?.id;
	at = now;
	leave.abort();
	leave = new AbortController();
	const main = $("main");
	document.title = v ? `${name} – agentvm` : "agentvm";
	if (name === "snapshots") return snapshots(main, vms, leave.signal, refresh);
	if (!v) return main.replaceChildren(welcome(name));
	const panel = h("div", { role: "tabpanel", id: "panel", "aria-label": titles[tab] });
	main.replaceChildren(head(v), h("div", { role: "tablist" }, Object.keys(tabs).map(t => h("button", {
		role: "tab", id: `tab-${t}`, type: "button", "aria-selected": String(t === tab), tabIndex: t === tab ? 0 : -1, onclick: () => { location.hash = `#/${name}/${t}`; }, onkeydown: moveTab,
	}, titles[t]))), panel);
	if (stays?.startsWith("tab-")) $(`tab-${tab}`).focus();
	if (v.state === "running" || always.includes(tab)) tabs[tab](panel, v, leave.signal);
	else panel.append(h("p", { class: "dim" }, `${name} is ${v.state}.`));
}

function moveTab(e) {
	const step = { ArrowRight: 1, ArrowLeft: -1 }[e.key];
	if (!step) return;
	const names = Object.keys(tabs);
	location.hash = `#/${place().name}/${names[(names.indexOf(place().tab) + step + names.length) % names.length]}`;
}

function welcome(name) {
	return h("div", { class: "welcome" }, h("h3", {}, vms.length ? "Choose a VM" : "There is no VM yet"),
		name && h("p", { class: "bad" }, `There is no VM called ${name}.`),
		h("p", { class: "dim" }, "A VM is a Linux machine of its own: its programs see none of this host's files except the directories that you show it, and reach only what its network's policy allows."),
		h("button", { class: "primary", type: "button", onclick: create }, "New VM"));
}

function head(v) {
	const act = (label, run, kind = "") => h("button", { type: "button", class: kind, onclick: e => attempt(e.target, async () => { await run(); await refresh(); }) }, label);
	const post = what => () => call("POST", vm(v.name, `/${what}`), {});
	const runs = v.state === "running" || v.state === "paused";
	return h("div", { class: "row between" },
		h("div", { class: "row" }, h("h3", {}, v.name), h("span", { class: "badge" }, h("span", { class: `dot ${v.state}` }), ` ${v.state}`), v.parent && h("span", { class: "dim" }, `from ${v.parent}`)),
		h("div", { class: "row" },
			v.state === "running" && act("Pause", () => call("POST", vm(v.name, "/pause"))),
			v.state === "paused" && act("Resume", () => call("POST", vm(v.name, "/resume"))),
			runs && act("Fork", () => fork(v.name)),
			runs && act("Snapshot", () => saveVM(v.name)),
			runs && act("Stop", async () => { await post("stop")(); closeTerminal(v.name); }),
			!runs && act("Start", () => call("POST", vm(v.name, "/start")), "primary"),
			act("Remove", async () => {
				if (!await ask(`Remove ${v.name}?`, ["It is stopped, and its files are deleted. Snapshots of it stay."], "Remove", true)) return;
				await call("DELETE", vm(v.name));
				closeTerminal(v.name);
				message(`${v.name} was removed`);
			}, "danger")));
}

/** wrong is an error about a field of a dialog. */
const wrong = (field, text) => Object.assign(new Error(text), { field });

async function create() {
	const a = await ask("New VM", [
		{ name: "name", label: "Name", placeholder: "dev", required: true },
		{ name: "image", label: "Image, which is downloaded if it is not here yet", value: "alpine" },
		{ name: "platform", label: "Platform", options: ["the image's", "linux/riscv64", "linux/arm64"] },
		{ name: "memory", label: "Memory in MiB", value: "512" },
		{ name: "mounts", label: "Directories of this host, one a line: HOST[:GUEST][:ro|:cow]", placeholder: "~/src/project:/src\n/data:/data:ro", lines: 2 },
		{ name: "ports", label: "Ports of this host that lead into the VM: PORT:GUESTPORT", placeholder: "8080:80, 5353:53/udp" },
		{ name: "mode", label: "Network", options: ["public", "allowlist", "none"] },
		{ name: "allow", label: "Allowed, with the mode allowlist", placeholder: "pypi.org:443, *.debian.org" },
	], "Start", false, async (a, signal) => {
		const words = text => text.split(/[\s,]+/).filter(Boolean);
		const memory = Number(a.memory.trim() || 512);
		if (!Number.isInteger(memory) || memory <= 0) throw wrong("memory", "Write a number of MiB, as 512.");
		const network = { mode: a.mode, allow: words(a.allow) };
		if (network.allow.length && a.mode !== "allowlist") throw wrong("allow", `With the mode ${a.mode} nothing is allowed by rules: choose allowlist above, or leave this empty.`);
		try {
			await call("POST", "/vms", {
				name: a.name.trim(), image: a.image.trim(), ...(a.platform.startsWith("linux/") && { platform: a.platform }), memory: memory * 1048576, network,
				mounts: a.mounts.split("\n").map(line => line.trim()).filter(Boolean), ports: words(a.ports),
			}, signal);
		} catch (e) {
			if (e.field === "network") e.field = "allow";
			throw e;
		}
	});
	if (!a) return;
	await refresh();
	location.hash = `#/${a.name.trim()}/overview`;
}

/** refresh reads the list of VMs. */
export async function refresh() {
	try {
		vms = await call("GET", "/v1/vms");
		$("connection").textContent = "";
	} catch (e) {
		$("connection").textContent = e.status === 401 ? "The session has ended: open a new link." : "agentvm ui does not answer.";
		return;
	}
	list();
	show();
}

const pause = 2000;

async function watch() {
	for (;;) {
		if (!document.hidden) await refresh();
		await new Promise(done => setTimeout(done, pause));
	}
}

$("new").onclick = create;
$("theme").onclick = () => {
	const dark = getComputedStyle(document.documentElement).colorScheme === "dark" || !document.documentElement.dataset.theme && matchMedia("(prefers-color-scheme: dark)").matches;
	document.documentElement.dataset.theme = dark ? "light" : "dark";
	localStorage.setItem("theme", document.documentElement.dataset.theme);
};
if (localStorage.getItem("theme")) document.documentElement.dataset.theme = localStorage.getItem("theme");

try {
	await begin();
	addEventListener("hashchange", () => { list(); show(); $("main").scrollTop = 0; });
	document.addEventListener("visibilitychange", () => document.hidden || refresh());
	watch();
} catch (e) {
	document.getElementById("main").replaceChildren(h("div", { class: "welcome" }, h("h3", {}, "No session"), h("p", {}, e.message)));
}
