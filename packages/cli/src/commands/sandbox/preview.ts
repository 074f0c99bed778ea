import type { Preview, PreviewTokenInfo } from "@holdfast/sdk";
import type { Command } from "commander";
import { duration, port } from "../../arguments/values.ts";
import type { Context } from "../../context.ts";
import { forEachOf } from "../../each.ts";
import { findSandbox } from "../../lookup.ts";
import { print } from "../../output/streams.ts";
import { age, ahead, asJson, table } from "../../output/table.ts";

export function registerPreview(program: Command, context: Context): void {
  const preview = program
    .command("preview")
    .summary("share ports of sandboxes by link")
    .description(
      "A preview opens one port of a sandbox to everyone who has its link or, with --public, to everyone. It ends when it " +
        "expires, when it is deleted, or with the sandbox. Requests to a preview wake a sandbox in standby; these commands do not.",
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
    .summary("open a port and print its link")
    .argument("<sandbox>", "name or id")
    .argument("<port>", "port that a program inside listens on, now or later", port)
    .option("--name <name>", "name, unique among the sandbox's previews (default: generated)")
    .option("--public", "open the port to everyone; the link contains no token")
    .option(
      "--ttl <time>",
      "close the preview after this long, such as 30m or 8h (default: with the sandbox)",
      duration,
    )
    .option("--token-ttl <time>", "how long the link is valid, such as 10m or 2h (default: 24h)", duration)
    .option("--json", "print the preview as JSON, with its token")
    .description("Opens a port of a sandbox and prints the link. The token in it is shown only once.")
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
      print(json ? asJson(made) : `${made.url}\n`);
    });
}

function registerLs(preview: Command, context: Context): void {
  preview
    .command("ls")
    .summary("list the previews of a sandbox")
    .argument("<sandbox>", "name or id")
    .option("--json", "print the list as JSON")
    .description("Lists the previews of a sandbox, oldest first. Tokens are not shown again.")
    .addHelpText("after", "\nExamples:\n  holdfast preview ls box\n  holdfast preview ls --json box")
    .action(async (sandbox: string, { json }: { json?: boolean }) => {
      const box = await findSandbox(context, sandbox);
      const found = await box.previews.list({ signal: context.interruption.signal });
      print(json ? asJson(found) : listing(found));
    });
}

const listing = (found: readonly Preview[]): string =>
  table(
    ["NAME", "PORT", "OPEN TO", "AGE", "EXPIRES", "URL"],
    found.map((preview) => [
      preview.name,
      String(preview.port),
      preview.public ? "everyone" : "token holders",
      age(preview.createdAt),
      preview.expiresAt === null ? "with the sandbox" : ahead(preview.expiresAt),
      preview.url,
    ]),
  );

function registerRm(preview: Command, context: Context): void {
  preview
    .command("rm")
    .summary("delete previews of a sandbox")
    .argument("<sandbox>", "name or id")
    .argument("<previews...>", "names or ids of previews")
    .description(
      "Deletes previews and prints each one's name or id, as given. Open connections through a preview are closed.",
    )
    .addHelpText("after", "\nExamples:\n  holdfast preview rm box web")
    .action(async (sandbox: string, previews: string[]) => {
      const { signal } = context.interruption;
      const box = await findSandbox(context, sandbox);
      await forEachOf(context, previews, async (which) => {
        await box.previews.delete(which, { signal });
        print(`${which}\n`);
      });
    });
}

function registerToken(preview: Command, context: Context): void {
  preview
    .command("token")
    .summary("create another link to a preview")
    .argument("<sandbox>", "name or id")
    .argument("<preview>", "name or id")
    .option("--ttl <time>", "how long the token is valid, such as 10m or 2h (default: 24h)", duration)
    .option("--json", "print the token as JSON")
    .description(
      "Creates another token for a preview and prints the link with it. The token is shown only once and never outlives the preview.",
    )
    .addHelpText("after", "\nExamples:\n  holdfast preview token --ttl 10m box web")
    .action(async (sandbox: string, which: string, { ttl, json }: { ttl?: number; json?: boolean }) => {
      const { signal } = context.interruption;
      const box = await context.client().sandboxes.get(sandbox, { signal });
      const made = await box.previews.createToken(which, { ttlMs: ttl, signal });
      print(json ? asJson(made) : `${made.url}\n`);
    });
}

function registerTokens(preview: Command, context: Context): void {
  preview
    .command("tokens")
    .summary("list the tokens of a preview, without their secrets")
    .argument("<sandbox>", "name or id")
    .argument("<preview>", "name or id")
    .option("--json", "print the list as JSON")
    .addHelpText("after", "\nExamples:\n  holdfast preview tokens box web")
    .action(async (sandbox: string, which: string, { json }: { json?: boolean }) => {
      const box = await findSandbox(context, sandbox);
      const found = await box.previews.tokens(which, { signal: context.interruption.signal });
      print(json ? asJson(found) : tokenListing(found));
    });
}

const tokenListing = (found: readonly PreviewTokenInfo[]): string =>
  table(
    ["ID", "AGE", "EXPIRES"],
    found.map(({ id, createdAt, expiresAt, expired }) => [
      id,
      age(createdAt),
      expired ? "expired" : ahead(expiresAt),
    ]),
  );

function registerRevoke(preview: Command, context: Context): void {
  preview
    .command("revoke")
    .summary("revoke tokens of a preview")
    .argument("<sandbox>", "name or id")
    .argument("<preview>", "name or id")
    .argument("<tokens...>", "token ids, as listed by 'holdfast preview tokens'")
    .description(
      "Revokes tokens and prints the id of each. Open connections made with a revoked token are closed.",
    )
    .addHelpText("after", "\nExamples:\n  holdfast preview revoke box web 0123456789abcdef")
    .action(async (sandbox: string, which: string, tokens: string[]) => {
      const { signal } = context.interruption;
      const box = await findSandbox(context, sandbox);
      await forEachOf(context, tokens, async (id) => {
        await box.previews.deleteToken(which, id, { signal });
        print(`${id}\n`);
      });
    });
}
