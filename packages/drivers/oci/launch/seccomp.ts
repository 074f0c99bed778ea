import { ALLOWED, PERSONALITIES, REFUSED, SOCKET_FAMILIES } from "./syscalls.ts";

const EPERM = 1;
const ENOSYS = 38;

/** All `clone` flags that create a namespace: mount, cgroup, uts, ipc, user, pid, network. */
const NEW_NAMESPACES = 0x7e02_0000;

/**
 * Names of the supported architectures in libseccomp. A filter covers the 64-bit ABI only: compiling one for the 32-bit
 * ABI too takes longer than the rest of a launch's set-up.
 */
const ARCHITECTURES: Partial<Record<NodeJS.Architecture, string>> = {
  x64: "SCMP_ARCH_X86_64",
  arm64: "SCMP_ARCH_AARCH64",
};

const allowWhen = (name: string, index: number, value: number) => ({
  names: [name],
  action: "SCMP_ACT_ALLOW",
  args: [{ index, value, op: "SCMP_CMP_EQ" }],
});

/**
 * Builds the system call filter, which denies by default. Unlisted calls fail with ENOSYS, so that programs fall back
 * to older calls. `clone3` is unlisted on purpose: its flags are in memory, which a filter can't read.
 */
export function seccompProfile(arch: NodeJS.Architecture = process.arch) {
  const architecture = ARCHITECTURES[arch];
  if (architecture === undefined) throw new Error(`no system call filter is defined for ${arch}`);
  return {
    defaultAction: "SCMP_ACT_ERRNO",
    defaultErrnoRet: ENOSYS,
    architectures: [architecture],
    syscalls: [
      { names: [...ALLOWED], action: "SCMP_ACT_ALLOW" },
      { names: [...REFUSED], action: "SCMP_ACT_ERRNO", errnoRet: EPERM },
      {
        names: ["clone"],
        action: "SCMP_ACT_ALLOW",
        args: [{ index: 0, value: NEW_NAMESPACES, valueTwo: 0, op: "SCMP_CMP_MASKED_EQ" }],
      },
      ...SOCKET_FAMILIES.map((family) => allowWhen("socket", 0, family)),
      ...PERSONALITIES.map((persona) => allowWhen("personality", 0, persona)),
      // A process may read the limits of any process, but change only its own limits: the sandbox's root user must not
      // lower the limits of the keeper.
      allowWhen("prlimit64", 0, 0),
      allowWhen("prlimit64", 2, 0),
    ],
  };
}
