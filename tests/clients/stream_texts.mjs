// Reads texts in Node and prints JSON: `node stream_texts.mjs openai|fetch BASE_URL MODEL COUNT`.
// For openai DIPTYCH_NODE_MODULES is the folder where the package is installed.
import { createRequire } from "node:module";

import { readTexts } from "./page.mjs";

async function throughOpenAI(base, model, count) {
  const require = createRequire(process.env.DIPTYCH_NODE_MODULES + "/package.json");
  const OpenAI = require("openai");
  const client = new OpenAI({ baseURL: base + "/v1", apiKey: "none", maxRetries: 0 });
  const completion = { model, prompt: "a", max_tokens: 1000 };
  const chat = { model, messages: [{ role: "user", content: "a" }], max_tokens: 1000 };
  const results = [];
  for (let number = 0; number < count; number++) {
    const texts = [];
    for await (const chunk of await client.completions.create({ ...completion, stream: true })) {
      texts.push(...chunk.choices.map((choice) => choice.text));
    }
    const whole = (await client.completions.create(completion)).choices[0].text;
    results.push({ path: "/v1/completions", streamed: [texts], whole });

    const contents = [];
    const stream = client.chat.completions.stream(chat);
    stream.on("content", (delta) => contents.push(delta));
    const added = (await stream.finalChatCompletion()).choices[0].message.content;
    const answer = (await client.chat.completions.create(chat)).choices[0].message.content;
    results.push({ path: "/v1/chat/completions", streamed: [contents, [added]], whole: answer });
  }
  return results;
}

const [kind, base, model, count] = process.argv.slice(2);
const results = kind === "openai" ? await throughOpenAI(base, model, Number(count)) : await readTexts(base, Number(count));
console.log(JSON.stringify(results));
