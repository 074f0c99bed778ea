import { describe, expect, it } from "vitest";
import { commandTitle, redacted } from "./command-title.ts";

describe("the title of a command", () => {
  it("is the name of its program by default", () => {
    expect(commandTitle(["/usr/bin/curl", "-H", "Authorization: Bearer abc"], 0)).toBe("curl");
    expect(commandTitle(["sh", "-c", "PASSWORD=x ./run"], 0)).toBe("sh");
  });

  it("is the beginning of its command line if that is asked for", () => {
    expect(commandTitle(["npm", "run", "build"], 7)).toBe("npm run");
  });

  it("shows no part of a secret that is cut off", () => {
    expect(commandTitle(["tool", "--token", "abcdefghijklmnop"], 16)).toBe("tool --token ***");
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
