// Decodes payloads in a worker, so that none can stop the console.

// Milliseconds after which a payload is given up.
const TIME_LIMIT = 4000;
const SCRIPT = new URL("decoder.js", import.meta.url).href;
// The browser starts a worker only from a URL that this policy has made, and it makes one.
const policy = globalThis.trustedTypes?.createPolicy("leveret-decoder", { createScriptURL: () => SCRIPT });

/**
 * Returns the rows of a payload in a format ("json", "msgpack", "cbor"), or decompressed bytes ("zstd").
 *
 * Throws `Error` if the payload is not valid, and rejects with an `AbortError` when `signal` is aborted.
 */
export function decode(format, data, signal) {
  return new Promise((resolve, reject) => {
    const worker = new Worker(policy ? policy.createScriptURL("") : SCRIPT, { type: "module" });
    const timer = setTimeout(() => end(reject, new Error(`it takes longer than ${TIME_LIMIT / 1000} s`)), TIME_LIMIT);
    function end(settle, value) {
      clearTimeout(timer);
      worker.terminate();
      settle(value);
    }
    worker.onmessage = ({ data: { result, error } }) => (error === undefined ? end(resolve, result) : end(reject, new Error(error)));
    worker.onerror = (event) => end(reject, new Error(event.message || "the decoder cannot be loaded"));
    signal?.addEventListener("abort", () => end(reject, new DOMException("", "AbortError")));
    worker.postMessage({ format, data });
  });
}
