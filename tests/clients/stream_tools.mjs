// Asks a service for an answer with tools through the official Node client's stream helper, which is strict about deltas.
// node stream_tools.mjs BASE_URL MODEL TOOLS_JSON [TOOL_CHOICE_JSON]; DIPTYCH_NODE_MODULES is the folder where the package is.
import { createRequire } from "node:module";

const require = createRequire(process.env.DIPTYCH_NODE_MODULES + "/package.json");
const OpenAI = require("openai");

const [baseURL, model, tools, choice = '"auto"'] = process.argv.slice(2);
const client = new OpenAI({ baseURL, apiKey: "none", maxRetries: 0 });
const messages = [{ role: "user", content: "What is the weather?" }];
const stream = client.chat.completions.stream({ model, messages, tools: JSON.parse(tools), tool_choice: JSON.parse(choice) });
let deltas = 0;
for await (const chunk of stream) {
  deltas += chunk.choices[0]?.delta?.tool_calls ? 1 : 0;
}
const completion = await stream.finalChatCompletion();
const answer = completion.choices[0];
const calls = (answer.message.tool_calls ?? []).map((call) => [call.type, call.function.name, call.function.arguments]);
console.log(JSON.stringify({ deltas, calls, content: answer.message.content, finish: answer.finish_reason }));
