/**
 * A client in a process of its own, to be killed at a step of its work. It says on stdout how far it has got; what it does is its
 * first argument, for the exec and in the sandbox of the second and third.
 */
import { request } from "node:http";
import { Holdfast } from "@holdfast/sdk";

const [, , step, sandboxId = "", id = "", command = ""] = process.argv;
const say = (text: string) => process.stdout.write(`${text}\n`);
const die = () => process.kill(process.pid, "SIGKILL");

/** The request is out of the process, its answer not yet in. */
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
