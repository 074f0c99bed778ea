/** Small programs that cause problems on purpose, built on the host and run in sandboxes. */
import { execFileSync } from "node:child_process";
import { mkdtempSync, readFileSync, rmSync, writeFileSync } from "node:fs";
import { tmpdir } from "node:os";
import { join } from "node:path";
import type { Sandbox } from "@holdfast/sdk";

const SOURCES = {
  /** Two threads that each hold a lock that the other one waits for. */
  deadlock: `
    #include <pthread.h>
    #include <unistd.h>
    static pthread_mutex_t one = PTHREAD_MUTEX_INITIALIZER, two = PTHREAD_MUTEX_INITIALIZER;
    static void *other(void *arg) {
      pthread_mutex_lock(&two);
      sleep(1);
      pthread_mutex_lock(&one);
      return arg;
    }
    int main(void) {
      pthread_t thread;
      pthread_create(&thread, 0, other, 0);
      pthread_mutex_lock(&one);
      sleep(1);
      pthread_mutex_lock(&two);
      return 0;
    }`,
  /** Allocates and uses four megabytes every tenth of a second. */
  leak: `
    #include <stdlib.h>
    #include <string.h>
    #include <unistd.h>
    int main(void) {
      for (;;) {
        memset(malloc(4 << 20), 1, 4 << 20);
        usleep(100000);
      }
    }`,
  /** Allocates all available memory at once. */
  glutton: `
    #include <stdlib.h>
    #include <string.h>
    int main(void) {
      for (;;) memset(malloc(8 << 20), 1, 8 << 20);
    }`,
  /** Starts children that end at once, and never reaps them. */
  zombies: `
    #include <unistd.h>
    int main(void) {
      for (int i = 0; i < 30; i++) if (fork() == 0) _exit(0);
      for (;;) pause();
    }`,
} as const;

export type Trouble = keyof typeof SOURCES;

/** Copies one of the programs into a sandbox, and returns its path. */
export async function bring(box: Sandbox, trouble: Trouble): Promise<string> {
  const dir = mkdtempSync(join(tmpdir(), "holdfast-trouble-"));
  try {
    const source = join(dir, `${trouble}.c`);
    const binary = join(dir, trouble);
    writeFileSync(source, SOURCES[trouble]);
    execFileSync("cc", ["-O1", "-static", "-pthread", "-o", binary, source]);
    const path = `/home/user/${trouble}`;
    await box.files.write(path, readFileSync(binary), { mode: "755" });
    return path;
  } finally {
    rmSync(dir, { recursive: true, force: true });
  }
}
