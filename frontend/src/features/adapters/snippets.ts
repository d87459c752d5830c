/** What a client pastes to talk to an adapter; the key comes from its environment. */
export function curlSnippet(origin: string, model: string): string {
  return `curl ${origin}/v1/chat/completions \\
  -H "Authorization: Bearer $GRAFTHOUSE_API_KEY" \\
  -H "Content-Type: application/json" \\
  -d '{
    "model": "${model}",
    "messages": [
      {"role": "user", "content": "Hello"}
    ],
    "stream": true
  }'`;
}

export function pythonSnippet(origin: string, model: string): string {
  return `import os
from openai import OpenAI

client = OpenAI(
    base_url="${origin}/v1",
    api_key=os.environ["GRAFTHOUSE_API_KEY"],
)
stream = client.chat.completions.create(
    model="${model}",
    messages=[{"role": "user", "content": "Hello"}],
    stream=True,
)
for chunk in stream:
    if chunk.choices:
        print(chunk.choices[0].delta.content or "", end="", flush=True)`;
}
