// Runs the compiler by Pyodide. Requests and answers are JSON, see forgedsl/docs/playground.py.
import { loadPyodide } from "./pyodide/pyodide.mjs";

const at = (name) => new URL(name, import.meta.url).href;
const real = self.fetch.bind(self);
let seen = 0;
let total = 0;
let failed = false; // what is still loading then says no more

// Count the bytes of all that is loaded.
self.fetch = async (...request) => {
  const response = await real(...request);
  if (!response.body || !response.ok) return response;
  const counted = response.body.pipeThrough(new TransformStream({
    transform(chunk, controller) {
      seen += chunk.byteLength;
      if (total && !failed) postMessage({ progress: Math.min(seen / total, 1) * 0.8, state: "loading" });
      controller.enqueue(chunk);
    },
  }));
  const { status, statusText, headers } = response;
  return new Response(counted, { status, statusText, headers });
};

async function bytes(name) {
  const response = await self.fetch(at(name));
  if (!response.ok) throw new Error(`${name}: ${response.status} ${response.statusText}`);
  return response.arrayBuffer();
}

async function start() {
  total = (await (await real(at("./size.json"))).json()).bytes;
  const [archive, python] = await Promise.all([
    bytes("./forgedsl.zip"), loadPyodide({ indexURL: at("./pyodide/") }),
  ]);
  python.unpackArchive(archive, "zip", { extractDir: "/app" });
  postMessage({ progress: 0.85, state: "starting the compiler" });
  python.runPython(`
import os, sys
sys.path.insert(0, "/app")
os.chdir("/app/forgedsl/pipelines")
from forgedsl.docs.playground import answer
`);
  return python.globals.get("answer");
}

const started = start();
started.then(
  () => postMessage({ ready: true }),
  (error) => {
    failed = true;
    postMessage({ failed: String(error.message || error) });
  },
);

onmessage = async ({ data: { id, request } }) => {
  const answer = await started;
  try {
    postMessage({ id, answer: JSON.parse(answer(JSON.stringify(request))) });
  } catch (error) {
    postMessage({ id, error: String(error.message || error) });
  }
};
