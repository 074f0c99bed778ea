import { ALLOWED, PERSONALITIES, REFUSED, SOCKET_FAMILIES } from "./syscalls.ts";

const EPERM = 1;
const ENOSYS = 38;

/** Every flag of clone that makes a new namespace: mount, cgroup, uts, ipc, user, pid, network. */
const NEW_NAMESPACES = 0x7e02_0000;

/** One architecture: compiling a filter for its 32-bit sisters as well costs more than the rest of a launch's set-up. */
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
 * Default deny. What is not listed answers ENOSYS, so that programs fall back to what they did before it existed; clone3
 * is among those, because its flags lie in memory where a filter can't see them.
 */
export function seccompProfile(arch: NodeJS.Architecture = process.arch) {
  const architecture = ARCHITECTURES[arch];
  if (architecture === undefined) throw new Error(`there is no system call filter for ${arch}`);
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
      // A process may change its own limits and read any; root inside could otherwise take the keeper's away.
      allowWhen("prlimit64", 0, 0),
      allowWhen("prlimit64", 2, 0),
    ],
  };
}
