import { existsSync, mkdtempSync, readFileSync, rmSync, writeFileSync } from "node:fs";
import { createServer } from "node:net";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { type Holdfast, HoldfastError, type Sandbox } from "@holdfast/sdk";
import { afterAll, beforeAll, describe, expect, it } from "vitest";
import { IMPOSTOR } from "../support/faults/impostor.ts";
import { TestServer } from "../support/server/test-server.ts";

let server: TestServer;
let client: Holdfast;
let box: Sandbox;
let other: Sandbox;
beforeAll(async () => {
  server = await TestServer.start();
  client = server.client();
  [box, other] = await Promise.all([
    client.sandboxes.create({ name: "one" }),
    client.sandboxes.create({ name: "two" }),
  ]);
});
afterAll(async () => {
  client.close();
  await server[Symbol.asyncDispose]();
});

const python = (script: string, user?: "root") =>
  box.exec(["/usr/bin/python3", "-c", script], user ? { user } : {});

/** Starts the next server on the same state, as after a crash. */
const restart = async () => {
  await server.kill("SIGKILL");
  await server.start();
  client.close();
  client = server.client();
  [box, other] = await Promise.all([client.sandboxes.get("one"), client.sandboxes.get("two")]);
};

const run = async (command: string, user?: "root") => {
  const { stdout, stderr, exitCode } = await box.exec(command, user ? { user } : {});
  return { out: `${stdout ?? ""}${stderr ?? ""}`, stdout: stdout ?? "", exitCode };
};

describe("inside a sandbox", () => {
  it("commands run as uid 1000 with a home they can write to, without capabilities and without new privileges", async () => {
    const { stdout } = await run(
      "id -u; id -g; echo $HOME; pwd; touch ~/x && echo wrote; grep -E 'CapEff|CapBnd|NoNewPrivs' /proc/self/status",
    );
    expect(stdout).toMatch(/^1000\n1000\n\/home\/user\n\/home\/user\nwrote\n/);
    expect(stdout).toMatch(/CapEff:\s0000000000000000/);
    expect(stdout).toMatch(/NoNewPrivs:\s1/);
  });

  it("root is root only inside: its id outside belongs to no user", async () => {
    const run = await box.execs.start("id -u; sleep 30", { user: "root" });
    for await (const chunk of run.output()) if (chunk.text.includes("0\n")) break;
    const status = readFileSync(`/proc/${server.keeperPid(box.id)}/status`, "utf8");
    const uid = Number(/^Uid:\s+(\d+)/m.exec(status)?.[1]);
    const { base } = JSON.parse(readFileSync(join(server.dir, "ids.json"), "utf8")) as { base: number };
    expect(base).toBeGreaterThanOrEqual(0x7000_0000);
    expect(uid).toBe(base);
    await run.cancel();
  });

  it("nothing of the host is visible: shadow, state directory, other sandboxes' files, processes", async () => {
    await other.files.write("/home/user/secret.txt", "of the other");
    writeFileSync(join(server.dir, "canary"), "host secret");
    const made = mkdtempSync(join(tmpdir(), "holdfast-bystander-"));
    writeFileSync(join(made, "file"), "host secret");
    for (const user of [undefined, "root"] as const) {
      const { out } = await run(
        `cat /etc/shadow; cat ${server.dir}/canary; cat ${server.dir}/admin.key; cat ${made}/file; find / -name secret.txt 2>/dev/null; ls /root/* /var/lib/* 2>&1; ls /proc | grep -E '^[0-9]+$' | wc -l; cat /proc/*/cmdline | tr '\\0' ' '`,
        user,
      );
      expect(out).not.toMatch(/host secret|hf_|secret\.txt\n|root:[$*!]/);
      expect(out).not.toContain("main.ts");
      for (const path of [made, server.dir, "/boot", "/lost+found"])
        expect([path, (await run(`test -e ${path}`, user)).exitCode]).toEqual([path, 1]);
    }
    rmSync(made, { recursive: true });
  });

  it("its root and its control directory are mounted once each, and of the host's file systems only /usr and the keeper's", async () => {
    const { stdout } = await run("cat /proc/self/mountinfo", "root");
    const mounts = stdout
      .trim()
      .split("\n")
      .map((line) => ({ point: line.split(" ")[4] ?? "", type: line.split(" - ")[1]?.split(" ")[0] ?? "" }));
    const points = mounts.map(({ point }) => point);
    for (const point of ["/", "/.holdfast/control"])
      expect(points.filter((each) => each === point)).toEqual([point]);
    const kernels = new Set(["overlay", "proc", "tmpfs", "devpts", "devtmpfs"]);
    const ofHost = mounts.filter(({ type }) => !kernels.has(type)).map(({ point }) => point);
    const shown = (point: string) => /^\/(usr|s?bin|lib\w*|\.holdfast|dev)(\/|$)/.test(point);
    expect(ofHost.filter((point) => !shown(point))).toEqual([]);
  });

  it("the network is loopback only, and up", async () => {
    const { stdout } = await run(
      "cat /proc/net/dev | tail -n +3 | cut -d: -f1 | tr -d ' '; cat /sys/class/net/lo/operstate 2>/dev/null || true",
    );
    expect(stdout.split("\n")[0]).toBe("lo");
    const listen =
      "import socket,threading\ns=socket.create_server(('127.0.0.1',0))\nthreading.Thread(target=lambda:s.accept()).start()\nsocket.create_connection(s.getsockname(),2)\nprint('connected')";
    expect((await box.exec(["/usr/bin/python3", "-c", listen])).stdout).toBe("connected\n");
    const host = createServer((socket) => socket.end("host")).listen(0, "127.0.0.1");
    await new Promise((resolve) => host.once("listening", resolve));
    const { port } = host.address() as { port: number };
    const reach = await box.exec([
      "/usr/bin/python3",
      "-c",
      `import socket\nsocket.create_connection(('127.0.0.1',${port}),2)`,
    ]);
    expect(reach.exitCode).not.toBe(0);
    host.close();
  });

  it("root can't mount, create devices or user namespaces, or change the host's kernel settings", async () => {
    for (const command of [
      "mount -t tmpfs none /mnt",
      "mount --bind / /tmp",
      "mknod /tmp/sda b 8 0",
      "unshare -U true",
      "nsenter -t 1 -m true",
      "dmesg",
      "v=$(cat /proc/sys/kernel/panic) && echo $v > /proc/sys/kernel/panic",
      "echo h > /proc/sysrq-trigger",
      "hostname elsewhere",
    ]) {
      expect([command, (await run(command, "root")).exitCode]).not.toEqual([command, 0]);
    }
  });

  it("root can't change the keeper's limits, and every process can change its own", async () => {
    const limit = (pid: number) =>
      `import resource\ntry:\n  resource.prlimit(${pid}, resource.RLIMIT_NOFILE, (0, 0))\n  print("done")\nexcept OSError as error:\n  print(error.errno)`;
    expect((await python(limit(1), "root")).stdout).toMatch(/^(1|38)\n$/);
    expect(await run("ulimit -n 64 && ulimit -n")).toMatchObject({ stdout: "64\n", exitCode: 0 });
    expect(
      (await python("import resource\nprint(resource.prlimit(1, resource.RLIMIT_CORE))", "root")).stdout,
    ).toBe("(0, 0)\n");
  });

  it("asynchronous I/O contexts, whose number is limited for the whole machine, can't be created", async () => {
    const setup =
      "import ctypes\nlibc=ctypes.CDLL(None,use_errno=True)\nprint(libc.syscall({'x86_64':206}.get(__import__('os').uname().machine,0),64,ctypes.byref(ctypes.c_ulong(0))),ctypes.get_errno())";
    for (const user of [undefined, "root"] as const)
      expect((await python(setup, user)).stdout).toBe("-1 38\n");
  });

  it("root can't trace the keeper", async () => {
    const trace =
      "import ctypes\nlibc=ctypes.CDLL(None,use_errno=True)\nprint(libc.ptrace(16,1,0,0),ctypes.get_errno())";
    expect((await box.exec(["/usr/bin/python3", "-c", trace], { user: "root" })).stdout).toBe("-1 1\n");
    expect((await run("cat /proc/1/mem | head -c 1; cat /proc/1/environ", "root")).exitCode).not.toBe(0);
  });
});

describe("entries that root plants in the control directory", () => {
  it("journals as symlinks reach nothing of the host", async () => {
    const victim = await client.sandboxes.create({ name: "planter" });
    const { stdout } = await victim.exec("ls -ld /.holdfast/control; ls /.holdfast/control 2>&1");
    expect(stdout).toMatch(/denied/);
    await victim.exec(
      `for i in 1 2 3; do ln -sf ${server.dir}/admin.key /.holdfast/control/journals/planted-$i; ln -sf /etc/shadow /.holdfast/control/journals/shadow-$i; done`,
      { user: "root" },
    );
    for (const id of ["planted-1", "shadow-1"]) {
      const run = await victim.execs.start("echo hi", { id });
      await expect(run.result()).rejects.toMatchObject({ code: "exec_refused" });
      const output = await server.fetch(`/v1/execs/${id}/output`);
      expect(await output.text()).not.toMatch(/hf_|root:/);
    }
    expect((await victim.exec("echo still serving")).stdout).toBe("still serving\n");
    await victim.delete();
  });

  it("a listener that imitates the keeper at its socket is not accepted as the keeper", async () => {
    const victim = await client.sandboxes.create({ name: "impostor" });
    const script = ["/usr/bin/python3", "-c", IMPOSTOR];
    const impostor = await victim.execs.start(script, { user: "root" });
    for await (const chunk of impostor.output()) if (chunk.text.includes("listening")) break;
    await restart();
    const heard = join(server.dir, "sandboxes", victim.id, "upper/tmp/heard");
    await expect.poll(() => existsSync(heard), { timeout: 10_000 }).toBe(true);
    const found = await client.sandboxes.get("impostor");
    const proven = await found.verify().then(
      ({ ok }) => ok,
      () => false,
    );
    expect(proven).toBe(false);
    expect((await found.refresh()).status).toBe("degraded");
    expect(new Set(readFileSync(heard, "utf8").trim().split("\n"))).toEqual(new Set(["1"]));
    expect((await found.delete()).status).toBe("terminated");
  });

  it("a symlink to a host's socket in the keeper's place is never followed", async () => {
    const victim = await client.sandboxes.create({ name: "pointer" });
    const heard: string[] = [];
    const path = join(server.dir, "bystander.sock");
    const bystander = createServer((socket) =>
      socket.on("data", (data) => heard.push(data.toString("hex"))),
    ).listen(path);
    await victim.exec(`rm -f /.holdfast/control/keeper.sock; ln -s ${path} /.holdfast/control/keeper.sock`, {
      user: "root",
    });
    await restart();
    const found = await client.sandboxes.get("pointer");
    expect(found.info.status).toBe("degraded");
    expect(heard).toEqual([]);
    bystander.close();
    expect((await found.delete()).status).toBe("terminated");
  });

  it("file paths through symlinks end inside", async () => {
    await box.exec("ln -sf /etc/shadow ~/link; ln -sf / ~/root; ln -sf ../../../../../../../etc/shadow ~/up");
    for (const path of [
      "/home/user/link",
      "/home/user/up",
      "/home/user/root/etc/shadow",
      `/home/user/root${server.dir}/admin.key`,
    ]) {
      const error = await box.files.read(path).then(
        () => null,
        (error: unknown) => error,
      );
      expect(error).toBeInstanceOf(HoldfastError);
      expect((error as HoldfastError).code).toBe("file_not_found");
    }
    for (const path of ["/.holdfast/control/keeper.sock", "/.holdfast/keeper"]) {
      await expect(box.files.read(path)).rejects.toMatchObject({ code: "forbidden_path" });
    }
    await box.exec("ln -s /.holdfast/control/journals /tmp/j", { user: "root" });
    await expect(box.files.list("/tmp/j")).rejects.toMatchObject({ code: "forbidden_path" });
  });
});
