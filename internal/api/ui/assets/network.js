// The network of a VM: what it has tried, what is open, and buttons that change the policy while it runs.

import { call, events, vm } from "./api.js";
import { attempt, bytes, guest, h, message, since } from "./dom.js";

const shownEvents = 300, shownDenied = 20, pause = 2000;

export function network(panel, v, signal) {
	const live = v.state === "running";
	const policy = h("span", { class: "guest mono" }, v.policy);
	const denied = h("tbody"), log = h("tbody"), flows = h("tbody");
	const only = h("input", { type: "checkbox", id: "only-denied", onchange: () => log.closest("table").classList.toggle("only", only.checked) && draw() });
	const refused = new Map(); // by rule, newest last
	let list = [];

	const change = (rule, what) => e => attempt(e.target, async () => {
		const answer = await call("POST", vm(v.name, `/network/${what}`), { rule });
		if (what === "allow") refused.delete(rule);
		const rules = Object.entries(answer).filter(([, list]) => Array.isArray(list) && list.length);
		policy.textContent = [`mode ${answer.mode}`, ...rules.map(([name, list]) => `${name} ${list.join(", ")}`)].join("; ");
		message(`${rule}: ${what === "allow" ? "allowed" : "denied"}${answer.cut ? `, ${answer.cut} connections cut` : ""}`);
		draw();
	});
	const write = (rule, allow) => e => attempt(e.target, async () => message((await call("POST", "/project", { rule, allow })).message));
	const buttons = e => !e.target ? [] : [
		e.allowable && live && h("button", { class: "small primary", type: "button", onclick: change(e.target, "allow"), title: `Allow ${e.target} now` }, "Allow"), " ",
		e.allowable && h("button", { class: "small", type: "button", onclick: write(e.target, true), title: `Allow ${e.target} in agentvm.toml` }, "In agentvm.toml"),
		e.verdict === "allow" && live && h("button", { class: "small", type: "button", onclick: change(e.target, "deny"), title: `Deny ${e.target} now` }, "Deny"),
	];
	const target = e => (e.names?.[0] ? e.names[0] + (e.destination && !e.destination.endsWith(":0") ? e.destination.slice(e.destination.lastIndexOf(":")) : "") : e.destination) || e.message || "";

	function draw() {
		denied.replaceChildren(...[...refused.values()].slice(-shownDenied).reverse().map(e => h("tr", {},
			h("td", { class: "mono" }, guest(target(e))), h("td", {}, guest(e.process || "")), h("td", { class: "dim" }, guest(e.message || e.reason)), h("td", { class: "tools" }, buttons(e)))));
		if (!refused.size) denied.append(h("tr", {}, h("td", { class: "dim", colSpan: 4 }, "Nothing that a rule would allow was denied.")));
		log.replaceChildren(...list.filter(e => !only.checked || e.verdict === "deny").slice(-shownEvents).reverse().map(e => h("tr", {},
			h("td", { class: "when" }, new Date(e.time).toLocaleTimeString()), h("td", { class: { allow: "good", deny: "bad" }[e.verdict] ?? "dim" }, guest(e.verdict)), h("td", {}, guest(e.kind)),
			h("td", { class: "mono" }, guest(target(e))), h("td", {}, guest(e.process || "")), h("td", { class: "dim" }, guest(e.rule || e.answer || e.reason || "")), h("td", { class: "tools" }, buttons(e)))));
	}

	const table = (heads, body) => h("div", { class: "scroll" }, h("table", {}, h("thead", {}, h("tr", {}, heads.map(t => h("th", {}, t)))), body));
	panel.append(
		h("div", { class: "panel" }, h("h2", {}, "Policy"), policy),
		h("div", { class: "panel" }, h("h2", {}, "Denied"), table(["Destination", "Process", "Why", ""], denied)),
		h("div", { class: "panel" }, h("h2", {}, "Open connections"), table(["Destination", "Protocol", "Process", "For", "Sent", "Received"], flows)),
		h("div", { class: "panel" }, h("div", { class: "row between" }, h("h2", {}, "Log"), h("label", { class: "row dim" }, only, "only what was denied")), table(["Time", "Verdict", "Kind", "Destination", "Process", "Rule", ""], log)));
	draw();

	let drawing = 0;
	events(vm(v.name, "/network/events"), signal, fresh => {
		for (const e of fresh) {
			if (e.verdict === "deny" && e.allowable) { refused.delete(e.target); refused.set(e.target, e); }
			if (refused.size > 500) refused.delete(refused.keys().next().value);
		}
		list = list.concat(fresh).slice(-2 * shownEvents);
		drawing ||= setTimeout(() => { drawing = 0; if (!signal.aborted) draw(); }, 100); // many events are drawn once
	}).catch(e => { if (!signal.aborted) message(e.message, true); });

	(async () => {
		while (live && !signal.aborted) {
			try {
				if (!document.hidden) {
					const found = await call("GET", vm(v.name, "/network/flows"), undefined, signal);
					flows.replaceChildren(...found.slice(0, 100).map(f => h("tr", {}, h("td", { class: "mono" }, guest(f.destination)), h("td", {}, `${f.protocol} ${f.direction}`), h("td", {}, guest(f.process || "")),
						h("td", { class: "when" }, since(f.opened)), h("td", { class: "number" }, bytes(f.sent)), h("td", { class: "number" }, bytes(f.received)))));
					if (!found.length) flows.append(h("tr", {}, h("td", { class: "dim", colSpan: 6 }, "None.")));
				}
			} catch { /* the list of VMs says what is wrong */ }
			await new Promise(done => setTimeout(done, pause));
		}
	})();
}
