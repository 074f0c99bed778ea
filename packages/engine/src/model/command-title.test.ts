import { NUMBERS } from "@holdfast/contract";
import { describe, expect, it } from "vitest";
import { commandTitle, redacted } from "./command-title.ts";

describe("the title of a command", () => {
  it("is the name of its program by default", () => {
    expect(commandTitle(["/usr/bin/curl", "-H", "Authorization: Bearer abc"], 0)).toBe("curl");
    expect(commandTitle(["sh", "-c", "PASSWORD=x ./run"], 0)).toBe("sh");
  });

  it("has no arguments with the default settings", () => {
    expect(commandTitle(["psql", "-c", "select 1"], NUMBERS.eventCommandChars)).toBe("psql");
  });

  it("is the beginning of its command line if that is asked for", () => {
    expect(commandTitle(["npm", "run", "build"], 7)).toBe("npm run");
  });

  it("shows no part of a secret that is cut off", () => {
    expect(commandTitle(["tool", "--token", "abcdefghijklmnop"], 16)).toBe("tool --token ***");
  });
});

describe("redaction of arguments", () => {
  const PEM = "-----BEGIN PRIVATE KEY-----\nhunter2\n-----END PRIVATE KEY-----";
  it.each<[argv: string[], left: string]>([
    [["tool", "--pass", "hunter2"], "tool --pass ***"],
    [["tool", "--password", "hunter2 and more"], "tool --password ***"],
    [["tool", "--password=hunter2 and more", "x"], "tool --password=*** x"],
    [["tool", "--token", "-hunter2", "x"], "tool --token *** x"],
    [["tool", "--key=hunter2"], "tool --key=***"],
    [["env", "DB_PASS=hunter2", "MYSQL_PWD=hunter2", "run"], "env DB_PASS=*** MYSQL_PWD=*** run"],
    [["env", "STRIPE_KEY=hunter2"], "env STRIPE_KEY=***"],
    [["sshpass", "-p", "hunter2", "ssh", "host"], "sshpass -p *** ssh host"],
    [["mysql", "-phunter2", "db"], "mysql -p*** db"],
    [["openssl", "rsa", "-passin", "pass:hunter2"], "openssl rsa -passin ***"],
    [["sudo", "/usr/bin/curl", "-u", "user:hunter2"], "sudo /usr/bin/curl -u ***"],
    [["curl", "-H", "Cookie: session=hunter2; more=hunter2"], "curl -H Cookie: ***"],
    [["curl", "https://host/a?sig=hunter2&key=hunter2"], "curl https://host/a?sig=***"],
    [["psql", "postgres://user:p/w@hunter2@host/db"], "psql postgres://***@host/db"],
    [["echo", PEM, "x"], "echo *** x"],
    [["sh", "-c", "curl -u 'user:hunter2' https://host"], "sh -c curl -u *** https://host"],
    [["sh", "-c", "sshpass -p hunter2 ssh host"], "sh -c sshpass -p *** ssh host"],
    [["sh", "-c", `echo '${PEM}' > key`], "sh -c echo '***' > key"],
  ])("leaves nothing of the secret in %j", (argv, left) => {
    const title = commandTitle(argv, 200);
    expect(title).toBe(left);
    expect(title).not.toContain("hunter2");
  });

  it("leaves ordinary arguments as they are", () => {
    const argv = ["timeout", "--signal", "KILL", "5", "cp", "--passive", "a b", "--author", "me", "-p", "80"];
    expect(commandTitle(argv, 200)).toBe(argv.join(" "));
  });

  it("takes a short time for a long text without a secret", () => {
    const begun = performance.now();
    commandTitle(["echo", "a".repeat(1_000_000)], 2_000);
    expect(performance.now() - begun).toBeLessThan(5_000);
  });
});

describe("redaction", () => {
  it.each([
    ["curl -H 'Authorization: Bearer abc.def'", "abc.def"],
    ["curl https://user:hunter2@example.com/x", "hunter2"],
    ["API_KEY=hunter2 ./run", "hunter2"],
    ["tool --password hunter2 --verbose", "hunter2"],
    ["tool --password='hunter2 and more'", "hunter2"],
    ["tool --db-password=hunter2", "hunter2"],
    ["git clone https://ghp_abcdefghijklmnop1234@github.com/a/b", "ghp_"],
    ["export X=sk-abcdefghijklmnop1234", "sk-abc"],
    ["echo eyJhbGciOi.eyJzdWIiOi.c2ln", "eyJ"],
    ["tool 0123456789abcdef0123456789abcdef", "0123456789abcdef"],
    ['curl -d \'{"client_secret": "hunter2"}\'', "hunter2"],
  ])("removes the secret from: %s", (text, secret) => {
    expect(redacted(text)).not.toContain(secret);
    expect(redacted(text)).toContain("***");
  });

  it.each(["npm run build --verbose", "python -m http.server 8080", "ls -la /home/user/project"])(
    "leaves an ordinary command as it is: %s",
    (text) => expect(redacted(text)).toBe(text),
  );
});
