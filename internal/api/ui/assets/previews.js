// Links to servers in a VM.

import { call, vm } from "./api.js";
import { attempt, duration, guest, h, message } from "./dom.js";

const pause = 4000;

export function previews(panel, v, signal) {
	const links = h("tbody"), ports = h("tbody");
	const port = h("input", { type: "number", min: 1, max: 65535, placeholder: "8080", "aria-label": "Port", required: true });
	const create = (n, button) => attempt(button, async () => { await call("POST", vm(v.name, "/previews"), { port: n }); message(`a link to port ${n} was made`); await show(); });
	panel.append(
		h("form", { class: "row panel", onsubmit: e => { e.preventDefault(); create(port.valueAsNumber, e.submitter); } }, "Make a link to port", port, h("button", { class: "primary" }, "Create")),
		h("div", { class: "panel" }, h("h2", {}, "Links"), h("table", {}, links)),
		h("div", { class: "panel" }, h("h2", {}, "Servers in the VM"), h("table", {}, ports)));

	async function show() {
		const [made, found] = await Promise.all([call("GET", vm(v.name, "/previews"), undefined, signal), call("GET", vm(v.name, "/ports"), undefined, signal)]);
		links.replaceChildren(...made.map(l => h("tr", {}, h("td", {}, `port ${l.port}`), h("td", {}, l.url?.startsWith("http://") ? h("a", { href: l.url, target: "_blank", rel: "noopener noreferrer", class: "open-preview" }, "Open") : l.state),
			h("td", { class: "dim" }, `for ${duration((Date.parse(l.expires) - Date.now()) / 1000)}`),
			h("td", { class: "tools" }, h("button", { class: "small danger", type: "button", onclick: e => attempt(e.target, async () => { await call("DELETE", `/v1/previews/${encodeURIComponent(l.id)}`); await show(); }) }, "Revoke")))));
		if (!made.length) links.append(h("tr", {}, h("td", { class: "dim" }, "None.")));
		const listening = found.filter(s => s.network === "tcp");
		ports.replaceChildren(...listening.map(s => {
			const n = Number(s.address.slice(s.address.lastIndexOf(":") + 1));
			return h("tr", {}, h("td", { class: "mono" }, guest(s.address)), h("td", {}, guest(s.process || "")), h("td", { class: "tools" }, h("button", { class: "small", type: "button", onclick: e => create(n, e.target) }, "Link")));
		}));
		if (!listening.length) ports.append(h("tr", {}, h("td", { class: "dim" }, "No program listens.")));
	}

	(async () => {
		while (!signal.aborted) {
			try { if (!document.hidden) await show(); } catch (e) { if (!signal.aborted) links.replaceChildren(h("tr", {}, h("td", { class: "bad" }, e.message))); }
			await new Promise(done => setTimeout(done, pause));
		}
	})();
}
