// Requests to the server, with the key of the page's session. The key is in sessionStorage, which belongs to this port and this tab.

let key = sessionStorage.getItem("key");

/** begin exchanges the link in the page's address for a key. The address has it no more then. */
export async function begin() {
	const link = location.hash.slice(1);
	if (/^[A-Z2-7]{26}$/.test(link)) {
		history.replaceState(null, "", "/");
		const answer = await fetch("/session", { method: "POST", body: JSON.stringify({ link }) });
		if (answer.ok) {
			key = (await answer.json()).key;
			sessionStorage.setItem("key", key);
		} else if (!key) throw new Error(await answer.text());
	}
	if (!key) throw new Error("This page needs the link that agentvm ui prints: press Enter in its terminal for another one.");
}

/** request sends one and returns the response, or throws what the server says. */
export async function request(method, path, { json, body, signal } = {}) {
	const answer = await fetch(path, { method, signal, body: json === undefined ? body : JSON.stringify(json), headers: { Authorization: `Bearer ${key}` } });
	if (answer.ok) return answer;
	const text = await answer.text();
	let problem = { detail: text };
	try { problem = JSON.parse(text); } catch { /* no JSON */ }
	const error = new Error(problem.detail || text || answer.statusText);
	error.status = answer.status;
	error.field = problem.field;
	throw error;
}

/** call sends a request and returns the JSON of its answer. */
export async function call(method, path, json, signal) {
	const answer = await request(method, path, { json, signal });
	return answer.status === 204 ? null : answer.json();
}

export const vm = (name, rest = "") => `/v1/vms/${encodeURIComponent(name)}${rest}`;

const longestEvent = 1 << 20;

/** events calls use with the data of each server-sent event, until the signal. */
export async function events(path, signal, use) {
	const answer = await request("GET", path, { signal });
	const reader = answer.body.pipeThrough(new TextDecoderStream()).getReader();
	let text = "";
	for (;;) {
		const { done, value } = await reader.read();
		if (done) return;
		text += value;
		const parts = text.split("\n\n");
		text = parts.pop();
		if (text.length > longestEvent) throw new Error("an event is too long");
		const list = parts.map(part => part.split("\n").find(line => line.startsWith("data: "))).filter(Boolean).map(line => JSON.parse(line.slice(6)));
		if (list.length) use(list);
	}
}

/** socket opens a WebSocket. */
export function socket(path) {
	const s = new WebSocket(`ws://${location.host}${path}`, ["agentvm.terminal", `agentvm.key.${key}`]);
	s.binaryType = "arraybuffer";
	return s;
}
