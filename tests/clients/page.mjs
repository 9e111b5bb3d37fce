// What a page does with a stream: the browser's own fetch and TextDecoder, and two ways to find the events in it.
// The same code runs in a browser (page.html) and in Node.

// Characters may be cut anywhere between two reads, so the decoder must keep what has begun.
async function* decoded(chunks) {
  const decoder = new TextDecoder("utf-8", { fatal: true, ignoreBOM: true });
  for await (const chunk of chunks) yield decoder.decode(chunk, { stream: true });
  yield decoder.decode();
}

async function* read(body) {
  const reader = body.getReader();
  for (let next = await reader.read(); !next.done; next = await reader.read()) yield next.value;
}

// As a network that delivers one byte at a time.
async function* byteByByte(chunks) {
  for await (const chunk of chunks) for (let at = 0; at < chunk.length; at++) yield chunk.subarray(at, at + 1);
}

// Splits at blank lines, as most pages do.
async function* blocks(texts) {
  let rest = "";
  for await (const text of texts) {
    rest += text;
    for (let end = rest.indexOf("\n\n"); end >= 0; end = rest.indexOf("\n\n")) {
      yield rest.slice(0, end).replace(/^data: /, "");
      rest = rest.slice(end + 2);
    }
  }
  if (rest) throw new Error(`the stream ended within an event: ${JSON.stringify(rest)}`);
}

// Reads lines and fields as EventSource is specified to: https://html.spec.whatwg.org/multipage/server-sent-events.html
async function* fields(texts) {
  let rest = "";
  let data = [];
  for await (const text of texts) {
    rest += text;
    // A \r at the end may be the first half of \r\n.
    const lines = rest.split(/\r\n|\n|\r(?!$)/);
    rest = lines.pop();
    for (const line of lines) {
      const [, name, value] = line.match(/^([^:]*):? ?([^]*)$/);
      if (line === "" && data.length) {
        yield data.join("\n");
        data = [];
      } else if (name === "data") data.push(value);
      else if (line !== "" && name !== "") throw new Error(`a line that no event has: ${JSON.stringify(line)}`);
    }
  }
}

async function deltas(events) {
  const texts = [];
  let done = false;
  for await (const event of events) {
    if (done) throw new Error(`an event after the end: ${event}`);
    if (event === "[DONE]") {
      done = true;
      continue;
    }
    for (const choice of JSON.parse(event).choices) texts.push(choice.text ?? choice.delta.content ?? "");
  }
  if (!done) throw new Error("no [DONE]");
  return texts;
}

async function post(base, path, body) {
  const headers = { "Content-Type": "application/json", Authorization: "Bearer none", "X-Request-Id": "page" };
  const response = await fetch(base + path, { method: "POST", headers, body: JSON.stringify(body) });
  if (!response.ok) throw new Error(`${response.status}: ${await response.text()}`);
  return response;
}

const REQUESTS = [
  ["/v1/completions", { prompt: "a", max_tokens: 1000 }],
  ["/v1/chat/completions", { messages: [{ role: "user", content: "a" }], max_tokens: 1000 }],
];

// [{ path, streamed: [deltas by each parser], whole, requestId }], `count` times for each endpoint.
export async function readTexts(base, count) {
  const results = [];
  for (let number = 0; number < count; number++) {
    for (const [path, body] of REQUESTS) {
      const response = await post(base, path, { ...body, stream: true });
      const [one, other] = response.body.tee();
      const streamed = await Promise.all([
        deltas(blocks(decoded(read(one)))),
        deltas(fields(decoded(byteByByte(read(other))))),
      ]);
      const [choice] = (await (await post(base, path, body)).json()).choices;
      const whole = choice.text ?? choice.message.content;
      results.push({ path, streamed, whole, requestId: response.headers.get("X-Request-Id") });
    }
  }
  return results;
}
