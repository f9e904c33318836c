// What a VM is and uses: graphs of processor, memory and traffic, and its jobs.

import { call, request, vm } from "./api.js";
import { attempt, bytes, duration, guest, h, shown, since } from "./dom.js";

const pause = 2000, samples = 150;
const history = new Map(); // by VM

const SVG = "http://www.w3.org/2000/svg";

/** graph draws lists of numbers as lines over time, newest right. */
function graph(label, lists, top) {
	const svg = document.createElementNS(SVG, "svg");
	svg.setAttribute("class", "graph");
	svg.setAttribute("viewBox", "0 0 150 60");
	svg.setAttribute("preserveAspectRatio", "none");
	svg.setAttribute("role", "img");
	svg.setAttribute("aria-label", label);
	const high = Math.max(top ?? 0, 1e-9, ...lists.flat());
	lists.forEach((list, i) => {
		if (list.length < 2) return;
		const points = list.map((n, j) => `${samples - list.length + j},${(58 - 56 * n / high).toFixed(2)}`);
		for (const [kind, d] of [["area", `M${samples - list.length},60L${points.join("L")}L${samples - 1},60Z`], ["line", `M${points.join("L")}`]]) {
			if (kind === "area" && i > 0) continue;
			const path = document.createElementNS(SVG, "path");
			path.setAttribute("class", kind + (i ? " second" : ""));
			path.setAttribute("d", d);
			svg.append(path);
		}
	});
	return svg;
}

function sample(name, s) {
	const h = history.get(name) ?? { list: [] };
	history.set(name, h);
	const now = performance.now() / 1000, last = h.last;
	h.last = { at: now, ...s };
	if (!last || s.uptimeSeconds < last.uptimeSeconds) { h.list = []; return h; }
	const t = now - last.at;
	h.list.push({
		cpu: Math.max(0, s.cpuSeconds - last.cpuSeconds) / t, memory: s.memoryTotal - s.memoryAvailable,
		sent: Math.max(0, s.sentBytes - last.sentBytes) / t, received: Math.max(0, s.receivedBytes - last.receivedBytes) / t,
	});
	if (h.list.length > samples) h.list.shift();
	return h;
}

export function overview(panel, v, signal) {
	const graphs = h("div", { class: "grid" }), jobs = h("div", { class: "panel" }), output = h("div");
	const facts = [["Image", v.image], ["Platform", v.platform], ["Memory", v.memory && `${Math.round(v.memory / 1048576)} MiB`], ["Network", v.policy], ["Ports", (v.ports ?? []).join(", ")], ["Labels", Object.entries(v.labels ?? {}).map(p => p.join("=")).join(", ")], ["Health", v.health], ["Error", v.error]];
	panel.append(graphs, h("div", { class: "panel" }, h("dl", {}, facts.filter(([, value]) => value).map(([name, value]) => [h("dt", {}, name), h("dd", {}, guest(value))]))), jobs, output);

	function draw({ list, last }) {
		const now = list.at(-1) ?? { cpu: 0, sent: 0, received: 0 };
		const box = (title, value, more, picture) => h("div", { class: "panel" }, h("h2", {}, title), h("div", { class: "row between" }, h("span", { class: "value" }, value), h("span", { class: "dim" }, more)), picture);
		graphs.replaceChildren(
			box("Processor", `${(now.cpu * 100).toFixed(0)} %`, `load ${last.load.toFixed(2)}, up ${duration(last.uptimeSeconds)}`, graph("Processor", [list.map(s => s.cpu)], 1)),
			box("Memory", bytes(last.memoryTotal - last.memoryAvailable), `of ${bytes(last.memoryTotal)}, ${last.processes} processes`, graph("Memory", [list.map(s => s.memory)], last.memoryTotal)),
			box("Traffic", `${bytes(now.received + now.sent)}/s`, `received ${bytes(last.receivedBytes)}, sent ${bytes(last.sentBytes)}`, graph("Traffic", [list.map(s => s.received), list.map(s => s.sent)])));
	}

	async function showJobs() {
		const list = await call("GET", vm(v.name, "/jobs"), undefined, signal);
		if (!list.length) return jobs.replaceChildren(h("h2", {}, "Jobs"), h("span", { class: "dim" }, "None. Commands that are kept appear here."));
		jobs.replaceChildren(h("h2", {}, "Jobs"), h("div", { class: "scroll" }, h("table", {},
			h("thead", {}, h("tr", {}, ["Command", "State", "Time", "Output", ""].map(t => h("th", {}, t)))),
			h("tbody", {}, list.slice(-50).reverse().map(j => h("tr", {},
				h("td", { class: "mono" }, guest(j.label || (j.args ?? []).join(" "))),
				h("td", {}, j.ended ? j.exitCode === undefined ? "lost" : `exit ${j.exitCode}` : "running"),
				h("td", { class: "when" }, since(j.started)), h("td", { class: "number" }, bytes(j.outputBytes)),
				h("td", { class: "tools" }, h("button", { class: "small", type: "button", onclick: e => attempt(e.target, () => showOutput(j)) }, "Output"), " ",
					j.ended ? null : h("button", { class: "small danger", type: "button", onclick: e => attempt(e.target, async () => { await call("POST", vm(v.name, `/jobs/${j.id}/signal`), { signal: 15 }); await showJobs(); }) }, "End"))))))));
	}

	const kept = 64 << 10;
	async function showOutput(j) {
		const from = Math.max(0, j.outputBytes - kept);
		const part = await (await request("GET", vm(v.name, `/jobs/${j.id}/output?from=${from}`), { signal })).json();
		const decoder = new TextDecoder();
		const text = part.chunks.map(c => decoder.decode(Uint8Array.from(atob(c.data), b => b.charCodeAt(0)), { stream: true })).join("").slice(-kept);
		output.replaceChildren(h("div", { class: "panel" }, h("h2", {}, "Output"), h("pre", { class: "guest", tabIndex: 0 }, text.split("\n").map(shown).join("\n"))));
	}

	(async () => {
		for (let round = 0; !signal.aborted; round++) {
			try {
				if (!document.hidden && v.state === "running") {
					draw(sample(v.name, await call("GET", vm(v.name, "/stats"), undefined, signal)));
				}
				if (!document.hidden && round % 3 === 0) await showJobs();
			} catch { /* the list of VMs says what is wrong */ }
			await new Promise(done => setTimeout(done, pause));
		}
	})();
}
