// Snapshots and forks, as a tree of what continues from what.

import { call, vm } from "./api.js";
import { ask, attempt, bytes, guest, h, message, vmName } from "./dom.js";

export async function fork(name) {
	const a = await ask(`Fork ${name}`, ["A new VM continues from where this one is, with its memory and disk.", { name: "name", label: "Name of the new VM", value: `${name}-fork`, ...vmName }], "Fork");
	if (!a) return;
	await call("POST", vm(name, "/forks"), { names: [a.name] });
	location.hash = `#/${a.name}/overview`;
}

export async function saveVM(name) {
	const a = await ask(`Snapshot of ${name}`, [{ name: "name", label: "Name of the snapshot", value: `${name}-1`, ...vmName }, { name: "comment", label: "Comment" }], "Save");
	if (!a) return;
	await call("POST", vm(name, "/snapshots"), a);
	message(`${a.name} was saved`);
}

async function restore(name) {
	const a = await ask(`Restore ${name}`, ["A new VM continues from the snapshot.", { name: "name", label: "Name of the new VM", ...vmName }], "Restore");
	if (!a) return;
	await call("POST", `/v1/snapshots/${encodeURIComponent(name)}/restore`, a);
	location.hash = `#/${a.name}/overview`;
}

export async function snapshots(main, vms, signal, refresh) {
	const list = await attempt(null, () => call("GET", "/v1/snapshots", undefined, signal));
	if (!list || signal.aborted) return;
	// A VM hangs below what it continues from, a snapshot below the VM that was saved.
	const nodes = new Map();
	for (const v of vms) nodes.set(`vm ${v.name}`, { v, parent: v.parent, time: Date.parse(v.started ?? 0), below: [] });
	for (const s of list) nodes.set(`snapshot ${s.name}`, { s, parent: s.vm && `vm ${s.vm}`, time: Date.parse(s.created), below: [] });
	const roots = [];
	for (const [key, node] of nodes) {
		let up = node.parent, circle = false;
		for (let seen = new Set([key]); up && nodes.has(up) && !circle; up = nodes.get(up).parent) { circle = seen.has(up); seen.add(up); }
		const above = circle ? undefined : nodes.get(node.parent);
		(above ? above.below : roots).push(node);
	}
	const button = (label, run, kind = "") => h("button", { class: `small ${kind}`, type: "button", onclick: e => attempt(e.target, async () => { await run(); await refresh(); }) }, label);
	const again = () => snapshots(main, vms, signal, refresh);
	const draw = ({ v, s, parent, below }) => h("li", {}, h("div", { class: "row between" },
		v ? h("div", { class: "row" }, h("span", { class: `dot ${v.state}` }), h("a", { href: `#/${v.name}/overview` }, v.name), h("span", { class: "badge" }, "VM"), h("span", { class: "dim" }, v.state, parent && !nodes.has(parent) ? `, from ${parent}` : ""))
			: h("div", { class: "row" }, "◆ ", guest(s.name), h("span", { class: "badge" }, "snapshot"), h("span", { class: "dim" }, `${new Date(s.created).toLocaleString()}, ${bytes(s.bytes)}`), s.comment && guest(s.comment)),
		h("div", { class: "row" }, v ? (v.state === "running" || v.state === "paused") && [button("Fork", () => fork(v.name)), button("Snapshot", async () => { await saveVM(v.name); await again(); })]
			: [button("Restore", () => restore(s.name), "primary"), button("Remove", async () => {
				if (await ask(`Remove the snapshot ${s.name}?`, ["VMs that continue from it are not touched."], "Remove", true)) { await call("DELETE", `/v1/snapshots/${encodeURIComponent(s.name)}`); await again(); }
			}, "danger")])),
	below.length ? h("ul", {}, below.sort((a, b) => a.time - b.time).map(draw)) : null);
	main.replaceChildren(h("h3", {}, "Snapshots and forks"), h("div", { class: "panel" }, roots.length ? h("ul", { class: "tree" }, roots.sort((a, b) => a.time - b.time).map(draw)) : h("p", { class: "dim" }, "There are none. A snapshot keeps a VM with its memory and disk.")));
}
