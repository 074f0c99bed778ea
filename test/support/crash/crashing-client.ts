/**
 * A client in a separate process, to be killed at a step of its work. It prints its progress. Its arguments are the
 * step, the sandbox's id, the exec's id and the command.
 */
import { request } from "node:http";
import { Holdfast } from "@holdfast/sdk";

const [, , step, sandboxId = "", id = "", command = ""] = process.argv;
const say = (text: string) => process.stdout.write(`${text}\n`);
const die = () => process.kill(process.pid, "SIGKILL");

/** Sends a request; at this point the response has not arrived. */
function send(): void {
  const sent = request(`${process.env.HOLDFAST_URL}/v1/sandboxes/${sandboxId}/execs`, {
    method: "POST",
    headers: { authorization: `Bearer ${process.env.HOLDFAST_API_KEY}`, "content-type": "application/json" },
  });
  sent.end(JSON.stringify({ id, command }), die);
}

const STEPS: Record<string, () => Promise<void>> = {
  sends: async () => send(),
  waits: async () => {
    const box = await new Holdfast().sandboxes.get(sandboxId);
    say("waiting");
    await box.exec(command, { id });
  },
  streams: async () => {
    const box = await new Holdfast().sandboxes.get(sandboxId);
    const run = await box.execs.start(command, { id });
    for await (const { data } of run.output()) say(`read ${data.length}`);
  },
  "writes stdin": async () => {
    const box = await new Holdfast().sandboxes.get(sandboxId);
    const run = await box.execs.start(command, { id, openStdin: true });
    for (let i = 0; ; i += 1) {
      await run.writeStdin(Buffer.alloc(65_536, i % 256));
      say(`wrote ${i + 1}`);
    }
  },
};

await STEPS[step ?? ""]?.();
