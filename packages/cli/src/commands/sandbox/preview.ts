import type { Preview, PreviewTokenInfo } from "@holdfast/sdk";
import type { Command } from "commander";
import type { Context } from "../context.ts";
import { forEachOf } from "../each.ts";
import { findSandbox } from "../lookup.ts";
import { age, ahead, asJson, table } from "../table.ts";
import { duration, port } from "../values.ts";

export function registerPreview(program: Command, context: Context): void {
  const preview = program
    .command("preview")
    .summary("open ports of sandboxes to who has a link")
    .description(
      "A preview opens one port of a sandbox to who has its link, and to nobody else; or, with --public, to everybody. It ends by its\n" +
        "time, when it is removed, or with the sandbox. A visit wakes a sandbox that sleeps; these commands do not.",
    )
    .addHelpText(
      "after",
      `
Examples:
  holdfast preview create box 3000
  holdfast preview create --name web --ttl 8h box 3000
  holdfast preview ls box
  holdfast preview token --ttl 10m box web
  holdfast preview rm box web`,
    );
  registerCreate(preview, context);
  registerLs(preview, context);
  registerRm(preview, context);
  registerToken(preview, context);
  registerTokens(preview, context);
  registerRevoke(preview, context);
}

interface CreateOptions {
  name?: string;
  public?: boolean;
  ttl?: number;
  tokenTtl?: number;
  json?: boolean;
}

function registerCreate(preview: Command, context: Context): void {
  preview
    .command("create")
    .summary("open a port, and print the link to it")
    .argument("<sandbox>", "name or id")
    .argument("<port>", "where a program listens inside, or will", port)
    .option("--name <name>", "its name, which no other preview of the sandbox has (default: made up)")
    .option("--public", "open it to everybody: the link has no token in it")
    .option(
      "--ttl <time>",
      "close it after this long, such as 30m or 8h (default: with the sandbox)",
      duration,
    )
    .option("--token-ttl <time>", "how long the link is good for, such as 10m or 2h (default: 24h)", duration)
    .option("--json", "print the preview as JSON, with its token")
    .description("Opens a port of a sandbox and prints the link. The token in it is told once.")
    .addHelpText(
      "after",
      `
Examples:
  holdfast preview create box 3000
  holdfast preview create --name web --ttl 8h --token-ttl 1h box 3000
  holdfast preview create --public box 8080`,
    )
    .action(async (sandbox: string, number: number, options: CreateOptions) => {
      const { name, public: isPublic, ttl: ttlMs, tokenTtl: tokenTtlMs, json } = options;
      const { signal } = context.interruption;
      const box = await context.client().sandboxes.get(sandbox, { signal });
      const made = await box.previews.create(number, { name, public: isPublic, ttlMs, tokenTtlMs, signal });
      process.stdout.write(json ? asJson(made) : `${made.url}\n`);
    });
}

function registerLs(preview: Command, context: Context): void {
  preview
    .command("ls")
    .summary("list the previews of a sandbox")
    .argument("<sandbox>", "name or id")
    .option("--json", "print them as JSON")
    .description("Lists the previews of a sandbox, oldest first. Tokens are not shown again.")
    .addHelpText("after", "\nExamples:\n  holdfast preview ls box\n  holdfast preview ls --json box")
    .action(async (sandbox: string, { json }: { json?: boolean }) => {
      const box = await findSandbox(context, sandbox);
      const found = await box.previews.list({ signal: context.interruption.signal });
      process.stdout.write(json ? asJson(found) : listing(found));
    });
}

const listing = (found: readonly Preview[]): string =>
  table(
    ["NAME", "PORT", "OPEN TO", "AGE", "ENDS", "URL"],
    found.map((preview) => [
      preview.name,
      String(preview.port),
      preview.public ? "everybody" : "who has a token",
      age(preview.createdAt),
      preview.expiresAt === null ? "with the sandbox" : ahead(preview.expiresAt),
      preview.url,
    ]),
  );

function registerRm(preview: Command, context: Context): void {
  preview
    .command("rm")
    .summary("close previews of a sandbox")
    .argument("<sandbox>", "name or id")
    .argument("<previews...>", "their names or ids")
    .description("Closes previews and prints each as it was named. What came in by one is cut.")
    .addHelpText("after", "\nExamples:\n  holdfast preview rm box web")
    .action(async (sandbox: string, previews: string[]) => {
      const { signal } = context.interruption;
      const box = await findSandbox(context, sandbox);
      await forEachOf(context, previews, async (which) => {
        await box.previews.delete(which, { signal });
        process.stdout.write(`${which}\n`);
      });
    });
}

function registerToken(preview: Command, context: Context): void {
  preview
    .command("token")
    .summary("print one more link to a preview")
    .argument("<sandbox>", "name or id")
    .argument("<preview>", "name or id")
    .option("--ttl <time>", "how long it is good for, such as 10m or 2h (default: 24h)", duration)
    .option("--json", "print the token as JSON")
    .description(
      "Makes one more token for a preview and prints the link with it. It is told once, and never outlives the preview.",
    )
    .addHelpText("after", "\nExamples:\n  holdfast preview token --ttl 10m box web")
    .action(async (sandbox: string, which: string, { ttl, json }: { ttl?: number; json?: boolean }) => {
      const { signal } = context.interruption;
      const box = await context.client().sandboxes.get(sandbox, { signal });
      const made = await box.previews.createToken(which, { ttlMs: ttl, signal });
      process.stdout.write(json ? asJson(made) : `${made.url}\n`);
    });
}

function registerTokens(preview: Command, context: Context): void {
  preview
    .command("tokens")
    .summary("list the tokens of a preview, without their secrets")
    .argument("<sandbox>", "name or id")
    .argument("<preview>", "name or id")
    .option("--json", "print them as JSON")
    .addHelpText("after", "\nExamples:\n  holdfast preview tokens box web")
    .action(async (sandbox: string, which: string, { json }: { json?: boolean }) => {
      const box = await findSandbox(context, sandbox);
      const found = await box.previews.tokens(which, { signal: context.interruption.signal });
      process.stdout.write(json ? asJson(found) : tokenListing(found));
    });
}

const tokenListing = (found: readonly PreviewTokenInfo[]): string =>
  table(
    ["ID", "AGE", "ENDS"],
    found.map(({ id, createdAt, expiresAt, expired }) => [
      id,
      age(createdAt),
      expired ? "is over" : ahead(expiresAt),
    ]),
  );

function registerRevoke(preview: Command, context: Context): void {
  preview
    .command("revoke")
    .summary("take tokens of a preview back")
    .argument("<sandbox>", "name or id")
    .argument("<preview>", "name or id")
    .argument("<tokens...>", "their ids, as 'holdfast preview tokens' shows them")
    .description("Takes tokens back and prints the id of each. What came in by one is cut.")
    .addHelpText("after", "\nExamples:\n  holdfast preview revoke box web 0123456789abcdef")
    .action(async (sandbox: string, which: string, tokens: string[]) => {
      const { signal } = context.interruption;
      const box = await findSandbox(context, sandbox);
      await forEachOf(context, tokens, async (id) => {
        await box.previews.deleteToken(which, id, { signal });
        process.stdout.write(`${id}\n`);
      });
    });
}
