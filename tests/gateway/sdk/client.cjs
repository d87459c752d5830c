// The official Node client: asks what a line of JSON on stdin says, and answers with a line that
// says what came of it. One request at a time.
const readline = require("node:readline");
const { OpenAI } = require("openai");
const { zodResponseFormat } = require("openai/helpers/zod");
const { z } = require("zod");

const Order = z.object({ is_order: z.boolean(), kind: z.enum(["desk lamp", "mug"]) });

// A method of the client by its path, as in "chat.completions.create".
function method(client, path) {
  const names = path.split(".");
  const name = names.pop();
  const owner = names.reduce((found, one) => found[one], client);
  return owner[name].bind(owner);
}

function described(error) {
  const { status, type, param, code, message, requestID } = error;
  return { name: error.constructor.name, status, type, param, code, message, requestID };
}

const readers = {
  async whole(client, { path, args }) {
    const { data, request_id } = await method(client, path)(...args).withResponse();
    // An object has its request's id as a property that is not enumerated.
    return { value: data, requestID: request_id, ownID: data._request_id };
  },
  async stream(client, { path, args: [body], leaveAfter, isBreaking }, seen) {
    const controller = new AbortController();
    const options = { signal: controller.signal };
    const { data, request_id } = await method(client, path)(body, options).withResponse();
    for await (const chunk of data) {
      seen.push(chunk);
      if (seen.length === leaveAfter && isBreaking) break;
      if (seen.length === leaveAfter) controller.abort();
    }
    return { requestID: request_id };
  },
  async abortAtOnce(client, { path, args: [body], leaveAfter }) {
    const signal = AbortSignal.timeout(leaveAfter);
    return { value: await method(client, path)(body, { signal }) };
  },
  async helper(client, { args: [body] }, seen) {
    const stream = client.chat.completions.stream(body);
    stream.on("content", (delta) => seen.push(delta));
    return { value: await stream.finalChatCompletion() };
  },
  async parse(client, { args: [body] }) {
    const response_format = zodResponseFormat(Order, "order");
    const answer = await client.chat.completions.parse({ ...body, response_format });
    return { value: answer.choices[0].message.parsed };
  },
};

async function outcome({ client: options, read, ...asked }) {
  const seen = [];
  try {
    return { seen, ...(await readers[read](new OpenAI(options), asked, seen)) };
  } catch (error) {
    return { seen, error: described(error) };
  }
}

async function main() {
  for await (const line of readline.createInterface({ input: process.stdin })) {
    console.log(JSON.stringify(await outcome(JSON.parse(line))));
  }
}

main();
