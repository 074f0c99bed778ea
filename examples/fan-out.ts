/**
 * Twenty sandboxes on one shared drive: each reads its share of the work from the drive and writes its result to it, and this
 * program reads the sum from the drive.
 *
 *   node examples/fan-out.ts        uses the server on this machine, or HOLDFAST_URL and HOLDFAST_API_KEY
 */
import { Holdfast, type Sandbox } from "@holdfast/sdk";

const WORKERS = 20;
const NUMBERS = 100_000;

const hf = new Holdfast();
const drive = await hf.drives.create({ labels: { example: "fan-out" } });
const boxes: Sandbox[] = [];
try {
  const numbers = Array.from({ length: NUMBERS }, (_, i) => i + 1);
  for (let worker = 0; worker < WORKERS; worker += 1) {
    const share = numbers.filter((number) => number % WORKERS === worker);
    await drive.files.write(`/shares/${worker}`, share.join("\n"));
  }
  console.log(`${WORKERS} shares of ${NUMBERS} numbers are in drive ${drive.name}`);

  const work = async (worker: number): Promise<void> => {
    const box = await hf.sandboxes.create({ mounts: [{ drive: drive.name, path: "/data" }] });
    boxes.push(box);
    const sum = `mkdir -p /data/sums; awk '{ sum += $1 } END { printf "%d", sum }' /data/shares/${worker} > /data/sums/${worker}`;
    const { exitCode, stderr } = await box.exec(sum);
    if (exitCode !== 0) throw new Error(`worker ${worker}: ${stderr}`);
  };
  await Promise.all(Array.from({ length: WORKERS }, (_, worker) => work(worker)));

  const { items } = await drive.files.list("/sums");
  const sums = await Promise.all(items.map(async ({ path }) => Number(await drive.files.readText(path))));
  const total = sums.reduce((all, sum) => all + sum, 0);
  const expected = (NUMBERS * (NUMBERS + 1)) / 2;
  console.log(`${items.length} workers summed to ${total}; it is ${expected}`);
  process.exitCode = items.length === WORKERS && total === expected ? 0 : 1;
} finally {
  await Promise.all(boxes.map((box) => box.delete()));
  await drive.delete();
  hf.close();
}
